"""Shares the event loop's time: long work goes in slices, and who has used least goes first.

One event loop serves clients, links, timers and the HTTP face, so that work that holds it for long holds everybody. Clients decide how much
work there is: how many packets come in one piece, how many subscribers a message has, how many retained messages a filter matches.

- A *piece* is what one call of the loop brings from one client. It is worked on at once while little else is to do (`enter`), for `SLICE`
  at most; what is left of it waits for a turn.
- *Work* is what waits: the rest of a piece, the writes of a fan-out to many subscribers, the end of a session. `turn` does a slice of it.
- A *round* gives turns to what waits, for `ROUND` at most; then the loop looks at all its sockets and timers, and the next round begins.
- A *share* is what one source address has used lately (one /64 network for IPv6). The turns go to the address that has used least, and in
  turn to the works of one address. So an address that would use the whole loop gets what others leave; while those of three others wait it
  has a quarter at most. What is forgotten of a share is half of it every `HALF` seconds.

While somebody waits no new piece is worked on at once. Single messages in the direct lane do not ask: each costs a few microseconds.

A piece of work that goes on for longer than `STALL` is a stall. It is counted and logged with who caused it and what it was (`stalled`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakValueDictionary

from ..base.refusals import Warnings, source_of

if TYPE_CHECKING:
    from .counters import Counters

log = logging.getLogger("mqmesh.broker")

SLICE = 0.004  # seconds that one piece of work has the loop
ROUND = 0.004  # seconds of such work between two looks at the sockets
CROWD = 0.004  # seconds of pieces that come at once, beyond which a piece waits
HALF = 0.5  # seconds after which half of what an address has used is forgotten
STALL = 0.020  # seconds of processor time that a piece of work should never take
REST = 0.5  # of the time that passes, the part that is no client's: while pieces take less than the rest, none has to wait


Result = TypeVar("Result")


class Who(Protocol):
    """Whose work it is, for the log: `key=value`."""

    @property
    def who(self) -> str: ...


class Work(Who, Protocol):
    """Something that waits for turns."""

    def turn(self) -> bool:
        """Do a slice, until `Turns.over`. True: there is more to do."""


class Share:
    """What one address uses of the loop.

    name: the address or network. used: seconds, as of `at`. waiting: its works that wait for a turn.
    """

    __slots__ = ("__weakref__", "at", "name", "used", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.used = 0.0
        self.at = 0.0
        self.waiting: deque[Work] = deque()

    def charge(self, now: float, seconds: float) -> None:
        """It has used the loop."""
        self.used = self.lately(now) + seconds
        self.at = now

    def lately(self, now: float) -> float:
        """What it has used, less what is forgotten of it."""
        return self.used * 0.5 ** ((now - self.at) / HALF) if self.used else 0.0


class Turns:
    """The turns of one broker.

    broker: the share of the broker itself, of links and of timers.
    ends: the share of connections that are lost, and of sessions and wills that are due: of very many at once, so no address waits for it.
    current: the share that the work is charged to that runs.
    until: when the slice that runs is over, on `clock`. what: the first byte of the packet that is being taken.
    clock: seconds, as precise as can be had cheaply. meter: seconds of processor time of this thread.
    """

    def __init__(
        self,
        counters: Counters,
        warnings: Warnings,
        clock: Callable[[], float] = time.perf_counter,
        meter: Callable[[], float] = time.thread_time,
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]
        self.after: Callable[[], None] = lambda: None  # called after each turn: writes what it caused
        self.until = 0.0
        self.what = 0
        self.clock = clock
        self._meter = meter
        self._counters = counters
        self._warnings = warnings
        self._shares: WeakValueDictionary[str, Share] = WeakValueDictionary()
        self._waiting: list[Share] = []
        self.broker = self.current = self.share("broker")
        self.ends = self.share("ends")
        self._scheduled = False
        self._enough = False
        self._level = 0.0  # seconds that pieces have taken lately, less the time that has passed
        self._last = 0.0
        self._begun = 0.0
        self._sampled = -1.0  # when the processor's time was `_used`
        self._used = 0.0

    def share(self, address: str) -> Share:
        """The share of a peer's address (with its port); to be kept as long as there is a connection from there."""
        name = source_of(address)
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = Share(name)
        return share

    # Pieces that are worked on at once

    def enter(self, share: Share) -> bool:
        """A piece has come. True: work on it now, then call `leave`; False: it has to wait for a turn."""
        if self._waiting:
            return False
        now = self.clock()
        level = self._level - (now - self._last) * REST
        self._last = now
        self._level = level = max(level, 0.0)
        if level > CROWD:
            return False
        self._begun = now
        self.current = share
        self.until = now + SLICE
        self._sample(now)
        return True

    def leave(self, share: Share, who: Who) -> None:
        """The piece is done, or what is left of it waits. who: the connection."""
        now = self.clock()
        seconds = now - self._begun
        self._level += seconds
        share.charge(now, seconds)
        if seconds > STALL:
            self.stalled(share.name, who.who, seconds)

    def over(self) -> bool:
        """Whether the slice that runs is over."""
        return self.clock() > self.until

    # Work that waits

    def wait(self, share: Share, work: Work, first: bool = False) -> None:
        """Give work a turn when its address is next. first: before what else waits of that address."""
        if not share.waiting:
            self._waiting.append(share)
        if first:
            share.waiting.appendleft(work)
        else:
            share.waiting.append(work)
        self._schedule()

    def run(self, share: Share, steps: Iterator[object], who: str) -> None:
        """Run steps to their end in turns."""
        self.wait(share, Steps(self, steps, who))

    async def result_of(self, share: Share, steps: Generator[object, None, Result], who: str) -> Result:
        """Run steps to their end in turns: what they return. Raises what they raise."""
        found: asyncio.Future[Result] = self.loop.create_future()
        self.run(share, _into(found, steps), who)
        return await found

    def end_round(self) -> None:
        """Let the loop look at its sockets after this turn: it has caused work that the loop does there."""
        self._enough = True

    def _schedule(self) -> None:
        if not self._scheduled and self.loop is not None:
            self._scheduled = True
            self.loop.call_soon(self._round)

    def _round(self) -> None:
        self._scheduled = False
        clock = self.clock
        now = clock()
        end = now + ROUND
        self._enough = False
        while self._waiting and now < end and not self._enough:
            share = min(self._waiting, key=lambda one: one.lately(now)) if len(self._waiting) > 1 else self._waiting[0]
            work = share.waiting.popleft()
            if not share.waiting:
                self._waiting.remove(share)
            begun, self.until = now, min(now + SLICE, end)
            self.current = share
            self._sample(now)
            more = self._turn(work)
            try:
                self.after()
            except Exception:  # a mistake there must not end this work, nor what waits behind it
                log.exception("event=internal-error %s", work.who)
            now = clock()
            share.charge(now, now - begun)
            if now - begun > STALL:
                self.stalled(share.name, work.who, now - begun)
            if more:
                self.wait(share, work)
        self.current = self.broker
        self._level, self._last = 0.0, now
        if self._waiting:
            self._schedule()

    def _turn(self, work: Work) -> bool:
        try:
            return work.turn()
        except Exception:
            log.exception("event=internal-error %s", work.who)
            return False

    # Stalls

    def _sample(self, now: float) -> None:
        """Read the processor's time, which costs more than the clock: once every `SLICE` at most."""
        if now - self._sampled > SLICE:
            self._sampled = now
            self._used = self._meter()

    def stalled(self, address: str, who: str, seconds: float) -> None:
        """A piece of work took long: if the processor's time went into it, count it and say whose it was."""
        seconds = min(seconds, self._meter() - self._used)
        if seconds <= STALL:
            return  # this process was not running
        counters = self._counters
        counters.stalls += 1
        counters.stall_maximum = max(counters.stall_maximum, seconds)
        text = f"the event loop was held for {1000 * seconds:.0f} ms"
        self._warnings.say(
            "stall", self.loop.time() if self.loop is not None else 0.0, address, text, f" {who} packet=0x{self.what:02x}", who
        )

    def tick(self, late: float) -> None:
        """From time to time. late: seconds by which a timer came too late, whatever the cause."""
        self._counters.late_maximum = max(self._counters.late_maximum, late)


def _into(found: asyncio.Future[Result], steps: Generator[object, None, Result]) -> Iterator[object]:
    """Do steps, until their end or until nobody waits for it."""
    try:
        while not found.done():
            yield next(steps)
    except StopIteration as stop:
        found.set_result(stop.value)
    except Exception as error:
        found.set_exception(error)


class Steps:
    """Steps that run to their end in turns. who: whose they are, for the log."""

    __slots__ = ("_steps", "_turns", "who")

    def __init__(self, turns: Turns, steps: Iterator[object], who: str) -> None:
        self._turns = turns
        self._steps = steps
        self.who = who

    def turn(self) -> bool:
        turns = self._turns
        return any(turns.over() for _ in self._steps)
