"""A message's whole way as a timeline: its steps at all brokers, in their order, and whether it is complete.

Clocks of two brokers differ. A message cannot arrive before it was sent: where a broker's first step seems to come before another
broker sent the message there, its steps of this message are moved on by the difference. The times that are kept are the brokers' own;
`moved` says how far a step was moved to find its place.

It knows events, not where they come from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...broker.journal.kinds import NOBODY, NONE, QUEUE_STATES, Kind, MessageId, QueueState

COMPLETE, NOT_RECEIVED, NO_END, UNKNOWN, REFUSED = "complete", "not received", "no end", "publication unknown", "refused"
STATUS = (COMPLETE, NOT_RECEIVED, NO_END, UNKNOWN, REFUSED)
ENDS = (Kind.ACKNOWLEDGED, Kind.DROPPED, Kind.EXPIRED, Kind.RETURNED, Kind.FAILED_OVER)
OUTCOMES = (QueueState.UNUSABLE, QueueState.DONE, QueueState.EXPIRED, QueueState.JOURNALLED)
_KNOWN = frozenset(map(int, Kind))
_ORDER = {Kind.PUBLISHED: 0, Kind.REFUSED: 0, Kind.CUSTODY_TAKEN: 1, Kind.RECEIVED: 2, Kind.FORWARDED: 3, Kind.DELIVERED: 4}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One event of a message. name: of the kind, such as "delivered". value: its meaning depends on the kind.

    time: microseconds since 1970, the broker's clock. moved: microseconds by which it was moved on to find its place.
    """

    name: str
    time: int
    broker: int
    client: str | None = None
    from_broker: int | None = None
    to_broker: int | None = None
    recipient: str | None = None
    reason: str | None = None
    qos: int = 0
    value: int = 0
    moved: int = 0
    detail: str | None = None


@dataclass(slots=True)
class Story:
    """One message. status: one of `STATUS`; why: what is missing, in words. call, session: numbers of the journal, 0 for none.

    source: where it was found: "live", "journal" or "tables".
    """

    message: str
    topic: str | None = None
    account: str | None = None
    publisher: str | None = None
    published: int = 0
    size: int = 0
    qos: int = 0
    call: int = 0
    session: int = 0
    trace: str | None = None
    parent: str | None = None
    status: str = UNKNOWN
    why: str | None = None
    steps: list[Step] = field(default_factory=list)
    source: str = "journal"

    @property
    def ended(self) -> int:
        """The time of the last step, on the clocks as moved."""
        return max((step.time + step.moved for step in self.steps), default=self.published)

    @property
    def path(self) -> list[int]:
        """The brokers that it reached, in order."""
        return list(dict.fromkeys(step.broker for step in self.steps))

    def values(self) -> dict[str, Any]:
        """For JSON: calls and sessions as they are written in a command, numbers as numbers."""
        made = asdict(self)
        made["steps"] = [{key: value for key, value in step.items() if value is not None} for step in made["steps"]]
        return made | {"microseconds": self.ended - self.published if self.published else None, "path": self.path}


def stories(events: Iterable[Row], names: Callable[[int], str | None], source: str = "journal") -> list[Story]:
    """One story for each message of these events, the newest first. events: rows of the journal, one for each message (`expand`)."""
    by_message: dict[MessageId, list[Row]] = {}
    for row in events:
        by_message.setdefault(MessageId(row["origin"], row["origin_epoch"], row["stream"], row["sequence"]), []).append(row)
    made = [story(message, rows, names, source) for message, rows in by_message.items()]
    return sorted(made, key=lambda one: (one.published, one.message), reverse=True)


def story(message: MessageId, rows: list[Row], names: Callable[[int], str | None], source: str = "journal") -> Story:
    """The story of one message. rows: its events, each once."""
    rows = _unique(rows)

    def name(number: int) -> str | None:
        return (names(number) or str(number)) if number != NONE else None

    def first(column: str) -> Any:
        return next((row[column] for row in rows if row[column]), None)

    published = [row for row in rows if row["kind"] == Kind.PUBLISHED]
    made = Story(str(message), source=source)
    made.topic, made.account = name(first("topic") or NONE), name(first("account") or NONE)
    put = [row for row in rows if _is_put(row)]
    made.publisher = name((published or put)[0]["client"]) if published or put else None
    made.published, made.size = first("published") or 0, first("size") or 0
    made.qos = published[0]["qos"] if published else max((row["qos"] for row in rows), default=0)
    made.call, made.session = first("call") or 0, first("session") or 0
    made.trace, made.parent = first("trace"), first("parent")
    made.status, made.why = standing(rows)
    shifts = _shifts(message.origin, rows)
    depth = {broker: place for place, broker in enumerate(shifts)}
    for row in sorted(rows, key=lambda row: _place(row, shifts, depth)):
        made.steps.append(_step(row, name, shifts.get(row["broker"], 0)))
    return made


def standing(rows: Iterable[Row]) -> tuple[str, str | None]:
    """Whether a message is complete, and why it is not (docs/journal.md). rows: all of its events."""
    rows = list(rows)
    kinds = {row["kind"] for row in rows}
    if kinds == {Kind.QUEUE_STATE}:
        return _queued(rows)
    if Kind.PUBLISHED not in kinds:
        return (REFUSED, None) if Kind.REFUSED in kinds else (UNKNOWN, "its publication is not in the journal")
    wanted = max(row["value"] for row in rows if row["kind"] == Kind.PUBLISHED)
    arrived = {row["broker"] for row in rows if row["kind"] == Kind.RECEIVED and row["broker"] != row["origin"]}
    if len(arrived) < wanted:
        return NOT_RECEIVED, f"{len(arrived)} of {wanted} brokers have received it"
    targets = sum(row["value"] for row in rows if row["kind"] == Kind.RECEIVED)
    ends = [row for row in rows if row["kind"] in ENDS or (row["kind"] == Kind.DELIVERED and not row["qos"])]
    if len(ends) < targets:
        return NO_END, f"{len(ends)} of {targets} recipients have an end"
    return COMPLETE, None


def _is_put(row: Row) -> bool:
    return bool(row["kind"] == Kind.QUEUE_STATE and row["value"] == QueueState.PUT)


def _queued(rows: list[Row]) -> tuple[str, str | None]:
    """The same of a message in a queue: each of its groups has an outcome."""
    put = next((row for row in rows if _is_put(row)), None)
    if put is None:
        return UNKNOWN, "its publication is not in the journal"
    groups = json.loads(put["detail"] or "{}").get("groups", 1)
    last: dict[int, int] = {}
    for row in sorted(rows, key=lambda row: (row["time"], row["event"])):
        if row["value"] >= QueueState.GET or row["value"] == QueueState.CLEAN:
            last[json.loads(row["detail"] or "{}").get("group", 0)] = row["value"]
    ended = sum(state in OUTCOMES for state in last.values())
    return (COMPLETE, None) if ended >= groups else (NO_END, f"{ended} of {groups} groups of subscribers are through")


def _unique(rows: Iterable[Row]) -> list[Row]:
    """Each event once: live brokers and journals may both have it."""
    return list({(row["broker"], row["epoch"], row["event"]): row for row in rows}.values())


def _shifts(origin: int, rows: list[Row]) -> dict[int, int]:
    """broker -> microseconds by which its steps are moved on; in the order in which the message reached them."""
    sent = {(row["to_broker"], row["broker"]): row["time"] for row in rows if row["kind"] == Kind.FORWARDED}
    for row in rows:
        if row["kind"] == Kind.RECEIVED and row["from_broker"] not in (NOBODY, row["broker"]):
            sent.setdefault((row["broker"], row["from_broker"]), row["published"])  # its sender's events are not here
    begin: dict[int, int] = {}
    for row in rows:
        begin[row["broker"]] = min(row["time"], begin.get(row["broker"], row["time"]))
    shifts = {origin: 0}
    while True:
        ready = [(to, of, time) for (to, of), time in sent.items() if of in shifts and to not in shifts]
        if not ready:
            return shifts
        for to, of, time in ready:
            shifts[to] = max(0, time + shifts[of] - begin.get(to, time))


def _place(row: Row, shifts: Mapping[int, int], depth: Mapping[int, int]) -> tuple[int, int, int, int]:
    broker = row["broker"]
    return row["time"] + shifts.get(broker, 0), depth.get(broker, len(depth)), _ORDER.get(row["kind"], 5), row["event"]


def _step(row: Row, name: Callable[[int], str | None], moved: int) -> Step:
    kind, queued = row["kind"], row["kind"] == Kind.QUEUE_STATE
    said = QUEUE_STATES.get(row["value"], "queue state") if queued else Kind(kind).name if kind in _KNOWN else f"kind {kind}"
    return Step(
        name=said.lower().replace("_", " "),
        time=row["time"],
        broker=row["broker"],
        client=name(row["client"]),
        from_broker=row["from_broker"] if row["from_broker"] not in (NOBODY, row["broker"]) else None,
        to_broker=row["to_broker"] if row["to_broker"] != NOBODY else None,
        recipient=name(row["recipient"]),
        reason=None if queued else name(row["reason"]),
        qos=row["qos"],
        value=row["value"],
        moved=moved,
        detail=row["detail"],
    )
