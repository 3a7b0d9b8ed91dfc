"""Following a journal: what is new since a position, of closed segments and of those that are being written.

A *position* says for each life of each broker up to which event it was read: {(broker, epoch): event}. As text, for files and for
Spark's offsets, it is {"7:1763850000000": 412}. Numbers of events have no gaps within a life, so a position is exact; compaction, which
puts several segments into one, does not change it.

Needs pyarrow (the extra `mqmesh[journal]`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .layout import Segment
from .reading import Journal, Wrong, read_open

Position = dict[tuple[int, int], int]


def position_of(values: Mapping[str, int]) -> Position:
    """From `{"broker:epoch": event}`. Raises ValueError, one line."""
    made: Position = {}
    for name, event in values.items():
        broker, colon, epoch = str(name).partition(":")
        if not (colon and broker.isdigit() and epoch.isdigit() and isinstance(event, int)):
            raise ValueError(f'"{name}": {event!r} is no position of a journal: write "broker:epoch": event')
        made[int(broker), int(epoch)] = event
    return made


def position_text(position: Position) -> dict[str, int]:
    """As `{"broker:epoch": event}`."""
    return {f"{broker}:{epoch}": event for (broker, epoch), event in sorted(position.items())}


def new_segments(segments: list[Segment], position: Position) -> list[Segment]:
    """Those with events above a position, in the order of their time; events at or below it have to be left out (`above`)."""
    fresh = [one for one in segments if one.last > position.get((one.broker, one.epoch), 0)]
    return sorted(fresh, key=lambda one: (one.min_time, one.broker, one.epoch, one.first))


def advanced(position: Position, segments: list[Segment]) -> Position:
    """The position after these segments."""
    made = dict(position)
    for one in segments:
        key = one.broker, one.epoch
        made[key] = max(made.get(key, 0), one.last)
    return made


def above(table: Any, after: int) -> Any:
    """The events of one life above a number."""
    import pyarrow.compute as pc

    return table.filter(pc.greater(table.column("event"), after)) if after else table


class Follower:
    """Reads a journal piece by piece.

    position: where it is; it may be kept and given to another follower. wrong: files that are damaged, whose events are left out.
    """

    def __init__(self, journal: Journal, position: Position | None = None, open_too: bool = True) -> None:
        """open_too: read what is being written too; such events are there until a broker that crashed says otherwise."""
        self.journal = journal
        self.position: Position = dict(position or {})
        self.wrong: Wrong = []
        self._open_too = open_too

    def skip(self) -> None:
        """Go to the end: what is there now is not read."""
        self.position = advanced(self.position, self.journal.segments())
        for table in self._opened():
            self.position |= _after(table)

    def read(self) -> Iterator[tuple[Any, Position]]:
        """What is new: a table for each segment, with the position after it.

        The follower's own position changes when the next table is asked for, so that a table whose use failed comes again.
        """
        for segment in new_segments(self.journal.segments(wrong=self.wrong), self.position):
            key = segment.broker, segment.epoch
            after = advanced(self.position, [segment])
            found = self.journal.whole(segment, self.wrong)
            if found is not None:
                table = above(found, self.position.get(key, 0))
                if table.num_rows:
                    yield table, after
            self.position = after
        for table in self._opened():
            ((key, last),) = _after(table).items()
            table = above(table, self.position.get(key, 0))
            if table.num_rows:
                after = {**self.position, key: last}
                yield table, after
                self.position = after

    def _opened(self) -> Iterator[Any]:
        """What is being written and has events."""
        for name in self.journal.open_segments() if self._open_too else ():
            table = read_open(self.journal.place, name)
            if table.num_rows:
                yield table


def _after(table: Any) -> Position:
    """The position after the events of an open segment."""
    key = table.column("broker")[0].as_py(), table.column("epoch")[0].as_py()
    return {key: table.column("event")[table.num_rows - 1].as_py()}
