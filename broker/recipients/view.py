"""What can be seen of a broker's recipients: as requests, $SYS, metrics and the command line show it. Plain values only."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from .handover.records import Step, choose, iso
from .machine import State

if TYPE_CHECKING:
    from .handover.records import Record
    from .recipient import Recipient
    from .shell import Recipients

SHOWN = 100  # sessions without a declaration that are named


def describe(recipients: Recipients, name: str | None = None) -> list[dict[str, Any]]:
    """All recipients whose home is here, or one of them, as objects for JSON; times in ISO 8601, intervals in seconds."""
    found = [one for one in recipients.local.values() if name is None or one.name == name]
    return [_one(recipients, one) for one in sorted(found, key=lambda one: one.name)]


def _one(recipients: Recipients, one: Recipient) -> dict[str, Any]:
    offset = recipients.context.wall() - recipients.context.loop.time()
    intervals, machine, counts = one.application.intervals, one.machine, one.counts
    return {
        "name": one.name,
        "site": recipients.site,
        "state": machine.state.value,
        "since": iso(machine.since + offset),
        "held": one.held,
        "clients": one.application.clients,
        "connected": [session.client_id for session in one.sessions if session.connection is not None],
        "queue": one.waiting,
        "in_flight": one.in_flight,
        "probe": one.probing,
        "message_interval": intervals.message,
        "fault_interval": intervals.fault,
        "defunct_interval": intervals.defunct,
        "alternatives": [alternative(name, recipients.record(name)) for name in one.application.alternatives],
        "consents": one.application.consents,
        "acknowledged": counts.acknowledged,
        "failed_over": counts.failed_over,
        "returned": counts.returned,
        "repeated": counts.repeated,
        "succeeded": counts.succeeded,
        "history": [
            {"at": iso(change.at + offset), "from": change.before.value, "to": change.after.value, "why": change.why}
            for change in machine.history
        ],
    }


def alternative(name: str, record: Record | None) -> dict[str, Any]:
    """One of a recipient's alternatives. record: what is known of it."""
    if record is None:
        return {"name": name, "state": "unknown", "site": None}
    return {"name": name, "state": record.state.value, "site": record.site}


def explain(recipients: Recipients, name: str) -> dict[str, Any] | None:
    """Where a message for a name would go now, and why; None: nobody knows the name."""
    record = recipients.record(name)
    if record is None:
        return None
    if record.state is State.OPERATIONAL and not record.held and recipients.reachable(record.broker):
        own = Step(name, record.site, record.state.value, "takes it", True)
        return {"steps": [_step(own)], "goes_to": name}
    if record.held:
        return {"steps": [_step(Step(name, record.site, record.state.value, "an operator holds it: the message waits"))], "goes_to": name}
    if not recipients.reachable(record.broker):
        own = Step(name, record.site, record.state.value, "its broker cannot be reached: the message waits")
        return {"steps": [_step(own)], "goes_to": name}
    steps, chosen = choose(name, [name], recipients.record, recipients.reachable)
    own = Step(name, record.site, record.state.value, f"it is known to be in {record.state.name}")
    return {"steps": [_step(one) for one in (own, *steps)], "goes_to": chosen.name if chosen is not None else "the originator"}


def _step(step: Step) -> dict[str, Any]:
    return {"recipient": step.recipient, "site": step.site, "state": step.state, "answer": step.answer}


def values(recipients: Recipients) -> dict[str, str]:
    """For `$SYS/broker/recipients/`, name -> value."""
    states = count_states(recipients)
    counts = recipients.failover.counts
    found = {f"recipients/{state.value}": str(states[state]) for state in State}
    found |= {f"recipients/{name.replace('_', '-')}": str(count) for name, count in counts.items()}
    found["recipients/sessions-in-fault"] = str(len(recipients.sampler.faulty(recipients.context.loop.time())))
    return found


def count_states(recipients: Recipients) -> Counter[State]:
    """How many of those whose home is here are in each state."""
    states: Counter[State] = Counter(one.state for one in recipients.ailing if one.state is not State.OPERATIONAL)
    states[State.OPERATIONAL] = len(recipients.local) - states.total()
    return states


def others(recipients: Recipients) -> dict[str, Any]:
    """Sessions that declared nothing and take nothing: how many, and the first ones."""
    faulty = recipients.sampler.faulty(recipients.context.loop.time())
    return {"fault": len(faulty), "clients": sorted(faulty)[:SHOWN]}
