"""Hosts with several addresses: one that does not answer keeps nobody from those that do."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeAlias

import pytest
from mqmesh.base.process import happy_eyeballs
from mqmesh.base.process.happy_eyeballs import AddressInfo, connect, connected_socket, interleaved
from support.services import PATIENCE, free_port

Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]

EITHER: list[Run] = [asyncio.run]  # the loops that brokers run in
with contextlib.suppress(ImportError):
    import uvloop

    EITHER.append(uvloop.run)

either = pytest.mark.parametrize("run", EITHER, ids=lambda run: run.__module__.partition(".")[0])
silent = pytest.mark.skipif(sys.platform != "linux", reason="only Linux drops what a full backlog has no room for")


def info(port: int, family: int = socket.AF_INET) -> AddressInfo:
    return family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port)


@contextlib.contextmanager
def not_answering() -> Iterator[int]:
    """A port where connections are not refused, and never come about: its backlog is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        while True:
            one = stack.enter_context(socket.socket())
            one.settimeout(0.2)
            try:
                one.connect(listener.getsockname())
            except TimeoutError:
                break
        yield listener.getsockname()[1]


@contextlib.asynccontextmanager
async def answering() -> AsyncIterator[int]:
    server = await asyncio.start_server(lambda _, writer: writer.write(b"!"), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def known(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """The name stands for these."""

    async def addresses(_host: str, _port: int) -> list[AddressInfo]:
        return [info(port) for port in ports]

    monkeypatch.setattr(happy_eyeballs, "addresses", addresses)


@either
@silent
def test_an_address_that_does_not_answer_is_passed_over(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tried() -> None:
        with not_answering() as dead:
            async with answering() as port, asyncio.timeout(PATIENCE):
                known(monkeypatch, dead, dead, port)
                with await connected_socket("several.example", 1) as sock:
                    assert sock.getpeername() == ("127.0.0.1", port)
                reader = asyncio.StreamReader()
                transport, protocol = await connect(lambda: asyncio.StreamReaderProtocol(reader), "several.example", 1)
                assert await reader.readexactly(1) == b"!"
                assert isinstance(protocol, asyncio.StreamReaderProtocol)
                transport.close()

    run(tried())


@either
def test_an_address_that_refuses_costs_no_delay(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tried() -> None:
        monkeypatch.setattr(happy_eyeballs, "DELAY", 1e6)
        async with answering() as port, asyncio.timeout(PATIENCE):
            known(monkeypatch, free_port(), port)
            with await connected_socket("several.example", 1) as sock:
                assert sock.getpeername() == ("127.0.0.1", port)

    run(tried())


@either
def test_where_none_answers_it_is_said_why(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tried() -> None:
        known(monkeypatch, free_port(), free_port())
        with pytest.raises(ConnectionRefusedError, match="Connection refused"):
            await connected_socket("several.example", 1)

    run(tried())


@either
@silent
def test_who_gives_up_leaves_no_socket(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tried() -> None:
        made: list[socket.socket] = []

        class Made(socket.socket):
            def __init__(self, *arguments: int) -> None:
                super().__init__(*arguments)
                made.append(self)

        with not_answering() as dead:
            known(monkeypatch, dead)
            monkeypatch.setattr(happy_eyeballs.socket, "socket", Made)
            waits = asyncio.ensure_future(connected_socket("several.example", 1))
            while not made:  # noqa: ASYNC110  # it stands for no event
                await asyncio.sleep(0)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            assert [one.fileno() for one in made] == [-1]

    run(tried())


def test_families_take_turns() -> None:
    six, four = socket.AF_INET6, socket.AF_INET
    assert [one[4][1] for one in interleaved([info(1, six), info(2, six), info(3, six), info(4, four)])] == [1, 4, 2, 3]
    assert [one[4][1] for one in interleaved([info(1, four), info(2, six), info(3, six)])] == [1, 2, 3]
    assert interleaved([]) == []


class Ending(asyncio.Protocol):
    """A connection that ends as soon as it is made; files that are opened then get the number of its descriptor."""

    def __init__(self) -> None:
        self.lost = asyncio.get_running_loop().create_future()
        self.files: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.number = transport.get_extra_info("socket").fileno()
        transport.abort()  # type: ignore[attr-defined]

    def connection_lost(self, error: Exception | None) -> None:
        asyncio.get_running_loop().call_soon(self.open_files)  # the transport closes its descriptor after this

    def open_files(self) -> None:
        while not self.files or self.files[-1] < self.number:
            self.files.append(os.open(os.devnull, os.O_RDONLY))
        self.lost.set_result(None)


@either
def test_a_connection_that_ends_at_once_is_closed_once(run: Run) -> None:
    """What has the number of its descriptor by then stays open."""

    async def story() -> None:
        async with answering() as port:
            transport, protocol = await connect(Ending, "127.0.0.1", port)
            await protocol.lost
            assert protocol.number in protocol.files
            del transport
            gc.collect()
            for file in protocol.files:
                os.close(file)  # each is open

    run(story())
