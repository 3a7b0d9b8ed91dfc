"""One broker in the test's own loop, and raw clients that can send any bytes and see every packet.

A test never waits for time. It waits for a packet, for the end of a connection, or for nothing: `Client.nothing` sends a PINGREQ and
expects its answer next, which comes behind everything that the broker had for this client. Where time has to pass, the
loop's clock is moved on (`Site.later`).
"""

from __future__ import annotations

import asyncio
import selectors
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from mqmesh.base.address import parse_address
from mqmesh.broker.auth.roles import ManagementSettings
from mqmesh.broker.auth.settings import AccessSettings
from mqmesh.broker.config import BrokerConfig, Limits, MeshSettings, MetabrokerSettings, TlsSettings, WebSocketSettings
from mqmesh.broker.hooks import Hooks
from mqmesh.broker.journal.settings import JournalSettings
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.server import Broker
from mqmesh.broker.settings.attach import AttachSettings
from mqmesh.broker.settings.http import HttpAddress
from mqmesh.broker.transport.websocket.client import dial
from mqmesh.mqtt import packets
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.decode import decode
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqmesh.mqtt.properties import Property
from mqmesh.store import Store

TIMEOUT = 60.0  # seconds after which a test is taken to have failed

P = TypeVar("P")


TURN = 0.002  # seconds that a turn of the loop counts for at most
AT_ONCE = 50  # turns in which `until` looks each time
LOOK = 0.001  # seconds between two looks after them


class _Attentive(selectors.DefaultSelector):
    """Waits for a turn at most, so that a turn that takes longer means that this process was held up."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(TURN if timeout is None else min(timeout, TURN))


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be moved on. It leaves out what this process was held up for: on a busy machine no time passes
    between two steps of a test that are a moment apart."""

    def __init__(self) -> None:
        self._ahead, self._seen = 0.0, time.monotonic()
        super().__init__(_Attentive())

    def time(self) -> float:
        now = super().time()
        self._ahead -= max(0.0, now - self._seen - TURN)
        self._seen = now
        return now + self._ahead

    def jump(self, seconds: float) -> None:
        self._ahead += seconds


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something holds that nobody announces. Mostly that is a few turns away; after them it looks now and then."""
    async with asyncio.timeout(TIMEOUT):
        turns = 0
        while not condition():
            await asyncio.sleep(0 if turns < AT_ONCE else LOOK)
            turns += 1


class Closed(AssertionError):
    """The broker closed the connection, and the test did not expect it."""


class Client(asyncio.Protocol):
    """A connection to the broker. version: 4 or 5. packets: what came and was not asked for yet."""

    def __init__(self, version: int = 5) -> None:
        self.version = version
        self.name = ""
        self.connack: Connack | None = None
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.raw = bytearray()
        self.count_only = False
        self.lost = False
        self.error: Exception | None = None  # with which the connection ended
        self._packets: asyncio.Queue[Any] = asyncio.Queue()
        self._framer = Framer()
        self._next_id = 0

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.raw += data
        if self.count_only:
            return
        for first, body in self._framer.feed(data):
            self._packets.put_nowait(decode(first, body, self.version))

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.error = error
        self._packets.put_nowait(None)

    # Sending

    def send(self, *what: Any) -> None:
        """Packets, or bytes as they are."""
        self.transport.write(b"".join(one if isinstance(one, bytes) else encode(one, self.version) for one in what))

    def next_id(self) -> int:
        self._next_id = self._next_id % 65_535 + 1
        return self._next_id

    # Receiving

    async def receive(self) -> Any:
        """The next packet; Closed when there is none and never will be."""
        async with asyncio.timeout(TIMEOUT):
            packet = await self._packets.get()
        if packet is None:
            self._packets.put_nowait(None)
            raise Closed(self.name)
        return packet

    async def expect(self, kind: type[P], **fields: Any) -> P:
        """The next packet, which has to be of this kind and have these fields."""
        packet = await self.receive()
        assert isinstance(packet, kind), f"{packet} came, not {kind.__name__}"
        for name, value in fields.items():
            assert getattr(packet, name) == value, f"{name} of {packet} is not {value!r}"
        return packet

    async def expect_among(self, kind: type[P], **fields: Any) -> P:
        """The same, where messages may come before it, as MQTT allows (3.8.4). They are the next packets then."""
        early = []
        while isinstance(packet := await self.receive(), Publish):
            early.append(packet)
        later = [self._packets.get_nowait() for _ in range(self._packets.qsize())]
        for one in (packet, *early, *later):
            self._packets.put_nowait(one)
        return await self.expect(kind, **fields)

    async def messages(self, count: int, acknowledge: bool = True) -> list[Publish]:
        """The next `count` PUBLISH packets, acknowledged through to the end; PUBRELs and other answers between them are taken too."""
        found: list[Publish] = []
        open_2 = 0
        while len(found) < count or open_2:
            packet = await self.receive()
            if isinstance(packet, Pubrel):
                self.send(Pubcomp(packet.packet_id))
                open_2 -= 1
                continue
            assert isinstance(packet, Publish), f"{packet} came, not PUBLISH"
            found.append(packet)
            if acknowledge and packet.qos == 1:
                self.send(Puback(packet.packet_id))
            elif acknowledge and packet.qos == 2:
                self.send(Pubrec(packet.packet_id))
                open_2 += 1
        return found

    async def nothing(self) -> None:
        """Nothing has come, and nothing is on the way."""
        self.send(Pingreq())
        await self.expect(Pingresp)

    async def closed(self, reason: int | None = None) -> None:
        """The broker closes the connection; reason: of the DISCONNECT before (MQTT 5), None for no packet."""
        if reason is not None:
            await self.expect(Disconnect, reason=reason)
        try:
            packet = await self.receive()
        except Closed:
            return
        raise AssertionError(f"{packet} came, not the end")

    def waiting(self) -> int:
        """How many packets have come and were not asked for."""
        return self._packets.qsize() - self.lost

    # What clients do

    async def subscribe(self, *filters: str | Subscription, qos: int = 0, identifier: int = 0) -> Suback:
        """SUBSCRIBE and its SUBACK."""
        wanted = [one if isinstance(one, Subscription) else Subscription(one, qos) for one in filters]
        packet_id = self.next_id()
        self.send(Subscribe(packet_id, wanted, {Property.SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else {}))
        return await self.expect(Suback, packet_id=packet_id)

    async def unsubscribe(self, *filters: str) -> Unsuback:
        packet_id = self.next_id()
        self.send(Unsubscribe(packet_id, list(filters)))
        return await self.expect(Unsuback, packet_id=packet_id)

    async def publish(self, topic: str, payload: bytes = b"", qos: int = 0, **fields: Any) -> int:
        """PUBLISH, and everything until the broker has taken it: the reason code of its answer (QoS 0: 0)."""
        packet = Publish(topic, payload, qos, packet_id=self.next_id() if qos else 0, **fields)
        self.send(packet)
        if not qos:
            await self.nothing()
            return 0
        answer = await self.expect(Puback if qos == 1 else Pubrec, packet_id=packet.packet_id)
        if qos == 2 and answer.reason < 0x80:
            self.send(Pubrel(packet.packet_id))
            await self.expect(Pubcomp, packet_id=packet.packet_id, reason=0)
        return int(answer.reason)

    async def leave(self, reason: int = 0, **properties: Any) -> None:
        """DISCONNECT, and wait for the end."""
        self.send(Disconnect(reason, properties.get("properties", {})))  # type: ignore[arg-type]
        await self.closed()

    async def cut(self) -> None:
        """The connection breaks, without a word."""
        self.transport.abort()
        await until(lambda: self.lost)


class Site:
    """A broker at a free port.

    tls: its certificates. store: what keeps its sessions. mesh: number and settings. http: host and port of its HTTP face. origins: of web
    pages that may connect. metabroker: its rule. journal: what it writes down. queues: that it has. management: roles of
    users. hooks: that it calls. attach: brokers that it is attached to. limits: fields of `Limits` that differ.
    """

    def __init__(
        self,
        listen: str = "mqtt://127.0.0.1:0",
        tls: TlsSettings | None = None,
        store: Store | None = None,
        mesh: tuple[int, MeshSettings] | None = None,
        http: tuple[str, int] | tuple[str, int, bool] | None = None,
        access: AccessSettings | None = None,
        origins: tuple[str, ...] = (),
        metabroker: MetabrokerSettings | None = None,
        journal: JournalSettings | None = None,
        management: ManagementSettings | None = None,
        queues: QueueSettings | None = None,
        hooks: Sequence[Hooks] = (),
        attach: Sequence[AttachSettings] = (),
        **limits: Any,
    ) -> None:
        limits.setdefault("sys_interval", 0)
        self.context: ssl.SSLContext | None = None  # with which clients connect
        number, settings = mesh or (0, None)
        limited = replace(Limits(), **limits)
        config = BrokerConfig(f"site{number}", number, listen=[listen], mesh=settings, limits=limited, tls=tls)
        config.http = HttpAddress(*http) if http is not None else None
        config.websocket = WebSocketSettings(list(origins))
        config.access = access
        config.journal = journal
        config.queues = queues
        config.attach = list(attach)
        if management is not None:
            config.management = management
        if metabroker is not None:
            config.metabroker = metabroker
        self.broker = Broker(config, store, hooks)
        self.clients: list[Client] = []

    async def __aenter__(self) -> Self:
        await self.broker.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.broker.stop()
        for client in self.clients:
            client.transport.abort()

    async def dial(self, version: int = 5) -> Client:
        """A network connection on which nothing was said."""
        loop = asyncio.get_running_loop()
        address = self.broker.addresses[0]
        if address.startswith("unix://"):
            _, client = await loop.create_unix_connection(lambda: Client(version), address[7:])
        else:
            to = parse_address(address)
            if to.websocket:
                client = Client(version)
                await dial(client, to.host, to.port, to.path, self.context, TIMEOUT)
            else:
                _, client = await loop.create_connection(lambda: Client(version), "127.0.0.1", to.port, ssl=self.context)
        self.clients.append(client)
        return client

    async def client(
        self,
        name: str = "",
        version: int = 5,
        clean: bool = True,
        expiry: int = 0,
        will: Will | None = None,
        keep_alive: int = 0,
        password: bytes | None = None,
        user: str | None = None,
        **properties: Any,
    ) -> Client:
        """A client whose CONNECT was accepted. user: who has the password, the client's name if not given.

        properties: of CONNECT, by name in small letters.
        """
        client = await self.dial(version)
        client.name = name
        found: dict[int, Any] = {Property[key.upper()]: value for key, value in properties.items()}
        if expiry:
            found[Property.SESSION_EXPIRY_INTERVAL] = expiry
        user = None if password is None else user or name
        client.send(Connect(name, version, clean, keep_alive, user, password, will, found if version == 5 else {}))
        client.connack = await client.expect(Connack, reason=0)
        return client

    async def gone(self, name: str) -> None:
        """Wait until the broker knows that a client's connection is gone."""
        await until(lambda: (session := self.broker.site.sessions.get(name)) is None or session.connection is None)

    async def until(self, condition: Any) -> None:
        """Let the loop run until something holds."""
        await until(condition)

    async def later(self, seconds: float) -> None:
        """Let time pass, and what is due happen."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        loop.jump(seconds)
        for _ in range(3):
            await asyncio.sleep(0)
        while self.broker.context.turns._waiting:  # what is due has turns  # noqa: ASYNC110
            await asyncio.sleep(0)


__all__ = ["Client", "Closed", "JumpingLoop", "Site", "packets"]
