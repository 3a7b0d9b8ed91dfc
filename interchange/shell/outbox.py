"""Deliveries that find no room, or no way to the site of their inbox: kept, and tried again, in order for each service."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgpack

from ..calls import pack_message, unpack_message
from ..exchange import Deliver

if TYPE_CHECKING:
    from .keeping import Keeping


class Outbox:
    """Deliveries of one interchange that wait. put: puts one into its inbox; False: not now."""

    def __init__(self, keeping: Keeping, put: Callable[[Deliver], bool]) -> None:
        self._keeping = keeping
        self._put = put
        self._serial = 0
        self._waiting: dict[str, deque[tuple[int, Deliver, int]]] = {}  # by service: serial, delivery, bytes
        self._sizes: Counter[str] = Counter()  # bytes by service

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting)

    def restore(self, kept: dict[int, bytes]) -> None:
        """Take up what an earlier process has left."""
        for serial in sorted(kept):
            service, message, expires = msgpack.unpackb(kept[serial])
            self._wait(serial, Deliver(service, unpack_message(message), expires), len(kept[serial]))
            self._serial = max(self._serial, serial)

    def deliver(self, one: Deliver) -> None:
        """Put a message into its inbox, or keep it."""
        line = self._waiting.get(one.service)
        if line is None and self._put(one):
            return
        self._serial += 1
        value = msgpack.packb([one.service, pack_message(one.message), one.expires])
        self._wait(self._serial, one, len(value))
        self._keeping.put_out(self._serial, value)

    def size_for(self, service: str) -> int:
        """Bytes that wait for the inbox of a service."""
        return self._sizes[service]

    def _wait(self, serial: int, one: Deliver, size: int) -> None:
        self._waiting.setdefault(one.service, deque()).append((serial, one, size))
        self._sizes[one.service] += size

    def again(self, now: int) -> None:
        """Try what waits. What has expired is dropped: its home has told the sender."""
        for service, line in list(self._waiting.items()):
            while line:
                serial, one, size = line[0]
                if not (one.expires is not None and one.expires <= now) and not self._put(one):
                    break
                line.popleft()
                self._sizes[service] -= size
                self._keeping.put_out(serial, None)
            else:
                del self._waiting[service], self._sizes[service]
