"""States of messages in queues become rows of the journal's table: one row for each timed range. Runs in the writer's thread.

A commit of the queues is noted as one `Queued` for each queue that it concerns. A state says which positions it is for, and not when these
were put; that is remembered here from their puts (`_Times`), so that each row has the time of publication.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ....mqtt.length import encode_length
from ....mqtt.publish import publish_properties
from ..kinds import NOBODY, NONE, QUEUE_STATES, Kind, QueueState, Stream, identifier_number
from ..topics import Topics, sampled_parts

if TYPE_CHECKING:
    from .columns import Names

_KIND, _STREAM, _PUT = int(Kind.QUEUE_STATE), int(Stream.QUEUE), int(QueueState.PUT)
_NO_CALL = (NONE, NONE, NONE, None)
TRIMMED = 1024  # blocks that are at an end, before they are forgotten


class Put(NamedTuple):
    """Messages of one publisher that were put together. at: milliseconds since 1970. parent: message id that they were made from.

    detail: JSON: what is not usual about them. properties: encoded, of what an interchange has put: they say its call.
    """

    first: int
    length: int
    at: int
    size: int
    publisher: str
    parent: str | None = None
    detail: str | None = None
    properties: bytes = b""


class Queued(NamedTuple):
    """What one commit holds of one queue. number: of the queue.

    known: (first position, behind the last one, time) of blocks that were put before the journal began. puts: messages. moves: timed
    ranges: (first, count, part, member, state, at). members: names by number. lowest: the lowest position that is not at an end.
    """

    queue: str
    number: int
    known: Sequence[tuple[int, int, int]]
    puts: Sequence[Put]
    moves: Sequence[tuple[int, int, int, int, int, int]]
    members: Mapping[int, str]
    lowest: int

    @property
    def ranges(self) -> int:
        """How many rows it becomes, or a few more where it is sampled."""
        return len(self.puts) + len(self.moves)


class _Times:
    """When the messages of one queue were put."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._rest: list[tuple[int, int]] = []  # (behind the last position, time)

    def add(self, first: int, stop: int, at: int) -> None:
        """Positions are given in order."""
        if self._rest and self._rest[-1] == (first, at):
            self._rest[-1] = stop, at
        else:
            self._firsts.append(first)
            self._rest.append((stop, at))

    def of(self, position: int, otherwise: int) -> int:
        """When a message was put; otherwise: where that is not known."""
        at = bisect_right(self._firsts, position) - 1
        return self._rest[at][1] if at >= 0 and position < self._rest[at][0] else otherwise

    def trim(self, lowest: int) -> None:
        """What is before a position is at an end."""
        gone = bisect_right(self._firsts, lowest) - 1
        if gone > TRIMMED:
            del self._firsts[:gone], self._rest[:gone]


class QueueRows:
    """Makes rows. row: takes kind, time in microseconds since 1970, and the columns from `count` on."""

    def __init__(self, broker: int, topics: Topics, names: Names, row: Callable[[int, int, tuple[Any, ...]], None]) -> None:
        self._broker = broker
        self._topics = topics
        self._names = names
        self._row = row
        self._times: dict[int, _Times] = {}

    def add(self, queued: Queued) -> None:
        """The rows of a commit."""
        times = self._times.setdefault(queued.number, _Times())
        for first, stop, at in queued.known:
            times.add(first, stop, at)
        rule, number, id_of = self._topics.queue_rule(queued.queue), queued.number, self._names.id
        topic = id_of("topic", f"$queue/{queued.queue}")
        clients = {member: id_of("client", name) for member, name in queued.members.items()}
        rows: list[tuple[Any, ...]] = []
        for put in queued.puts:
            times.add(put.first, put.first + put.length, put.at)
            who = id_of("client", put.publisher)
            rows.append((put.first, put.length, _PUT, put.at, put.at, put.size, who, put.parent, put.detail, _exchanged(put.properties)))
        for first, count, part, member, state, at in queued.moves:
            detail = f'{{"group": {part}}}' if part else None
            rows.append((first, count, state, at, times.of(first, at), 0, clients.get(member, NONE), None, detail, _NO_CALL))
        for first, count, state, at, begun, size, who, parent, detail, call in rows:
            reason = id_of("reason", QUEUE_STATES.get(state, str(state)))
            for skip, part in sampled_parts(rule, self._broker, number, _STREAM, first, count):
                # fmt: off
                self._row(_KIND, at * 1000, (
                    part, self._broker, number, _STREAM, first + skip, begun * 1000, size // count, size * part // count,
                    NONE, topic, who, NONE, NOBODY, NOBODY, *call, parent, 1, 0, 0, 0, 0, reason, int(state), detail,
                ))
                # fmt: on
        times.trim(queued.lowest)


def _exchanged(properties: bytes) -> tuple[int, int, int, str | None]:
    """hop, call, session and trace, as the interchange has written them into a message's properties."""
    if not properties:
        return _NO_CALL
    data = encode_length(len(properties)) + properties
    said = dict(publish_properties(data, 0, len(data)).user_properties)
    hop, call, session = (identifier_number(said.get(name, "")) for name in ("hop", "call", "session"))
    return hop, call, session, said.get("traceparent", "").partition("-")[2][:32] or None
