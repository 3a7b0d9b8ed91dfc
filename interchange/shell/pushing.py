"""Pushes to services whose inboxes are at this broker: the feeds (`gateway/push.py`), a client inside the broker, and the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...base.interchange import clients_of
from ...mqtt.packets import Publish
from ...mqtt.properties import Property, encode_properties
from ..gateway.desk import open_line
from ..gateway.line import Line, Login
from ..gateway.push import MARK, Pushes, Target
from ..gateway.webhook import Sender

if TYPE_CHECKING:
    from ...broker.server import Broker
    from ...broker.settings.interchange import InterchangeSettings
    from ..registry.records import Registry
    from .keeping import Keeping

log = logging.getLogger("mqmesh.interchange")

OWN = "mqmesh-"  # how user properties begin that the broker writes
OF_A_DELIVERY = (Property.MESSAGE_EXPIRY_INTERVAL, Property.SUBSCRIPTION_IDENTIFIER, Property.USER_PROPERTY)

Put = Callable[[str, bytes, bytes, int | None], bool]  # puts payload and properties into the inbox of a service, for so many seconds


class Pushing:
    """The pushes of one interchange. put: False: not now. now: milliseconds since 1970."""

    def __init__(self, broker: Broker, settings: InterchangeSettings, put: Put, keeping: Keeping, now: Callable[[], int]) -> None:
        self._broker = broker
        self._put, self._keeping = put, keeping
        self._site = broker.config.name
        sender = Sender(settings.push_networks, settings.push_ca, settings.push_certificate, settings.push_key)
        self._pushes = Pushes(sender, self._connect, self._put_back, now)

    def renew(self, registry: Registry) -> None:
        """Push to the services of a registry from now on."""
        self._pushes.renew(
            {
                one.name: Target(one.push, one.as_json)
                for one in registry.services.values()
                if one.push is not None and one.has_inbox_at(self._site)
            }
        )

    async def stop(self) -> None:
        """Push no more."""
        await self._pushes.stop()

    async def _connect(self, number: int) -> Line:
        line = Line(Login(), pings=False, client=clients_of(self._site)[number])
        self._broker.connect_inside(line, _failed)
        return await open_line(line)

    async def _put_back(self, service: str, message: Publish) -> bool:
        """Put a message that was pushed in vain into its inbox again: whether it is kept there."""
        properties = {name: value for name, value in message.properties.items() if name not in OF_A_DELIVERY}
        pairs = [pair for pair in message.properties.get(Property.USER_PROPERTY, []) if not pair[0].startswith(OWN)]
        properties[Property.USER_PROPERTY] = [*pairs, (MARK, "failed")]
        life = message.properties.get(Property.MESSAGE_EXPIRY_INTERVAL)
        context = self._broker.context
        context.refresh()
        if not self._put(service, message.payload, encode_properties(properties), life):
            return False
        kept = asyncio.Event()
        self._keeping.need_commit()
        self._keeping.when_kept(kept.set)
        context.flush()
        await kept.wait()
        return True


def _failed(error: Exception) -> None:
    log.error("event=internal-error work=interchange-push", exc_info=error)
