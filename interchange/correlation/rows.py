"""A call of the exchange as rows of the tables."""

from __future__ import annotations

from typing import Any

from ..calls import Branch, Call, Hop, State

OPEN = "open"
ORDER = (State.FAILED, State.EXPIRED, State.CANCELLED, State.ANSWERED, State.DELIVERED)  # of a call with several ends the first one counts
STATUSES = (OPEN, *(one.value for one in ORDER))


def status_of(call: Call) -> str:
    """How a call stands: open until all its branches have ended."""
    states = {branch.state for branch in call.branches}
    return OPEN if any(not one.ended for one in states) else next(one.value for one in ORDER if one in states)


def shown(call: Call) -> dict[str, Any]:
    """A call and its hops, as queries show them; nothing of what its messages say."""
    header = call.header
    made = {
        "call": call.id,
        "session": call.session,
        "kind": header.kind.value,
        "sender": header.sender,
        "status": status_of(call),
        "created": call.created,
        "expires": call.expires,
        "ended": call.ended or None,
        "recipients": [_branch(branch) for branch in call.branches],
    }
    texts = {"topic": header.topic, "handle": header.handle, "trace": header.trace}
    return made | {key: value for key, value in texts.items() if value}


def _branch(branch: Branch) -> dict[str, Any]:
    """The way to one recipient: the route that was calculated, and the hops that it has made."""
    made: dict[str, Any] = {
        "recipient": branch.recipient,
        "state": branch.state.value,
        "route": [{"service": one.to.service, "revision": one.revision} for one in (*branch.out, *branch.back)],
        "hops": [_hop(branch, hop) for hop in branch.hops],
    }
    return made | {key: value for key, value in (("number", branch.number), ("code", branch.code), ("reason", branch.reason)) if value}


def _hop(branch: Branch, hop: Hop) -> dict[str, Any]:
    made: dict[str, Any] = {"hop": hop.id, "service": hop.service, "kind": hop.kind, "size": hop.size, "given": hop.given}
    made["status"] = _hop_status(branch, hop)
    more = {"ended": hop.ended, "acknowledged": hop.acknowledged, "received": hop.received, "sent": hop.sent}
    return made | {key: value for key, value in more.items() if value}


def _hop_status(branch: Branch, hop: Hop) -> str:
    """Whether the service has done its part of it."""
    if hop.ended:
        return "completed"
    if branch.state.ended:
        return branch.state.value
    return "acknowledged" if hop.acknowledged else "waiting"
