"""A broker's recipients as operators see them: those whose home is here, and the records of others.

Counts and intervals are those of the home broker; of a recipient elsewhere only what its record says is known. Actions are the home's.
`requests/recipients.py`, `$SYS` and metrics show it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...mqtt.errors import UsageError
from .machine import State
from .records import choose
from .shell import iso

if TYPE_CHECKING:
    from collections.abc import Callable

    from .recipient import Recipient
    from .records import Record
    from .shell import Recipients

NAMED = 20  # recipients
TOTALS = ("failed_over", "returned", "dead_lettered", "repeated")


class Overview:
    """See `requests.recipients.Administration`. recipients: of the broker."""

    def __init__(self, recipients: Recipients) -> None:
        self._all = recipients

    def describe(self) -> list[dict[str, Any]]:
        """See `requests.recipients.Administration`: by name."""
        names = sorted({*self._all.local, *self._all.remote})
        return [self._shown(name) for name in names]

    def explain(self, name: str) -> dict[str, Any]:
        """See `requests.recipients.Administration`."""
        record = self._known(name)
        state = record.state.value
        first: dict[str, Any] = {"recipient": name, "site": record.site, "state": state}
        if record.held:
            return {"name": name, "steps": [first | {"answer": "an operator holds it: messages wait"}], "goes_to": name}
        reachable = self._all.reachable(record.broker)
        if record.state is State.OPERATIONAL or not reachable:
            answer = "takes it" if reachable else "its broker cannot be reached: messages wait for it"
            return {"name": name, "steps": [first | {"answer": answer}], "goes_to": name}
        steps, chosen = choose(name, [name], self._all.record, self._all.reachable, self._all.alternatives())
        shown = [first | {"answer": f"it is in {record.state.name}"}]
        shown += [{"recipient": one.recipient, "site": one.site, "state": one.state, "answer": one.answer} for one in steps]
        return {"name": name, "steps": shown, "goes_to": chosen.name if chosen is not None else "its originator, else the dead letters"}

    def hold(self, name: str) -> dict[str, Any]:
        """See `requests.recipients.Administration`."""
        return self._act(name, self._all.hold)

    def resume(self, name: str) -> dict[str, Any]:
        """See `requests.recipients.Administration`."""
        return self._act(name, self._all.resume)

    def defunct(self, name: str) -> dict[str, Any]:
        """See `requests.recipients.Administration`."""
        return self._act(name, self._all.defunct)

    def move(self, name: str, to: str | None) -> dict[str, Any]:
        """See `requests.recipients.Administration`."""
        if to is None:
            record = self._known(name)
            _, chosen = choose(name, [name], self._all.record, self._all.reachable, self._all.alternatives())
            if chosen is None:
                raise UsageError(f"no alternative of {record.name!r} takes its messages now: name one")
            to = chosen.name
        other = to
        self._known(other)
        if other == name:
            raise UsageError(f"{name!r} has its messages already")
        return self._act(name, lambda one: self._all.move(one, other))

    def totals(self) -> dict[str, int]:
        """Counts for `$SYS/broker/recipients/` and metrics: of the recipients whose home is here, and of this broker's fail-overs."""
        states = [one.state for one in self._all.local.values()]
        counts = self._all.failover.counts
        return {state.value: states.count(state) for state in State} | {name: counts[name] for name in TOTALS}

    def values(self) -> dict[str, str]:
        """name below `$SYS/broker` -> value: the totals, and the first `NAMED` of those here that are in FAULT or DEFUNCT."""
        dead = sorted(name for name, one in self._all.local.items() if one.state is not State.OPERATIONAL)
        shown = {f"recipients/{name.replace('_', '-')}": str(count) for name, count in self.totals().items()}
        return shown | {"recipients/dead": json.dumps(dead[:NAMED])}

    def _known(self, name: str) -> Record:
        record = self._all.record(name)
        if record is None:
            raise UsageError(f"there is no recipient {name[:200]!r}")
        return record

    def _act(self, name: str, deed: Callable[[str], bool]) -> dict[str, Any]:
        record = self._known(name)
        if name not in self._all.local:
            raise UsageError(f"the home of {name!r} is {record.site}: ask that broker")
        if not deed(name):
            raise UsageError(f"{name!r} does not take this now")
        return self._shown(name)

    def _shown(self, name: str) -> dict[str, Any]:
        record = self._known(name)
        found: dict[str, Any] = {
            "name": name,
            "site": record.site,
            "state": record.state.value,
            "since": iso(record.since),
            "queue": record.queue,
            "probe": record.probe,
            "held": record.held,
            "alternatives": [self._alternative(one) for one in record.alternatives],
        }
        recipient = self._all.local.get(name)
        return found if recipient is None else found | self._own(recipient)

    def _alternative(self, name: str) -> dict[str, Any]:
        record = self._all.record(name)
        if record is None:
            return {"name": name, "state": "unknown", "site": None}
        state = record.state.value if self._all.reachable(record.broker) else "unreachable"
        return {"name": name, "state": state, "site": record.site}

    def _own(self, recipient: Recipient) -> dict[str, Any]:
        message, fault, defunct = recipient.application.intervals
        counts, context = recipient.counts, self._all.context
        offset = context.wall() - context.loop.time()
        history = [
            {"at": iso(one.at + offset), "from": one.before.value, "to": one.after.value, "why": one.why}
            for one in recipient.machine.history
        ]
        return {
            "clients": list(recipient.application.clients),
            "connected": recipient.connected,
            "in_flight": recipient.in_flight,
            "message_interval": message,
            "fault_interval": fault,
            "defunct_interval": defunct,
            "acknowledged": counts.acknowledged,
            "failed_over": counts.failed_over,
            "returned": counts.returned,
            "repeated": counts.repeated,
            "succeeded": counts.succeeded,
            "history": history,
        }
