"""Changes at a broker, as messages at `$mqmesh/events/KIND`, with a sequence, so that who listens sees a gap (docs/management.md).

    {"sequence": 812, "life": 1763850000000, "site": "porto", "at": 1763853600.123, "event": "connected", "client": "sensor-17", ...}

sequence counts all events of one life of the broker, whatever their kind. Clients with the role viewer at this site get them, if they are
subscribed to a filter that begins with `$mqmesh/events/`; others get none. Nobody waits for them: without a listener an event is a number.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...mqtt.batch.run import Run
from ..auth.operators import rights_of
from ..auth.roles import Role
from ..routing.publication import Publication
from ..routing.route import Entry

if TYPE_CHECKING:
    from ..site import Site

TOPIC = "$mqmesh/events/"
KINDS = ("clients", "sessions", "links", "queues", "actions")  # and "recipients" (`broker/recipients/shell.py`)


class Events:
    """Tells listeners of one broker what changes."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._topics = {kind: (TOPIC + kind).encode() for kind in KINDS}
        site.context.event = self.say

    def say(self, kind: str, values: dict[str, Any]) -> None:
        """Something has changed. It is sent with what is written next."""
        context, router = self._site.context, self._site.router
        context.events += 1
        topic = self._topics[kind]
        route = router.routes.get(topic) or router.route(topic)
        if not route.targets:
            return
        event = {"sequence": context.events, "life": context.life, "site": self._site.config.name, "at": round(context.wall(), 3), **values}
        run = Run(topic, 1, False, [json.dumps(event, separators=(",", ":")).encode()], received=context.now)
        named = {
            one.session for one in router.tree.match(topic.decode()) if isinstance(one, Entry) and one.subscription.filter.startswith(TOPIC)
        }
        for target in route.targets:
            if target.session in named and self._listens(target.session.connection):
                router.deliver_to(run, target, Publication())

    def _listens(self, connection: Any) -> bool:
        return connection is not None and rights_of(self._site.guard, connection).at(self._site.config.name).may(Role.VIEWER)
