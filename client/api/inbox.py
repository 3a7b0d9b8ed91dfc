"""What one consumer holds: messages that have come and are not acknowledged. Sans-IO: no socket, clock, thread or lock.

A message is WAITING (for its delivery time, or for somebody to take it), then DELIVERED (taken, not acknowledged), then gone. `recover`
puts what was delivered back, in the order in which it came, marked as redelivered. Three things end a message without delivery: the
selector does not want it, its time to live is over, or it is a repeat.

Once only: the broker sends again what it has no acknowledgement for, and a publisher sends again what it has none for. Both are known by
the message identifier, while the message is held and for the last `window` messages that were acknowledged. Messages of other MQTT clients
have no identifier; of these, a repeat is recognised while the message is held (same packet identifier, same bytes), and otherwise
delivered again, marked as redelivered.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...base.cache import Cache
from ..core.transport import Incoming
from ..message.messages import DeliveryMode, Message
from ..message.selector import Selector
from ..message.wire import decode


@dataclass(eq=False, slots=True)
class Held:
    """One message. key: how a repeat of it is known. tokens: all that it has come with; none for QoS 0. count: deliveries so far."""

    incoming: Incoming
    message: Message
    order: int
    key: object
    tokens: list[object]
    count: int = 0
    gone: bool = False


class Inbox:
    """selector: evaluated here; None takes everything. own: messages whose identifier begins so are not wanted (noLocal).
    identifier: Subscription Identifier; messages of other subscriptions of the same session are not wanted. window: 0 lets repeats in."""

    def __init__(self, selector: Selector | None = None, own: str = "", identifier: int = 0, window: int = 16384) -> None:
        self._selector, self._own, self._identifier, self._window = selector, own, identifier, window
        self._ready: list[tuple[int, int, Held]] = []  # heap by priority, then order
        self._delayed: list[tuple[int, int, Held]] = []  # heap by delivery time
        self._held: dict[object, Held] = {}
        self._seen: Cache[str, None] = Cache(window)
        self._order = 0
        self.repeats = self.unwanted = self.expired = 0

    def __len__(self) -> int:
        return len(self._held)

    def arrive(self, incoming: Incoming, now: int) -> object | None:
        """A message has come; now: milliseconds since 1970. Returns a token to acknowledge at once, if there is one."""
        message = decode(incoming)
        name = message.message_id
        key: object = name or (incoming.packet, incoming.topic, incoming.payload)
        held = self._held.get(key) if self._window and (name or (incoming.duplicate and incoming.qos)) else None
        if held is not None:
            self.repeats += 1
            if incoming.token is not None:
                held.tokens.append(incoming.token)  # not acknowledged before the one that is held is
            return None
        if name is not None and name in self._seen:
            self.repeats += 1
            return incoming.token
        if not self._wanted(incoming, message):
            self.unwanted += 1
            return incoming.token
        self._order += 1
        key = key if key not in self._held else self._order
        held = Held(incoming, message, self._order, key, [] if incoming.token is None else [incoming.token], int(incoming.duplicate))
        self._held[key] = held
        self._queue(held, now)
        return None

    def _wanted(self, incoming: Incoming, message: Message) -> bool:
        if self._identifier and incoming.subscriptions and self._identifier not in incoming.subscriptions:
            return False
        if self._own and (message.message_id or "").startswith(self._own):
            return False
        return self._selector is None or self._selector.matches(lookup(message))

    def _queue(self, held: Held, now: int) -> None:
        if held.message.delivery_time > now and held.message.delivery_time > held.message.timestamp:
            heapq.heappush(self._delayed, (held.message.delivery_time, held.order, held))
        else:
            heapq.heappush(self._ready, (-held.message.priority, held.order, held))

    def next_due(self) -> int | None:
        """When the next delayed message is due, milliseconds since 1970."""
        return self._delayed[0][0] if self._delayed else None

    def take(self, now: int) -> tuple[Held | None, list[object]]:
        """The next message to deliver, None when there is none, and tokens of what has expired."""
        while self._delayed and self._delayed[0][0] <= now:
            held = heapq.heappop(self._delayed)[2]
            heapq.heappush(self._ready, (-held.message.priority, held.order, held))
        tokens: list[object] = []
        while self._ready:
            held = heapq.heappop(self._ready)[2]
            if not 0 < held.message.expiration <= now:
                return self._deliver(held), tokens
            self.expired += 1
            tokens += self.acknowledge([held])
        return None, tokens

    def _deliver(self, held: Held) -> Held:
        held.count += 1
        held.message.delivery_count = held.count
        held.message.redelivered = held.count > 1
        held.message.properties.typed["JMSXDeliveryCount"] = ("int", held.count)
        return held

    def put_back(self, held: Held, now: int) -> None:
        """As if it had not been taken: it comes next, and no delivery is counted."""
        held.count -= 1
        self._queue(held, now)

    def acknowledge(self, done: Iterable[Held]) -> list[object]:
        """These are done with: tokens to acknowledge."""
        tokens: list[object] = []
        for held in done:
            if held.gone:
                continue
            held.gone = True
            del self._held[held.key]
            if isinstance(held.key, str) and self._window:
                self._seen.keep(held.key, None)
            tokens += held.tokens
        return tokens

    def recover(self, back: Iterable[Held], now: int) -> None:
        """These come again."""
        for held in back:
            if not held.gone:
                held.message = decode(held.incoming)  # what the application has done to the last one is its own
                self._queue(held, now)


def lookup(message: Message) -> Callable[[str], Any]:
    """What a selector sees of a message (3.8.1.1)."""
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
