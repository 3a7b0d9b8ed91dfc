"""Records in order over a link, in pieces of at most `PIECE` bytes, a few of which may be under way.

What goes out stands in one queue: topics, whose records are encoded when their turn comes, and messages that must not overtake the records
before them. So what waits is small however much there is to send, and what is sent is the record of that moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgpack

from ...mqtt.errors import PeerError
from ...mqtt.reasons import Reason
from .record import Record, pack_record, read_record, refusing
from .wire import PIECE, Say, encode

WINDOW = 4  # pieces under way
NIL = msgpack.packb(None)
LARGEST = 2**28 + 2**20  # bytes of a record: the largest MQTT packet and its key


class Outbox:
    """Towards one neighbour."""

    def __init__(self, session: int, get: Callable[[bytes], Record | None], send: Callable[[bytes], None]) -> None:
        self._session = session
        self._get = get
        self._send = send
        self._queue: deque[tuple[bytes, bool]] = deque()  # (topic, True) or (message, False)
        self._buffer = bytearray()
        self._under_way = 0

    @property
    def waiting(self) -> int:
        """Topics and messages that have not been sent."""
        return len(self._queue) + bool(self._buffer)

    def record(self, topic: bytes) -> None:
        """Send a topic's record when its turn comes, if there still is one."""
        self._queue.append((topic, True))

    def message(self, data: bytes) -> None:
        """Send a message behind what waits."""
        self._queue.append((data, False))

    def more(self) -> None:
        """The neighbour has worked off a piece."""
        if not self._under_way:
            raise PeerError(Reason.PROTOCOL_ERROR, "$mesh/retained: MORE without DATA")
        self._under_way -= 1

    def pump(self) -> None:
        """Send what may be sent now."""
        queue, buffer = self._queue, self._buffer
        while True:
            while queue and queue[0][1] and len(buffer) < PIECE:
                record = self._get(queue.popleft()[0])
                if record is not None:
                    buffer += pack_record(record)
            if buffer:
                if self._under_way >= WINDOW:
                    return
                self._under_way += 1
                self._send(encode(Say.DATA, self._session, bytes(buffer[:PIECE])))
                del buffer[:PIECE]
            elif queue:
                self._send(queue.popleft()[0])
            else:
                return


class Inbox:
    """From one neighbour."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(max_buffer_size=LARGEST)

    def feed(self, data: bytes) -> list[Record]:
        """The records that are whole with this piece. Raises `PeerError`."""
        return [read_record(value) for value in refusing(lambda: self._unpack(data))]

    def end(self) -> None:
        """No piece follows. Raises `PeerError` when a record is cut."""
        if refusing(lambda: self._unpack(NIL)) != [None]:
            raise PeerError(Reason.PROTOCOL_ERROR, "$mesh/retained: a record is cut off")

    def _unpack(self, data: bytes) -> list[Any]:
        self._unpacker.feed(data)
        return list(self._unpacker)
