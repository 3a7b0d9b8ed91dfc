"""What the rooms of a broker hand to each other: a context of plain values, and protocols of what is called.

Nobody is handed the broker itself. How to use this module:

- `Context` holds what every room reads: clock, event loop, counters, limits. There is one for each broker. An object of the hot path
  keeps it in a slot (`self.context`), and reads `self.context.now`, `self.context.counters`: plain attributes, as fast as any.
- `Site` (`site.py`) holds the parts of one broker. Only rooms above all parts take it: `publish/`, `client/`, `monitoring/`.
  A room below takes the parts that it calls as arguments of its constructor.
- A protocol stands here when the one who calls is in a lower room than the class that is called. The class need not name the protocol.

Call `context.refresh()` when the event loop calls back into a room, before anything reads `context.now`. Call `context.flush()` at
the end of each piece of work: it writes what connections have been given.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .counters import Account, Counters

if TYPE_CHECKING:
    from ..base.refusals import Warnings
    from ..mesh.topology.settings import Limits
    from .hooks import HookCalls


def _no_flush() -> None:
    """Stands for `Context.flush` until the broker starts."""


class Context:
    """Clock, event loop, counters and limits of one broker.

    limits: the configured limits.
    counters: totals since the start.
    account: bytes of all messages that the broker holds.
    warnings: log of what peers do wrong.
    loop: the event loop; set at the start.
    now: the loop's time, as of the last `refresh`.
    started: the loop's time at the start.
    touched: connections that have something to be written by the next `flush`.
    flush: writes what connections have been given. To be called at the end of each piece of work.
    say: publishes a value at a `$SYS` topic, retained, if it has changed.
    hooks: calls the extension points of an embedding program; None while there are none.
    """

    __slots__ = ("account", "counters", "flush", "hooks", "limits", "loop", "now", "say", "started", "touched", "warnings")

    def __init__(self, limits: Limits, warnings: Warnings) -> None:
        self.limits = limits
        self.counters = Counters()
        self.account = Account(limits.broker_bytes)
        self.warnings = warnings
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]
        self.now = 0.0
        self.started = 0.0
        self.touched: list[Any] = []
        self.flush: Callable[[], None] = _no_flush
        self.say: Callable[[str, str], None] = lambda topic, value: None
        self.hooks: HookCalls | None = None

    def refresh(self) -> float:
        """Read the loop's clock into `now`."""
        now = self.now = self.loop.time()
        return now

    def wall(self) -> float:
        """The wall clock, in seconds since 1970."""
        return time.time()
