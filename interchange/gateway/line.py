"""One MQTT 5 connection to a broker, which posts to the interchange and takes from inboxes for somebody who has logged in.

A message of an inbox stays the connection's until `settle` says what becomes of it; when the connection ends, the broker has it back. So
whatever dies, no message is lost.

What it does not know: HTTP, leases, what is in a message.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...base.interchange import ANSWER, INBOX
from ...base.queues import ALERTS, PREFIX, SELECTOR
from ...base.queues import ANSWER as QUEUES_ANSWER
from ...base.queues import TOPIC as QUEUES
from ...mqtt.codec import decode, encode
from ...mqtt.errors import PeerError, UsageError
from ...mqtt.framing import Framer
from ...mqtt.packets import Connack, Connect, Disconnect, Packet, Pingreq, Puback, Publish, Suback, Subscribe, Subscription
from ...mqtt.properties import Properties, Property
from ...mqtt.reasons import Reason
from ..refusals import Code, Refusal

LARGEST = 268_435_455  # bytes of a packet that we take: those of MQTT
LEASES = 20_000  # messages that a connection has at most
PATIENCE = 30.0  # seconds for an answer of the broker
PING = 30.0  # seconds between two pings, where a socket may be silent
DENIED = (Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED, Reason.BANNED, Reason.CLIENT_IDENTIFIER_NOT_VALID)


class Denied(Exception):
    """The broker does not let this login in. The text says why."""


class Lost(Exception):
    """The connection has ended, or the broker does not answer."""


@dataclass(frozen=True, slots=True)
class Login:
    """What somebody shows to prove who it is; both None: nothing."""

    user: str | None = None
    password: bytes | None = field(default=None, repr=False)


class Line(asyncio.Protocol):
    """One MQTT 5 connection to a broker.

    pings: whether the broker may be gone without a word. client: identifier; empty: the broker makes one up.
    """

    def __init__(self, login: Login, pings: bool, client: str = "") -> None:
        self._loop = asyncio.get_running_loop()
        self._login = login
        self._pings = pings
        self._client = client
        self._framer = Framer(LARGEST)
        self._ready: asyncio.Future[None] | None = self._loop.create_future()  # None: nobody waits for it any more
        self._is_in = False
        self._serial = 0
        self._fresh = 1  # the next packet identifier that was not used yet
        self._free: deque[int] = deque()  # those that were
        self._answers: dict[bytes, asyncio.Future[Any]] = {}  # by Correlation Data
        self._posts: dict[int, bytes] = {}  # packet identifier -> its Correlation Data
        self._subscribed: dict[int, asyncio.Future[Suback]] = {}
        self._came: dict[str, list[Publish]] = {}  # of an inbox, since it was asked for
        self._alerts: dict[str, asyncio.Event] = {}
        self._taking: dict[str, asyncio.Lock] = {}
        self._room = asyncio.Semaphore(65_000)
        self._ping: asyncio.TimerHandle | None = None
        self._silent = False  # since the last ping
        self.largest = LARGEST  # bytes of a packet that the broker takes
        self.used = self._loop.time()
        self.ended: Callable[[], None] = _nothing
        self.closed = False

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        properties: Properties = {Property.RECEIVE_MAXIMUM: LEASES, Property.REQUEST_PROBLEM_INFORMATION: 1}
        keep_alive = int(2 * PING) if self._pings else 0
        self._send(Connect(self._client, 5, True, keep_alive, self._login.user, self._login.password, properties=properties))

    def data_received(self, data: bytes) -> None:
        self._silent = False
        try:
            for first, body in self._framer.feed(data):
                self._packet(decode(first, body, 5))
        except PeerError as error:
            self._fail(Lost(str(error)))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(Lost(str(error or "the connection to the broker is lost")))

    # Life

    async def up(self) -> None:
        """Wait until the broker has let us in. To be called once. Raises Denied, Lost."""
        assert self._ready is not None
        try:
            await self._within(self._ready)
        finally:
            self._ready = None  # its error knows who has raised it, and so this connection
        refused = await self._subscribe([ANSWER, QUEUES_ANSWER], "")
        if max(refused.reasons) >= 0x80:
            raise Denied(f"no subscription to {ANSWER}: {_why(refused.properties)}")

    def close(self) -> None:
        """Leave: what is not settled is the broker's again."""
        if not self.closed and self._is_in:
            self._send(Disconnect())
        self._fail(Lost("closed"))

    def _fail(self, error: Exception) -> None:
        """The connection is of no use any more."""
        if self.closed:
            return
        self.closed = True
        if self._ping is not None:
            self._ping.cancel()
        for one in (self._ready, *self._answers.values(), *self._subscribed.values()):
            if one is not None and not one.done():
                one.set_exception(error)
                one.exception()  # nobody may be waiting
        self._subscribed.clear()
        for alert in self._alerts.values():
            alert.set()
        self._transport.close()
        ended, self.ended = self.ended, _nothing  # which knows this connection
        ended()

    async def _within(self, one: asyncio.Future[Any]) -> Any:
        try:
            async with asyncio.timeout(PATIENCE):
                return await one
        except TimeoutError:
            raise Lost(f"the broker has not answered within {PATIENCE:g} s") from None
        finally:
            del one  # its error would hold this frame, and the frame the error

    def _send(self, packet: Packet) -> None:
        self._transport.write(encode(packet, 5))

    def _beat(self) -> None:
        """Ping; a broker that has not said anything since the last ping is gone."""
        if self._silent:
            self._fail(Lost("the broker is silent"))
            return
        self._silent = True
        self._send(Pingreq())
        self._ping = self._loop.call_later(PING, self._beat)

    # What comes

    def _packet(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._published(packet)
            case Puback():
                self._acknowledged(packet)
            case Suback():
                self._free.append(packet.packet_id)
                if not (waiting := self._subscribed.pop(packet.packet_id)).done():
                    waiting.set_result(packet)
            case Connack():
                self._let_in(packet)
            case Disconnect():
                self._fail(Lost(_why(packet.properties) or packet.reason.name))

    def _let_in(self, packet: Connack) -> None:
        if packet.reason >= 0x80:
            text = _why(packet.properties) or Reason(packet.reason).name.lower().replace("_", " ")
            self._fail((Denied if packet.reason in DENIED else Lost)(text))
            return
        self.largest = packet.properties.get(Property.MAXIMUM_PACKET_SIZE, LARGEST)
        self._room = asyncio.Semaphore(min(65_000, packet.properties.get(Property.RECEIVE_MAXIMUM, 65_535)))
        if self._pings:
            self._ping = self._loop.call_later(PING, self._beat)
        self._is_in = True
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def _published(self, packet: Publish) -> None:
        topic = packet.topic
        if topic in (ANSWER, QUEUES_ANSWER):
            if packet.qos:
                self._send(Puback(packet.packet_id))
            waiting = self._answers.pop(packet.properties.get(Property.CORRELATION_DATA, b""), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(json.loads(packet.payload))
        elif topic.endswith(ALERTS):
            if packet.qos:
                self._send(Puback(packet.packet_id))
            if (alert := self._alerts.get(topic[: -len(ALERTS)])) is not None:
                alert.set()
        else:
            self._came.setdefault(topic, []).append(packet)

    def _acknowledged(self, packet: Puback) -> None:
        """A post was taken, or refused. What the interchange refuses (0x83) it answers, too."""
        correlation = self._posts.pop(packet.packet_id, None)
        self._free.append(packet.packet_id)
        self._room.release()
        if correlation is None or (packet.reason < 0x80 and packet.reason != Reason.NO_MATCHING_SUBSCRIBERS):
            return
        waiting = self._answers.get(correlation)
        if waiting is None or waiting.done() or packet.reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR:
            return
        del self._answers[correlation]
        if packet.reason == Reason.NO_MATCHING_SUBSCRIBERS:
            waiting.set_exception(Refusal(Code.UNAVAILABLE, "this broker has no interchange"))
        elif packet.reason == Reason.NOT_AUTHORIZED:
            waiting.set_exception(Refusal(Code.NOT_PERMITTED, _why(packet.properties) or "the broker's rules of access do not allow it"))
        else:
            waiting.set_exception(Refusal(Code.UNAVAILABLE, _why(packet.properties) or packet.reason.name))

    # What is asked

    async def ask(self, topic: str, payload: bytes, properties: Properties | None = None) -> dict[str, Any]:
        """Publish a request: its answer. Raises Refusal, Lost."""
        self.used = self._loop.time()
        self._serial += 1
        correlation = b"%d" % self._serial
        found = {**(properties or {}), Property.CORRELATION_DATA: correlation}
        packet = Publish(topic, payload, 1, properties=found)
        await self._room.acquire()
        if self.closed:
            raise Lost("the connection to the broker is lost")
        packet.packet_id = self._identifier()
        try:
            data = encode(packet, 5)
        except UsageError as error:
            self._unused(packet.packet_id)
            raise Refusal(Code.NOT_WELL_FORMED, str(error), "give less and shorter texts") from None
        if len(data) > self.largest:
            self._unused(packet.packet_id)
            raise Refusal(Code.TOO_LARGE, f"{len(data):,} bytes", f"the broker takes at most {self.largest:,}")
        self._posts[packet.packet_id] = correlation
        waiting = self._answers[correlation] = self._loop.create_future()
        self._transport.write(data)
        try:
            answer: dict[str, Any] = await self._within(waiting)
        finally:
            self._answers.pop(correlation, None)
            del waiting
        return answer

    def _identifier(self) -> int:
        """One that is free: `_room` sees to it that there is one."""
        if self._free:
            return self._free.popleft()
        self._fresh += 1
        return self._fresh - 1

    def _unused(self, packet_id: int) -> None:
        self._free.append(packet_id)
        self._room.release()

    async def _subscribe(self, filters: list[str], selector: str) -> Suback:
        packet_id = self._identifier()
        self._subscribed[packet_id] = self._loop.create_future()
        properties: Properties = {Property.USER_PROPERTY: [(SELECTOR, selector)]} if selector else {}
        try:
            self._send(Subscribe(packet_id, [Subscription(one, 1) for one in filters], properties))
        except UsageError as error:
            del self._subscribed[packet_id]
            self._free.append(packet_id)
            raise Refusal(Code.NOT_WELL_FORMED, f"MQTT cannot carry this: {error}", "give text without control characters") from None
        found: Suback = await self._within(self._subscribed[packet_id])
        return found

    # Inboxes

    async def open(self, service: str, selector: str) -> asyncio.Event:
        """Become a member of the inbox of a service: the event is set when something is available. Raises Refusal, Lost."""
        topic = PREFIX + INBOX + service
        known = self._alerts.get(topic)
        if known is not None:
            return known
        alert = self._alerts[topic] = asyncio.Event()
        try:
            suback = await self._subscribe([topic + ALERTS], selector)
            reason = suback.reasons[0]
        except BaseException:
            del self._alerts[topic]
            raise
        if reason < 0x80:
            return alert
        del self._alerts[topic]
        text = _why(suback.properties)
        if reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR:
            raise Refusal(Code.NOT_WELL_FORMED, text or f"selector: {selector[:200]!r}", "give a selector of Jakarta Messaging")
        if reason == Reason.QUOTA_EXCEEDED:
            raise Refusal(Code.UNAVAILABLE, text or "too many different selectors")
        raise Refusal(Code.NOT_THE_SENDER, f"{service!r} is not a service of this user", "take from the inbox of a service of yours")

    async def take(self, service: str, most: int) -> list[Publish]:
        """Messages of an inbox that is open, at most so many; each is to be settled. Not to be cancelled. Raises Refusal, Lost."""
        topic = PREFIX + INBOX + service
        asked = json.dumps({"do": "get", "name": INBOX + service, "most": most}).encode()
        async with self._taking.setdefault(topic, asyncio.Lock()):
            try:
                answer = await self.ask(QUEUES, asked)
            except Lost as error:  # what comes later would be nobody's
                self._fail(error)
                raise
            found = self._came.pop(topic, [])
        if "error" in answer:
            self._alerts.pop(topic, None)  # it may be no member any more: who asks again hears why
            raise Refusal(Code.UNAVAILABLE, str(answer["error"]))
        return found

    def settle(self, packet_id: int, done: bool) -> None:
        """Say what became of a message: it is done, or others may have it."""
        self.used = self._loop.time()
        if not self.closed:
            self._send(Puback(packet_id, Reason.SUCCESS if done else Reason.UNSPECIFIED_ERROR))


def _nothing() -> None:
    """Nobody wants to know."""


def _why(properties: Properties) -> str:
    return str(properties.get(Property.REASON_STRING, ""))
