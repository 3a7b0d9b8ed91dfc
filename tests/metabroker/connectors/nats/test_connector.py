"""The NATS connector by itself: what a server may send, what the library would do with it, and what is never dropped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.address import REMOTE, parse_address
from mqmesh.metabroker import reconnect
from mqmesh.metabroker.connectors.nats import connector, jetstream
from mqmesh.metabroker.connectors.nats.connector import Login, NatsConnector
from mqmesh.metabroker.protocol.events import Event, Message, Published, Subscribed, Trouble, Up
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.reasons import Reason
from support.certificates import Certificates
from support.peers.nats_server import NatsPeer, running_nats
from support.services import PATIENCE, wait_until

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
STATE = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0}
INFO = b'INFO {"headers":true,"max_payload":1000000}\r\n'


@pytest.fixture(autouse=True)
def _hurries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of ours does not take leave, and need not be spared new connections."""
    if request.node.get_closest_marker("service") is None:
        monkeypatch.setattr(reconnect, "PAUSES", (0.01, 0.02))
        monkeypatch.setattr(connector, "LEAVING", 0.05)


class Remote:
    """A connector that runs, and what it has told."""

    def __init__(self, address: str, ca: str | None = None, login: Login | None = None) -> None:
        self.told: asyncio.Queue[Event | str] = asyncio.Queue()
        self.connector = NatsConnector([parse_address(address, REMOTE)], login or Login("metabroker-1"), "x", ca, self._events, self._down)
        self.task = asyncio.create_task(self.connector.run())

    def _events(self, events: list[Event]) -> None:
        for event in events:
            self.told.put_nowait(event)

    def _down(self, refused: bool | None, text: str) -> None:
        self.told.put_nowait(f"{refused}: {text}")

    async def next(self, kind: Any) -> Any:
        """The next that is told of this kind."""
        async with asyncio.timeout(PATIENCE):
            while not isinstance(told := await self.told.get(), kind):
                pass
            return told

    def publish(self, topic: str, payload: bytes, qos: int, token: int = 0) -> None:
        self.connector.publish(Publish(topic, payload, qos), token, 0.0)
        self.connector.flush()

    async def subscribe(self, filter_: str, qos: int) -> int:
        self.connector.subscribe(filter_, qos, 0, 1, 0.0)
        granted: int = (await self.next(Subscribed)).reason
        return granted

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        assert self.task.cancelled()


@contextlib.asynccontextmanager
async def remote(address: str, **keys: Any) -> AsyncIterator[Remote]:
    """One that is up."""
    running = Remote(address, **keys)
    try:
        await running.next(Up)
        yield running
    finally:
        await running.end()


@contextlib.asynccontextmanager
async def pretended(serve: Serve, context: ssl.SSLContext | None = None, info: bytes = INFO) -> AsyncIterator[str]:
    """A server that says what we want; with a context over TLS, which begins after INFO. Its address."""
    errors: list[BaseException] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(info)
            if context is not None:
                await writer.start_tls(context)
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        except Exception as error:
            errors.append(error)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"tls://localhost:{port}" if context is not None else f"nats://127.0.0.1:{port}"
    finally:
        server.close()
    assert not errors


async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Take the client; what it said."""
    said = await reader.readuntil(b"PING\r\n")
    writer.write(b"PONG\r\n")
    return said


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


NONSENSE = [
    b"hello\r\n",
    b"\x16\x03\x01\x00\x00\r\n",
    b"MSG\r\n",
    b"MSG a 1 x\r\n",
    b"MSG a one 3\r\nabc\r\n",
    b"-ERR\r\n",
    b"-ERR 'Stale Connection'\r\n",
    b"-ERR 'Secure Connection - TLS Required'\r\n",
    b"INFO {\r\n",
    b"INFO []\r\n",
    b'INFO {"connect_urls":["["]}\r\n',
    b"A" * 5000 + b"\r\n",
]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_ends_one_connection(nonsense: bytes, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever the server says: the next connection is as good as any, and the library prints and logs nothing."""
    caplog.set_level(logging.DEBUG)
    lines: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await welcome(reader, writer)
        if not lines:
            lines.append(nonsense)
            writer.write(nonsense)
            if nonsense[-3:] == b"A\r\n":
                writer.close()
        while await reader.read(1000):
            pass

    async def test() -> None:
        async with pretended(serve) as address, remote(address) as far:
            assert (await far.next(str)).startswith(f"None: {address}: ")
            await far.next(Up)

    run(test)
    assert [record for record in caplog.records if record.name != "asyncio" or record.levelno > logging.DEBUG] == []
    assert capfd.readouterr() == ("", "")


STRANGE = [
    b"MSG t 3 1\r\nx\r\n",
    b"MSG t 99 1\r\nx\r\n",
    b"PONG\r\nPONG\r\n",
    b"+OK\r\n",
    b'INFO {"connect_urls":["127.0.0.1:1","[::1]:2"]}\r\n' * 50,
    b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n",
    b"HMSG t 2 0 1\r\nx\r\n",
    b"HMSG t 2 4 5\r\nNATSx\r\n",
    b"HMSG t 2 9 3\r\nabc\r\n",
    b"HMSG t 2 10 10\r\nNATS/1.0 5\r\n",
    b"HMSG t 2 18 18\r\nNATS/1.0\r\n\xff: \xff\r\n\r\n\r\n",
    b"MSG \xff\xfe 2 1\r\nx\r\n",
    b"MSG t 2 \xff.\xff 1\r\nx\r\n",
]


@pytest.mark.parametrize("strange", STRANGE, ids=range(len(STRANGE)))
def test_what_is_strange_ends_nothing(strange: bytes) -> None:
    """A message that cannot be read, or none that was asked for: the next one comes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await welcome(reader, writer)
        said = await reader.readuntil(b"PING\r\n")
        number = said.partition(b"SUB t  ")[2].partition(b"\r\n")[0]
        writer.write(b"PONG\r\n" + strange.replace(b" 2 ", b" " + number + b" ") + b"MSG t %s 3\r\nend\r\n" % number)
        while await reader.read(1000):
            pass

    async def test() -> None:
        async with pretended(serve) as address, remote(address) as far:
            assert await far.subscribe("t", 0) == 0
            while (await far.next(Message)).publish.payload != b"end":
                pass
            assert not [told for told in far.told._queue if isinstance(told, str)]  # type: ignore[attr-defined]

    run(test)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("-ERR 'Authorization Violation'", "True: {}: Authorization Violation"),
        ("-ERR 'User Authentication Revoked'", "True: {}: User Authentication Revoked"),
        ("-ERR 'Maximum Connections Exceeded'", "False: {}: Maximum Connections Exceeded"),
        ("hello", "None: {}: the server has not accepted us"),
    ],
)
def test_why_it_is_not_accepted(word: str, told: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"PING\r\n")
        writer.write(f"{word}\r\n".encode())
        await reader.read(1)

    async def test() -> None:
        async with pretended(serve) as address:
            far = Remote(address)
            assert (await far.next(str)).startswith(told.format(address))
            await far.end()

    run(test)


@pytest.mark.parametrize("word", [b'"connect_urls":5', b'"version":[]', b'"nonce":7,"auth_required":true', b'"max_payload":"x"'])
def test_a_first_word_that_is_odd(word: bytes) -> None:
    """It is a server or it is none; either way we try on."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await welcome(reader, writer)
        while await reader.read(1000):
            pass

    async def test() -> None:
        async with pretended(serve, info=INFO.replace(b"}", b"," + word + b"}")) as address:
            far = Remote(address, login=Login("n", "u", b"p"))
            told = await far.next((str, Up))
            assert isinstance(told, Up) or "does not speak NATS" in told
            assert not far.task.done()
            await far.end()

    run(test)


def test_a_stream_is_asked_again() -> None:
    """No acknowledgement, or nobody there to give one: the same message goes again, under the same identifier."""
    info = INFO.replace(b"}", b',"jetstream":true}')
    sent: list[bytes] = []
    lists = [["s.>"], ["s.>"], []]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inbox: dict[bytes, bytes] = {}
        while line := await reader.readline():
            verb, *words = line.split()
            if verb == b"PING":
                writer.write(b"PONG\r\n")
            elif verb == b"SUB":
                inbox[words[0].removesuffix(b"*")] = words[-1]
            elif verb in (b"PUB", b"HPUB"):
                body = await reader.readexactly(int(words[-1]) + 2)
                reply = words[1] if words[1].startswith(b"_INBOX") else b""
                number = next((sid for prefix, sid in inbox.items() if reply and reply.startswith(prefix)), b"")
                if words[0] == b"$JS.API.STREAM.LIST":
                    first = json.loads(body) == {"offset": 0}
                    subjects = (lists.pop(0) if len(lists) > 1 else lists[0]) if first else []
                    streams = [{"config": {"name": "S", "subjects": subjects}, "state": STATE}] if subjects else []
                    answer = json.dumps({"total": 1, "offset": 0, "streams": streams}).encode()
                    writer.write(b"MSG %s %s %d\r\n%s\r\n" % (reply, number, len(answer), answer))
                else:
                    sent.append(body)
                    if reply:
                        writer.write(b"HMSG %s %s 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % (reply, number))

    async def test() -> None:
        async with pretended(serve, info=info) as address, remote(address) as far:
            far.publish("s/1", b"x", 1, 7)
            assert await far.next(Published) == Published(7, 0)
            assert far.connector.backlog == 0

    run(test)
    assert [b"Nats-Msg-Id: mqmesh-metabroker-1-x-1\r\n" in body for body in sent] == [True, True, False]


@pytest.mark.parametrize("address", ["nats", "tls"])
def test_a_password_is_not_told_to_a_server_without_tls(tmp_path: Path, address: str) -> None:
    """tls:// is TLS, even if the server's first word does not ask for it."""
    heard = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            heard.extend(data)
            if data.startswith(b"\x16"):  # TLS; we know nothing of it
                return
            if b"PING" in data:
                writer.write(b"-ERR 'Authorization Violation'\r\n")

    async def test() -> None:
        async with pretended(serve) as url:
            running = Remote(url.replace("nats:", f"{address}:"), login=Login("n", "user", b"secret"))
            told = await running.next(str)
            assert told.startswith("True: " if address == "nats" else "None: ")
            await running.end()

    run(test)
    assert (b"secret" in heard) == (address == "nats")


def test_what_was_not_confirmed_is_sent_again() -> None:
    """The connection ends before the server says that it has handled them: none counts as published, and all come again, in order."""
    connections: list[list[bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await welcome(reader, writer)
        connections.append([])
        while not (line := await reader.readline()).startswith(b"PING"):
            if line.startswith(b"PUB t"):
                connections[-1].append((await reader.readline()).strip())
            elif not line:
                return
        if len(connections) > 1:
            writer.write(b"PONG\r\n")
            await reader.read(1)

    async def test() -> None:
        async with pretended(serve) as address, remote(address) as far:
            for token in range(1, 6):
                far.publish("t", b"%d" % token, 1, token)
            assert isinstance(await far.next((str, Published)), str)
            assert [await far.next(Published) for _ in range(5)] == [Published(token, 0) for token in range(1, 6)]
            assert far.connector.backlog == 0

    run(test)
    assert connections == [[b"1", b"2", b"3", b"4", b"5"]] * 2


@pytest.mark.parametrize("secure", [False, True], ids=["tcp", "tls"])
def test_nothing_piles_up_while_nothing_is_read(tmp_path: Path, secure: bool) -> None:
    """Paused, the connector takes a little and the server has to wait; after that each message comes, in order."""
    pem = Certificates(tmp_path)
    pem.broker("nats")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem.certificate("nats"), pem.key("nats"))
    count, size, taken = 1000, 60_000, 0
    go = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await welcome(reader, writer)
        number = (await reader.readuntil(b"PING\r\n")).partition(b"SUB t  ")[2].partition(b"\r\n")[0]
        writer.write(b"PONG\r\n")
        await go.wait()
        for index in range(count):
            writer.write(b"MSG t %s %d\r\n%s\r\n" % (number, size, str(index).encode().zfill(size)))
            await writer.drain()
            taken += 1
        await reader.read(1)

    async def test() -> None:
        async with pretended(serve, context if secure else None) as address, remote(address, ca=str(pem.ca)) as far:
            assert await far.subscribe("t", 0) == 0
            far.connector.pause(True)
            go.set()
            before = -1
            while before != taken:  # until the server waits
                before = taken
                await asyncio.sleep(0.5)
            assert taken * size < 20_000_000
            assert far.told.qsize() < 10
            far.connector.pause(False)
            for index in range(count):
                assert int((await far.next(Message)).publish.payload[-4:]) == index

    run(test)


@pytest.mark.service
def test_one_subscription_too_many(tmp_path: Path) -> None:
    """The server takes no more: that one is refused, and the connection stays."""

    async def test() -> None:
        with running_nats(tmp_path, None, None, False, "max_subscriptions: 4") as server:
            async with remote(server.url) as far:
                granted = [await far.subscribe(f"t/{number}", 0) for number in range(5)]
                assert granted == [0, 0, 0, Reason.QUOTA_EXCEEDED, Reason.QUOTA_EXCEEDED]  # the first of all is for streams' answers
                far.publish("t/1", b"x", 0)
                assert (await far.next((Message, str))).publish.payload == b"x"

    run(test)


@pytest.mark.service
def test_topics_that_differ_in_case_alone(tmp_path: Path) -> None:
    """The library gives the subject that was refused in lower case; it is known which one is meant."""

    async def test() -> None:
        with running_nats(tmp_path, None, None, False) as server:
            async with remote(server.url, login=Login("n", "gauge", b"gauge")) as far:
                topics = ["allowed/x", "Allowed/x", "allowed/X", "ALLOWED/x"] * 5
                for token, topic in enumerate(topics, 1):
                    far.publish(topic, b"", 1, token)
                reasons = dict([tuple(await far.next(Published)) for _ in topics])
                assert [reasons[token] for token in range(1, 21)] == [0, Reason.NOT_AUTHORIZED, 0, Reason.NOT_AUTHORIZED] * 5

    run(test)


@pytest.mark.service
def test_messages_that_nobody_can_read_do_not_come_back(tmp_path: Path) -> None:
    """A subject that is no text: a stream would send it again and again, and the connection would end each time."""

    async def test() -> None:
        with running_nats(tmp_path) as server:
            peer = NatsPeer(server)
            peer.stream("S", "s.>")
            async with remote(server.url) as far:
                assert await far.subscribe("s/#", 1) == 1
                peer.send(b"PUB s.\xff\xfe 1\r\nx\r\nHPUB s.a 17 17\r\nNATS/1.0\r\n\xff: \r\n\r\n\r\n")
                await far.next(Trouble)
                message = await far.next((Message, str))
                assert message.publish.topic == "s/a"
                far.connector.acknowledge(message.publish.packet_id, message.epoch, 0.0)
                far.connector.flush()
                await asyncio.to_thread(
                    wait_until, lambda: not any(one["num_ack_pending"] for one in peer.consumers("S")), PATIENCE, "two acks"
                )
            peer.close()

    run(test)


@pytest.mark.service
def test_a_filter_over_several_streams(tmp_path: Path) -> None:
    """Each stream's messages come at QoS 1, and wait while we are away; what no stream keeps comes as well, and nothing twice."""

    async def test() -> None:
        with running_nats(tmp_path) as server:
            peer = NatsPeer(server)
            peer.stream("X", "a.x.>")
            peer.stream("Y", "a.y.*")
            subjects = {"a.x.1": 1, "a.x.1.2": 1, "a.y.1": 1, "a.y.1.2": 0, "a.z": 0, "a": 0}

            async def receive(far: Remote, count: int) -> list[tuple[str, int]]:
                found = []
                while len(found) < count:
                    publish = (message := await far.next(Message)).publish
                    found.append((publish.topic.replace("/", "."), publish.qos))
                    far.connector.acknowledge(publish.packet_id, message.epoch, 0.0)
                    far.connector.flush()
                return sorted(found)

            def publish() -> None:
                for subject in subjects:
                    peer.publish(subject, b"")

            async with remote(server.url) as far:
                far.connector.forget = False
                assert await far.subscribe("a/#", 1) == 1
                for _ in range(2):  # of what comes twice the second would be among the next ones
                    await asyncio.to_thread(publish)
                    assert await receive(far, len(subjects)) == sorted(subjects.items())
            await asyncio.to_thread(publish)
            async with remote(server.url) as far:
                assert await far.subscribe("a/#", 2) == 1
                assert await receive(far, 3) == sorted((name, qos) for name, qos in subjects.items() if qos)
            peer.close()

    run(test)


@pytest.mark.service
def test_what_is_not_acknowledged_comes_at_once_when_we_are_back(tmp_path: Path) -> None:
    """A server sends again after 60 s what it has sent to a connection that has ended."""

    async def test() -> None:
        with running_nats(tmp_path) as server:
            peer = NatsPeer(server)
            peer.stream("A", "a.>")
            async with remote(server.url) as far:
                far.connector.forget = False
                assert await far.subscribe("a/#", 1) == 1
                peer.publish("a.b", b"1")
                assert (await far.next(Message)).publish.dup is False
            peer.publish("a.b", b"2")
            async with remote(server.url) as far, asyncio.timeout(jetstream.ACK_WAIT / 2):
                assert await far.subscribe("a/#", 1) == 1
                found = [(await far.next(Message)).publish for _ in range(2)]
            assert {(one.payload, one.dup) for one in found} == {(b"1", True), (b"2", False)}
            peer.close()

    run(test)


@pytest.mark.service
def test_a_stream_waits_while_nothing_is_acknowledged(tmp_path: Path) -> None:
    """What is under way is bounded by the consumer's window, not by what the stream holds."""
    count = 1500

    async def test() -> None:
        with running_nats(tmp_path) as server:
            peer = NatsPeer(server)
            peer.stream("S", "s.>")
            async with remote(server.url) as far:
                assert await far.subscribe("s/a", 1) == 1
                peer.send(b"".join(b"PUB s.a 4\r\n%04d\r\n" % number for number in range(count)))
                first = [await far.next(Message) for _ in range(500)]
                [consumer] = await asyncio.to_thread(peer.consumers, "S")
                assert (consumer["num_ack_pending"], consumer["num_pending"]) == (500, count - 500)
                assert far.told.empty()
                got = []
                for number in range(count):
                    message = first[number] if number < 500 else await far.next(Message)
                    got.append(int(message.publish.payload))
                    far.connector.acknowledge(message.publish.packet_id, message.epoch, 0.0)
                    far.connector.flush()
                assert got == list(range(count))
            peer.close()

    run(test)
