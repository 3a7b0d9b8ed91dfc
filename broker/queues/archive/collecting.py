"""Collect from the log what an archive is to have of one segment: each message of a queue in it, and every state that it ever had.

    segment      the blocks of the queue that were put there, or written again there
    later ones   what was said of these messages; and which of them were written again: those are archived with their new segment

So each message is archived once, with the segment that has it last.

It works in a thread: it is given what it needs, and reads the log only. What it does not know: Parquet, when.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from ....base.queues import PREFIX
from ....mqtt.properties import Property, properties_in
from ..core.blocks import Block
from ..core.states import IllegalMove, name_of
from ..core.stock import Move, gaps
from ..core.timeline import timeline
from ..log.format import Damaged, Moves, Put, Span
from ..log.port import Segments
from ..log.segments import read_body, scan, silent

Row = dict[str, Any]


class Job(NamedTuple):
    """One segment of one queue. later: segments after it that tell of its positions, in order; each with the bytes that are whole.

    number, queue: the queue's. names: of its members. explicit: as in its rules.
    """

    where: Segments
    segment: tuple[int, int]
    later: list[tuple[int, int]]
    number: int
    queue: str
    names: dict[int, str]
    explicit: bool


class Piece:
    """A block. runs: the messages of it that are archived. moves: of it, in order."""

    __slots__ = ("block", "moves", "runs")

    def __init__(self, block: Block, runs: list[tuple[int, int]], moves: list[Move]) -> None:
        self.block = block
        self.runs = runs
        self.moves = moves


def collect(job: Job) -> list[Piece]:
    """The blocks to archive, in order of positions. Raises OSError."""
    found: dict[int, Piece] = {}
    for record in _records(job, job.segment):
        if isinstance(record, Put):
            found[record.block.first] = Piece(record.block, record.runs or [(0, record.block.count)], list(record.moves))
    firsts = sorted(found)
    if not firsts:
        return []
    for number in (job.segment, *job.later):
        for record in _records(job, number, Span(firsts[0], firsts[-1] + found[firsts[-1]].block.count - 1)):
            if isinstance(record, Moves):
                for move in record.moves:
                    at = bisect_right(firsts, move.first) - 1
                    if at >= 0 and found[firsts[at]].block.holds(move.first):
                        found[firsts[at]].moves.append(move)
            elif number != job.segment and record.block.first in found:
                piece = found[record.block.first]
                piece.runs = without(piece.runs, record.runs or [(0, record.block.count)], piece.block.count)
    return [found[first] for first in firsts if found[first].runs]


def without(runs: list[tuple[int, int]], others: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Runs of a block of so many messages that are in the first and not in the others."""
    return gaps(sorted(gaps(runs, count) + others), count)


def _records(job: Job, segment: tuple[int, int], span: Span | None = None) -> Iterator[Put | Moves]:
    """Blocks and moves of the queue in a segment. span: only moves of these positions."""
    number, size = segment
    for frame in scan(job.where, number, False, silent, until=size, spans={job.number: span} if span is not None else None):
        for record in frame.records:
            if record.queue != job.number:
                continue
            if isinstance(record, Put):
                frame.block_of(record, number, job.names)
                yield record
            elif isinstance(record, Moves):
                yield record


def rows(job: Job, piece: Piece, site: str) -> Iterator[Row]:
    """The messages of a block. Raises OSError. What is damaged has no payload, or no states."""
    block, key = piece.block, piece.block.key
    assert block.place is not None
    try:
        payloads: list[bytes] | None = block.payloads_in(read_body(job.where, block.place))
    except Damaged:
        payloads = None
    moves = _of_each(piece)
    topic = (key.topic or (PREFIX + job.queue).encode()).decode()
    known: dict[tuple[tuple[int, ...], ...], tuple[str | None, list[Row]]] = {}
    for start, count in piece.runs:
        for at in range(start, start + count):
            meta, alike = block.meta(at), tuple([move[2:] for move in moves.get(at, ())])
            if alike not in known:
                known[alike] = _states(job, block, meta.publisher, moves.get(at, []))
            state, states = known[alike]
            yield {
                "queue": job.queue,
                "site": site,
                "position": block.first + at,
                "publisher": meta.publisher,
                "put": block.at,
                "state": state,
                "states": states,
                "handle": meta.handle or None,
                "message_group": meta.group or None,
                "priority": key.priority,
                "due": key.due or None,
                "expires": key.expires or None,
                "topic": topic,
                "properties": _properties(meta.properties),
                "payload": payloads[at] if payloads is not None else None,
            }


def _of_each(piece: Piece) -> dict[int, list[Move]]:
    """The moves of each message, by index."""
    found: dict[int, list[Move]] = {}
    first, count = piece.block.first, piece.block.count
    for move in piece.moves:
        for at in range(max(0, move.first - first), min(count, move.first - first + move.length)):
            found.setdefault(at, []).append(move)
    return found


def _states(job: Job, block: Block, publisher: str, moves: list[Move]) -> tuple[str | None, list[Row]]:
    """The publisher's last state, and every state with its time. None, and the states that the log says, if they do not go together."""
    try:
        found = timeline(block, moves, job.names, (), job.explicit)
    except (IllegalMove, KeyError, IndexError):
        return None, [{"who": job.names.get(move.member, ""), "role": "log", "state": str(move.state), "at": move.at} for move in moves]
    steps = [{"who": publisher, "role": "publisher", "state": name_of(state), "at": at} for state, at in found.publisher]
    for who, states in found.subscribers.items():
        steps += [{"who": who, "role": "subscriber", "state": name_of(state), "at": at} for state, at in states]
    return name_of(found.publisher[-1][0]), steps


def _properties(block: bytes) -> Row:
    found = properties_in(block)
    return {
        "text": found.get(Property.PAYLOAD_FORMAT_INDICATOR) == 1,
        "content_type": found.get(Property.CONTENT_TYPE),
        "response_topic": found.get(Property.RESPONSE_TOPIC),
        "correlation": found.get(Property.CORRELATION_DATA),
        "user": [{"name": name, "value": value} for name, value in found.get(Property.USER_PROPERTY, [])],
    }
