"""Messages on their way to the remote.

Where a stream of JetStream keeps the subject, a message of QoS 1 or 2 is acknowledged when the stream has it; sent again, it is known by
its identifier and stored once. Elsewhere nobody keeps it: it is acknowledged when the server has passed it on to those who listen, which
the PONG behind it says. Until then it is kept here, over lost connections too, and sent again in order.

The library's calls wait; so a task of each connection (`write`) takes from a queue. Its own way of publishing to streams many at a time
would never tell that one refuses a message; a stream's answers come to an inbox of ours. The server names the subject of a message that it
refuses, but the library gives it in lower case: subjects that differ only in case are not under way at one time.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from nats.aio.msg import Msg
from nats.errors import BadHeaderError, BadSubjectError, MaxPayloadError

from ....broker.products.nats.client import Client
from ....broker.products.nats.headers import Headers, Pairs
from ....mqtt.packets import Publish
from ....mqtt.properties import Property
from ....mqtt.reasons import Reason
from ...protocol.events import Event, Published, Trouble
from ...protocol.messages import weight
from . import mapping
from .jetstream import Streams
from .mapping import Unmappable

WINDOW = 1000  # messages without an acknowledgement
PATIENCE = 10.0  # seconds for a stream's
ATTEMPTS = 5


@dataclass(slots=True, eq=False)
class _Sent:
    """A message and its token. until: when its acknowledgement is given up."""

    publish: Publish
    token: int
    number: int
    subject: str = ""
    reply: str = ""
    kept: bool = False
    until: float = 0.0
    attempts: int = 0


class Publisher:
    """name: begins the identifiers of messages. tell: an event for the owner. renew: look for streams again, then set `ready`."""

    def __init__(self, name: str, streams: Streams, tell: Callable[[Event], None], renew: Callable[[], None]) -> None:
        self.bytes = 0
        self.largest = 0  # bytes of headers and payload; 0: any
        self.ready = False
        self._name = name
        self._inbox = f"_INBOX.{name}"
        self._streams = streams
        self._tell = tell
        self._renew = renew
        self._number = 0
        self._client: Client | None = None
        self.idle = asyncio.Event()  # there is nothing that could be sent now
        self._wake = asyncio.Event()
        self._marking = asyncio.Event()
        self._waiting: deque[_Sent] = deque()
        self._flight: OrderedDict[int, _Sent] = OrderedDict()
        self._unmarked: list[_Sent] = []  # sent where no stream is, without a PING behind them
        self._cases: dict[str, tuple[str, int]] = {}  # lower case -> subject, messages under way
        self._acks: deque[str] = deque()

    def cannot(self, publish: Publish) -> str | None:
        """Why a message is not to be sent; None: it may be."""
        return mapping.check(publish, self.largest)

    def lost(self) -> None:
        """The connection has ended."""
        self.ready = False
        self._client = None
        self._unmarked.clear()
        self._acks.clear()
        self._again(list(self._flight.values()))

    def _again(self, some: list[_Sent]) -> None:
        """Send these once more, before what waits."""
        for sent in some:
            self._landed(sent)
        self._waiting.extendleft(reversed(some))

    def _started(self, sent: _Sent) -> None:
        sent.until = asyncio.get_running_loop().time() + PATIENCE
        self._flight[sent.number] = sent
        case = sent.subject.lower()
        self._cases[case] = (sent.subject, self._cases[case][1] + 1 if case in self._cases else 1)

    def _landed(self, sent: _Sent) -> None:
        """It is under way no longer."""
        del self._flight[sent.number]
        case = sent.subject.lower()
        subject, count = self._cases.pop(case)
        if count > 1:
            self._cases[case] = (subject, count - 1)

    # What leaves

    def publish(self, publish: Publish, token: int) -> None:
        """Send a message with the next `more`, or keep it until it can be sent."""
        self._number += 1
        self._waiting.append(_Sent(publish, token, self._number))
        self.bytes += weight(publish)

    def acknowledge(self, reply: str) -> None:
        """Tell a stream that a message has arrived, with the next `more`."""
        self._acks.append(reply)

    def more(self) -> None:
        """Go on sending."""
        self._wake.set()

    async def write(self, client: Client) -> None:
        """Send what comes, in order, as far as there is room, while this connection stands."""
        self._client = client
        await client.subscribe(f"{self._inbox}.*", cb=self._take, pending_msgs_limit=0, pending_bytes_limit=0)
        while True:
            self._wake.clear()
            self.idle.clear()
            while self._acks and self._client is client:
                await client.publish(self._acks.popleft())
            while not self._acks and self._client is client and self._next():
                await self._send(self._waiting.popleft(), client)
            if self._client is not client:  # the library swallows a cancellation now and then
                return
            if self._unmarked:
                self._marking.set()
            if not self._acks and not self._next():
                self.idle.set()
                await self._wake.wait()

    def _next(self) -> bool:
        """Whether the next message may leave."""
        if not self.ready or not self._waiting:
            return False
        sent = self._waiting[0]
        if not sent.subject:
            try:
                sent.subject = mapping.subject_of(sent.publish.topic)
            except Unmappable:  # what was taken before the remote was known
                sent.subject = " "
        under_way = self._cases.get(sent.subject.lower())
        if under_way is not None and under_way[0] != sent.subject:
            return False
        return not sent.publish.qos or len(self._flight) < WINDOW

    async def _send(self, sent: _Sent, client: Client) -> None:
        publish = sent.publish
        if publish.qos:
            self._started(sent)
        else:
            self.bytes -= weight(publish)
        try:
            pairs = mapping.to_nats(publish)
            response = publish.properties.get(Property.RESPONSE_TOPIC)
            sent.reply = mapping.subject_of(response) if response is not None else ""
            sent.kept = bool(publish.qos) and self._streams.acknowledges(sent.subject)
            if sent.kept:
                pairs.insert(0, (mapping.MESSAGE_ID, f"{mapping.OURS}{self._name}-{sent.number}"))
                if response is not None:
                    pairs.append((mapping.RESPONSE, response))
                sent.reply = f"{self._inbox}.{sent.number}"
            await client.publish(sent.subject, publish.payload, sent.reply, Pairs(pairs) if pairs else None)
            if publish.qos and not sent.kept:
                self._unmarked.append(sent)
        except (Unmappable, BadSubjectError, BadHeaderError, MaxPayloadError):  # what was taken before the remote was known
            self._settled(sent, Reason.TOPIC_NAME_INVALID)

    async def mark(self, client: Client) -> None:
        """Ask the server to say when it has handled what was sent so far, again and again while this connection stands."""
        while True:
            await self._marking.wait()
            self._marking.clear()
            marked, self._unmarked = self._unmarked, []
            await client.handled()
            if self._client is not client:
                return
            for sent in marked:
                self._settled(sent, Reason.SUCCESS)

    # What comes

    def _settled(self, sent: _Sent, reason: Reason) -> None:
        if self._flight.get(sent.number) is sent:
            self._landed(sent)
            self.bytes -= weight(sent.publish)
            self._tell(Published(sent.token, reason))
            self._wake.set()

    async def _take(self, message: Msg) -> None:
        """A stream's acknowledgement."""
        number = message.subject.rpartition(".")[2]
        sent = self._flight.get(int(number)) if number.isdecimal() else None
        if sent is None or not sent.kept:
            return
        status = isinstance(message.headers, Headers) and message.headers.status
        try:
            answer = {} if status else json.loads(message.data)
        except (ValueError, RecursionError):
            answer = {}
        if isinstance(answer, dict) and "error" in answer:
            self._tell(Trouble(f"a stream refuses a message: {str(answer['error'])[:200]}"))
            self._settled(sent, Reason.QUOTA_EXCEEDED)
        elif isinstance(answer, dict) and "stream" in answer:
            self._settled(sent, Reason.SUCCESS)
        else:  # nobody was there to take it: the stream is gone, or not yet there
            self._repeat(sent)

    def _repeat(self, sent: _Sent) -> None:
        sent.attempts += 1
        if sent.attempts >= ATTEMPTS:
            self._settled(sent, Reason.SERVER_UNAVAILABLE)
            return
        self._again([sent])
        self._renew()

    def refused(self, subject: str) -> None:
        """We may not publish to this subject (or reply subject), which is in lower case."""
        for sent in [one for one in self._flight.values() if subject in (one.subject.lower(), one.reply.lower())]:
            self._settled(sent, Reason.NOT_AUTHORIZED)

    def on_timer(self, now: float) -> None:
        """Send again what a stream has not acknowledged for too long; it is known there by its identifier."""
        if self.ready and any(sent.kept and now >= sent.until for sent in self._flight.values()):
            self._again([sent for sent in self._flight.values() if sent.kept])
            self._renew()
