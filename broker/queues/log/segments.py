"""Segments: the files of the log, and what is read of them.

    FOLDER/000000000001.queue     32 bytes of header, then frames until it is full
    FOLDER/reserve                space that is given up when the disk is full, so that states can still be written

A segment is only appended to. The last one may end in a frame that was never whole: `scan` cuts it off and says so. In the others, and
before the last whole frame, a frame that is not what was written is damage: it is named and skipped.

What it does not know: queues, threads.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from ..core.blocks import Place
from .format import FRAME, MAGIC, Damaged, Header, Put, Record, Span, check_head, header_of, records

HEADER = struct.Struct("<8sQQI4x")  # magic, number, created (ms since 1970), CRC of these
FILE_MAGIC = b"MQMESHQ1"
SUFFIX = ".queue"
STEP = 1 << 20  # bytes read at once while looking for the next frame

Said = Callable[[str], None]


class Segment:
    """A segment, as it is kept in memory.

    spans: number of a queue -> the positions that are put or moved here. open: messages in it that are not at an end, counted for each
    group. needed: their bytes, about. last_at: when the last one came to an end. stuck: what is needed of it cannot be read.
    """

    __slots__ = ("fd", "last_at", "needed", "number", "open", "size", "spans", "stuck")

    def __init__(self, number: int, fd: int) -> None:
        self.number = number
        self.fd = fd
        self.size = HEADER.size
        self.open = -1
        self.needed = 0
        self.last_at = 0
        self.stuck = False
        self.spans: dict[int, Span] = {}

    def note(self, queue: int, low: int, high: int) -> None:
        """Positions of a queue are told of here."""
        known = self.spans.get(queue)
        if known is None or low < known.low or known.high < high:
            self.spans[queue] = Span(low, high) if known is None else Span(min(low, known.low), max(high, known.high))


class Frame(NamedTuple):
    """A whole frame. offset: where it begins. bodies: where its bodies begin."""

    offset: int
    bodies: int
    header: Header
    records: list[Record]


def path_of(folder: Path, number: int) -> Path:
    """The file of a segment."""
    return folder / f"{number:012d}{SUFFIX}"


def numbers_in(folder: Path) -> list[int]:
    """The segments of a folder, in order."""
    return sorted(int(path.name[: -len(SUFFIX)]) for path in folder.glob(f"*{SUFFIX}") if path.name[: -len(SUFFIX)].isdigit())


def create(folder: Path, number: int, now: int) -> int:
    """A new segment: its file descriptor, to append to. Raises OSError."""
    fd = os.open(path_of(folder, number), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        fields = HEADER.pack(FILE_MAGIC, number, now, 0)[:24]
        os.write(fd, fields + crc32(fields).to_bytes(4, "little") + bytes(4))
        os.fsync(fd)
        sync_folder(folder)
    except OSError:
        os.close(fd)
        raise
    return fd


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a power loss."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def scan(
    fd: int,
    last: bool,
    say: Said,
    sync: bool = True,
    until: int | None = None,
    begin: int = HEADER.size,
    spans: Mapping[int, Span] | None = None,
) -> Iterator[Frame]:
    """The whole frames of a segment, in order.

    last: it is the newest segment: the bodies are checked too, and an end that is not whole is cut off. say: is told what is wrong.
    sync: have what is cut off survive a power loss. begin, until: only frames between these places are looked at.
    spans: only moves that begin within them are wanted.
    """
    size = os.fstat(fd).st_size if until is None else until
    fields = os.pread(fd, HEADER.size, 0)
    if len(fields) < HEADER.size or fields[:8] != FILE_MAGIC or crc32(fields[:24]) != int.from_bytes(fields[24:28], "little"):
        if size > HEADER.size or not last:
            say(f"the first {HEADER.size} bytes are not those of a segment")
        if size <= HEADER.size:
            return
    at = begin
    while at < size:
        try:
            found = _frame_at(fd, at, size, last, spans)
        except Damaged as error:
            after = _next_frame(fd, at + 1, size, last)
            if after is None:
                say(
                    f"cut off {size - at} bytes at {at} that were never confirmed: {error}"
                    if last
                    else f"{size - at} bytes from {at} on cannot be read: {error}"
                )
                if last:
                    os.ftruncate(fd, at)
                    if sync:
                        os.fsync(fd)
                return
            say(f"{after - at} bytes at {at} cannot be read: {error}")
            at = after
            continue
        yield found
        at += found.header.size


def _frame_at(fd: int, at: int, size: int, bodies: bool, spans: Mapping[int, Span] | None = None) -> Frame:
    fields = os.pread(fd, FRAME.size, at)
    header = header_of(fields)
    if at + header.size > size:
        raise Damaged("it ends inside a frame")
    head = os.pread(fd, header.head, at + FRAME.size)
    check_head(fields, head)
    found = Frame(at, at + FRAME.size + header.head, header, list(records(head, spans)))
    if bodies:
        for record in found.records:
            if isinstance(record, Put):
                body = os.pread(fd, record.block.size, found.bodies + record.offset)
                if len(body) != record.block.size or crc32(body) != record.crc:
                    raise Damaged("the checksum of a body is wrong")
    return found


def _next_frame(fd: int, at: int, size: int, bodies: bool) -> int | None:
    """Where the next whole frame begins; None: there is none."""
    while at < size:
        data = os.pread(fd, STEP, at)
        found = data.find(MAGIC)
        if found < 0:
            at += max(1, len(data) - len(MAGIC) + 1)
            continue
        try:
            _frame_at(fd, at + found, size, bodies)
        except Damaged:
            at += found + 1
            continue
        return at + found
    return None


def read_body(fd: int, place: Place) -> bytes:
    """The body of a block. Raises Damaged, OSError."""
    body = os.pread(fd, place.size, place.offset)
    if len(body) != place.size or crc32(body) != place.crc:
        raise Damaged(f"segment {place.segment}: {place.size} bytes at {place.offset} are not what was written")
    return body
