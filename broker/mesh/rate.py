"""How fast a link may go: two token buckets, one of bytes and one of messages, and a queue in which packets wait for them.

Packets leave whole and in order. A bucket fills with its rate and holds at most what flows in `BURST` seconds; a packet may go when both
buckets hold something, and takes out what it costs, so that a packet larger than a bucket goes too and is waited for afterwards. Control
packets of the mesh cost nothing, but keep their place among the messages (urgent ones and keep-alive never come here at all).

Invariants
- over any t seconds no more leaves than ``rate * (t + BURST)`` and one packet;
- what may go now is never held back: `take` gives something, or `wait` says when it will.

Time is what the caller passes as `now`. It does not know sockets, timers or policies.
"""

from __future__ import annotations

from collections import deque

from ...mqtt.length import known_length

BURST = 0.25  # seconds of flow that may leave at once
QUEUE = 2.0  # seconds of flow that may wait before the link counts as full
QUEUE_LEAST = 64 * 2**10  # bytes that may wait however slow the link is
QUEUE_LEAST_MESSAGES = 200
_CONTROL = b"$mesh/"


class Bucket:
    """One rate, units a second."""

    __slots__ = ("_at", "_level", "_most", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._most = max(rate * BURST, 1.0)
        self._level = self._most
        self._at = now

    def fill(self, now: float) -> float:
        """What is in it now; what goes below nothing is a debt."""
        self._level = min(self._most, self._level + (now - self._at) * self.rate)
        self._at = now
        return self._level

    def draw(self, amount: float) -> None:
        self._level -= amount

    def wait(self) -> float:
        """Seconds from the last `fill` until a packet may go."""
        return 0.0 if self._level >= 1.0 else (1.0 - self._level) / self.rate


class RateLimiter:
    """The queue of one link that has a rate. waiting: bytes in it."""

    def __init__(self, bytes_out: int | None, messages_out: int | None, now: float, unsent: int) -> None:
        """bytes_out, messages_out: a second, None without a bound. unsent: bytes that may wait at most."""
        self._bytes = None if bytes_out is None else Bucket(bytes_out, now)
        self._messages = None if messages_out is None else Bucket(messages_out, now)
        self._bound = unsent if bytes_out is None else min(unsent, max(QUEUE_LEAST, int(bytes_out * QUEUE)))
        self._bound_messages = None if messages_out is None else max(QUEUE_LEAST_MESSAGES, int(messages_out * QUEUE))
        self._queue: deque[tuple[bytes | bytearray, int]] = deque()  # packets in a row, where the first one begins that has not left
        self.waiting = 0
        self._waiting_messages = 0

    def put(self, data: bytes | bytearray) -> None:
        """Whole packets, behind all others."""
        self._queue.append((data, 0))
        self.waiting += len(data)
        if self._messages is not None:
            self._waiting_messages += _count(data)

    def take(self, now: float, most: int) -> bytes:
        """What may leave now, about `most` bytes of it."""
        for bucket in (self._bytes, self._messages):
            if bucket is not None:
                bucket.fill(now)
        parts = []
        size = 0
        while self._queue and size < most:
            data, start = self._queue[0]
            end = start
            while end < len(data) and size + end - start < most:
                stop, free = _packet(data, end)
                if not free:
                    if self._empty():
                        break
                    self._charge(stop - end)
                end = stop
            if end == start:
                break
            parts.append(memoryview(data)[start:end])
            size += end - start
            if end < len(data):
                self._queue[0] = (data, end)
            else:
                self._queue.popleft()
        self.waiting -= size
        return b"".join(parts)

    def wait(self) -> float | None:
        """Seconds from the last `take` until more may leave; None when nothing waits."""
        if not self._queue:
            return None
        return max(bucket.wait() for bucket in (self._bytes, self._messages) if bucket is not None)

    def full(self, was: bool) -> bool:
        """Whether too much waits; once it did, only when a quarter of that is left it does not any more."""
        if self.waiting > (self._bound // 4 if was else self._bound):
            return True
        bound = self._bound_messages
        return bound is not None and self._waiting_messages > (bound // 4 if was else bound)

    def clear(self) -> None:
        """The link is over."""
        self._queue.clear()
        self.waiting = self._waiting_messages = 0

    def _empty(self) -> bool:
        return any(bucket is not None and bucket.wait() > 0.0 for bucket in (self._bytes, self._messages))

    def _charge(self, size: int) -> None:
        if self._bytes is not None:
            self._bytes.draw(size)
        if self._messages is not None:
            self._messages.draw(1)
            self._waiting_messages -= 1


def _packet(data: bytes | bytearray, start: int) -> tuple[int, bool]:
    """Where the packet that begins here ends, and whether it is a control packet of the mesh."""
    length, at = known_length(data, start + 1)
    return at + length, data.startswith(_CONTROL, at + 2)


def _count(data: bytes | bytearray) -> int:
    """The messages among these packets."""
    count = position = 0
    while position < len(data):
        position, free = _packet(data, position)
        count += not free
    return count
