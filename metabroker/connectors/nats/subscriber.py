"""Subscriptions at the remote, and the messages that come for them.

At QoS 1 and 2 a filter is served by a durable consumer of JetStream for each stream that keeps a part of it, and QoS 1 is granted; what
comes there while we are away waits in the stream. What no stream keeps comes by a plain subscription, which leaves to the consumers what
is theirs. Where there is no stream, and at QoS 0, there is nothing but the plain subscription, and QoS 0 is granted. A filter such as
`a/#` is two subjects. Each message says for which subscription it has come, as with MQTT 5, so that overlapping ones do not multiply it.

The library's calls wait; so what is asked for is a queue, and a task of each connection (`work`) does one thing after the other. What the
server says of a mistake is therefore about the last thing done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext

from ....broker.products.nats.client import Client
from ....broker.products.nats.headers import Headers
from ....mqtt.properties import Property
from ....mqtt.reasons import Reason
from ...protocol.events import Event, Message, Subscribed, Trouble
from . import jetstream, mapping
from .jetstream import Streams
from .mapping import Unmappable

SETTLING = 5.0  # seconds after which consumers that nobody asked for again are given up
MOST_CONSUMERS = 100  # of one filter


@dataclass(slots=True)
class _Part:
    """Some subjects of a filter. consumer: their durable one, empty for a plain subscription."""

    subject: str
    consumer: str = ""
    subscription: Subscription | None = None


@dataclass(slots=True, eq=False)
class _Held:
    """One filter. wanted: the QoS. answered: the owner knows what is granted; messages wait for that. kept: what comes from streams."""

    filter: str
    wanted: int
    identifier: int
    token: int
    subjects: list[str]
    parts: list[_Part] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    reason: int = 0


class Subscriber:
    """name: as whom consumers are known. expiry: seconds that they outlive us. tell: an event for the owner. acknowledge: to a stream."""

    def __init__(self, name: str, expiry: int, streams: Streams, tell: Callable[[Event], None], acknowledge: Callable[[str], None]) -> None:
        self.epoch = 0
        self._name = name
        self._expiry = expiry
        self._streams = streams
        self._tell = tell
        self._acknowledge = acknowledge
        self._client: Client
        self._stream: JetStreamContext
        self._held: dict[str, _Held] = {}
        self._jobs: deque[_Held | Callable[[], Coroutine[Any, Any, None]]] = deque()
        self._wake = asyncio.Event()
        self._asking: asyncio.Task[Any] | None = None  # a request to JetStream's interface
        self._refused = 0  # why the server does not take the last subscription
        self._listing: Callable[[], None] | None = None
        self._consumers: dict[str, str] = {}  # name -> stream; those that we know of
        self._stale: set[str] = set()  # of earlier connections, not asked for again so far
        self._settle_at = 0.0
        self._packet_id = 0
        self._open: dict[int, tuple[str, tuple[str, int]]] = {}  # packet identifier -> where to acknowledge, message
        self._known: set[tuple[str, int]] = set()  # messages that are open: consumer, number in the stream

    # Connections

    def open(self, epoch: int, now: float, client: Client, stream: JetStreamContext) -> None:
        """A connection is accepted; the owner asks for every filter anew."""
        self.epoch, self._client, self._stream = epoch, client, stream
        self._stale = set(self._consumers)
        self._settle_at = now + SETTLING

    def lost(self) -> None:
        """The connection has ended."""
        self._held.clear()
        self._jobs.clear()
        self._open.clear()
        self._known.clear()
        self._listing = None

    async def work(self) -> None:
        """Do what is asked for while this connection stands. Raises what the library does when it has ended."""
        while True:
            if not self._jobs and self._listing is None:
                self._wake.clear()
                await self._wake.wait()
            if self._listing is not None or any(isinstance(job, _Held) and job.wanted for job in self._jobs):
                listed, self._listing = self._listing, None
                await self.find_streams()
                if listed is not None:
                    listed()
            for _ in range(len(self._jobs)):
                job = self._jobs.popleft()
                if not isinstance(job, _Held):
                    await job()
                elif self._held.get(job.filter) is job:
                    await self._ask_for(job)

    async def find_streams(self) -> None:
        """Read which streams there are; none, where we may not."""
        await self._ask(self._streams.load(self._stream))

    def renew(self, listed: Callable[[], None]) -> None:
        """Look for streams again, then call this."""
        self._listing = listed
        self._wake.set()

    def _do(self, job: _Held | Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._jobs.append(job)
        self._wake.set()

    async def _ask(self, question: Coroutine[Any, Any, Any]) -> str | None:
        """A request to JetStream's interface; None, or why there is no answer to it: whatever the server says ends nothing."""
        self._asking = asyncio.ensure_future(question)
        try:
            await asyncio.wait({self._asking})
            if self._asking.cancelled():
                return "not allowed"
            error = self._asking.exception()
            return None if error is None else str(error)[:200] or type(error).__name__
        finally:
            self._asking.cancel()
            self._asking = None

    def denied(self) -> None:
        """We may not use JetStream's interface."""
        if self._asking is not None:
            self._asking.cancel()

    def refused(self, reason: Reason) -> None:
        """The server does not take the last subscription."""
        self._refused = reason

    async def stop_receiving(self) -> None:
        """Have streams keep what comes from now on and what is not acknowledged, for whoever comes next.

        Else the server would send it to a connection that ends, and wait for `ACK_WAIT` before it sends it again.
        """
        for part in [part for held in self._held.values() for part in held.parts]:
            if part.subscription is not None:
                await part.subscription.unsubscribe()
        for reply, _ in self._open.values():
            await self._client.publish(reply, jetstream.NOT_TAKEN)

    async def leave(self) -> None:
        """Delete our consumers."""
        for name in list(self._consumers):
            await self._delete(name)

    def settle(self, now: float) -> None:
        """Give up consumers that nobody wants any more."""
        if self._stale and now >= self._settle_at:
            for name in self._stale:
                self._do(partial(self._delete, name))
            self._stale.clear()

    async def _delete(self, name: str) -> None:
        stream = self._consumers.pop(name, None)
        self._stale.discard(name)
        if stream is not None:
            await self._ask(self._stream.delete_consumer(stream, name))

    # Askings

    def subscribe(self, filter_: str, qos: int, identifier: int, token: int) -> None:
        """Subscribe; the answer comes later."""
        try:
            subjects = mapping.subjects_of(filter_)
        except Unmappable:
            self._tell(Subscribed(token, Reason.TOPIC_FILTER_INVALID))
            return
        held = self._held.get(filter_)
        if held is not None and held.answered.is_set() and (held.reason or not qos):
            held.identifier = identifier
            self._tell(Subscribed(token, held.reason))
            return
        if held is not None:
            self._do(partial(self._end, held))
        self._held[filter_] = held = _Held(filter_, qos, identifier, token, subjects)
        self._do(held)

    def unsubscribe(self, filter_: str) -> None:
        """Give a filter up."""
        held = self._held.pop(filter_, None)
        if held is not None:
            self._do(partial(self._end, held))

    async def _ask_for(self, held: _Held) -> None:
        for subject in held.subjects:
            whole = False
            for stream, kept in self._kept(held, subject):
                whole = (await self._durable(held, stream, kept) and kept == subject) or whole
            if not whole:
                held.reason = await self._plain(held, subject) or held.reason
        if held.kept and held.reason < 0x80:
            held.reason = 1
        if held.reason >= 0x80:
            await self._end(held)
        held.answered.set()
        if self._held.get(held.filter) is held:
            self._tell(Subscribed(held.token, held.reason))
            if held.reason >= 0x80:
                del self._held[held.filter]

    def _kept(self, held: _Held, subject: str) -> list[tuple[str, str]]:
        """Streams that keep something of a subject, and what."""
        if not held.wanted:
            return []
        own = not subject.startswith(("*", ">"))
        found = [(stream, kept) for stream, kept in self._streams.keeping(subject) if own or not mapping.hidden(kept.encode())]
        if len(found) > MOST_CONSUMERS:
            self._tell(Trouble(f"too many streams: no durable consumers for {subject}"))
            return []
        return found

    async def _plain(self, held: _Held, subject: str) -> int:
        self._refused = 0
        await self._listen(held, _Part(subject), subject)
        await self._client.handled()
        return self._refused

    async def _listen(self, held: _Held, part: _Part, subject: str) -> None:
        take = partial(self._take, held, part)
        # without limits of the library's own, beyond which it would drop messages: while they wait, nothing more is read
        part.subscription = await self._client.subscribe(subject, cb=take, pending_msgs_limit=0, pending_bytes_limit=0)
        held.parts.append(part)

    async def _durable(self, held: _Held, stream: str, subject: str) -> bool:
        name = jetstream.consumer_name(self._name, f"{held.filter} {subject}")
        deliver = f"_INBOX.{name}"
        part = _Part(subject, name)
        self._stale.discard(name)
        await self._listen(held, part, deliver)
        self._consumers[name] = stream
        config = jetstream.consumer(name, subject, deliver, self._expiry)
        why = await self._ask(self._stream.add_consumer(stream, config))
        if why is None:
            held.kept.append(subject)
            return True
        self._tell(Trouble(f"no durable consumer for {subject}: {why}"))
        await self._give_up(part)
        held.parts.remove(part)
        return False

    async def _end(self, held: _Held) -> None:
        """Of its parts nothing stays."""
        for part in held.parts:
            await self._give_up(part)
        held.parts.clear()

    async def _give_up(self, part: _Part) -> None:
        if part.subscription is not None:
            await part.subscription.unsubscribe()
        if part.consumer:
            await self._delete(part.consumer)

    # IncomingRun

    async def _take(self, held: _Held, part: _Part, message: Msg) -> None:
        """A message for a subscription."""
        if not held.answered.is_set():
            await held.answered.wait()
        number, times = jetstream.sequence(message.reply) if part.consumer else (0, 0)
        key = (part.consumer, number)
        if number and key in self._known:
            return  # the server has lost patience; it is on its way to the community
        if not part.consumer and held.kept and any(jetstream.covers(kept, message.subject) for kept in held.kept):
            return  # it comes from a stream
        subject = message.subject.encode(errors="surrogateescape")
        topic = mapping.topic_of(subject)
        if topic is None or (mapping.hidden(subject) and held.filter[0] in "+#"):
            if topic is None:
                self._tell(Trouble(f"a message is dropped: its subject is no topic: {subject[:80]!r}"))
            if number:
                self._acknowledge(message.reply)
            return
        headers = message.headers
        status, pairs = (headers.status, headers.pairs) if isinstance(headers, Headers) else ("", [])
        reply = b"" if number else message.reply.encode(errors="surrogateescape")
        publish = mapping.from_nats(topic, message.data, status, pairs, reply)
        if held.identifier:
            publish.properties[Property.SUBSCRIPTION_IDENTIFIER] = [held.identifier]
        if number:
            self._packet_id += 1
            publish.qos, publish.packet_id, publish.dup = 1, self._packet_id, times > 1
            self._open[self._packet_id] = (message.reply, key)
            self._known.add(key)
        self._tell(Message(publish, self.epoch))

    def acknowledge(self, packet_id: int, epoch: int) -> None:
        """Acknowledge a message."""
        if epoch == self.epoch and packet_id in self._open:
            reply, key = self._open.pop(packet_id)
            self._known.discard(key)
            self._acknowledge(reply)
