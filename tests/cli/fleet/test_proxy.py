"""The TCP proxy that cuts links."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from mqmesh.cli.fleet.proxy import Proxy
from support.services import PATIENCE, free_port


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """In front of a server that sends everything back."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=echo, args=(connection,), daemon=True).start()

    def echo(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    made = Proxy("127.0.0.1", server.getsockname()[1])
    yield made
    made.close()
    server.close()


def dial(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), PATIENCE)


def exchange(connection: socket.socket, data: bytes) -> bytes:
    threading.Thread(target=connection.sendall, args=(data,), daemon=True).start()
    got = b""
    while len(got) < len(data):
        chunk = connection.recv(65536)
        if not chunk:
            break
        got += chunk
    return got


def test_bytes_pass_in_both_directions(proxy: Proxy) -> None:
    with dial(proxy) as connection:
        assert exchange(connection, b"x" * 5_000_000) == b"x" * 5_000_000


def test_the_end_of_one_direction_passes(proxy: Proxy) -> None:
    with dial(proxy) as connection:
        connection.sendall(b"last")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(10) == b"last"
        assert connection.recv(10) == b""


def test_cut_breaks_and_refuses_until_mended(proxy: Proxy) -> None:
    with dial(proxy) as connection:
        assert exchange(connection, b"a") == b"a"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(10)
    with contextlib.suppress(ConnectionResetError), dial(proxy) as connection:
        assert connection.recv(10) == b""
    proxy.mend()
    with dial(proxy) as connection:
        assert exchange(connection, b"b") == b"b"


def test_silence_keeps_the_connection_and_lets_nothing_through(proxy: Proxy) -> None:
    with dial(proxy) as connection:
        assert exchange(connection, b"a") == b"a"
        proxy.silence()
        connection.sendall(b"b")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(10)
        connection.settimeout(PATIENCE)
        proxy.mend()
        with pytest.raises(ConnectionResetError):
            connection.recv(10)


def test_an_unreachable_target_ends_the_connection() -> None:
    proxy = Proxy("127.0.0.1", free_port())
    with contextlib.suppress(ConnectionResetError), dial(proxy) as connection:
        assert connection.recv(10) == b""
    proxy.close()


def test_resume_lets_what_was_held_back_through(proxy: Proxy) -> None:
    with dial(proxy) as old:
        assert exchange(old, b"a") == b"a"
        proxy.silence()
        old.sendall(b"b")
        with dial(proxy) as new:
            new.sendall(b"c")
            while not any(side.other is None for side in list(proxy.pairs)):  # it is accepted, and reads what came
                proxy._call(lambda: None)
            for _ in range(3):
                proxy._call(lambda: None)
            proxy.resume()
            assert (old.recv(10), new.recv(10)) == (b"b", b"c")


def test_a_throttled_line_loses_nothing(proxy: Proxy) -> None:
    proxy.throttle(200_000)
    with dial(proxy) as connection:
        data = bytes(range(256)) * 100
        assert exchange(connection, data) == data
        proxy.throttle(None)
        assert exchange(connection, data * 10) == data * 10
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(10) == b""
