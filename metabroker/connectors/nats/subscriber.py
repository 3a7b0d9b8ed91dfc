"""Subscriptions at the remote, and the messages that come for them.

At QoS 1 and 2 a filter is served by a durable consumer of JetStream where one stream covers it; QoS 1 is granted then, and what comes while
we are away waits in the stream. Elsewhere, and at QoS 0, it is a plain subscription, and QoS 0 is granted. A filter such as `a/#` is two
subjects. Each message says for which subscription it has come, as with MQTT 5, so that overlapping ones do not multiply it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ....mqtt.errors import PeerError
from ....mqtt.properties import Property
from ....mqtt.reasons import Reason
from ...wire import Event, Message, Subscribed, Trouble
from . import codec, jetstream, mapping
from .jetstream import Streams
from .mapping import Unmappable
from .talk import Answer, Talk

FIRST_SID = 2  # 1 is the inbox
SETTLING = 5.0  # seconds after which consumers that nobody asked for again are given up


def _ignore(answer: Any, events: list[Event]) -> None:
    """Nobody waits."""


@dataclass(slots=True)
class _Part:
    """One subject of a filter. consumer: its durable one, empty for a plain subscription."""

    subject: str
    sid: int
    consumer: str = ""
    deliver: str = ""


@dataclass(slots=True)
class _Held:
    """One filter. wanted: the QoS. waiting: parts without an answer."""

    filter: str
    wanted: int
    identifier: int
    token: int
    parts: list[_Part] = field(default_factory=list)
    waiting: int = 0
    reason: int = 0


class Subscriber:
    """client: as whom consumers are known. expiry: seconds that they outlive us. renew: look for streams, then call `listed`."""

    def __init__(
        self, client: str, expiry: int, talk: Talk, streams: Streams, write: Callable[[bytes], None], renew: Callable[[], None]
    ) -> None:
        self.epoch = 0
        self._client = client
        self._expiry = expiry
        self._talk = talk
        self._streams = streams
        self._write = write
        self._renew = renew
        self._held: dict[str, _Held] = {}
        self._by_sid: dict[int, tuple[_Held, _Part]] = {}
        self._for_list: list[_Held] = []  # wait for the list of streams
        self._denied: set[str] = set()
        self._too_many = False
        self._consumers: dict[str, str] = {}  # name -> stream; those that we know of
        self._stale: set[str] = set()  # of earlier connections, not asked for again so far
        self._settle_at = 0.0
        self._sid = FIRST_SID
        self._packet_id = 0
        self._open: dict[int, tuple[bytes, tuple[int, int]]] = {}  # packet identifier -> where to acknowledge, message
        self._known: set[tuple[int, int]] = set()  # messages that are open: subscription, number in the stream

    # Connections

    def open(self, epoch: int, now: float) -> None:
        """A connection is accepted; the owner asks for every filter anew."""
        self.epoch = epoch
        self._stale = set(self._consumers)
        self._settle_at = now + SETTLING

    def lost(self) -> None:
        """The connection has ended."""
        self._held.clear()
        self._by_sid.clear()
        self._for_list.clear()
        self._denied.clear()
        self._open.clear()
        self._known.clear()

    def leave(self) -> bool:
        """Delete our consumers; the last answer ends the connection. False: there are none."""
        left = len(self._consumers)
        if not left:
            return False

        def deleted(answer: Any, events: list[Event]) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise PeerError(Reason.NORMAL_DISCONNECTION, "left", "")

        self._delete(self._consumers, deleted)
        return True

    def settle(self, now: float) -> None:
        """Give up consumers that nobody wants any more."""
        if self._stale and now >= self._settle_at:
            self._delete(self._stale)

    def _delete(self, names: Iterable[str], deleted: Answer = _ignore) -> None:
        for name in list(names):
            self._stale.discard(name)
            self._talk.ask(jetstream.delete(self._consumers.pop(name), name), b"", deleted)

    # Askings

    def subscribe(self, filter_: str, qos: int, identifier: int, token: int) -> None:
        """Subscribe; the answer comes later."""
        try:
            subjects = mapping.subjects_of(filter_)
        except Unmappable:
            self._talk.later(Subscribed(token, Reason.TOPIC_FILTER_INVALID))
            return
        held = self._held.get(filter_)
        if held is not None and not held.waiting and (held.reason or not qos):
            held.identifier = identifier
            self._talk.later(Subscribed(token, held.reason))
            return
        if held is not None:
            self._end(held)
        held = _Held(filter_, qos, identifier, token, [_Part(subject, 0) for subject in subjects], len(subjects))
        self._held[filter_] = held
        if qos:
            self._for_list.append(held)
            self._renew()
        else:
            self._plain(held)

    def listed(self) -> None:
        """The streams are known."""
        waiting, self._for_list = self._for_list, []
        for held in waiting:
            if self._held.get(held.filter) is not held:
                continue
            streams = [self._streams.covering(part.subject) for part in held.parts]
            if None in streams:
                self._plain(held)
            else:
                for part, stream in zip(held.parts, streams, strict=True):
                    self._durable(held, part, stream or "")

    def _plain(self, held: _Held) -> None:
        held.waiting = len(held.parts)
        for part in held.parts:
            self._sub(held, part, part.subject)
            self._talk.ping(partial(self._subscribed, held, part))

    def _sub(self, held: _Held, part: _Part, subject: str) -> None:
        part.sid, self._sid = self._sid, self._sid + 1
        self._by_sid[part.sid] = (held, part)
        self._denied.discard(subject)
        self._write(f"SUB {subject} {part.sid}\r\n".encode())

    def _subscribed(self, held: _Held, part: _Part, events: list[Event]) -> None:
        if part.subject in self._denied:
            held.reason = Reason.NOT_AUTHORIZED
        elif self._too_many:
            self._too_many = False
            held.reason = Reason.QUOTA_EXCEEDED
        self._answered(held, events)

    def _answered(self, held: _Held, events: list[Event]) -> None:
        held.waiting -= 1
        if not held.waiting and self._held.get(held.filter) is held:
            events.append(Subscribed(held.token, held.reason))
            if held.reason >= 0x80:
                del self._held[held.filter]
                self._end(held)

    def _durable(self, held: _Held, part: _Part, stream: str) -> None:
        part.consumer = jetstream.consumer_name(self._client, part.subject)
        part.deliver = f"_INBOX.{part.consumer}"
        self._stale.discard(part.consumer)
        self._consumers[part.consumer] = stream
        self._sub(held, part, part.deliver)
        subject, body = jetstream.create(stream, part.consumer, part.subject, part.deliver, self._expiry)
        self._talk.ask(subject, body, partial(self._created, held, part))

    def _created(self, held: _Held, part: _Part, answer: Any, events: list[Event]) -> None:
        if self._held.get(held.filter) is not held:
            return
        if isinstance(answer, dict) and "error" not in answer:
            held.reason = max(held.reason, 1)
            self._answered(held, events)
            return
        why = answer.get("error") if isinstance(answer, dict) else "no answer"
        events.append(Trouble(f"no durable consumer for {part.subject}: {str(why)[:200]}"))
        self._end(held)
        held.reason = 0
        self._plain(held)

    def _end(self, held: _Held) -> None:
        """Of its parts nothing stays."""
        for part in held.parts:
            if part.sid:
                self._by_sid.pop(part.sid, None)
                self._write(f"UNSUB {part.sid}\r\n".encode())
                part.sid = 0
            if part.consumer in self._consumers:
                self._delete([part.consumer])
            part.consumer = ""

    def unsubscribe(self, filter_: str) -> None:
        """Give a filter up."""
        held = self._held.pop(filter_, None)
        if held is not None:
            self._end(held)

    def refused(self, subject: str) -> None:
        """We may not subscribe to this subject."""
        self._denied.add(subject)

    def too_many(self) -> None:
        """The server takes no more subscriptions."""
        self._too_many = True

    # Messages

    def on_delivery(self, delivery: codec.Delivery, events: list[Event]) -> None:
        """A message for a subscription."""
        found = self._by_sid.get(delivery.sid)
        if found is None:
            return
        held, part = found
        number, times = jetstream.sequence(delivery.reply) if part.consumer else (0, 0)
        key = (delivery.sid, number)
        if number and key in self._known:
            return  # the server has lost patience; it is on its way to the community
        topic = mapping.topic_of(delivery.subject)
        if topic is None or (mapping.hidden(delivery.subject) and held.filter[0] in "+#"):
            if topic is None:
                events.append(Trouble(f"a message is dropped: its subject is no topic: {delivery.subject[:80]!r}"))
            self._acknowledge(delivery.reply if number else b"")
            return
        status, pairs = codec.read_headers(delivery.headers)
        publish = mapping.from_nats(topic, delivery.payload, status, pairs, b"" if number else delivery.reply)
        if held.identifier:
            publish.properties[Property.SUBSCRIPTION_IDENTIFIER] = [held.identifier]
        if number:
            self._packet_id += 1
            publish.qos, publish.packet_id, publish.dup = 1, self._packet_id, times > 1
            self._open[self._packet_id] = (delivery.reply, key)
            self._known.add(key)
        events.append(Message(publish, self.epoch))

    def acknowledge(self, packet_id: int, epoch: int) -> None:
        """A message is in safe hands."""
        if epoch == self.epoch and packet_id in self._open:
            reply, key = self._open.pop(packet_id)
            self._known.discard(key)
            self._acknowledge(reply)

    def _acknowledge(self, reply: bytes) -> None:
        if reply:
            self._write(codec.publish(reply.decode("utf-8", "replace"), "", b"", jetstream.ACK))
