"""The three roles of a fail-over (US 8,078,902, rows F6 to F8, F13 to F17): what brokers do with messages that a recipient did not take.

    recipient's broker    `fail_over`   hands messages back to the origin's broker, with the state of the recipient
    origin's broker       `place`       chooses an alternative and sends them there, or returns them (`returns.py`)
    alternative's broker  `arrivals.py` delivers them, and says so once they are acknowledged

One broker may be all three; then nothing travels. Between brokers messages go as posts, which are in custody as QoS 2 messages are
(`broker/mesh/peer_message.py`). A session lets go of messages and a post or another session has them in the same batch of the store.
What is posted in one piece of work goes together (`outbox.py`). While the alternative changes, order is kept (`order.py`).

    post                body
    recipients/back     a parcel: a recipient did not take it (to the origin's broker)
    recipients/send     [name, parcel]: for the alternative with this name
    recipients/done     [name, first recipient, count]: the alternative has acknowledged them
    recipients/fence    [recipient, alternative, token]: answer behind all that comes back from this alternative
    recipients/fenced   the same: the answer

If the origin's broker cannot be reached, the recipient's broker does its part.

What it does not know: when a recipient is dead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgpack

from ....base.quoting import quoted
from ....mqtt.batch.run import Run
from ....mqtt.session import Delivery
from ..recipient import Recipient
from .arrivals import Arrivals
from .order import DEAD, Held, Order
from .outbox import Outbox
from .parcels import Parcel, decode
from .records import Record, Step, choose

if TYPE_CHECKING:
    from ...ports import Context, Posts
    from .returns import Returns

log = logging.getLogger("mqmesh.broker")

BACK, SEND, DONE, FENCE, FENCED = [f"recipients/{kind}" for kind in ("back", "send", "done", "fence", "fenced")]
UNREACHABLE = "unreachable"


class Known(Protocol):
    """What is known of recipients."""

    number: int
    local: dict[str, Recipient]

    def record(self, name: str) -> Record | None:
        """What is known of a name here."""

    def reachable(self, broker: int) -> bool:
        """Whether a broker can be reached; this one can."""

    def alternatives(self) -> dict[str, list[str]]:
        """Of applications that the directory knows and no broker has taken up."""


class FailOver:
    """The fail-over of one broker.

    posts: None outside a mesh. arrivals, returns: see there. keep: keeps messages that wait for a fence in the store: a key. forget:
    forgets them. room: called when there is room for posts again.
    """

    def __init__(
        self,
        context: Context,
        known: Known,
        arrivals: Arrivals,
        returns: Returns,
        keep: Callable[[Parcel], bytes],
        forget: Callable[[bytes], None],
        room: Callable[[], None],
    ) -> None:
        self._context = context
        self._known = known
        self.arrivals = arrivals
        self._returns = returns
        self._keep = keep
        self._forget = forget
        self.posts: Posts | None = None
        self.outbox = Outbox(self._refused, room)
        self.order = Order()
        self.counts = {"failed_over": 0, "returned": 0, "dead_lettered": 0, "repeated": 0, "succeeded": 0, "rejected": 0}

    def start(self, posts: Posts) -> None:
        """The broker is a member of a mesh."""
        self.posts = self.outbox.posts = posts
        for kind, received, returned in (
            (BACK, self._back, self._back_returned),
            (SEND, self._send, self._send_returned),
            (DONE, self._noted, self._ignored),
            (FENCE, self._asked, self._fence_returned),
            (FENCED, self._answered, self._ignored),
        ):
            posts.register(kind, _Handler(received, returned))

    def settle(self) -> bool:
        """The end of a piece of work: what is for others goes. True: there was something."""
        posted = self.outbox.waiting
        while self.outbox.waiting:
            self.outbox.flush()
        return posted

    def tick(self) -> None:
        """From time to time: tell the origins' brokers what was acknowledged, and give up fences that are not answered."""
        for site, body in self.arrivals.notices():
            if self.posts is not None:
                self.outbox.note(site, DONE, body)
        for recipient, alternative in self.order.late(self._context.now):
            names = quoted(recipient), quoted(alternative)
            log.info("event=recipient-fence-given-up name=%s alternative=%s text=messages may come out of order", *names)
            self.order.end(recipient, alternative)
            self._advance(recipient)
        self.outbox.has_room()

    # The recipient's broker

    def fail_over(self, recipient: Recipient, delivery: Delivery, sent: bool, reason: str, must: bool) -> bool:
        """Give messages of a recipient to somebody else. sent: it may have them. False: there is no room now, and nothing was done.

        must: whether there is room or not: they have no place to wait.
        """
        if self.outbox.full and not must:
            return False
        now, number = self._context.now, self._known.number
        for run in uniform_runs(delivery):
            if run.expired(now):
                self._context.counters.expired += run.count
                continue
            self._hand_back(Parcel.of(run, delivery.qos, number, now).failed(recipient.name, reason, sent))
        if self._context.journal is not None:
            self._context.journal.failed_over(delivery, recipient.name, reason)
        recipient.counts.failed_over += delivery.count
        self.counts["failed_over"] += delivery.count
        if sent:
            recipient.counts.repeated += delivery.count
            self.counts["repeated"] += delivery.count
        return True

    def _hand_back(self, parcel: Parcel) -> None:
        """To the origin's broker, or do its part."""
        origin = parcel.site
        if origin == self._known.number or self.posts is None or not self._known.reachable(origin):
            self.place(parcel)
        else:
            self.outbox.put(origin, BACK, "", parcel)

    # The origin's broker

    def place(self, parcel: Parcel) -> None:
        """Find an alternative for messages, and give them to it; else return them. They wait while earlier ones are on their way back."""
        steps, chosen = self._choose(parcel)
        awaited = self.order.awaited(parcel, steps)
        at = self.order.place(parcel, awaited)
        if at is None:
            self._give(parcel, steps, chosen)
            return
        self.order.hold(Held(parcel, self._keep(parcel), awaited), at)
        self._fence(parcel.tried[0], awaited)

    def _choose(self, parcel: Parcel) -> tuple[list[Step], Record | None]:
        known = self._known
        return choose(parcel.tried[0], parcel.tried, known.record, known.reachable, known.alternatives())

    def _give(self, parcel: Parcel, steps: list[Step], chosen: Record | None) -> None:
        first = parcel.tried[0]
        while True:
            for step in steps:
                if step.state in DEAD:
                    parcel = parcel.failed(step.recipient, parcel.reason, False)
            if chosen is None:
                self.give_back(parcel)
                return
            self.order.given(first, chosen.name)
            left = self.send_to(chosen, parcel)
            if left is None:
                return
            parcel = left
            steps, chosen = self._choose(parcel)

    def send_to(self, chosen: Record, parcel: Parcel) -> Parcel | None:
        """Give messages to one recipient. What it does not take, as far as that is known here; None: it has all."""
        if chosen.broker != self._known.number and self.posts is not None:
            self.outbox.put(chosen.broker, SEND, chosen.name, parcel)
            return None
        return self._arrive(chosen.name, parcel)

    def _arrive(self, name: str, parcel: Parcel) -> Parcel | None:
        left = self.arrivals.arrive(name, parcel)
        if left is not None:
            self.counts["rejected"] += left.count
        return left

    def give_back(self, parcel: Parcel) -> None:
        """No alternative is left (rows F8, F16): to the originator, or to the dead letters."""
        end = self._returns.give_back(parcel)
        if end:
            self.counts[end] += parcel.count
        first = self._known.local.get(parcel.tried[0]) if parcel.tried else None
        if end == "returned" and first is not None:
            first.counts.returned += parcel.count

    def again(self, parcels: list[Parcel]) -> None:
        """Go on with messages that were kept, in their order: they found no room, or an earlier life of the broker had them."""
        self._returns.try_again()
        for parcel in parcels:
            if parcel.tried:
                self.place(parcel)
            else:
                self.give_back(parcel)

    # The order of what is placed

    def _fence(self, recipient: str, alternatives: set[str]) -> None:
        """Ask the brokers of alternatives for fences; one that needs none is not waited for."""
        for alternative in list(alternatives):
            record = self._known.record(alternative)
            local = self._known.local.get(alternative)
            if local is not None and local.busy:
                token = self.order.begin(recipient, alternative, self._context.now)
                if token is not None:
                    local.when_removed(partial(self._settled, recipient, alternative, token))
            elif local is None and record is not None and self.posts is not None and self._known.reachable(record.broker):
                token = self.order.begin(recipient, alternative, self._context.now)
                if token is not None:
                    self.outbox.note(record.broker, FENCE, msgpack.packb([recipient, alternative, token]))
            else:
                self.order.end(recipient, alternative)
        self._advance(recipient)

    def _settled(self, recipient: str, alternative: str, token: int) -> None:
        """All that came back from an alternative has come."""
        if self.order.answered(recipient, alternative, token):
            self._advance(recipient)

    def _advance(self, recipient: str) -> None:
        """What waits for nothing more goes on."""
        while (held := self.order.first(recipient)) is not None:
            steps, chosen = self._choose(held.parcel)
            held.awaited = self.order.awaited(held.parcel, steps)
            if held.awaited:
                self.order.hold(held, 0)
                self._fence(recipient, held.awaited)
                return
            self._forget(held.key)
            self._give(held.parcel, steps, chosen)

    # Posts

    def _back(self, origin: int, body: bytes) -> None:
        self.place(decode(body))

    def _back_returned(self, destination: int, body: bytes, reason: str) -> None:
        parcel = decode(body)
        parcel.repeated = parcel.repeated or reason == "cleared"
        self.place(parcel)

    def _send(self, origin: int, body: bytes) -> None:
        name, packed = msgpack.unpackb(body)
        left = self._arrive(name, decode(packed))
        if left is not None:
            self._hand_back(left)

    def _send_returned(self, destination: int, body: bytes, reason: str) -> None:
        name, packed = msgpack.unpackb(body)
        self.place(decode(packed).failed(name, UNREACHABLE, reason == "cleared"))

    def _refused(self, kind: str, name: str, parcel: Parcel) -> None:
        """A broker that something was for is not known any more."""
        self.place(parcel.failed(name, UNREACHABLE, False) if name else parcel)

    def _asked(self, origin: int, body: bytes) -> None:
        _, alternative, _ = msgpack.unpackb(body)
        recipient = self._known.local.get(alternative)
        answer = partial(self.outbox.note, origin, FENCED, body)
        if recipient is None:
            answer()
        else:
            recipient.when_removed(answer)

    def _answered(self, origin: int, body: bytes) -> None:
        self._settled(*msgpack.unpackb(body))

    def _fence_returned(self, destination: int, body: bytes, reason: str) -> None:
        self._settled(*msgpack.unpackb(body))

    def _noted(self, origin: int, body: bytes) -> None:
        _, first, count = msgpack.unpackb(body)
        self.note(first, count)

    def note(self, first: str, count: int) -> None:
        """An alternative has acknowledged messages of a recipient."""
        self.counts["succeeded"] += count
        recipient = self._known.local.get(first)
        if recipient is not None:
            recipient.counts.succeeded += count

    def _ignored(self, destination: int, body: bytes, reason: str) -> None:
        """A notice that does not arrive changes nothing."""


class _Handler:
    """Takes the posts of one kind."""

    def __init__(self, received: Callable[[int, bytes], None], returned: Callable[[int, bytes, str], None]) -> None:
        self._received = received
        self._returned = returned

    def received(self, origin: int, body: bytes, expiry: int | None) -> None:
        try:
            self._received(origin, body)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            log.warning("event=recipient-post-refused origin=%d text=%s", origin, error)

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        self._returned(destination, body, reason)


def uniform_runs(delivery: Delivery) -> list[Run]:
    """The messages of a delivery as runs."""
    run = delivery.run
    if delivery.start or delivery.count < run.count:
        run = run.part(delivery.start, delivery.start + delivery.count)
    if run.uniform:
        return [run]  # type: ignore[list-item]
    return [run.single(index) for index in range(run.count)]  # type: ignore[misc]
