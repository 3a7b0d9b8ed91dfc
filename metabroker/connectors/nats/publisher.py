"""Messages on their way to the remote.

Where a stream of JetStream keeps the subject, a message of QoS 1 or 2 is acknowledged when the stream has it; sent again, it is known by
its identifier and stored once. Elsewhere nobody keeps it: it is acknowledged when the server has passed it on to those who listen, which
the PONG behind it says. Until then it is kept here, over lost connections too, and sent again in order.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ....mqtt.packets import Publish
from ....mqtt.properties import Property
from ....mqtt.reasons import Reason
from ...wire import Event, Published, Trouble
from . import codec, mapping
from .jetstream import Streams
from .mapping import Unmappable
from .talk import Talk

WINDOW = 1000  # messages without an acknowledgement
PATIENCE = 10.0  # seconds for a stream's
ATTEMPTS = 5


@dataclass(slots=True)
class _Sent:
    """A message and its token. until: when its acknowledgement is given up."""

    publish: Publish
    token: int
    number: int
    subject: str = ""
    kept: bool = False
    until: float = 0.0
    attempts: int = 0


class Publisher:
    """name: begins the identifiers of messages. renew: look for streams again, then call `more`."""

    def __init__(self, name: str, talk: Talk, streams: Streams, write: Callable[[bytes], None], renew: Callable[[], None]) -> None:
        self.bytes = 0
        self.largest = 0  # bytes of headers and payload; 0: any
        self.ready = False
        self._name = name
        self._talk = talk
        self._streams = streams
        self._write = write
        self._renew = renew
        self._number = 0
        self._waiting: deque[_Sent] = deque()
        self._flight: OrderedDict[int, _Sent] = OrderedDict()
        self._unmarked: list[int] = []  # sent where no stream is, without a PING behind them

    def cannot(self, publish: Publish) -> str | None:
        """Why a message is not to be sent; None: it may be."""
        return mapping.check(publish, self.largest)

    def lost(self) -> None:
        """The connection has ended."""
        self.ready = False
        self._unmarked.clear()
        self._again()

    def _again(self) -> None:
        self._waiting.extendleft(reversed(self._flight.values()))
        self._flight.clear()

    # What leaves

    def publish(self, publish: Publish, token: int) -> None:
        """Send a message, or keep it until it can be sent."""
        self._number += 1
        self._waiting.append(_Sent(publish, token, self._number))
        self.bytes += len(publish.payload)
        self.more()

    def more(self) -> None:
        """Send what has waited, in order, as far as there is room."""
        while self._waiting and self.ready:
            if self._waiting[0].publish.qos and len(self._flight) >= WINDOW:
                break
            sent = self._waiting.popleft()
            try:
                self._send(sent)
            except Unmappable:  # what was taken before the remote was known
                self.bytes -= len(sent.publish.payload)
                self._talk.later(Published(sent.token, Reason.TOPIC_NAME_INVALID))

    def _send(self, sent: _Sent) -> None:
        publish = sent.publish
        sent.subject = mapping.subject_of(publish.topic)
        sent.kept = bool(publish.qos) and self._streams.acknowledges(sent.subject)
        pairs = mapping.to_nats(publish)
        reply = ""
        response = publish.properties.get(Property.RESPONSE_TOPIC)
        if response is not None:
            reply = mapping.subject_of(response)
        if sent.kept:
            pairs.insert(0, (mapping.MESSAGE_ID, f"{mapping.OURS}{self._name}-{sent.number}"))
            if response is not None:
                pairs.append((mapping.RESPONSE, response))
            reply = f"{self._talk.inbox}.p{sent.number}"
        self._write(codec.publish(sent.subject, reply, codec.headers(pairs), publish.payload))
        if not publish.qos:
            self.bytes -= len(publish.payload)
            return
        sent.until = self._talk.now + PATIENCE
        self._flight[sent.number] = sent
        if not sent.kept:
            self._unmarked.append(sent.number)

    def mark(self) -> None:
        """Before what was sent is written: ask the server to say when it has handled it."""
        if self._unmarked:
            numbers, self._unmarked = self._unmarked, []
            self._talk.ping(partial(self._handled, numbers))

    # What comes

    def _handled(self, numbers: list[int], events: list[Event]) -> None:
        for number in numbers:
            self._settled(number, Reason.SUCCESS, events)
        self.more()

    def _settled(self, number: int, reason: Reason, events: list[Event]) -> None:
        sent = self._flight.pop(number, None)
        if sent is not None:
            self.bytes -= len(sent.publish.payload)
            events.append(Published(sent.token, reason))

    def on_answer(self, number: bytes, status: str, payload: bytes, events: list[Event]) -> None:
        """A stream's acknowledgement. number: behind its p."""
        sent = self._flight.get(int(number)) if number.isdigit() else None
        if sent is None or not sent.kept:
            return
        try:
            answer = {} if status else json.loads(payload)
        except (ValueError, RecursionError):
            answer = {}
        if isinstance(answer, dict) and "stream" in answer and "error" not in answer:
            self._settled(sent.number, Reason.SUCCESS, events)
        elif isinstance(answer, dict) and "error" in answer:
            events.append(Trouble(f"a stream refuses a message: {str(answer['error'])[:200]}"))
            self._settled(sent.number, Reason.QUOTA_EXCEEDED, events)
        else:  # nobody was there to take it: the stream is gone, or not yet there
            self._repeat(sent, events)
        self.more()

    def _repeat(self, sent: _Sent, events: list[Event]) -> None:
        sent.attempts += 1
        if sent.attempts >= ATTEMPTS:
            self._settled(sent.number, Reason.SERVER_UNAVAILABLE, events)
            return
        del self._flight[sent.number]
        self._waiting.appendleft(sent)
        self._renew()

    def refused(self, subject: str, events: list[Event]) -> None:
        """We may not publish to this subject."""
        for sent in [one for one in self._flight.values() if one.subject == subject]:
            self._settled(sent.number, Reason.NOT_AUTHORIZED, events)

    def on_timer(self, now: float) -> None:
        """Send again what a stream has not acknowledged for too long; it is known there by its identifier."""
        if self.ready and any(sent.kept and now >= sent.until for sent in self._flight.values()):
            self._again()
            self._renew()
