"""Clients in the virtual loop: an application that takes messages, hangs, dies and returns, and a publisher that keeps the promises of
QoS 1 and 2."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable
from typing import Any

from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.decode import decode
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
)
from mqmesh.mqtt.properties import Property

from .virtual import LIFE, Life, VirtualLoop

AGAIN = 0.3  # seconds until a client connects again
EXPIRY = 86_400  # seconds that a session outlives its connection
VERSION = 5


class Client(asyncio.Protocol):
    """A client with a persistent session, that connects again for as long as it lives. expiry: how long that outlives a connection."""

    def __init__(self, loop: VirtualLoop, name: str, broker: str, offers: list[tuple[str, str]] | None = None) -> None:
        self.loop, self.name, self.broker = loop, name, broker
        self.offers = offers or []
        self.expiry = EXPIRY
        self.window = 0  # its Receive Maximum; 0: it says none
        self.context = contextvars.copy_context()
        self.life = Life(f"client {name}")
        self.context.run(LIFE.set, self.life)
        self.transport: Any = None
        self.up = False
        self.wanted = False
        self.awake = True
        self.refused = 0
        self._framer = Framer()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Connect, and stay connected."""
        self.wanted = True
        self._dial()

    def leave(self) -> None:
        """Break the connection and stay away until `begin`."""
        self.wanted = False
        if self.transport is not None:
            self.transport.abort()

    def _dial(self) -> None:
        if self.wanted and self.awake and self.transport is None and (self._task is None or self._task.done()):
            self._task = asyncio.Task(self._connect(), loop=self.loop, context=self.context)

    async def _connect(self) -> None:
        while self.wanted and self.awake and self.transport is None:
            try:
                await self.loop.create_connection(lambda: self, self.broker, 1883)
                return
            except OSError:
                await asyncio.sleep(AGAIN)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._framer = Framer()
        properties: dict[int, Any] = {Property.SESSION_EXPIRY_INTERVAL: self.expiry}
        if self.window:
            properties[Property.RECEIVE_MAXIMUM] = self.window
        if self.offers:
            properties[Property.USER_PROPERTY] = self.offers
        self.send(Connect(self.name, VERSION, False, 0, None, None, None, properties))

    def connection_lost(self, error: Exception | None) -> None:
        self.transport, self.up = None, False
        self.loop.call_later(AGAIN, self._dial, context=self.context)

    def send(self, packet: Any) -> None:
        """Send a packet, if there is a connection."""
        if self.transport is not None:
            self.transport.write(encode(packet, VERSION))

    def data_received(self, data: bytes) -> None:
        for first, body in self._framer.feed(data):
            self.packet(decode(first, body, VERSION))

    def packet(self, packet: Any) -> None:
        """A packet has come."""
        if isinstance(packet, Connack):
            self.up = packet.reason == 0
            self.refused += packet.reason != 0
            if self.up:
                self.entered(packet)
        elif isinstance(packet, Disconnect):
            self.transport.abort()

    def entered(self, connack: Connack) -> None:
        """The broker has let it in."""


class Listener(Client):
    """Takes what its subscriptions bring. came: told each message. not awake: it reads
    nothing and acknowledges nothing, as after SIGSTOP. qos: that it subscribes with."""

    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        broker: str,
        filters: list[str],
        came: Callable[[Publish], None],
        offers: list[tuple[str, str]] | None = None,
    ) -> None:
        super().__init__(loop, name, broker, offers)
        self.filters, self.came = filters, came
        self.qos = 1
        self.ready = False
        self._open: set[int] = set()  # packet identifiers of QoS 2 that it has and that were not released

    def hang(self) -> None:
        """Do nothing from now on."""
        self.awake = False
        if self.transport is not None:
            self.transport.pause_reading()

    def wake(self) -> None:
        """Go on where it was."""
        self.awake = True
        if self.transport is not None:
            self.transport.resume_reading()
        else:
            self._dial()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.awake:
            self.transport.pause_reading()

    def entered(self, connack: Connack) -> None:
        if not connack.session_present:
            self._open.clear()
        self.send(Subscribe(1, [Subscription(one, self.qos) for one in self.filters], {}))

    def packet(self, packet: Any) -> None:
        if isinstance(packet, Suback):
            self.ready = True
        elif isinstance(packet, Publish):
            if packet.qos < 2 or packet.packet_id not in self._open:
                self.came(packet)
            if packet.qos == 1:
                self.send(Puback(packet.packet_id))
            elif packet.qos == 2:
                self._open.add(packet.packet_id)
                self.send(Pubrec(packet.packet_id))
        elif isinstance(packet, Pubrel):
            self._open.discard(packet.packet_id)
            self.send(Pubcomp(packet.packet_id))
        else:
            super().packet(packet)


class Publisher(Client):
    """Publishes, and sends again after a broken connection what was not acknowledged. acknowledged: told (number, reason)."""

    def __init__(self, loop: VirtualLoop, name: str, broker: str, acknowledged: Callable[[int, int], None]) -> None:
        super().__init__(loop, name, broker)
        self.acknowledged = acknowledged
        self.waiting: dict[int, tuple[int, Publish]] = {}  # packet identifier -> (number, packet)
        self.again: Counter[int] = Counter()  # how often they were sent again, where the broker may have both: QoS 1, or a lost session
        self._released: set[int] = set()  # packet identifiers of QoS 2 whose PUBCOMP is awaited
        self._next = 0

    def publish(self, number: int, topic: str, qos: int, properties: dict[int, Any], payload: bytes | None = None) -> None:
        """Publish a message, now or when there is a connection. payload: the number, if it is None."""
        self._next = self._next % 65_535 + 1
        packet = Publish(topic, b"%d" % number if payload is None else payload, qos, False, False, self._next, properties)
        self.waiting[self._next] = number, packet
        if self.up:
            self._send_message(packet)

    def _send_message(self, packet: Publish) -> None:
        self.send(packet)
        packet.dup = True  # whenever it is sent again

    def entered(self, connack: Connack) -> None:
        if not connack.session_present:
            self._released.clear()
        for identifier in sorted(self._released):
            self.send(Pubrel(identifier))
        for number, packet in list(self.waiting.values()):
            if packet.dup and (packet.qos == 1 or not connack.session_present):
                self.again[number] += 1
            self._send_message(packet)

    def packet(self, packet: Any) -> None:
        if isinstance(packet, Puback | Pubrec):
            taken = self.waiting.pop(packet.packet_id, None)
            if taken is not None:
                self.acknowledged(taken[0], packet.reason)
            if isinstance(packet, Pubrec):
                self._released.add(packet.packet_id)
                self.send(Pubrel(packet.packet_id))
        elif isinstance(packet, Pubcomp):
            self._released.discard(packet.packet_id)
        else:
            super().packet(packet)

    def ping(self) -> None:
        """Say something."""
        self.send(Pingreq())
