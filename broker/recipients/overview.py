"""A broker's recipients as operators see them: those whose home is here (`view.py`), and the records of others.

Of a recipient elsewhere only what its record says is known. Actions are the home's. `requests/recipients.py`, `$SYS` and metrics show it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...mqtt.errors import UsageError
from . import view
from .handover.records import choose, iso, refusal
from .machine import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from .handover.records import Record
    from .shell import Recipients

NAMED = 20  # recipients
TOTALS = ("failed_over", "returned", "dead_lettered", "repeated")


class Overview:
    """See `requests.recipients.Administration`. recipients: of the broker."""

    def __init__(self, recipients: Recipients) -> None:
        self._all = recipients

    def describe(self) -> list[dict[str, Any]]:
        """See `requests.recipients.Administration`: by name."""
        found = {name: self._elsewhere(record) for name, record in self._all.remote.items()}
        found |= {one["name"]: one for one in self._all.describe()}
        return [found[name] for name in sorted(found)]

    def others(self) -> dict[str, Any]:
        """See `requests.recipients.Administration`."""
        return view.others(self._all)

    def explain(self, name: str) -> dict[str, Any]:
        """See `requests.recipients.Administration`."""
        found = self._all.explain(name)
        if found is None:
            raise _unknown(name)
        return {"name": name, **found}

    def hold(self, name: str) -> dict[str, Any]:
        """See `requests.recipients.Administration`."""
        return self._act(name, self._all.operating.hold)

    def resume(self, name: str) -> dict[str, Any]:
        """See `requests.recipients.Administration`."""
        return self._act(name, self._all.operating.resume)

    def defunct(self, name: str) -> dict[str, Any]:
        """See `requests.recipients.Administration`."""
        return self._act(name, self._all.operating.defunct)

    def move(self, name: str, to: str | None) -> dict[str, Any]:
        """See `requests.recipients.Administration`."""
        self._known(name)
        if to is None:
            _, chosen = choose(name, [name], self._all.record, self._all.reachable)
            if chosen is None:
                raise UsageError(f"no alternative of {name!r} takes its messages now: name one")
            to = chosen.name
        record = self._known(to)
        other = record.name
        if other == name:
            raise UsageError(f"{name!r} has its messages already")
        why = refusal(name, record, self._all.reachable) or self._all.operating.forbids(other, name)
        if why is not None:
            raise UsageError(f"{other!r} does not take messages of {name!r} now: {why}")
        return self._act(name, lambda one: self._all.operating.move(one, other))

    def totals(self) -> dict[str, int]:
        """Counts for metrics: of the recipients whose home is here, and of this broker's fail-overs."""
        states = view.count_states(self._all)
        counts = self._all.failover.counts
        return {state.value: states[state] for state in State} | {name: counts[name] for name in TOTALS}

    def values(self) -> dict[str, str]:
        """name below `$SYS/broker` -> value: the counts, and the first `NAMED` of those here that are in FAULT or DEFUNCT."""
        dead = sorted(one.name for one in self._all.ailing if one.state is not State.OPERATIONAL)
        return view.values(self._all) | {"recipients/dead": json.dumps(dead[:NAMED])}

    def _known(self, name: str) -> Record:
        record = self._all.record(name)
        if record is None:
            raise _unknown(name)
        return record

    def _act(self, name: str, deed: Callable[[str], bool]) -> dict[str, Any]:
        record = self._known(name)
        if name not in self._all.local:
            raise UsageError(f"the home of {name!r} is {record.site}: ask that broker")
        if not deed(name):
            raise UsageError(f"{name!r} does not take this now")
        return self._all.describe(name)[0]

    def _elsewhere(self, record: Record) -> dict[str, Any]:
        state = record.state.value if self._all.reachable(record.broker) else "unreachable"
        return {
            "name": record.name,
            "site": record.site,
            "state": state,
            "since": iso(record.since),
            "held": record.held,
            "queue": record.queue,
            "alternatives": [view.alternative(one, self._all.record(one)) for one in record.alternatives],
        }


def _unknown(name: str) -> UsageError:
    return UsageError(f"there is no recipient {name[:200]!r}")
