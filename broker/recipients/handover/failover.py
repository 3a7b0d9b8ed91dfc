"""The three roles of a fail-over (US 8,078,902, rows F6 to F8, F13 to F17): what brokers do with messages that a recipient did not take.

    recipient's broker    `fail_over`   hands messages back to the origin's broker, with the state of the recipient
    origin's broker       `place`       chooses an alternative and sends them there, or returns them
    alternative's broker  `arrive`      delivers them, and says so once they are acknowledged

One broker may be all three; then nothing travels. Between brokers messages go as posts, which are in custody as QoS 2 messages are
(`broker/mesh/peer_message.py`). A session lets go of messages and a post or another session has them in the same batch of the store.

    post                body
    recipients/back     a parcel: a recipient did not take it (to the origin's broker)
    recipients/send     [name, parcel]: for the alternative with this name
    recipients/done     [name, first recipient, count]: the alternative has acknowledged them

If the origin's broker cannot be reached, the recipient's broker does its part.

What it does not know: when a recipient is dead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgpack

from ....base.quoting import quoted
from ....mqtt.batch.run import Run
from ....mqtt.errors import UsageError
from ....mqtt.session import Delivery
from ....mqtt.topics import matches
from ..machine import State
from ..recipient import Recipient
from .parcels import FAILED_OVER, SITE, Parcel, decode, split_marks
from .records import Record, choose

if TYPE_CHECKING:
    from ...auth.guard import Guard
    from ...ports import Context

log = logging.getLogger("mqmesh.broker")

BACK, SEND, DONE = "recipients/back", "recipients/send", "recipients/done"
REJECTED, UNKNOWN = "rejected", "unknown"


class Posts(Protocol):
    """Carries messages between brokers (`broker/mesh/peer_message.py`)."""

    def send(self, brokers: int, kind: str, body: bytes, must: bool = False, room: Callable[[], None] | None = None) -> bool:
        """Post to brokers, bit n for broker n. False: no room; `room` is called when there is some. Raises UsageError."""

    def register(self, kind: str, handler: Any, ahead: bool = False) -> None:
        """Have posts of a kind handled."""


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

    posts: None outside a mesh. publish: takes a message of the broker's own for its subscribers. False: there is no room. wanted: whether
    somebody is subscribed to a topic. bury: takes a dead letter. keep: keeps what finds no room, and gives it to `give_back` again.
    """

    def __init__(
        self,
        context: Context,
        guard: Guard,
        known: Known,
        publish: Callable[[Run], bool],
        wanted: Callable[[str], bool],
        bury: Callable[[Parcel], None],
        keep: Callable[[Parcel], None],
        prefix: str,
    ) -> None:
        self._context = context
        self._guard = guard
        self._known = known
        self._publish = publish
        self._wanted = wanted
        self._bury = bury
        self._keep = keep
        self._prefix = prefix
        self.posts: Posts | None = None
        self.room: Callable[[], None] = lambda: None
        self.counts = {"failed_over": 0, "returned": 0, "dead_lettered": 0, "repeated": 0, "succeeded": 0, "rejected": 0}
        self._done: dict[tuple[int, str, str], int] = {}  # (origin's broker, alternative, first recipient) -> acknowledged

    def start(self, posts: Posts) -> None:
        """The broker is a member of a mesh."""
        self.posts = posts
        for kind, received, returned in (
            (BACK, self._back, self._back_returned),
            (SEND, self._send, self._send_returned),
            (DONE, self._noted, self._ignored),
        ):
            posts.register(kind, _Handler(received, returned))

    # The recipient's broker

    def fail_over(self, recipient: Recipient, delivery: Delivery, sent: bool, reason: str) -> bool:
        """Give messages of a recipient to somebody else. sent: it may have them. False: there is no room now, and nothing was done."""
        now, number = self._context.now, self._known.number
        first = True
        for run in uniform_runs(delivery):
            if run.expired(now):
                self._context.counters.expired += run.count
                continue
            whole = Parcel.of(run, delivery.qos, number, now).failed(recipient.name, reason, sent)
            for parcel in whole.pieces():
                if not self._hand_back(parcel, must=not first):
                    return False
                first = False
        if self._context.journal is not None:
            self._context.journal.failed_over(delivery, recipient.name, reason)
        recipient.counts.failed_over += delivery.count
        self.counts["failed_over"] += delivery.count
        if sent:
            recipient.counts.repeated += delivery.count
            self.counts["repeated"] += delivery.count
        return True

    def _hand_back(self, parcel: Parcel, must: bool) -> bool:
        """To the origin's broker, or do its part."""
        origin = parcel.site
        if origin == self._known.number or self.posts is None or not self._known.reachable(origin):
            return self.place(parcel, must)
        return self._post(origin, BACK, parcel.encode(), must) is not False

    def _post(self, broker: int, kind: str, body: bytes, must: bool) -> bool | None:
        """Post to a broker. False: no room. None: it is not known any more."""
        assert self.posts is not None
        try:
            return self.posts.send(1 << broker, kind, body, must, self.room)
        except UsageError as error:
            log.warning("event=recipient-post-failed kind=%s number=%d text=%s", kind, broker, error)
            return None

    # The origin's broker

    def place(self, parcel: Parcel, must: bool = True) -> bool:
        """Find an alternative for messages, and give them to it; else return them. False: there is no room now (never with `must`)."""
        known = self._known
        first = parcel.tried[0]
        while True:
            steps, chosen = choose(first, parcel.tried, known.record, known.reachable, known.alternatives())
            for step in steps:
                if step.state in (State.FAULT.value, State.DEFUNCT.value):
                    parcel = parcel.failed(step.recipient, parcel.reason, False)
            if chosen is None:
                self.give_back(parcel)
                return True
            if chosen.broker != known.number and self.posts is not None:
                sent = self._post(chosen.broker, SEND, msgpack.packb([chosen.name, parcel.encode()]), must)
                if sent is not None:
                    return sent
                parcel = parcel.failed(chosen.name, "unreachable", False)
                continue
            left = self._arrive(chosen.name, parcel)
            if left is None:
                return True
            parcel = left

    def send_to(self, chosen: Record, parcel: Parcel) -> bool:
        """Give messages to one recipient, as an operator wants it. False: it does not take them."""
        if chosen.broker != self._known.number and self.posts is not None:
            return self._post(chosen.broker, SEND, msgpack.packb([chosen.name, parcel.encode()]), True) is not None
        return self._arrive(chosen.name, parcel) is None

    def give_back(self, parcel: Parcel) -> None:
        """No alternative is left (rows F8, F16): to the originator, or to the dead letters."""
        topic = None
        if not parcel.final:
            topic = self._return_topic(parcel)
        if topic is None or not self._wanted(topic):
            self.counts["dead_lettered"] += parcel.count
            self._bury(parcel)
            return
        run = parcel.returned(topic, self._context.now, self._context.wall())
        if not self._publish(run):
            self._keep(parcel)
            return
        self.counts["returned"] += parcel.count
        if self._context.journal is not None:
            self._context.journal.returned(parcel.run(self._context.now), parcel.tried, topic, parcel.reason)
        first = self._known.local.get(parcel.tried[0]) if parcel.tried else None
        if first is not None:
            first.counts.returned += parcel.count
        log.info(
            "event=returned-to-originator client=%s topic=%s messages=%d tried=%s reason=%s",
            *(quoted(parcel.originator), quoted(topic), parcel.count, quoted(",".join(parcel.tried)), parcel.reason),
        )

    def _return_topic(self, parcel: Parcel) -> str | None:
        response = parcel.response_topic
        if response is not None and self._wanted(response):
            return response
        return f"{self._prefix}/{parcel.originator}/returned" if _is_level(parcel.originator) else None

    # The alternative's broker

    def _arrive(self, name: str, parcel: Parcel) -> Parcel | None:
        """Deliver messages to an alternative here. What it does not take comes back; None: it has all."""
        recipient = self._known.local.get(name)
        refusal = UNKNOWN if recipient is None else self._refusal(recipient, parcel)
        if recipient is None or refusal is not None:
            self.counts["rejected"] += parcel.count
            return parcel.failed(name, refusal or UNKNOWN, False)
        if self._has_it(recipient, parcel):
            self._succeeded(parcel.site, name, parcel.tried[0], parcel.count)
            return None
        run = parcel.run(self._context.now)
        ticket = recipient.port.next_commit if parcel.qos == 2 else 0
        recipient.attempted()
        if run.mark is not None and self._context.journal is not None:
            self._context.journal.received(run, 1, name)
        taken = recipient.deliver(Delivery(run, max(1, parcel.qos), ticket=ticket))
        if taken == parcel.count:
            return None
        left = parcel.failed(name, "no-room", False)
        return left.part(taken, left.count)

    def _refusal(self, recipient: Recipient, parcel: Parcel) -> str | None:
        """Why an alternative does not get messages; None: it does."""
        if not recipient.passing:
            return recipient.state.value
        if recipient.held or not recipient.application.takes(parcel.tried[0]):
            return REJECTED
        topic = parcel.topic.decode()
        for session in recipient.sessions:
            if self._guard.subscription(self._guard.user_of(session), session.client_id, topic) is not None:
                return REJECTED
        return None

    def _has_it(self, recipient: Recipient, parcel: Parcel) -> bool:
        """Whether an alternative got the messages by a subscription of its own when they were published."""
        topic = parcel.topic.decode()
        if topic.startswith(f"{self._prefix}/"):
            return False
        return any(
            subscription.qos and not full.startswith("$share/") and matches(full, topic)
            for session in recipient.sessions
            for full, subscription in session.subscriptions.items()
        )

    def acknowledged(self, recipient: Recipient, delivery: Delivery, count: int) -> None:
        """An alternative has acknowledged messages that failed over to it (row F14)."""
        marks, _ = split_marks(delivery.run.properties)
        site = marks.get(SITE, "")
        first = marks.get(FAILED_OVER, "").split(",")[0]
        self._succeeded(int(site) if site.isdecimal() else self._known.number, recipient.name, first, count)

    def _succeeded(self, site: int, name: str, first: str, count: int) -> None:
        if site == self._known.number or self.posts is None:
            self._note(first, count)
        else:
            key = (site, name, first)
            self._done[key] = self._done.get(key, 0) + count

    def tell(self) -> None:
        """From time to time: tell the origins' brokers what was acknowledged."""
        found, self._done = self._done, {}
        for (site, name, first), count in found.items():
            self._post(site, DONE, msgpack.packb([name, first, count]), True)

    # Posts

    def _back(self, origin: int, body: bytes) -> None:
        self.place(decode(body))

    def _back_returned(self, destination: int, body: bytes, reason: str) -> None:
        parcel = decode(body)
        parcel.repeated = parcel.repeated or reason == "cleared"
        self.place(parcel)

    def _send(self, origin: int, body: bytes) -> None:
        name, packed = msgpack.unpackb(body)
        parcel = decode(packed)
        left = self._arrive(name, parcel)
        if left is not None:
            self._hand_back(left, must=True)

    def _send_returned(self, destination: int, body: bytes, reason: str) -> None:
        name, packed = msgpack.unpackb(body)
        self.place(decode(packed).failed(name, "unreachable", reason == "cleared"))

    def _noted(self, origin: int, body: bytes) -> None:
        _, first, count = msgpack.unpackb(body)
        self._note(first, count)

    def _note(self, first: str, count: int) -> None:
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

    def received(self, origin: int, body: bytes) -> None:
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


def _is_level(text: str) -> bool:
    return bool(text) and not any(c in text for c in "/+#\0")
