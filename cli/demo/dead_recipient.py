"""The demo's fourth act: an order application hangs, its messages go to another one at another site, then both are dead, and one returns.

Three programs with the JMS-like API: a shop at one site publishes orders to `app/orders/new`; a clerk at a second site is the application
`orders`; a clerk at a third site is its alternative. Each clerk is a process, so that SIGSTOP makes it hang: its connection stays open, and
nothing is acknowledged. What nobody takes comes back to the shop.

`tally` counts. An order has one end: handled by a clerk, or returned. More than one is a repeat; it is marked if the second clerk was told
that an earlier one may have the order. No end is a loss.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from .participants import PATIENCE, Crew, Shops

if TYPE_CHECKING:
    from ...broker.recipients.settings import RecipientSettings
    from ...client import Message
    from ..fleet.process import Fleet

FIRST, SECOND = "orders", "orders-backup"
INTERVALS = (0.5, 1.0, 4.0)  # seconds: message, fault, defunct
RATE = 100  # orders a second
PART = 2.0  # seconds of each quiet part
EVENTS = "$mqmesh/events/recipients"
RETURNED = "shop/returned"


class DeadRecipientError(Exception):
    """The act cannot continue. The message says why."""


@dataclass(slots=True)
class Step:
    """One thing that was done to a clerk, or that happened to it.

    at: seconds from the start of the act.
    noticed: seconds until a broker said the new state; None: never.
    then: what became of orders, in words.
    """

    what: str
    at: float
    noticed: float | None = None
    then: str = ""


@dataclass(slots=True)
class DeadRecipientResult:
    """The result of the act: orders by their ends.

    sent: orders that the shop's broker acknowledged.
    handled: application -> orders that it handled.
    returned: orders that came back to the shop.
    marked: second ends that were marked as possibly repeated; repeated: those that were not.
    """

    sent: int = 0
    handled: dict[str, int] = field(default_factory=dict)
    returned: int = 0
    lost: int = 0
    marked: int = 0
    repeated: int = 0
    steps: list[Step] = field(default_factory=list)

    def problems(self) -> list[str]:
        """What went wrong, one line each."""
        found = [f"{self.lost} orders were lost"] * bool(self.lost)
        found += [f"{self.repeated} orders were handled twice and not marked"] * bool(self.repeated)
        found += [f"nobody noticed: {step.what}" for step in self.steps if step.noticed is None]
        return found


@dataclass(slots=True)
class End:
    """One end of an order. where: an application, or `RETURNED`. repeated: it was marked."""

    where: str
    at: float
    repeated: bool = False


def tally(sent: Iterable[int], ends: Mapping[int, list[End]]) -> DeadRecipientResult:
    """Count the ends of orders. sent: numbers of those that were acknowledged."""
    made = DeadRecipientResult()
    for number in sent:
        made.sent += 1
        found = ends.get(number, [])
        made.lost += not found
        spare = len(found) - 1
        marked = min(max(spare, 0), sum(one.repeated for one in found))
        made.marked += marked
        made.repeated += max(spare, 0) - marked
        for one in found:
            if one.where == RETURNED:
                made.returned += 1
            else:
                made.handled[one.where] = made.handled.get(one.where, 0) + 1
    return made


def recipients() -> RecipientSettings:
    """The table `[recipients]` of the demo's brokers: it reserves `app/`; the clerks declare themselves."""
    from ...broker.recipients.settings import Intervals, RecipientSettings

    return RecipientSettings(intervals=Intervals(*INTERVALS))


class DeadRecipientAct:
    """Plays the act beside a running mesh whose brokers have `recipients()`.

    shop, first, second: sites of the shop and of the two clerks. phase: called with each event, in words.
    """

    def __init__(self, fleet: Fleet, shop: str, first: str, second: str, phase: Callable[[str], None]) -> None:
        self.fleet, self.phase = fleet, phase
        self.sites = {"shop": shop, FIRST: first, SECOND: second}
        self.steps: list[Step] = []
        self._ends: dict[int, list[End]] = {}
        self._sent: list[int] = []
        self._states: dict[str, tuple[str, float]] = {}  # application -> state, since when (monotonic)
        self._changed = threading.Condition()
        self._stack = contextlib.ExitStack()
        self._shop = Shops(RATE)
        self._clerks = Crew(fleet.folder, self._stack, self._note_handled)
        self._begin = time.monotonic()

    def run(self) -> DeadRecipientResult:
        """Play the act, and end everything that it started. Raises DeadRecipientError, OSError."""
        from ...client import JMSError

        try:
            with self._stack:
                self._play()
                self._finish()
                result = tally(self._sent, self._ends)
        except JMSError as error:
            raise DeadRecipientError(str(error)) from None
        if self._shop.errors:
            raise DeadRecipientError(self._shop.errors[0])
        result.steps = self.steps
        return result

    def _play(self) -> None:
        logging.getLogger("mqmesh.client").addHandler(logging.NullHandler())  # this demo shows its warnings
        for name in (FIRST, SECOND):
            self._listen(name)
            self._employ(name)
        self._open_shop()
        self.phase(
            f"a shop at {self.sites['shop']} sends {RATE} orders a second to the application {FIRST} at {self.sites[FIRST]}; "
            f"its alternative is {SECOND} at {self.sites[SECOND]}"
        )
        self._wait(lambda: self._count(FIRST) > 0, "the first order")
        self._pass(PART)
        self._hang(FIRST, f"orders go to {SECOND}")
        self._pass(PART)
        self._hang(SECOND, "orders come back to the shop")
        self._await(FIRST, "defunct", "its broker closes its connection")
        self._pass(PART / 2)
        self._wake(FIRST)
        self._wake(SECOND)
        self._pass(PART)

    def _finish(self) -> None:
        """Close the shop, then wait for the ends of all orders. The shop is closed first: the order that it sends just now counts too."""
        self._shop.close()
        while not self._all_ended():
            before = self._all()
            self._wait(partial(self._more_than, before), "", must=False)
            if self._all() == before:
                return

    def _more_than(self, ends: int) -> bool:
        return self._all_ended() or self._all() > ends

    # What happens to clerks

    def _hang(self, name: str, then: str) -> None:
        step = self._step(f"{name} at {self.sites[name]} hangs (SIGSTOP)")
        before = self._counts()
        self._clerks.stop(name)
        self._notice(step, name, "fault")
        self._wait(lambda: self._counts() != before, "orders elsewhere", must=False)
        step.then = then

    def _wake(self, name: str) -> None:
        step = self._step(f"{name} goes on (SIGCONT)")
        before = self._count(name)
        self._clerks.wake(name)
        self._notice(step, name, "operational")
        if name == FIRST:
            self._wait(lambda: self._count(name) > before, "orders at the first clerk again", must=False)
        step.then = "it handles orders again" if name == FIRST else "it stands by again"

    def _await(self, name: str, state: str, then: str) -> None:
        step = self._step(f"{name} goes on hanging")
        self._notice(step, name, state)
        step.then = then

    def _step(self, what: str) -> Step:
        step = Step(what, time.monotonic() - self._begin)
        self.steps.append(step)
        return step

    def _notice(self, step: Step, name: str, state: str) -> None:
        """Wait until a broker says that an application is in a state."""
        begun = self._begin + step.at
        self._wait(lambda: self._states.get(name, ("", 0.0))[0] == state, f"{name} {state}", must=False)
        if self._states.get(name, ("", 0.0))[0] == state:
            step.noticed = max(0.0, self._states[name][1] - begun)
            self.phase(f"{step.what}: {state} after {step.noticed:.2f} s")

    # Participants

    def _address(self, name: str) -> str:
        return str(self.fleet.members[self.sites[name]].address)

    def _listen(self, name: str) -> None:
        """Hear what the application's broker says of it."""
        from ...client import ConnectionFactory

        context = self._stack.enter_context(ConnectionFactory(self._address(name), retry_last=0.5).create_context())
        context.create_consumer(context.create_topic(EVENTS)).message_listener = self._note_state

    def _employ(self, name: str) -> None:
        intervals = ",".join(map(str, INTERVALS))
        alternatives = SECOND if name == FIRST else "-"
        self._clerks.employ("clerk", name, self._address(name), name, alternatives, intervals)

    def _note_handled(self, name: str, said: dict[str, Any]) -> None:
        self._end(int(said["number"]), End(name, said["at"], said["repeated"]))

    def _open_shop(self) -> None:
        from ...client import ConnectionFactory

        context = self._stack.enter_context(ConnectionFactory(self._address("shop"), client_id="shop", retry_last=0.5).create_context())
        context.create_consumer(context.create_topic(RETURNED)).message_listener = self._note_returned
        shop = self._stack.enter_context(context.create_context())
        orders = shop.create_topic(f"app/{FIRST}/new")
        producer = shop.create_producer().set_reply_to(shop.create_topic(RETURNED))
        self._sell(lambda number: producer.set_property("number", number).send(orders, {"article": "bolt M8", "count": number % 7 + 1}))
        self._stack.callback(self._shop.close)

    def _sell(self, send: Callable[[int], object]) -> None:
        """Send orders in a thread until the shop closes. send: returns once the broker has acknowledged an order."""

        def sell(number: int) -> None:
            send(number)
            self._sent.append(number)

        self._shop.open("the shop", sell)

    def _note_state(self, message: Message) -> None:
        said = json.loads(message.body)
        with self._changed:
            self._states[str(said["name"])] = (str(said["to"]), time.monotonic())
            self._changed.notify_all()

    def _note_returned(self, message: Message) -> None:
        from ...client import maybe_repeated

        self._end(message.get_int_property("number"), End(RETURNED, time.monotonic(), maybe_repeated(message)))

    def _end(self, number: int, end: End) -> None:
        with self._changed:
            self._ends.setdefault(number, []).append(end)
            self._changed.notify_all()

    # Waiting

    def _all_ended(self) -> bool:
        return all(number in self._ends for number in self._sent)

    def _all(self) -> int:
        return sum(len(ends) for ends in list(self._ends.values()))

    def _counts(self) -> int:
        return sum(self._count(where) for where in (SECOND, RETURNED))

    def _count(self, where: str) -> int:
        return sum(one.where == where for ends in list(self._ends.values()) for one in list(ends))

    def _pass(self, seconds: float) -> None:
        self._shop.closed.wait(seconds)

    def _wait(self, condition: Callable[[], bool], what: str, must: bool = True) -> None:
        with self._changed:
            done = self._changed.wait_for(condition, PATIENCE)
        if not done and must:
            raise DeadRecipientError(f"{what}: nothing within {PATIENCE:g} s; the logs are in {self.fleet.folder}")
