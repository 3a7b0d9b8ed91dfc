"""TLS listeners: what works without TLS works with it, on both loops; who is refused is told why, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.client.connection import Connection
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connack, Connect, Pingreq, Publish
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Site, until
from support.certificates import Certificates
from support.services import PATIENCE

from .test_contexts import settings

KIB = 2**10


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    certificates = Certificates(tmp_path_factory.mktemp("tls"))
    certificates.broker("porto")
    certificates.client("desk")
    return certificates


def site(made: Certificates, asks: str = "none", shows: str | None = None, **limits: Any) -> Site:
    """A broker with one TLS listener, to which clients connect that show this certificate."""
    made_site = Site("mqtts://127.0.0.1:0", settings(made, client_certificates=asks), **limits)
    made_site.context = made.context(shows)
    return made_site


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [line for line in lines if "event=tls-refused" in line]


@pytest.mark.any_loop
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_every_qos_and_size_goes_through(made: Certificates, version: ssl.TLSVersion) -> None:
    async with site(made, max_packet_size=4_000_000) as porto:
        assert porto.context is not None
        porto.context.maximum_version = version
        subscriber, publisher = await porto.client("s"), await porto.client("p")
        await subscriber.subscribe("#", qos=2)
        sent = []
        for qos in (0, 1, 2):
            for size in (0, 1, 100, 16_384, 100_000, 3_000_000):
                payload = bytes([qos + 1]) * size
                sent.append((qos, payload))
                await publisher.publish("t", payload, qos)
        got = [(message.qos, bytes(message.payload)) for message in await subscriber.messages(len(sent))]
        assert got == sent
        assert porto.broker.context.counters.tls_handshakes == 2
        assert porto.broker.site.connections


@pytest.mark.any_loop
async def test_a_stream_of_small_messages_keeps_order(made: Certificates) -> None:
    async with site(made) as porto:
        subscriber, publisher = await porto.client("s"), await porto.client("p")
        await subscriber.subscribe("#")
        frames = b"".join(encode(Publish("t", b"%06d" % number), 5) for number in range(20_000))
        publisher.send(frames)
        await publisher.nothing()
        got = [int(message.payload) for message in await subscriber.messages(20_000)]
        assert got == list(range(20_000))


async def test_records_that_come_byte_by_byte(made: Certificates) -> None:
    """The layer is fed as slowly as a network can."""
    async with site(made) as porto:
        port = int(porto.broker.addresses[0].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = made.context().wrap_bio(incoming, outgoing, server_hostname="localhost")

        async def send() -> None:
            for byte in outgoing.read():
                writer.write(bytes((byte,)))
                await asyncio.sleep(0)

        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await send()
                incoming.write(await reader.read(1))
        tls.write(encode(Connect("slow", 5, True, 0), 5))
        await send()
        while True:
            try:
                assert tls.read(1) == b"\x20"
                break
            except ssl.SSLWantReadError:
                incoming.write(await reader.read(1))
        tls.write(encode(Pingreq(), 5) * 3)
        await send()
        writer.close()
        await porto.gone("slow")


async def refused_client(porto: Site, context: ssl.SSLContext | None) -> str:
    """Connect; the client's side of a refusal in OpenSSL's words, which TLS 1.3 gives behind the client's handshake."""
    good = porto.context
    porto.context = context
    try:
        client = await porto.dial()
        client.send(Connect("bad", 5, True, 0))
        await client.closed()
        return str(client.error)
    except ssl.SSLError as error:
        return str(error)
    finally:
        porto.context = good


@pytest.mark.any_loop
async def test_who_may_come_in_with_which_certificate(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture, loop_kind: str
) -> None:
    stranger = Certificates(tmp_path, "stranger")
    stranger.client("eve")
    made.odd("late", (-9, -1))
    made.odd("server", (-1, 9), uses=("server",))
    async with site(made, "required", "desk") as porto:
        healthy = await porto.client("healthy")
        context = made.context()
        context.load_cert_chain(stranger.certificate("eve"), stranger.key("eve"))
        cases = [
            (made.context(), "it shows no certificate, and one is required here", "certificate required"),
            (context, "its certificate is signed by an authority that is not trusted here", "unknown ca"),
            (
                made.context("late"),
                "its certificate is expired: it has to be renewed, then send SIGHUP if it is a broker's",
                "certificate expired",
            ),
            (made.context("server"), "its certificate is not made for this use (extended key usage)", "unsupported certificate"),
        ]
        for one, ours, theirs in cases:
            caplog.clear()
            said = await refused_client(porto, one)
            assert theirs in said.lower(), (ours, said)
            assert [line.partition(" text=")[2] for line in refusals(caplog)] == [ours]
        assert porto.broker.context.counters.tls_refused == len(cases)
        await healthy.nothing()
        await (await porto.client("another")).nothing()
    async with site(made, "optional") as porto:
        await porto.client("without")
        assert "certificate expired" in (await refused_client(porto, made.context("late"))).lower()


async def test_a_refused_client_hears_why_whatever_it_has_sent_meanwhile(made: Certificates) -> None:
    """In TLS 1.3 a client is done before the server has judged its certificate, and sends on: closing then would reset the connection."""
    async with site(made, "required") as porto:
        port = int(porto.broker.addresses[0].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = made.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        for _ in range(200):
            tls.write(bytes(16384))
        writer.write(outgoing.read())
        incoming.write(await asyncio.wait_for(reader.read(), PATIENCE))
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
            tls.read()
        writer.close()


@pytest.mark.any_loop
async def test_a_client_that_does_not_trust_the_broker(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture, loop_kind: str
) -> None:
    async with site(made) as porto:
        healthy = await porto.client("healthy")
        said = await refused_client(porto, Certificates(tmp_path).context())
        assert "certificate verify failed" in said.lower()
        await until(lambda: bool(refusals(caplog)))
        texts = ("it does not trust the authority of the certificate that was shown", "it closed the connection in the TLS handshake")
        assert refusals(caplog)[0].partition(" text=")[2] in texts  # asyncio's client closes without a word
        await healthy.nothing()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (encode(Connect("plain", 5, True, 0), 5), "it speaks MQTT without TLS: let it use mqtts:// (TLS), or a listener without"),
        (b"GET / HTTP/1.1\r\n\r\n", "it speaks HTTP, not TLS"),
        (b"\0" * 100, "it does not speak TLS"),
        (b"", "it closed the connection in the TLS handshake"),
        (b"\x16\x03\x01\x02\x00\x01", "it closed the connection in the TLS handshake"),
    ],
)
async def test_what_is_not_tls(made: Certificates, data: bytes, text: str, caplog: pytest.LogCaptureFixture) -> None:
    async with site(made) as porto:
        healthy = await porto.client("healthy")
        porto.context = None
        client = await porto.dial()
        client.count_only = True  # what comes is no MQTT
        client.transport.write(data)
        if "closed" in text:
            client.transport.write_eof()
        await client.closed()
        assert [line.partition(" text=")[2] for line in refusals(caplog)] == [text]
        await healthy.nothing()


async def test_tls_at_a_listener_without(made: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    async with Site() as porto:
        healthy = await porto.client("healthy")
        porto.context = made.context()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await porto.dial()
        assert "the client speaks TLS, and this listener does not: an mqtts:// listener does" in caplog.text
        await healthy.nothing()


@pytest.mark.parametrize("begun", [False, True])
async def test_a_handshake_that_is_not_finished_is_ended(made: Certificates, begun: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with site(made, connect_timeout=7.0) as porto:
        healthy = await porto.client("healthy")
        porto.context = None
        slow = await porto.dial()
        if begun:
            hello = ssl.MemoryBIO()
            with pytest.raises(ssl.SSLWantReadError):
                made.context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
            slow.transport.write(hello.read()[:40])
        tls = porto.broker.site.tls
        assert tls is not None
        await until(lambda: len(tls._shaking) == 1)
        await porto.later(6.0)
        await healthy.nothing()
        assert not slow.lost
        await porto.later(1.5)
        await slow.closed()
        assert [line.partition(" text=")[2] for line in refusals(caplog)] == ["it did not finish the TLS handshake within 7 s"]
        assert not tls._shaking
        await healthy.nothing()


async def test_the_same_stranger_gets_one_line_a_minute(made: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mqmesh.tls")
    async with site(made) as porto:
        porto.context = None

        async def knock() -> None:
            client = await porto.dial()
            client.count_only = True
            client.send(Connect("plain", 5, True, 0))
            await client.closed()

        for _ in range(5):
            await knock()
        assert len(refusals(caplog)) == 1
        await porto.later(61)
        await knock()
        assert [" more=0 " in refusals(caplog)[0], " more=4 " in refusals(caplog)[1]] == [True, True]
        assert porto.broker.context.counters.tls_refused == 6


@pytest.mark.any_loop
async def test_what_a_client_does_not_take_is_bounded(made: Certificates, loop_kind: str) -> None:
    bound = 256 * KIB
    async with site(made, unsent_bytes=bound) as porto:
        subscriber, publisher = await porto.client("s"), await porto.client("p")
        await subscriber.subscribe("#")
        session = porto.broker.site.sessions.get("s")
        assert session is not None
        connection = session.connection
        assert connection is not None
        subscriber.transport.pause_reading()
        subscriber.count_only = True
        size = 10 * KIB
        sent = 0
        while not connection.dropped:
            for _ in range(10):
                publisher.send(Publish("t", bytes(size)))
                sent += 1
            await publisher.nothing()
            assert connection.unsent <= bound + 12 * size
            assert sent < 10_000
        assert connection.congested
        subscriber.transport.resume_reading()
        await until(lambda: not connection.congested and not connection.unsent)
        subscriber.raw.clear()
        await publisher.publish("last", b"x", 1)
        await until(lambda: b"last" in subscriber.raw)


async def test_silence_is_noticed(made: Certificates) -> None:
    async with site(made) as porto:
        client = await porto.client("quiet", keep_alive=10)
        await porto.later(16)
        await client.closed(Reason.KEEP_ALIVE_TIMEOUT)


@pytest.mark.any_loop
async def test_both_ends_close_cleanly(made: Certificates, loop_kind: str) -> None:
    async with site(made) as porto:
        client = await porto.client("a")
        await client.leave()
        assert client.error is None
        other = await porto.client("b")
        other.transport.close()  # close_notify without DISCONNECT
        await porto.gone("b")
        last = await porto.client("c")
        stopping = asyncio.ensure_future(porto.broker.stop())
        await last.closed(Reason.SERVER_SHUTTING_DOWN)
        last.transport.abort()
        await stopping


async def test_new_certificates_for_new_connections(made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = Certificates(tmp_path)
    own.broker("porto")
    caplog.set_level(logging.INFO, "mqmesh.tls")

    async def serial(porto: Site) -> str:
        client = await porto.dial()
        client.send(Connect("c", 5, True, 0))
        await client.expect(Connack, reason=0)
        return str(client.transport.get_extra_info("peercert")["serialNumber"])

    async with site(own) as porto:
        old = await porto.client("old")
        before = await serial(porto)
        own.broker("porto", renew=True)
        assert await serial(porto) == before
        tls = porto.broker.site.tls
        assert tls is not None
        assert tls.reload()
        after = await serial(porto)
        assert after != before
        own.key("porto").write_text("gone")
        assert not tls.reload()
        assert await serial(porto) == after
        await old.nothing()
    assert "event=tls-reloaded certificate=" in caplog.text
    assert "event=tls-not-reloaded text=F: tls.key = " in caplog.text


async def test_why_nobody_comes_in_by_an_old_revocation_list(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What ends is said when it ends, and to who reads of the refusals; a new list needs no restart."""
    made = Certificates(tmp_path)
    made.broker("porto")
    made.client("desk")
    listed = settings(made, client_certificates="required")
    listed.revoked = made.revoked(days=0.5)
    async with Site("mqtts://127.0.0.1:0", listed) as porto:
        porto.context = made.context("desk")
        old = await porto.client("desk")
        tls = porto.broker.site.tls
        assert tls is not None
        assert tls._timer is not None
        assert 40_000 < tls._timer.when() - asyncio.get_running_loop().time() < 43_300  # the next look is at its end
        assert tls.contexts.warnings == []
        made.revoked(days=-0.5)
        assert tls.reload()
        assert "has a revocation list that expired on " in caplog.text
        with contextlib.suppress(OSError):
            client = await porto.dial()
            client.send(Connect("other", 5))
            await client.closed()
        await until(lambda: bool(refusals(caplog)))
        assert "the revocation list of its authority has expired" in refusals(caplog)[0]
        made.revoked(days=0.5)
        assert tls.reload()
        await porto.client("again")
        await old.nothing()


async def test_it_says_in_sys_what_it_did(made: Certificates) -> None:
    async with site(made) as porto:
        await porto.client("a")
        values = porto.broker.sys_topics.values()
        assert (values["tls/handshakes"], values["tls/refused"]) == ("1", "0")
        assert values["tls/certificate/ends"].endswith(" UTC")


async def test_the_end_of_its_certificate_is_said_when_it_comes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Certificates(tmp_path)
    made.odd("porto", (-1, 2 / 86400))
    async with Site("mqtts://127.0.0.1:0", settings(made)):
        await until(lambda: any("porto.crt expired on " in one.getMessage() for one in caplog.records))


@pytest.mark.any_loop
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_revoked_certificate_is_refused(tmp_path: Path, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture) -> None:
    made = Certificates(tmp_path)
    made.broker("porto")
    for name in ("desk", "lost"):
        made.client(name)
    listed = settings(made, client_certificates="required")
    listed.revoked = made.revoked("lost")
    async with Site("mqtts://127.0.0.1:0", listed) as porto:
        for name in ("desk", "lost"):
            porto.context = made.context(name)
            porto.context.maximum_version = version
            if name == "desk":
                await porto.client(name)
                continue
            with contextlib.suppress(OSError):  # TLS 1.3: the client learns it after its own handshake
                client = await porto.dial()
                client.send(Connect("lost", 5))
                await client.closed()
        await until(lambda: bool(refusals(caplog)))
        assert "revoked" in refusals(caplog)[0]
        assert porto.broker.context.counters.connects == 1


async def test_a_connection_that_has_ended_holds_no_cycle(made: Certificates) -> None:
    """Cycles stay where the broker sets old objects apart (`base/process/collector.py`)."""

    def alive() -> int:
        return sum(isinstance(one, Connection) for one in gc.get_objects())

    async with site(made) as porto:
        gc.collect()
        gc.disable()
        try:
            before = alive()
            for end in ("leave", "cut"):
                client = await porto.client("gauge")
                await client.publish("t", b"x", 1)
                await getattr(client, end)()
                await porto.gone("gauge")
            porto.broker.site.rounds._latest = None
            await until(lambda: alive() == before)
        finally:
            gc.enable()
