"""The REST client and servers that do not answer as they should: each is a directory that is away, whatever was asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from mqmesh.directory.client import Client, ClientError
from support.services import PATIENCE

WHOLE = b'{"number":7}'


@contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """A server that hangs up behind `answer`, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.settimeout(PATIENCE)
                        asked = b""
                        while b"\r\n\r\n" not in asked:
                            asked += connection.recv(65536)
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(65536):
                            pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n" + WHOLE[:5],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n" + WHOLE[:5],
        b"PUT /v1/meshes HTTP/1.1\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\n\r\nzz",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nno xml",
    ],
)
def test_an_answer_that_is_none(answer: bytes) -> None:
    with saying(answer) as url:
        for ask in (lambda client: client.get("mesh", "m"), lambda client: client.find(), lambda client: client.claim("m", "h", "n", 2)):
            with pytest.raises(ClientError, match=f"{url} does not answer: ") as caught:
                ask(Client(url, PATIENCE))
            assert caught.value.status == 0


def test_a_whole_answer() -> None:
    with saying(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n" + WHOLE) as url:
        assert Client(url, PATIENCE).get("mesh", "m") == {"number": 7}
    with saying(b"HTTP/1.1 204 No Content\r\n\r\n") as url:
        Client(url, PATIENCE).delete("mesh", "m")
