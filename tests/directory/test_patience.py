"""Clients that send slowly or nothing: each is hung up on or answered in bounded time, and others are served meanwhile."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from directories import in_this_process
from mqmesh.directory import patience, server
from mqmesh.directory.store import Store

HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A directory in this process whose patience is short."""
    monkeypatch.setattr(patience, "PATIENCE", 0.3)
    monkeypatch.setattr(server, "PATIENCE", 0.3)
    with in_this_process(Store(f"sqlite:///{tmp_path / 'd.db'}")) as url:
        yield int(url.rpartition(":")[2])


def rest_of(connection: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    connection.settimeout(20)
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def answer_of(connection: socket.socket) -> bytes:
    connection.settimeout(20)
    text = b""
    while not text.endswith(b'{"status":"ok"}'):
        part = connection.recv(65536)
        assert part, text
        text += part
    return text


def test_who_sends_nothing_is_hung_up_on(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as silent:
        assert rest_of(silent) == b""


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


def test_a_second_head_on_a_connection_has_no_more_time(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(2):
            connection.sendall(HEALTH)
            assert b"200 OK" in answer_of(connection)
        connection.sendall(HEALTH[:10])
        assert rest_of(connection) == b""


def test_a_body_that_does_not_come_is_answered(port: int) -> None:
    head = b"POST /v1/tokens HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
    for path, status in ((b"/v1/tokens", b"413"), (b"/uddi", b"500")):
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(head.replace(b"/v1/tokens", path) + b"{")
            slow.settimeout(20)
            assert slow.recv(65536).startswith(b"HTTP/1.1 " + status)


def test_an_answer_that_takes_longer_than_a_head_may_is_given(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is for what clients send, not for what the directory works at."""
    reading = Store.reading

    def slow(self: Store, *arguments: object) -> object:
        time.sleep(0.6)
        return reading(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "reading", slow)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(HEALTH)
        assert b"200 OK" in answer_of(connection)
