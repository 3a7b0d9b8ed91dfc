"""Subscriptions at the remote: a queue of ours, bound to the exchange with a key for each filter.

The queue is durable and is declared with the first subscription. It outlives a lost connection, and the remote's own death, for `expiry`
seconds; what comes meanwhile waits there, up to `length` messages, then the oldest make room. When the metabroker leaves in order the queue
is deleted. Bindings are asked for on a channel of their own: a mistake closes it, and the first asking without an answer was it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from ....mqtt.errors import PeerError
from ....mqtt.reasons import Reason
from ...wire import Event, Subscribed, Trouble
from . import codec, mapping
from .mapping import Unmappable
from .publisher import reason_of

CONTROL, QUEUE = 1, 2  # channels
PREFETCH = 500  # messages that the remote sends before the first is acknowledged
PASSIVE, DURABLE = 1, 2
GRANTED = 1  # QoS: a queue gives each message at least once
SETTLING = 5.0  # seconds after which bindings that nobody asked for again are given up


class State(Enum):
    """Of the queue's channel."""

    CLOSED = "not needed yet"
    OPENING = "asked for"
    READY = "messages come"


class _Asking(NamedTuple):
    """A binding that is asked for, or given up. token 0: nobody waits for the answer."""

    method: codec.Key
    key: bytes
    token: int
    qos: int


class Consumer:
    """queue: its name, the same in each connection. expiry: seconds. length: messages."""

    def __init__(self, exchange: str, queue: str, expiry: int, length: int, write: Callable[[bytes], None]) -> None:
        self.ready = False
        self.state = State.CLOSED
        self._exchange = exchange
        self._queue = queue
        self._arguments: codec.Table = [
            (b"x-expires", min(expiry * 1000, mapping.LONGEST_EXPIRY)),
            (b"x-max-length", length),
        ]
        self._write = write
        self._asked: deque[_Asking] = deque()  # sent, in order
        self._waiting: list[_Asking] = []  # until the queue is there
        self._failed: list[Event] = []
        self._bound: set[bytes] = set()
        self._stale: set[bytes] = set()  # of earlier connections, not asked for again so far
        self._settle_at = 0.0
        self._flags = DURABLE

    # Connections

    def open(self, now: float) -> None:
        """A connection is accepted: open the channel for bindings, and see whether the exchange is there."""
        self._flags = DURABLE
        self._stale = set(self._bound)
        self._settle_at = now + SETTLING
        self._open_control()

    def _open_control(self) -> None:
        self._write(codec.method(CONTROL, codec.CHANNEL_OPEN, ""))
        self._write(codec.method(CONTROL, codec.EXCHANGE_DECLARE, 0, self._exchange, "topic", PASSIVE, []))

    def lost(self) -> None:
        """The connection has ended; the owner asks again."""
        self.ready = False
        self.state = State.CLOSED
        self._asked.clear()
        self._waiting.clear()
        self._failed.clear()

    def leave(self) -> None:
        """Delete the queue."""
        if self._bound or self.state is not State.CLOSED:
            self._write(codec.method(CONTROL, codec.DELETE, 0, self._queue, 0))

    # Askings

    def subscribe(self, filter_: str, qos: int, token: int) -> None:
        """Bind the queue for a filter."""
        try:
            key = mapping.binding_key(filter_)
        except Unmappable:
            self._failed.append(Subscribed(token, Reason.TOPIC_FILTER_INVALID))
            # an answer comes with the next thing that the remote says, so let it say one
            self._write(codec.method(CONTROL, codec.EXCHANGE_DECLARE, 0, self._exchange, "topic", PASSIVE, []))
            return
        self._stale.discard(key)
        self._ask(_Asking(codec.BIND, key, token, qos))

    def unsubscribe(self, filter_: str) -> None:
        """Give a filter up."""
        try:
            key = mapping.binding_key(filter_)
        except Unmappable:
            return
        self._ask(_Asking(codec.UNBIND, key, 0, 0))

    def settle(self, now: float) -> None:
        """Give up bindings that nobody wants any more."""
        if self._stale and self.ready and now >= self._settle_at:
            stale, self._stale = self._stale, set()
            for key in stale:
                self._ask(_Asking(codec.UNBIND, key, 0, 0))

    def _ask(self, asking: _Asking) -> None:
        if self.state is not State.READY or not self.ready:
            self._waiting.append(asking)
            if self.state is State.CLOSED:
                self._open_queue()
            return
        self._asked.append(asking)
        self._send(asking)

    def _send(self, asking: _Asking) -> None:
        where = (0, self._queue, self._exchange, asking.key)
        if asking.method == codec.BIND:
            self._bound.add(asking.key)
            self._write(codec.method(CONTROL, codec.BIND, *where, 0, []))
        else:
            self._bound.discard(asking.key)
            self._write(codec.method(CONTROL, codec.UNBIND, *where, []))

    def _open_queue(self) -> None:
        self.state = State.OPENING
        self._write(codec.method(QUEUE, codec.CHANNEL_OPEN, ""))
        self._write(codec.method(QUEUE, codec.QUEUE_DECLARE, 0, self._queue, self._flags, self._arguments))
        self._write(codec.method(QUEUE, codec.QOS, 0, PREFETCH, 0))
        self._write(codec.method(QUEUE, codec.CONSUME, 0, self._queue, "", 0, []))

    def _send_waiting(self) -> None:
        if self.ready and self.state is State.READY:
            waiting, self._waiting = self._waiting, []
            for asking in waiting:
                self._ask(asking)

    # What comes

    def control(self, key: codec.Key, values: list[codec.Argument], events: list[Event]) -> None:
        """A method on the channel for bindings. Raises PeerError."""
        events += self._failed
        self._failed = []
        if key == codec.EXCHANGE_DECLARE_OK:
            self.ready = True
            self._send_waiting()
        elif key in (codec.BIND_OK, codec.UNBIND_OK) and self._asked:
            asking = self._asked.popleft()
            if asking.token:
                events.append(Subscribed(asking.token, min(asking.qos, GRANTED)))
        elif key == codec.CHANNEL_CLOSE:
            self._refused(codec.number(values[0]), codec.text(values[1]), events)

    def _refused(self, code: int, text: str, events: list[Event]) -> None:
        if not self._asked or code == 404:  # no queue, no exchange: begin anew
            raise PeerError(reason_of(code), text, "")
        asking = self._asked.popleft()
        self._bound.discard(asking.key)
        if asking.token:
            events.append(Subscribed(asking.token, reason_of(code)))
        self._waiting[:0] = self._asked
        self._asked.clear()
        self.ready = False
        self._write(codec.method(CONTROL, codec.CHANNEL_CLOSE_OK))
        self._open_control()

    def queue(self, key: codec.Key, values: list[codec.Argument], events: list[Event]) -> None:
        """A method on the queue's channel that is no message. Raises PeerError."""
        if key == codec.CONSUME_OK:
            self.state = State.READY
            self._send_waiting()
        elif key == codec.CANCEL:
            raise PeerError(Reason.ADMINISTRATIVE_ACTION, "our queue is gone", "")
        elif key == codec.CHANNEL_CLOSE and self.state is State.OPENING:
            self._write(codec.method(QUEUE, codec.CHANNEL_CLOSE_OK))
            self._no_queue(codec.number(values[0]), codec.text(values[1]), events)
        elif key == codec.CHANNEL_CLOSE:
            raise PeerError(Reason.UNSPECIFIED_ERROR, codec.text(values[1]), "")

    def _no_queue(self, code: int, text: str, events: list[Event]) -> None:
        """The queue is refused; one that we have had under other limits is taken as it is."""
        events.append(Trouble(text))
        if code == 406 and not self._flags & PASSIVE:
            self._flags |= PASSIVE
            self._open_queue()
            return
        self.state = State.CLOSED
        waiting, self._waiting = self._waiting, []
        events += [Subscribed(one.token, reason_of(code)) for one in waiting if one.token]
