"""What the client's tests share: a listener that can be waited for, and short ways to receive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

PATIENCE = 90.0  # seconds until a wait counts as failed


class Collected:
    """A listener that keeps what it gets; `wait(n)` returns once there are n."""

    def __init__(self, action: Callable[[Any], None] | None = None) -> None:
        self.items: list[Any] = []
        self._action = action
        self._cond = threading.Condition()

    def __call__(self, item: Any, error: Any = None) -> None:
        with self._cond:
            self.items.append((item, error) if error is not None else item)
            self._cond.notify_all()
        if self._action is not None:
            self._action(item)

    def wait(self, count: int) -> list[Any]:
        with self._cond:
            assert self._cond.wait_for(lambda: len(self.items) >= count, PATIENCE), f"{len(self.items)} of {count} came"
            return list(self.items)


def texts(consumer: Any, count: int) -> list[str]:
    """The next messages' texts; None where one does not come."""
    found = [consumer.receive(PATIENCE) for _ in range(count)]
    return [message and message.text for message in found]
