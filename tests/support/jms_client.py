"""What the client's tests share: a listener that can be waited for, and short ways to receive."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from support.services import PATIENCE, wait_until

__all__ = ["PATIENCE", "Collected", "texts", "until_waiting"]


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


def until_waiting(thread: threading.Thread) -> None:
    """Return once the thread waits for a condition or event: it has come as far as it can by itself."""

    def waits() -> bool:
        frame = sys._current_frames().get(thread.ident or 0)
        return frame is not None and frame.f_code.co_name == "wait" and frame.f_code.co_filename == threading.__file__

    wait_until(waits, PATIENCE, "thread that waits")


def texts(consumer: Any, count: int) -> list[str]:
    """The next messages' texts; None where one does not come."""
    found = [consumer.receive(PATIENCE) for _ in range(count)]
    return [message and message.text for message in found]
