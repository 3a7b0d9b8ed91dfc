"""The journal of one broker: what notes events in the loop, and the thread that writes them.

start   once it is known which life of the broker this is
tick    from time to time in the loop: counters whose minute is over go to the writer
stop    all that was noted is written
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from .kinds import Kind
from .place import Place
from .recorder import PART, Recorder
from .settings import JournalSettings
from .topics import Topics
from .writing.columns import Columns
from .writing.writer import Writer, folder_of

if TYPE_CHECKING:
    from .recent import Recent
    from .tally import Key


class Surroundings(Protocol):
    """What the journal needs of a broker's context (`broker/ports.py`)."""

    loop: Any
    counters: Any
    ledger: Any
    turns: Any
    now: float
    say: Any
    journal: Recorder | None

    def wall(self) -> float:
        """Seconds since 1970."""


class Journal:
    """One broker's journal. recorder: what the rooms of the broker tell."""

    def __init__(self, settings: JournalSettings, context: Surroundings, number: int, account: Callable[[str], str]) -> None:
        """account: user -> whom its use is charged to. Raises ImportError without the extra, ValueError."""
        import pyarrow  # noqa: F401  # so that a broker without it says so when it starts

        place = Place(settings.root, dict(settings.options))
        self._context = context
        topics = Topics(settings)
        self.recorder = Recorder(context, topics, number, settings.pending, context.ledger.limit // PART)
        columns = Columns(number, topics, lru_cache(65536)(account), context.ledger.limit // PART)
        self.writer = Writer(settings, self.recorder, columns, place, folder_of(settings, place, number))
        self._minute = 0
        self._before: dict[int, int] = {}

    def noting(self, topic: bytes, text: str) -> tuple[bool, str]:
        """Whether a topic's messages have events, and what the counters call it."""
        topics = self.recorder.topics
        return topics.noted(topic), topics.prefix(text)

    def recent(self) -> Recent:
        """What searches this broker's journal while it is written."""
        from .recent import Recent

        writer = self.writer
        return Recent(writer.place, self.recorder.number, writer.folder, writer.settle)

    def start(self, epoch: int) -> None:
        """Begin. epoch: of this life, above that of any before. Raises OSError."""
        self.recorder.epoch = epoch
        self._look_at_clocks()
        self._minute = int(time.time() // 60)
        turns = self._context.turns
        self.recorder.tally.run = lambda steps: turns.run(turns.broker, steps, "work=journal-counts")
        self.writer.start()
        self._context.journal = self.recorder

    def tick(self, connections: Iterable[Any], node: Any) -> None:
        """Hand over the counters of a minute that is over, and say how the journal does. node: of the mesh; None outside one."""
        self._look_at_clocks()
        minute = int(time.time() // 60)
        if minute != self._minute:
            self._hand_over(connections, node)
            self._minute = minute
        writer, say = self.writer, self._context.say
        say("journal/written", str(writer.written))
        say("journal/lost", str(self.recorder.lost))
        say("journal/unselected", str(self.recorder.unselected))
        say("journal/error", writer.error or "")

    def _look_at_clocks(self) -> None:
        self.recorder.offset = self._context.wall() - self._context.loop.time()

    def _hand_over(self, connections: Iterable[Any], node: Any) -> None:
        tally = self.recorder.tally
        for connection in connections:
            if connection.tally:
                tally.published(connection.tally, connection.user or "")
        counters = self._context.counters
        totals = {Kind.DROPPED: counters.dropped, Kind.EXPIRED: counters.expired}
        if node is not None:
            totals |= {Kind.FORWARDED: node.counters.sent, Kind.RECEIVED: node.counters.received}
        for kind, value in totals.items():
            tally.add_messages(kind, value - self._before.get(kind, 0))
            self._before[kind] = value
        tally.take(partial(self._write_counts, self._minute))

    def _write_counts(self, minute: int, counts: dict[Key, int]) -> None:
        if counts:
            self.writer.counts.append((minute, counts))

    def finish(self, connections: Iterable[Any], node: Any) -> None:
        """Hand over the last counters. In the loop, which may be at those of the minute before."""
        self._hand_over(connections, node)
        self.recorder.tally.finish()

    def stop(self) -> None:
        """Write all that was noted; may be called in a thread."""
        self.writer.stop()
        self._context.journal = None
