"""Who does wrong is refused with the right code, counted and logged once, and others do not notice: one broker, a process of its own.

Each test's attackers have an address of their own, so that its lines in the log can be told from others'. Meanwhile honest clients publish,
and each of their messages is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
from mqmesh.base.address import parse_address
from mqmesh.broker.auth import passwords
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish
from support.broker_site import Client
from support.certificates import Certificates
from support.command import start
from support.services import PATIENCE

pytestmark = pytest.mark.process

SECRET = "a shared secret of thirty-two bytes or more"
ROOM = 20  # clients
SILENT = 8  # connections of an address without a CONNECT
CONFIG = f"""
listen = ["mqtt://127.0.0.1:0", "mqtts://127.0.0.1:0"]
[http]
listen = "http://127.0.0.1:0"
[tls]
certificate = "b.crt"
key = "b.key"
ca = "ca.crt"
client_certificates = "optional"
[access]
users = "users"
certificates = true
[access.tokens]
key = "key"
[[access.rule]]
allow = ["publish", "subscribe"]
topics = ["plant/#"]
[limits]
connections = {ROOM}
connecting_per_address = {SILENT}
connect_timeout = 8
max_packet_size = 10000
subscriptions = 2
"""


@dataclass
class Site:
    """The broker: its ports, its log, its certificates."""

    plain: int
    tls: int
    web: str
    log: Path
    certificates: Certificates

    def said(self, text: str, host: str) -> int:
        """How many lines of the log are of an event and an address."""
        lines = self.log.read_text().splitlines()
        return sum(text in line and f"address={host}:" in line and "level=warning" in line for line in lines)

    async def count(self, name: str) -> float:
        """A number of `/metrics`."""

        def read() -> str:
            with urllib.request.urlopen(f"{self.web}/metrics", timeout=PATIENCE) as answer:
                return answer.read().decode()

        text = await asyncio.to_thread(read)
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}_total "))

    async def dial(self, host: str, version: int = 5, context: ssl.SSLContext | None = None) -> Client:
        """A connection from an address."""
        loop = asyncio.get_running_loop()
        port = self.plain if context is None else self.tls
        name = None if context is None else "localhost"
        _, client = await loop.create_connection(
            lambda: Client(version), "127.0.0.1", port, ssl=context, server_hostname=name, local_addr=(host, 0)
        )
        return client

    async def connect(
        self, host: str, reason: int, name: str = "", password: bytes = b"wonderland", user: str = "alice", version: int = 5
    ) -> Client:
        """A client that was answered with this reason."""
        client = await self.dial(host, version)
        client.send(Connect(name or f"of-{host}", version, True, user_name=user, password=password))
        await client.expect(Connack, reason=reason)
        if reason:
            await client.closed()
        return client


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("hostile")
    certificates = Certificates(folder)
    certificates.broker("b")
    certificates.odd("expired", days=(-2, -1), uses=("client",))
    passwords.change(folder / "users", "alice", b"wonderland")
    (folder / "key").write_text(SECRET)
    (folder / "b.toml").write_text(CONFIG)
    process = start("broker", "--config", folder / "b.toml", stderr=folder / "log")
    try:
        words = process.stdout.readline().split()  # type: ignore[union-attr]
        assert words[:1] == ["ready"], (folder / "log").read_text()
        plain, tls = (parse_address(word).port for word in words[1:3])
        web = next(word.removeprefix("http=") for word in words if word.startswith("http="))
        yield Site(plain, tls, web, folder / "log", certificates)
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
    finally:
        process.terminate()
        process.wait(PATIENCE)


@contextlib.asynccontextmanager
async def honest(site: Site) -> AsyncIterator[None]:
    """Two clients from before the attack to behind it: what one publishes, the other gets, all of it and in order."""
    listener = await site.connect("127.0.0.1", 0, "listener")
    sender = await site.connect("127.0.0.1", 0, "sender")
    await listener.subscribe("plant/honest", qos=1)
    count = 0
    over = asyncio.Event()

    async def go_on() -> None:
        nonlocal count
        left = 3  # messages behind the attack
        while left:
            left -= over.is_set()
            assert await sender.publish("plant/honest", b"%d" % count, 1) == 0
            assert [one.payload for one in await listener.messages(1)] == [b"%d" % count]
            count += 1

    task = asyncio.create_task(go_on(), name="honest")
    yield
    over.set()
    await task
    assert count >= 3
    await sender.leave()
    await listener.leave()


def meanwhile(test: Callable[[Site], Awaitable[None]]) -> Callable[[Site], Awaitable[None]]:
    """A test during which honest clients go on."""

    @functools.wraps(test)
    async def run(site: Site) -> None:
        async with honest(site):
            await test(site)

    return run


@meanwhile
async def test_wrong_passwords(site: Site) -> None:
    before = await site.count("mqmesh_connects_denied")
    await site.connect("127.0.0.2", 0x86, password=b"wrong", user="bob")
    await site.connect("127.0.0.2", 0x86, password=b"wrong again", user="carol")
    await site.connect("127.0.0.2", 4, password=b"wrong", user="dora", version=4)
    assert await site.count("mqmesh_connects_denied") == before + 3
    assert site.said("event=connect-refused", "127.0.0.2") == 1


@meanwhile
async def test_expired_tokens(site: Site) -> None:
    before = await site.count("mqmesh_connects_denied")
    token = jwt.encode({"sub": "alice", "exp": time.time() - 1000}, SECRET, "HS256").encode()
    for version, reason in ((5, 0x86), (4, 4)):
        await site.connect("127.0.0.3", reason, password=token, user="", version=version)
    assert await site.count("mqmesh_connects_denied") == before + 2
    assert site.said("event=connect-refused", "127.0.0.3") == 1


@meanwhile
async def test_expired_certificates(site: Site) -> None:
    before = await site.count("mqmesh_tls_refused")
    for _ in range(2):
        with contextlib.suppress(OSError):  # in TLS 1.3 the client is done before the broker has seen its certificate
            client = await site.dial("127.0.0.4", context=site.certificates.context("expired"))
            client.send(Connect("expired", 5, True))
            while not client.lost:
                assert await client._packets.get() is None
            assert "EXPIRED" in str(client.error)
    assert await site.count("mqmesh_tls_refused") == before + 2
    assert site.said("event=tls-refused", "127.0.0.4") == 1


@meanwhile
async def test_forbidden_topics(site: Site) -> None:
    before = [await site.count(f"mqmesh_{what}_denied") for what in ("publish", "subscriptions")]
    client = await site.connect("127.0.0.5", 0)
    for number in range(1, 4):
        client.send(Publish("secret", b"x", 1, packet_id=number))
        await client.expect(Puback, reason=0x87)
    client.send(Publish("secret", b"x"))
    assert (await client.subscribe("secret", "#", "plant/x")).reasons == [0x87, 0x87, 0]
    await client.nothing()
    await client.leave()
    again = await site.connect("127.0.0.5", 0)
    assert await again.publish("secret", b"x", 1) == 0x87
    await again.leave()
    assert [await site.count(f"mqmesh_{what}_denied") for what in ("publish", "subscriptions")] == [before[0] + 5, before[1] + 2]
    assert site.said("event=publish-refused", "127.0.0.5") == 1


@meanwhile
async def test_too_many_subscriptions(site: Site) -> None:
    before = await site.count("mqmesh_subscriptions_refused")
    client = await site.connect("127.0.0.6", 0)
    assert (await client.subscribe("plant/1", "plant/2", "plant/3", "plant/4")).reasons == [0, 0, 0x97, 0x97]
    await client.leave()
    assert await site.count("mqmesh_subscriptions_refused") == before + 2
    assert site.said("event=subscriptions-full", "127.0.0.6") == 1


@meanwhile
async def test_oversized_packets(site: Site) -> None:
    before = await site.count("mqmesh_protocol_errors")
    for _ in range(2):
        client = await site.connect("127.0.0.7", 0)
        client.send(b"\x30\xff\xff\xff\x7f\x00\x01a")  # 256 MiB: refused before they come
        await client.closed(0x95)
    stranger = await site.dial("127.0.0.7")
    stranger.send(b"\x10\xff\xff\xff\x7f\x00\x04MQTT")
    await stranger.closed()
    assert await site.count("mqmesh_protocol_errors") == before + 3
    assert site.said("event=refused", "127.0.0.7") in (1, 2)  # the stranger's has a clause of its own


@meanwhile
async def test_a_flood_of_connections(site: Site) -> None:
    for _ in range(5):
        before = await site.count("mqmesh_connections_refused")
        crowd = [await site.dial("127.0.0.8") for _ in range(SILENT)]
        late = [await site.dial("127.0.0.8") for _ in range(5)]
        for one in late:
            await one.closed()
        refused = await site.count("mqmesh_connections_refused") - before
        if not any(one.lost for one in crowd):  # else this took so long that they had their time: again
            break
        for one in crowd:
            one.transport.abort()
    assert refused == 5
    assert site.said("event=connection-refused", "127.0.0.8") == 1
    another = await site.connect("127.0.0.1", 0, "another")  # from elsewhere there is room
    await another.leave()
    for one in crowd:
        one.transport.abort()


@meanwhile
async def test_more_clients_than_there_is_room_for(site: Site) -> None:
    before = await site.count("mqmesh_connections_refused")
    inside: list[Client] = []
    refused: Connack | None = None
    while refused is None:
        client = await site.dial("127.0.0.9")
        client.send(Connect(f"one-of-many-{len(inside)}", 5, True, user_name="alice", password=b"wonderland"))
        answer: Any = await client.expect(Connack)
        if answer.reason:
            refused = answer
        else:
            inside.append(client)
    assert refused.reason == 0x97
    assert len(inside) <= ROOM - 2
    await site.connect("127.0.0.9", 3, version=4)
    assert await site.count("mqmesh_connections_refused") == before + 2
    assert site.said("event=connect-refused", "127.0.0.9") == 1
    for one in inside:
        await one.leave()


@meanwhile
async def test_connects_that_do_not_end(site: Site) -> None:
    before = await site.count("mqmesh_connect_timeouts")
    connect = encode(Connect("slow", 5, True, user_name="alice", password=b"wonderland"), 5)
    slow = [await site.dial("127.0.0.10") for _ in range(3)]
    for number, one in enumerate(slow):
        one.send(connect[: 5 * number])
    for one in slow:
        await one.closed()
    assert await site.count("mqmesh_connect_timeouts") == before + 3
    assert site.said("event=connect-timeout", "127.0.0.10") == 1
