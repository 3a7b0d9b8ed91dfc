"""WebSocket listeners: what works over TCP works over them, on both loops; who is refused is told why, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import pytest
from broker.transport.tls.test_contexts import settings
from mqmesh.base.address import parse_address
from mqmesh.broker.transport.websocket.transport import WebSocketTransport
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connect, Disconnect, Pingreq, Pingresp, Publish, Will
from mqmesh.mqtt.reasons import Reason
from mqmesh.mqtt.websocket.frames import BINARY, FINAL, PING, PONG, TEXT, Deframer, close_frame, frame
from mqmesh.mqtt.websocket.opening import ClientOpening, ServerOpening
from support.broker_site import TIMEOUT, Site, until
from support.certificates import Certificates

KEY = b"\1\2\3\4"
LISTEN = "ws://127.0.0.1:0/mqtt"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    certificates = Certificates(tmp_path_factory.mktemp("tls"))
    certificates.broker("porto")
    return certificates


def site(made: Certificates | None = None, **options: Any) -> Site:
    """A broker with one WebSocket listener."""
    if made is None:
        return Site(LISTEN, **options)
    site = Site("wss://127.0.0.1:0", settings(made), **options)
    site.context = made.context()
    return site


def warnings(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [line for line in lines if f"event={event} " in line]


class Raw:
    """A client that sends any bytes. The handshake is made where `open` is used."""

    def __init__(self, porto: Site) -> None:
        self.address = parse_address(porto.broker.addresses[0])
        self.deframer = Deframer(False, 2**30)
        self.payload = b""

    async def dial(self) -> Raw:
        self.reader, self.writer = await asyncio.open_connection(self.address.host, self.address.port)
        return self

    async def open(self) -> Raw:
        await self.dial()
        self.writer.write(ClientOpening("127.0.0.1", self.address.path, bytes(16)).request)
        async with asyncio.timeout(TIMEOUT):
            answer = await self.reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101 ")
        return self

    async def client(self, name: str, **fields: Any) -> Raw:
        await self.open()
        self.send(frame(BINARY, encode(Connect(name, 5, True, 0, **fields), 5), KEY))
        assert (await self.packet())[0] == 0x20
        return self

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def packet(self) -> bytes:
        """Payload, as soon as there is some."""
        self.payload = b""
        async with asyncio.timeout(TIMEOUT):
            while not self.payload:
                data = await self.reader.read(65536)
                assert data, "the connection ended"
                self.payload = self.deframer.feed(data)
        return self.payload

    async def rest(self) -> bytes:
        """Everything until the end of the connection."""
        async with asyncio.timeout(TIMEOUT):
            return await self.reader.read()

    async def closed(self) -> int:
        """The code that the broker closes with; it ends the connection behind it."""
        self.payload = self.deframer.feed(await self.rest())
        assert self.deframer.controls, "no close frame"
        return int.from_bytes(self.deframer.controls[-1][1][:2], "big")


@pytest.mark.any_loop
@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_every_qos_and_size_goes_through(made: Certificates, scheme: str) -> None:
    async with site(made if scheme == "wss" else None, max_packet_size=4_000_000) as porto:
        subscriber, publisher = await porto.client("s"), await porto.client("p", 4)
        await subscriber.subscribe("#", qos=2)
        sent = []
        for qos in (0, 1, 2):
            for size in (0, 1, 100, 126, 16_384, 70_000, 3_000_000):
                payload = bytes([qos + 1]) * size
                sent.append((qos, payload))
                await publisher.publish("t", payload, qos)
        got = [(message.qos, bytes(message.payload)) for message in await subscriber.messages(len(sent))]
        assert got == sent
        assert porto.broker.context.counters.websocket_handshakes == 2
        assert porto.broker.addresses[0].startswith(f"{scheme}://127.0.0.1:")
        assert porto.broker.addresses[0].endswith("/mqtt")
        await publisher.leave()
        await subscriber.leave()


@pytest.mark.any_loop
async def test_a_message_in_a_frame_each_is_a_run(made: Certificates) -> None:
    """Frames of one chunk are one piece of bytes to the broker, and leave as few frames."""
    async with site() as porto:
        subscriber, publisher = await porto.client("s"), await Raw(porto).client("p")
        await subscriber.subscribe("#")
        routed = porto.broker.site.router.deliver
        runs = []

        def deliver(run: Any, *more: Any) -> Any:
            runs.append(run.count)
            return routed(run, *more)

        porto.broker.site.router.deliver = deliver  # type: ignore[method-assign]
        publisher.send(b"".join(frame(BINARY, encode(Publish("t", b"%06d" % number), 5), KEY) for number in range(20_000)))
        got = [int(message.payload) for message in await subscriber.messages(20_000)]
        assert got == list(range(20_000))
        assert sum(runs) == 20_000
        assert max(runs) > 100


async def test_bytes_one_by_one_and_frames_that_divide_packets() -> None:
    async with site() as porto:
        raw = await Raw(porto).dial()
        connect = encode(Connect("slow", 5, True, 0), 5)
        handshake = ClientOpening("127.0.0.1", "/mqtt", bytes(16)).request
        fragments = [frame(0 if i else BINARY, connect[i : i + 3], KEY) for i in range(0, len(connect), 3)]
        fragments = [bytes((one[0] & ~FINAL,)) + one[1:] for one in fragments[:-1]] + fragments[-1:]
        for byte in handshake + frame(PING, b"early", KEY).join(fragments):
            raw.send(bytes((byte,)))
            await asyncio.sleep(0)
        async with asyncio.timeout(TIMEOUT):
            await raw.reader.readuntil(b"\r\n\r\n")
        assert (await raw.packet())[0] == 0x20
        assert raw.deframer.controls[0] == (10, b"early")
        raw.send(frame(BINARY, encode(Pingreq(), 5) * 3, KEY))
        assert await raw.packet() == encode(Pingresp(), 5) * 3
        raw.send(close_frame(3000, "", KEY))
        assert await raw.closed() == 3000
        await porto.gone("slow")


async def test_packets_behind_the_handshake_need_not_wait_for_its_answer() -> None:
    async with site() as porto:
        raw = await Raw(porto).dial()
        raw.send(ClientOpening("127.0.0.1", "/mqtt", bytes(16)).request + frame(BINARY, encode(Connect("hasty", 5, True, 0), 5), KEY))
        async with asyncio.timeout(TIMEOUT):
            await raw.reader.readuntil(b"\r\n\r\n")
        assert (await raw.packet())[0] == 0x20


async def test_a_close_without_disconnect_publishes_the_will_and_disconnect_does_not() -> None:
    async with site() as porto:
        subscriber = await porto.client("s")
        await subscriber.subscribe("will/#")
        for name, last in (("quiet", frame(BINARY, encode(Disconnect(), 5), KEY)), ("gone", b"")):
            raw = await Raw(porto).client(name, will=Will(f"will/{name}", b""))
            raw.send(last + close_frame(1001, "", KEY))
            assert await raw.closed() in (1000, 1001)
        await subscriber.expect(Publish, topic="will/gone")
        await subscriber.nothing()


async def test_the_broker_says_why_it_ends_a_connection_and_closes_in_order() -> None:
    async with site() as porto:
        raw = await Raw(porto).client("wrong")
        raw.send(frame(BINARY, encode(Connect("wrong", 5, True, 0), 5), KEY))
        assert await raw.closed() == 1000
        assert raw.payload[:3] == bytes((0xE0, raw.payload[1], Reason.PROTOCOL_ERROR))
        client = await porto.client("c")
        stopping = asyncio.create_task(porto.broker.stop())
        await client.closed(Reason.SERVER_SHUTTING_DOWN)
        await stopping
        assert client.error is None


BROKEN: dict[str, tuple[Callable[[], bytes], int]] = {
    "text": (lambda: frame(TEXT, b"hello", KEY), 1003),
    "not masked": (lambda: frame(BINARY, b"hello"), 1002),
    "reserved": (lambda: b"\xf2\x80" + KEY, 1002),
    "too big": (lambda: b"\x82\xff" + (2**40).to_bytes(8, "big") + KEY, 1009),
    "a message that is never finished": (lambda: b"\x02\x81" + KEY + b"\x11" + frame(BINARY, b"\0", KEY), 1002),
}


@pytest.mark.any_loop
@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_rule_ends_that_connection_alone(case: str, caplog: pytest.LogCaptureFixture) -> None:
    wrong, code = BROKEN[case]
    async with site() as porto:
        watcher = await porto.client("watcher")
        await watcher.subscribe("will")
        for count in (1, 2):
            raw = await Raw(porto).client("bad", will=Will("will", b""))
            raw.send(wrong() + b"and then something" * 100)
            assert await raw.closed() == code
            await watcher.expect(Publish, topic="will")
            assert porto.broker.context.counters.websocket_broken == count
        await watcher.nothing()
        assert len(warnings(caplog, "websocket-broken")) == 1, "one line however often"
        assert f"(code {code})" in warnings(caplog, "websocket-broken")[0]
        assert porto.broker.site.sessions.get("bad") is None


REFUSED = {
    "noise": (b"\x00\xff\x00\xff" * 10, 400, "does not speak HTTP"),
    "mqtt": (encode(Connect("c", 5, True, 0), 5), 400, "MQTT without WebSocket"),
    "tls": (b"\x16\3\1\2\0" + bytes(512), 400, "wss://"),
    "huge": (b"GET /mqtt HTTP/1.1\r\nX: " + b"a" * 100_000, 431, "8192"),
    "page": (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 426, "MQTT over WebSocket only"),
    "origin": (
        ClientOpening("127.0.0.1", "/mqtt", bytes(16)).request[:-2] + b"Origin: https://evil.example\r\n\r\n",
        403,
        "https://evil.example, which is not among the origins",
    ),
    "subprotocol": (ClientOpening("127.0.0.1", "/mqtt", bytes(16), "stomp").request, 400, "MQTT-6.0.0-3"),
}


@pytest.mark.any_loop
@pytest.mark.parametrize("case", REFUSED)
async def test_who_is_refused_gets_a_status_and_one_line_in_the_log(case: str, caplog: pytest.LogCaptureFixture) -> None:
    data, status, text = REFUSED[case]
    async with site() as porto:
        other = await porto.client("other")
        for count in (1, 2, 3):
            raw = await Raw(porto).dial()
            raw.send(data)
            answer = await raw.rest()
            assert answer.startswith(b"HTTP/1.1 %d " % status)
            assert porto.broker.context.counters.websocket_refused == count
        (line,) = warnings(caplog, "websocket-refused")
        assert text in line
        assert f"(status {status})" in line
        await other.nothing()
        assert porto.broker.context.counters.websocket_handshakes == 1


@pytest.mark.parametrize("begin", [b"", b"GET /mqtt HTTP/1.1\r\n"])
async def test_a_handshake_has_its_time_and_no_more(begin: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """The slow-loris trick: a byte now and then keeps nothing open."""
    async with site(connect_timeout=5.0) as porto:
        other = await porto.client("other")
        raw = await Raw(porto).dial()
        raw.send(begin + b"G"[: not begin])
        assert porto.broker.site.websocket is not None
        await until(lambda: len(porto.broker.site.websocket._opening) == 1)  # type: ignore[union-attr]
        await porto.later(4.0)
        raw.send(b"E" if not begin else b"X: 1\r\n")
        await other.nothing()
        assert porto.broker.context.counters.websocket_refused == 0
        await porto.later(1.1)
        assert (await raw.rest()).startswith(b"HTTP/1.1 408 ")
        (line,) = warnings(caplog, "websocket-refused")
        assert "within 5 s" in line
        await other.nothing()


async def test_who_never_sends_connect_is_closed() -> None:
    async with site(connect_timeout=5.0) as porto:
        raw = await Raw(porto).open()
        raw.send(frame(PING, b"", KEY))
        await porto.later(6.0)
        assert await raw.closed() == 1000


async def test_a_peer_that_does_not_answer_our_close_is_not_waited_for() -> None:
    async with site(connect_timeout=3600.0) as porto:
        raw = await Raw(porto).client("stubborn")
        raw.send(frame(BINARY, encode(Disconnect(), 5), KEY))
        await porto.gone("stubborn")
        await until(lambda: b"\x88" in raw.reader._buffer)  # type: ignore[attr-defined]
        raw.send(frame(BINARY, b"\0" * 100, KEY))
        await porto.later(1.1)
        assert await raw.closed() == 1000


class Under(asyncio.Transport):
    """What is below the layer: it keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False


async def test_pings_are_answered_once_a_chunk_and_not_at_all_to_one_who_does_not_read() -> None:
    loop, under, pings = asyncio.get_running_loop(), Under(), frame(PING, b"1", KEY) + frame(PING, b"2", KEY)
    layer = WebSocketTransport(loop, ServerOpening("/mqtt"), 1000, 10, lambda made: made.begin(asyncio.Protocol()), lambda *_: None)
    layer.connection_made(under)
    layer.data_received(ClientOpening("h", "/mqtt", bytes(16)).request)
    under.written = b""
    layer.data_received(pings)
    assert under.written == frame(PONG, b"2")
    layer.pause_writing()
    for _ in range(100):
        layer.data_received(pings)
    assert under.written == frame(PONG, b"2")
    layer.resume_writing()
    layer.data_received(pings)
    assert under.written == frame(PONG, b"2") * 2


async def test_origins_that_are_listed_come_in_and_a_reload_changes_them() -> None:
    async with site(origins=("https://app.example.com",)) as porto:

        async def come(origin: bytes) -> bytes:
            raw = await Raw(porto).dial()
            raw.send(ClientOpening("127.0.0.1", "/mqtt", bytes(16)).request[:-2] + b"Origin: " + origin + b"\r\n\r\n")
            raw.writer.write_eof()
            return (await raw.rest())[:12]

        assert await come(b"https://app.example.com") == b"HTTP/1.1 101"
        assert await come(b"https://other.example.com") == b"HTTP/1.1 403"
        assert porto.broker.site.websocket is not None
        porto.broker.site.websocket.origins = frozenset(("https://other.example.com",))
        assert await come(b"https://app.example.com") == b"HTTP/1.1 403"
        assert await come(b"https://other.example.com") == b"HTTP/1.1 101"


async def test_another_path_and_what_a_broker_says_of_its_listener() -> None:
    async with Site("ws://127.0.0.1:0/plant/broker", sys_interval=0.1) as porto:
        client = await porto.client("c")
        await client.subscribe("$SYS/broker/websocket/#")
        found = {}
        while len(found) < 3:
            message = await client.receive()
            found[message.topic.rpartition("/")[2]] = bytes(message.payload)
        assert found["refused"] == found["broken"] == b"0"
        assert int(found["handshakes"]) in (0, 1)


async def test_a_socket_that_breaks_publishes_the_will() -> None:
    async with site() as porto:
        subscriber, lost = await porto.client("s"), await porto.client("lost", will=Will("will", b"x"))
        await subscriber.subscribe("will")
        await lost.cut()
        await subscriber.expect(Publish, topic="will")


async def test_stop_ends_handshakes_too() -> None:
    async with site() as porto:
        raw = await Raw(porto).dial()
        raw.send(b"GET")
        assert porto.broker.site.websocket is not None
        await until(lambda: len(porto.broker.site.websocket._opening) == 1)  # type: ignore[union-attr]
        await porto.broker.stop()
        with contextlib.suppress(ConnectionError):
            assert not await raw.rest()
        assert not porto.broker.site.websocket._opening
