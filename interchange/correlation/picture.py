"""A session as lines of text: its calls in their order, and for each recipient the hops of the message, with their times.

It shows what an answer to a query has (docs/interchange.md, "What became of a message").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from ...base.plural import counted

Row = Mapping[str, Any]


def picture(answer: Row) -> Iterator[str]:
    """All sessions of an answer, the earliest first."""
    for session in sorted(answer["sessions"], key=lambda one: one["begun"]):
        calls = [one for one in answer["calls"] if one["session"] == session["session"]]
        calls.sort(key=lambda one: (one["created"], one["call"]))
        yield f"session {session['session']}  {moment(session['begun'])}  {counted(len(calls), 'call')}, {_length(session)}"
        for call in calls:
            yield from _call(call, session["begun"])
    for site, why in sorted(answer["missing"].items()):
        yield f"{site} has not told what it knows: {why}"


def moment(milliseconds: int) -> str:
    """A time of day with its date, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _length(session: Row) -> str:
    return "still open" if session["ended"] is None else f"{(session['ended'] - session['begun']) / 1000:.3f} s"


def _call(call: Row, begun: int) -> Iterator[str]:
    about = "".join(f"  {name} {call[name]}" for name in ("topic", "handle") if name in call)
    yield f"  {call['kind']} of {call['sender']}  call {call['call']}  {call['status']}{about}"
    for branch in call["recipients"]:
        code = f": {branch['code']}" if branch.get("code", branch["state"]) != branch["state"] else ""
        reason = f" ({branch['reason']})" if branch.get("reason") else ""
        number = f", response {branch['number']}" if "number" in branch else ""
        yield f"    to {branch['recipient']}{number}: {branch['state']}{code}{reason}"
        yield from _hops(call, branch, begun)


def _hops(call: Row, branch: Row, begun: int) -> Iterator[str]:
    rows: list[tuple[str, ...]] = []
    first = next((hop["kind"] for hop in branch["hops"]), "")
    holder = branch["recipient"] if first == "response" else call["sender"]  # one of several responses has a branch of its own
    for hop in branch["hops"]:
        came_from = str({"cancel": call["sender"], "error": branch["recipient"]}.get(hop["kind"], holder))
        holder = hop["service"]
        at, size = f"{(hop['given'] - begun) / 1000:+.3f} s", f"{hop['size']:,} B"
        rows.append((at, came_from, hop["service"], hop["kind"], size, _standing(hop)))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(6)]
    for at, one, other, kind, size, standing in rows:
        line = f"{at:>{widths[0]}}  {one:>{widths[1]}} -> {other:<{widths[2]}}  {kind:<{widths[3]}}  {size:>{widths[4]}}  {standing}"
        yield f"      {line.rstrip()}"


def _standing(hop: Row) -> str:
    """What became of a hop: how long its service had it."""
    if hop["status"] != "completed":
        return str(hop["status"])
    took = (hop["ended"] - hop["given"]) / 1000
    return f"{took:.3f} s" if took else ""
