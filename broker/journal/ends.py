"""What a journal says of each message: where it went, and whether it has its end everywhere.

For journals that fit into memory: a test, a trial, `mqmesh journal check --ends`. The pipeline does the same at any size.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from .kinds import Kind, MessageId
from .schema import expand

ENDS = (Kind.ACKNOWLEDGED, Kind.DROPPED, Kind.EXPIRED, Kind.RETURNED, Kind.FAILED_OVER)


class Story:
    """What happened to one message.

    others: brokers elsewhere that it is for; None: its publishing is not in the journal.
    wanted: broker -> sessions and shared subscriptions there that it is for.
    ends: broker -> how many of these have an end.
    hops: (from, to) of each copy.
    given_up: brokers that its origin gave up.
    moved: broker -> recipients there that it has failed over to; among `wanted` too.
    """

    __slots__ = ("ends", "given_up", "hops", "id", "moved", "others", "wanted")

    def __init__(self, message: MessageId) -> None:
        self.id = message
        self.others: int | None = None
        self.wanted: dict[int, int] = {}
        self.ends: Counter[int] = Counter()
        self.moved: Counter[int] = Counter()
        self.hops: set[tuple[int, int]] = set()
        self.given_up: set[int] = set()

    @property
    def missing(self) -> str:
        """Why the message has not its end, one line; "": it has."""
        if self.others is None:
            return "it was not published"
        reached = (self.wanted.keys() - {self.id.origin}) | self.given_up
        if len(reached) < self.others:
            return f"{len(reached)} of {self.others} other brokers have it"
        for broker, wanted in self.wanted.items():
            if self.ends[broker] < wanted:
                return f"at broker {broker} {self.ends[broker]} of {wanted} sessions have an end"
        return ""

    def stray(self, links: set[frozenset[int]]) -> str:
        """Whether a copy went where no link is, or a broker has it that no copy went to; "" if not. links: pairs of brokers."""
        for sender, receiver in self.hops:
            if frozenset((sender, receiver)) not in links:
                return f"a copy went from {sender} to {receiver}, which have no link"
        reached = {self.id.origin}
        while True:
            more = {receiver for sender, receiver in self.hops if sender in reached} - reached
            if not more:
                break
            reached |= more
        lost = self.wanted.keys() - reached
        return f"broker {min(lost)} has it, and no copy went there" if lost else ""


def stories(tables: Iterable[Any]) -> dict[MessageId, Story]:
    """The stories of all messages. tables: of events."""
    found: dict[MessageId, Story] = {}
    wanted: dict[MessageId, dict[int, int]] = defaultdict(dict)
    columns = ("kind", "origin", "origin_epoch", "stream", "sequence", "broker", "from_broker", "to_broker", "qos", "value", "recipient")
    for table in tables:
        made = expand(table)
        for row in zip(*(made.column(name).to_pylist() for name in columns), strict=True):
            kind, origin, epoch, stream, sequence, broker, sender, receiver, qos, value, recipient = row
            if origin < 0 or kind in (Kind.CUSTODY_TAKEN, Kind.CUSTODY_RELEASED, Kind.QUEUE_STATE):
                continue
            message = MessageId(origin, epoch, stream, sequence)
            story = found.get(message)
            if story is None:
                story = found[message] = Story(message)
            if kind == Kind.PUBLISHED:
                story.others = value
            elif kind == Kind.FORWARDED:
                story.hops.add((sender, receiver))
            elif kind == Kind.RECEIVED and recipient:
                story.moved[broker] += value
            elif kind == Kind.RECEIVED:
                wanted[message][broker] = max(wanted[message].get(broker, 0), value)
            elif kind in (Kind.DROPPED, Kind.EXPIRED) and receiver not in (-1, broker):
                story.given_up.add(receiver)
            elif kind in ENDS or (kind == Kind.DELIVERED and not qos):
                story.ends[broker] += 1
    for message, story in found.items():
        story.wanted = dict(Counter(wanted.get(message, {})) + story.moved) | {
            broker: 0 for broker, value in wanted.get(message, {}).items() if not value and not story.moved[broker]
        }
    return found
