"""Entry: one published run that an origin holds for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mqtt.batch.batch import Batch
from ..wire.control import Position
from ..wire.envelope import Picks

if TYPE_CHECKING:
    from .pages import Page

OVERHEAD = 96  # bytes counted for each message beside its payload


class Entry:
    """One run in custody.

    first, count: its sequences.
    last: the position of its last message.
    open: destinations that owe the receipt.
    ordinary: destinations with ordinary subscriptions.
    picks: (shared subscription, broker).
    refusers: brokers that found no member for its pick.
    picks_only: ordinary subscriptions have it already.
    time: publish time in ms.
    deadline: when it expires, on the caller's clock, or None.
    order, mark: number and batch of its record, where there is a store.
    hold: it is sent only after the commit.
    here: it was re-picked for members of this broker.
    kept: the mark of a message that is to be retained; such an entry has one message.
    page: that holds it on the disk instead of a record of its own.
    """

    __slots__ = (
        "count",
        "deadline",
        "epoch",
        "first",
        "here",
        "hold",
        "kept",
        "last",
        "mark",
        "open",
        "order",
        "ordinary",
        "page",
        "picks",
        "picks_only",
        "refusers",
        "repeated",
        "run",
        "size",
        "time",
    )

    def __init__(self, epoch: int, first: int, run: Batch, mask: int, picks: Picks, time: int) -> None:
        self.epoch = epoch
        self.first = first
        self.run = run
        self.count = run.count
        self.open = mask
        self.ordinary = mask
        self.picks = picks
        self.refusers = 0
        self.picks_only = False
        self.repeated = False
        self.time = time
        self.deadline: float | None = None
        self.order = self.mark = 0
        self.hold = self.here = False
        self.page: Page | None = None
        self.kept = b""
        self.last: Position = (epoch, first + self.count - 1)
        self.size = size_of(run)

    def singles(self) -> list[Entry]:
        """A span of messages of different topics as entries of one message each."""
        run = self.run
        assert not run.uniform
        messages, parts = run.parts(), []
        for index in range(self.count):
            part = Entry(self.epoch, self.first + index, messages.single(index), self.open, (), self.time)
            part.ordinary, part.hold, part.page = self.ordinary, self.hold, self.page
            parts.append(part)
        return parts


def size_of(run: Batch) -> int:
    """The bytes that a run counts against the bounds."""
    return run.count * cost_of(run.length + len(run.topic) + len(run.properties))


def cost_of(length: int) -> int:
    """The same for one message. length: of its topic, properties and payload."""
    return length + OVERHEAD
