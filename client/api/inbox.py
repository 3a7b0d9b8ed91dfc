"""The messages of one consumer that have arrived and are not acknowledged. Sans-IO: no socket, clock, thread or lock.

A message waits until its delivery time and until it is taken. Then it is delivered, and gone after its acknowledgement. `recover` puts
delivered messages back in their order of arrival, marked as redelivered. Three kinds of message are never delivered: those that the
selector rejects, expired ones, and repeats.

Once only: the broker repeats messages that the client has not acknowledged, and a publisher repeats messages that the broker has not
acknowledged. Both are recognised by the message identifier, among the messages held and the last `window` acknowledged ones. Messages of
other MQTT clients have no identifier. Their repeats are recognised while the message is held (same packet identifier, same bytes). Later
repeats are delivered, marked as redelivered.

Room: of QoS 1 and 2 the broker sends no more than the prefetch. Nothing holds QoS 0 back: what comes while there is no room is dropped, and
counted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...base.cache import Cache
from ..core.settings import INBOX, INBOX_BYTES
from ..core.transport import Incoming
from ..message.messages import DeliveryMode, Message
from ..message.selector import Selector
from ..message.wire import decode


@dataclass(eq=False, slots=True)
class ReceivedMessage:
    """One message.

    order: number of its arrival.
    key: what a repeat has in common with it.
    tokens: acknowledge it and its repeats to the broker; none for QoS 0.
    count: deliveries so far.
    expires: when it is not delivered any more, in milliseconds since 1970; 0: never.
    gone: it is acknowledged, or given back.
    loose: of QoS 0, so that its broker sends on while it is held.
    """

    incoming: Incoming
    message: Message
    order: int
    key: object
    tokens: list[object]
    count: int = 0
    expires: int = 0
    gone: bool = False
    loose: bool = False


class Inbox:
    """The messages of one consumer.

    selector: evaluated here; None selects everything.
    own: messages whose identifier begins with it are not wanted (noLocal).
    identifier: Subscription Identifier; messages of the session's other subscriptions are not wanted.
    window: acknowledged messages that are remembered; 0: repeats are delivered.
    room: messages of QoS 0, and bytes of their payloads, that are held at most.
    probe_topic: empty messages there are acknowledged in their turn, and not delivered; "" for none.
    """

    def __init__(
        self,
        selector: Selector | None = None,
        own: str = "",
        identifier: int = 0,
        window: int = 16384,
        room: tuple[int, int] = (INBOX, INBOX_BYTES),
    ) -> None:
        self._selector, self._own, self._identifier, self._window, self._room = selector, own, identifier, window, room
        self._ready: list[tuple[int, int, ReceivedMessage]] = []  # heap by priority, then order
        self._delayed: list[tuple[int, int, ReceivedMessage]] = []  # heap by delivery time
        self._held: dict[object, ReceivedMessage] = {}
        self._seen: Cache[str, None] = Cache(window)
        self._order = 0
        self.probe_topic = ""
        self._loose = self._loose_bytes = 0
        self.repeats = self.unwanted = self.expired = self.probes = self.dropped = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, incoming: Incoming, now: int) -> object | None:
        """Take a message that has arrived. Returns a token to acknowledge at once, or None. now: milliseconds since 1970."""
        message = decode(incoming)
        name = message.message_id
        key: object = name or (incoming.packet, incoming.topic, incoming.payload)
        held = self._held.get(key) if self._window and (name or (incoming.duplicate and incoming.qos)) else None
        if held is not None:
            self.repeats += 1
            if incoming.token is not None:
                held.tokens.append(incoming.token)  # acknowledged together with the held message
            return None
        if name is not None and name in self._seen:
            self.repeats += 1
            return incoming.token
        if not self._wanted(incoming, message):
            self.unwanted += 1
            return incoming.token
        loose = incoming.token is None
        if loose and not self._has_room(len(incoming.payload)):
            self.dropped += 1
            return None
        self._order += 1
        key = key if key not in self._held else self._order
        tokens = [] if incoming.token is None else [incoming.token]
        held = ReceivedMessage(incoming, message, self._order, key, tokens, self._deliveries(incoming, message))
        held.expires = self._expires(incoming, message, now)
        if loose:
            held.loose = True
            self._loose += 1
            self._loose_bytes += len(incoming.payload)
        self._held[key] = held
        self._queue(held, now)
        return None

    def _has_room(self, size: int) -> bool:
        """Whether one more message of QoS 0 may be held. One is held whatever its size."""
        most, most_bytes = self._room
        return self._loose < most and (not self._loose or self._loose_bytes + size <= most_bytes)

    def _deliveries(self, incoming: Incoming, message: Message) -> int:
        """How often a message was delivered before it came."""
        return int(incoming.duplicate)

    def _expires(self, incoming: Incoming, message: Message, now: int) -> int:
        return message.expiration

    def _wanted(self, incoming: Incoming, message: Message) -> bool:
        if self._identifier and incoming.subscriptions and self._identifier not in incoming.subscriptions:
            return False
        if self._own and (message.message_id or "").startswith(self._own):
            return False
        return self._selector is None or self._selector.matches(lookup(message))

    def _queue(self, held: ReceivedMessage, now: int) -> None:
        if held.message.delivery_time > now and held.message.delivery_time > held.message.timestamp:
            heapq.heappush(self._delayed, (held.message.delivery_time, held.order, held))
        else:
            heapq.heappush(self._ready, (-held.message.priority, held.order, held))

    def next_due(self) -> int | None:
        """When the next delayed message is due, in milliseconds since 1970; None without one."""
        return self._delayed[0][0] if self._delayed else None

    def next_message(self, now: int) -> tuple[ReceivedMessage | None, list[object]]:
        """The next message to deliver, or None; and the tokens of expired messages and probes, for `MessageConsumer.drop`."""
        while self._delayed and self._delayed[0][0] <= now:
            held = heapq.heappop(self._delayed)[2]
            heapq.heappush(self._ready, (-held.message.priority, held.order, held))
        tokens: list[object] = []
        while self._ready:
            held = heapq.heappop(self._ready)[2]
            probe = held.incoming.topic == self.probe_topic and not held.incoming.payload
            if not probe and not 0 < held.expires <= now:
                return self._deliver(held), tokens
            self.probes += probe
            self.expired += not probe
            tokens += self._drop(held)
        return None, tokens

    def _drop(self, held: ReceivedMessage) -> list[object]:
        return self.acknowledge([held])

    def _deliver(self, held: ReceivedMessage) -> ReceivedMessage:
        held.count += 1
        held.message.delivery_count = held.count
        held.message.redelivered = held.count > 1
        held.message.properties.typed["JMSXDeliveryCount"] = ("int", held.count)
        return held

    def put_back(self, held: ReceivedMessage, now: int) -> None:
        """Undo `next_message`: the message is the next one again, and the delivery does not count."""
        held.count -= 1
        self._queue(held, now)

    def acknowledge(self, done: Iterable[ReceivedMessage]) -> list[object]:
        """Forget consumed messages. Returns the tokens to acknowledge."""
        tokens: list[object] = []
        for held in done:
            if held.gone:
                continue
            self._forget(held)
            if isinstance(held.key, str) and self._window:
                self._seen.keep(held.key, None)
            tokens += held.tokens
        return tokens

    def _forget(self, held: ReceivedMessage) -> None:
        held.gone = True
        del self._held[held.key]
        if held.loose:
            self._loose -= 1
            self._loose_bytes -= len(held.incoming.payload)

    def recover(self, back: Iterable[ReceivedMessage], now: int) -> None:
        """Have messages delivered again."""
        for held in back:
            if not held.gone:
                held.message = decode(held.incoming)  # a new one: the application may have changed the last
                self._queue(held, now)


class QueueInbox(Inbox):
    """The messages of one consumer of a queue. What it does not acknowledge goes back to the broker, which gives it to somebody.

    The broker counts the deliveries, and keeps delayed messages until they are due. Messages expire by the time that the broker says they
    have left, in seconds: so the consumer's clock does not count.
    """

    def _deliveries(self, incoming: Incoming, message: Message) -> int:
        return message.delivery_count

    def _expires(self, incoming: Incoming, message: Message, now: int) -> int:
        expiry = incoming.properties.expiry
        return now + 1000 * expiry if expiry is not None else 0

    def _queue(self, held: ReceivedMessage, now: int) -> None:
        heapq.heappush(self._ready, (-held.message.priority, held.order, held))

    def _drop(self, held: ReceivedMessage) -> list[object]:
        return self.give_back([held])  # the broker sees that it has expired

    def give_back(self, back: Iterable[ReceivedMessage]) -> list[object]:
        """Forget messages that are not consumed. Returns the tokens to give them back with."""
        tokens: list[object] = []
        for held in back:
            if not held.gone:
                self._forget(held)
                tokens += held.tokens
        return tokens

    @property
    def unanswered(self) -> int:
        """Messages that the broker counts as this consumer's."""
        return sum(bool(held.tokens) for held in self._held.values())

    def connection_lost(self) -> None:
        """The broker has taken everything back. What is delivered by now is held without a token, until it comes again or is given up."""
        for *_, held in self._ready:
            self._forget(held)
        self._ready.clear()
        for held in self._held.values():
            held.tokens.clear()


def lookup(message: Message) -> Callable[[str], Any]:
    """The headers and properties of a message as a selector sees them (3.8.1.1)."""
    headers: dict[str, Any] = {
        "JMSDeliveryMode": "PERSISTENT" if message.delivery_mode == DeliveryMode.PERSISTENT else "NON_PERSISTENT",
        "JMSPriority": message.priority,
        "JMSMessageID": message.message_id,
        "JMSTimestamp": message.timestamp or None,
        "JMSCorrelationID": message.correlation_id if isinstance(message.correlation_id, str) else None,
        "JMSType": message.jms_type,
    }
    values = message.properties.typed
    return lambda name: headers[name] if name in headers else values.get(name, ("", None))[1]
