"""Clients that send slowly or nothing: each is hung up on or answered in bounded time, and others are served meanwhile."""

from __future__ import annotations

import functools
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mqmesh.base.http import guard as patience
from mqmesh.directory import server
from mqmesh.directory.storage.store import Store
from support.directories import in_this_process
from support.services import PATIENCE

HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\n"


class HungUpError(Exception):
    """A request that should have been answered was not."""


def on_any_machine(test: Callable[[int], None]) -> Callable[..., None]:
    """The test of a directory in this process whose patience is short. A machine that is slower than that gets a longer one."""

    @functools.wraps(test)
    def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **_: object) -> None:
        for seconds in (0.3, 1.2, 5.0, 20.0):
            monkeypatch.setattr(patience, "PATIENCE", seconds)
            monkeypatch.setattr(server, "PATIENCE", seconds)
            with in_this_process(Store(f"sqlite:///{tmp_path / 'd.db'}")) as url:
                try:
                    return test(int(url.rpartition(":")[2]))
                except (HungUpError, ConnectionError):
                    if seconds == 20.0:
                        raise
        return None

    del run.__wrapped__  # type: ignore[attr-defined]
    return run


def rest_of(connection: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    connection.settimeout(PATIENCE)
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def answer_of(connection: socket.socket) -> bytes:
    connection.settimeout(PATIENCE)
    text = b""
    while not text.endswith(b'{"status":"ok"}'):
        part = connection.recv(65536)
        if not part:
            raise HungUpError(text)
        text += part
    return text


@on_any_machine
def test_who_sends_nothing_is_hung_up_on(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as silent:
        assert rest_of(silent) == b""


@on_any_machine
def test_a_head_that_comes_byte_by_byte_is_not_waited_for(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as slow, socket.create_connection(("127.0.0.1", port)) as other:
        ended = threading.Event()

        def trickle() -> None:
            for byte in HEALTH[:-4] + b"\r\nX-A: " + b"a" * 100_000:
                try:
                    slow.send(bytes([byte]))
                except OSError:
                    return
                if ended.wait(0.02):
                    return

        thread = threading.Thread(target=trickle)
        thread.start()
        other.sendall(HEALTH)
        assert b"200 OK" in answer_of(other)
        try:
            got = rest_of(slow)
        except ConnectionResetError:  # there was another byte on its way
            got = b""
        ended.set()
        thread.join()
        assert got == b""


@on_any_machine
def test_a_second_head_on_a_connection_has_no_more_time(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(2):
            connection.sendall(HEALTH)
            assert b"200 OK" in answer_of(connection)
        connection.sendall(HEALTH[:10])
        assert rest_of(connection) == b""


@on_any_machine
def test_a_body_that_does_not_come_is_answered(port: int) -> None:
    head = b"POST /v1/tokens HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
    for path, status in ((b"/v1/tokens", b"413"), (b"/uddi", b"500")):
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(head.replace(b"/v1/tokens", path) + b"{")
            slow.settimeout(PATIENCE)
            answer = slow.recv(65536)
            if not answer:
                raise HungUpError(path)
            assert answer.startswith(b"HTTP/1.1 " + status)


@on_any_machine
def test_an_answer_that_takes_longer_than_a_head_may_is_given(port: int) -> None:
    """The clock is for what clients send, not for what the directory works at."""
    reading, seconds = Store.reading, 2 * patience.PATIENCE

    def slow(self: Store, *arguments: object) -> object:
        time.sleep(seconds)
        return reading(self, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch, socket.create_connection(("127.0.0.1", port)) as connection:
        patch.setattr(Store, "reading", slow)
        connection.sendall(HEALTH)
        assert b"200 OK" in answer_of(connection)
