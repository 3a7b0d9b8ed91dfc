"""The TLS layer alone, over a wire that tests hold in their hands: any pieces, any change of any byte, any rubbish."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.transport.tls.contexts import Contexts
from mqmesh.broker.transport.tls.transport import TlsTransport
from support.certificates import Certificates

from .test_contexts import settings


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    made = Certificates(tmp_path_factory.mktemp("tls"))
    made.broker("porto")
    return Contexts(settings(made, client_certificates="required"), listens=True)


class Wire(asyncio.Transport):
    """The loop's transport: notes what is written and that it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.out = bytearray()
        self.ended = False

    def write(self, data: Any) -> None:
        self.out += data

    def is_closing(self) -> bool:
        return self.ended

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def close(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True

    def take(self) -> bytes:
        data, self.out = bytes(self.out), bytearray()
        return data


class App(asyncio.Protocol):
    """What stands above the layer."""

    def __init__(self) -> None:
        self.data = b""
        self.ends = 0
        self.begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.begun = True

    def data_received(self, data: bytes) -> None:
        assert self.begun
        assert not self.ends
        self.data += data

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        assert self.begun
        self.ends += 1


class Timer:
    def cancel(self) -> None:
        pass


class Loop:
    """As much of a loop as the layer needs."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []

    def call_later(self, delay: float, function: Callable[..., object], *arguments: object) -> Timer:
        return Timer()

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        self.soon.append(lambda: function(*arguments))


class End:
    """One end: its layer, its wire and its app."""

    def __init__(self, contexts: Contexts, server: bool) -> None:
        context = contexts.server if server else contexts.client
        assert context is not None
        self.buffer = memoryview(bytearray(4096))
        self.app, self.wire = App(), Wire()
        self.failures: list[str] = []
        self.layer = TlsTransport(
            Loop(),  # type: ignore[arg-type]
            context,
            self.buffer,
            10.0,
            lambda layer: layer.begin(self.app),
            lambda layer, text: self.failures.append(text),
            server,
            None if server else "porto",
        )
        self.layer.connection_made(self.wire)

    def feed(self, data: bytes, size: int = 4096) -> None:
        """As the loop does: through the buffer that the layer gave, in pieces of at most `size` bytes."""
        for start in range(0, len(data), size):
            if self.wire.ended:
                return
            piece = data[start : start + size]
            self.layer.get_buffer(-1)[: len(piece)] = piece
            self.layer.buffer_updated(len(piece))

    def lost(self) -> None:
        self.layer.connection_lost(None)


def joined(server: End, client: End, size: int = 4096, tamper: Callable[[bytes, bool], bytes] = lambda data, up: data) -> None:
    """Carry bytes both ways until both are quiet."""
    while True:
        up, down = tamper(client.wire.take(), True), tamper(server.wire.take(), False)
        server.feed(up, size)
        client.feed(down, size)
        if not up and not down:
            return


@pytest.mark.parametrize("size", [1, 3, 100, 4096])
def test_both_ends_have_one_binding_and_each_others_names(contexts: Contexts, size: int) -> None:
    server, client = End(contexts, True), End(contexts, False)
    joined(server, client, size)
    assert server.app.begun
    assert client.app.begun
    assert server.layer.binding == client.layer.binding
    assert len(server.layer.binding) >= 32
    assert server.layer.names == client.layer.names
    assert "porto" in server.layer.names
    assert server.layer.serves
    others = End(contexts, True), End(contexts, False)
    joined(*others)
    assert others[0].layer.binding != server.layer.binding


@given(
    blocks=st.lists(st.tuples(st.booleans(), st.integers(0, 40_000)), max_size=8),
    size=st.integers(1, 4096),
    closer=st.sampled_from(["server", "client", ""]),
)
def test_what_is_written_comes_out_in_order(contexts: Contexts, blocks: list[tuple[bool, int]], size: int, closer: str) -> None:
    ends = End(contexts, True), End(contexts, False)
    joined(*ends)
    sent = [b"", b""]
    for number, (up, length) in enumerate(blocks):
        data = bytes([number + 1]) * length
        ends[up].layer.write(data)
        sent[up] += data
    if closer:
        ends[closer == "client"].layer.close()
    joined(*ends, size)
    for end, data, name in ((ends[0], sent[1], "server"), (ends[1], sent[0], "client")):
        if name == closer:  # who closes takes nothing more
            assert data.startswith(end.app.data)
        else:
            assert end.app.data == data
    assert all(end.wire.ended is bool(closer) for end in ends)


@given(st.binary(min_size=1, max_size=2000), st.booleans())
def test_rubbish_is_refused_once_and_reaches_nobody(contexts: Contexts, data: bytes, server: bool) -> None:
    end = End(contexts, server)
    end.feed(data)
    end.lost()
    assert len(end.failures) == 1
    assert not end.app.begun


@given(at=st.integers(0, 20_000), bit=st.integers(0, 7), up=st.booleans(), size=st.sampled_from([1, 700, 4096]))
def test_a_changed_bit_anywhere_lets_nothing_false_through(contexts: Contexts, at: int, bit: int, up: bool, size: int) -> None:
    """In the handshake: nobody comes up who has another handshake in mind. Behind it: what is handed on is what was sent, up to there."""
    server, client = End(contexts, True), End(contexts, False)
    seen = 0

    def tamper(data: bytes, upward: bool) -> bytes:
        nonlocal seen
        if upward is not up:
            return data
        begin, seen = seen, seen + len(data)
        if begin <= at < seen:
            changed = bytearray(data)
            changed[at - begin] ^= 1 << bit
            return bytes(changed)
        return data

    joined(server, client, size, tamper)
    sent = bytes(range(256)) * 60
    for end in (server, client):
        if end.app.begun and not end.layer.is_closing():
            end.layer.write(sent)
    joined(server, client, size, tamper)
    for end in (server, client):
        assert sent.startswith(end.app.data)
        assert len(end.failures) <= 1
        assert not (end.failures and end.app.begun)
    if server.app.begun and client.app.begun:
        assert server.layer.binding == client.layer.binding
    for end in (server, client):
        end.lost()
        assert end.app.ends == end.app.begun
        assert len(end.failures) == (not end.app.begun)


def test_an_end_that_is_lost_before_its_protocol_is_there(contexts: Contexts) -> None:
    """A dialler is let on by its own handshake and refused by the peer's before it has begun: its protocol hears of it."""
    server, client = End(contexts, True), End(contexts, False)
    waiting: list[TlsTransport] = []
    client.layer._established = waiting.append
    joined(server, client)
    server.layer.write(b"early")
    server.layer.close()
    client.feed(server.wire.take())
    client.lost()
    assert waiting == [client.layer]
    client.layer.begin(client.app)
    for call in client.layer.loop.soon:  # type: ignore[attr-defined]
        call()
    assert client.app.data == b"early"
    assert client.app.ends == 1


def test_it_is_tls(contexts: Contexts) -> None:
    server, client = End(contexts, True), End(contexts, False)
    joined(server, client)
    client.layer.write(b"a secret")
    record = client.wire.take()
    assert b"secret" not in record
    assert record[:3] == b"\x17\x03\x03"
    assert client.layer.version == "TLSv1.3"
    assert isinstance(contexts.client, ssl.SSLContext)
