"""The demo's fifth act: three shops put orders into one queue, a pool at two sites works them, a worker is killed, an order is poison.

The queue has its home at one site. Shops are at three others, and put there; each has its order in custody when `send` returns. Workers are
processes: two at the home, two at another site. One of these is killed with SIGKILL: what it had goes to the others, marked. One order
cannot be read by anybody: after three deliveries it is a dead letter, and its whole history is read back from the queue.

`tally` counts. An order has one end: worked, or dead. More than one is a repeat; it is marked if the worker was told that somebody had
the order before. No end is a loss.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .participants import PATIENCE, Crew, Shops
from .worker import UNREADABLE

if TYPE_CHECKING:
    from ...broker.queues.core.rules import Rules
    from ...client import Context
    from ..fleet.process import Fleet

QUEUE, DEAD = "demo-orders", "demo-orders-dead"
DELIVERIES = 3
RATE = 30  # orders a second of each shop
GIVEN = 40  # orders that are worked by the others until each worker has got some
PART = 2.0  # seconds before and after the kill
Order = tuple[str, int]  # shop, number


class QueueActError(Exception):
    """The act cannot continue. The message says why."""


@dataclass(slots=True)
class QueueActResult:
    """Orders by their ends.

    sent: orders that were acknowledged to their shops. worked: worker -> orders. marked: second ends that were marked as given before.
    repeated: those that were not. dead: the poisoned order is among the dead letters. handed_over: seconds from the kill until an order
    of the killed worker was worked by another. trace: the history of the poisoned order, a line a state.
    """

    sent: int = 0
    worked: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    marked: int = 0
    repeated: int = 0
    dead: bool = False
    handed_over: float | None = None
    trace: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        """What went wrong, one line each."""
        found = [f"{self.lost} orders were lost in the queue"] * bool(self.lost)
        found += [f"{self.repeated} orders were worked twice and not marked"] * bool(self.repeated)
        found += ["the poisoned order is not among the dead letters"] * (not self.dead)
        found += ["nobody got what the killed worker had"] * (self.handed_over is None)
        return found


@dataclass(slots=True)
class Worked:
    """An end of an order. before: how often it was given to somebody before."""

    worker: str
    at: float
    before: int


def tally(sent: Iterable[Order], ends: Mapping[Order, list[Worked]], poison: Order) -> QueueActResult:
    """Count the ends of orders. sent: those that were acknowledged. poison: has no end but the dead letters."""
    made = QueueActResult()
    for order in sent:
        made.sent += 1
        found = ends.get(order, [])
        made.lost += not found and order != poison
        marked = sum(one.before > 0 for one in found)
        spare = max(0, len(found) - 1)
        made.marked += min(spare, marked)
        made.repeated += spare - min(spare, marked)
        for one in found:
            made.worked[one.worker] = made.worked.get(one.worker, 0) + 1
    return made


def queues() -> dict[str, Rules]:
    """The queues of the home's broker."""
    from ...broker.queues.core.rules import Rules

    return {QUEUE: Rules(deliveries=DELIVERIES, dead_letters=DEAD, retention=3600.0), DEAD: Rules()}


class QueueAct:
    """Plays the act beside a running mesh. shops: three sites. home: of the queue, whose broker has `queues()`. away: of the other workers.

    phase: called with each event, in words.
    """

    def __init__(self, fleet: Fleet, shops: tuple[str, ...], home: str, away: str, phase: Callable[[str], None]) -> None:
        self.fleet, self.shops, self.home, self.away, self.phase = fleet, shops, home, away, phase
        self.poison: Order = (shops[0], 40)
        self._sent: list[Order] = []
        self._ends: dict[Order, list[Worked]] = {}
        self._changed = threading.Condition()
        self._stack = contextlib.ExitStack()
        self._shops = Shops(RATE)
        self._crew = Crew(fleet.folder, self._stack, self._note_worked)

    def run(self) -> QueueActResult:
        """Play the act, and end everything that it started. Raises QueueActError, OSError."""
        from ...client import JMSError

        try:
            with self._stack:
                return self._play()
        except JMSError as error:
            raise QueueActError(str(error)) from None

    def _play(self) -> QueueActResult:
        names = [f"{site}-{number}" for site in (self.home, self.away) for number in (1, 2)]
        for name in names:
            address = str(self.fleet.members[name.rpartition("-")[0]].address)
            self._crew.employ("worker", name, address, name, QUEUE)
        dead = self._context(self.home)
        graves = dead.create_consumer(dead.create_queue(DEAD))
        for shop in self.shops:
            self._open(shop)
        self.phase(f"shops at {', '.join(self.shops)} put orders into the queue {QUEUE} of {self.home}; workers are {', '.join(names)}")
        self._shops.closed.wait(PART)
        victim = names[-1]
        killed = self._kill(victim)
        self._shops.closed.wait(PART)
        self._shops.close()
        self._wait(self._all_worked)
        letter = graves.receive(PATIENCE)
        result = tally(self._sent, self._ends, self.poison)
        result.handed_over = self._handed_over(killed)
        result.dead = letter is not None and letter.body == UNREADABLE
        if letter is not None:
            result.trace = self._trace(letter.get_int_property("mqmesh-dead-position"))
        if self._shops.errors:
            raise QueueActError(self._shops.errors[0])
        return result

    # The participants

    def _context(self, site: str, name: str | None = None) -> Context:
        from ...client import ConnectionFactory

        address = str(self.fleet.members[site].address)
        factory = ConnectionFactory(address, client_id=name, retry_last=0.5) if name else ConnectionFactory(address, retry_last=0.5)
        return self._stack.enter_context(factory.create_context())

    def _note_worked(self, name: str, said: dict[str, Any]) -> None:
        with self._changed:
            one = Worked(name, time.monotonic(), int(said["before"]))
            self._ends.setdefault((str(said["shop"]), int(said["number"])), []).append(one)
            self._changed.notify_all()

    def _open(self, shop: str) -> None:
        context = self._context(shop, f"shop-{shop}")
        queue, producer = context.create_queue(QUEUE), context.create_producer()

        def send(number: int) -> None:
            body = UNREADABLE if (shop, number) == self.poison else f"{number % 7 + 1} bolts M8"
            producer.set_property("number", number).set_property("shop", shop).send(queue, body)
            with self._changed:
                self._sent.append((shop, number))
                self._changed.notify_all()

        self._shops.open(f"the shop at {shop}", send)
        self._stack.callback(self._shops.close)

    # What happens

    def _kill(self, name: str) -> float:
        """Kill a worker that has orders: when. It is stopped first, and gets orders that it does not work.

        It has some when the others have worked many that were sent later: members of a pool get messages in turn.
        """
        self._crew.stop(name)
        before = set(self._sent)
        self._wait(lambda: len(self._ends.keys() - before) >= GIVEN)
        killed = time.monotonic()
        self._crew.kill(name)
        self.phase(f"the worker {name} was killed (SIGKILL) with orders in its hands")
        return killed

    def _handed_over(self, killed: float) -> float | None:
        """Seconds until an order was worked by somebody that another one had before, after the kill."""
        later = [one.at for ends in self._ends.values() for one in ends if one.before and one.at >= killed]
        return min(later) - killed if later else None

    def _trace(self, position: int) -> list[str]:
        """The history of a message, as `mqmesh queue trace` has it."""
        address = str(self.fleet.members[self.home].address)
        command = [sys.executable, "-m", "mqmesh.cli.main", "queue", "trace", QUEUE, str(position), "-h", address, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise QueueActError(f"mqmesh queue trace: {done.stderr.strip()}")
        return story(json.loads(done.stdout))

    # Waiting

    def _all_worked(self) -> bool:
        return all(order in self._ends or order == self.poison for order in self._sent)

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition as long as something happens."""
        with self._changed:
            while not condition() and self._changed.wait(PATIENCE):
                pass


def story(trace: Mapping[str, Any]) -> list[str]:
    """The answer to a trace as lines: when, who, which state."""
    steps = [(one["at"], one["who"], one["state"]) for one in trace.get("states", ())]
    steps += [(one["at"], who, one["state"]) for who, states in trace.get("subscribers", {}).items() for one in states]
    return [f"{at}  {who}: {state}" for at, who, state in sorted(steps, key=lambda step: step[0] or "")]
