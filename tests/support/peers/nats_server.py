"""nats-server for tests: a process of its own in a folder, with JetStream and an MQTT listener, and a small client as the far side.

Accounts: anybody is `guest`, who may do everything; gauge/gauge may publish to `allowed.>`, listen to `open.>`, and have answers. With a
certificate the listener wants TLS, and there is no MQTT listener.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from support.services import PATIENCE, end_with_parent, free_port, require, wait_for_port


class NatsServer:
    """One server. port: NATS; mqtt_port: MQTT 3.1.1. more: lines of its configuration."""

    def __init__(self, folder: Path, certificate: Path | None = None, key: Path | None = None, jetstream: bool = True, *more: str) -> None:
        self.port, self.mqtt_port = free_port(), free_port()
        self.log = folder / "nats.log"
        self._config = folder / "nats.conf"
        self._process: subprocess.Popen[bytes] | None = None
        lines = [
            f"listen: 127.0.0.1:{self.port}",
            'server_name: "test"',
            "no_auth_user: guest",
            "max_payload: 200000",
            "authorization { users: [",
            "  { user: guest, password: guest }",
            "  { user: gauge, password: gauge, permissions: {",
            '    publish: ["allowed.>", "$JS.API.STREAM.LIST"], subscribe: ["open.>", "_INBOX.>"] } }',
            "] }",
            *more,
        ]
        if jetstream:
            lines.append(f'jetstream {{ store_dir: "{folder}" }}')
        if certificate is not None:
            lines.append(f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}')
        elif jetstream:
            lines.append(f"mqtt {{ listen: 127.0.0.1:{self.mqtt_port} }}")
        self._config.write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return once it listens."""
        with self.log.open("ab") as log:
            command = [require("nats-server"), "-c", str(self._config)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=end_with_parent)
        wait_for_port(self.port)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def running_nats(
    folder: Path, certificate: Path | None = None, key: Path | None = None, jetstream: bool = True, *more: str
) -> Iterator[NatsServer]:
    """A server that is up, and gone afterwards. more: lines of its configuration."""
    server = NatsServer(folder, certificate, key, jetstream, *more)
    try:
        server.start()
        yield server
    finally:
        server.kill()


class Arrived(NamedTuple):
    """A message. headers: the last value of each name."""

    subject: str
    data: bytes
    reply: str
    headers: dict[str, str]


class NatsPeer:
    """The far side: a client of a few lines on a socket, read in a thread of its own. JetStream's interface is questions in JSON."""

    def __init__(self, server: NatsServer) -> None:
        self.messages: queue.Queue[Arrived] = queue.Queue()
        self._answers: dict[str, Future[Arrived]] = {}
        self._pongs: queue.Queue[None] = queue.Queue()
        self._numbers = itertools.count(2)
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        self._file = self._socket.makefile("rb")
        assert self._file.readline().startswith(b"INFO ")
        self._socket.settimeout(None)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB _INBOX.peer.> 1\r\n')

    def send(self, data: bytes) -> None:
        """Any bytes; return when the server has handled them."""
        self._socket.sendall(data + b"PING\r\n")
        self._pongs.get(timeout=PATIENCE)

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := self._file.readline():
                verb, *words = line.decode(errors="replace").split()
                if verb == "PONG":
                    self._pongs.put(None)
                elif verb == "PING":
                    self._socket.sendall(b"PONG\r\n")
                elif verb in ("MSG", "HMSG"):
                    self._message(words, 2 if verb == "HMSG" else 1)

    def _message(self, words: list[str], numbers: int) -> None:
        subject, _, *reply = words[:-numbers]
        head, size = (int(words[-2]) if numbers == 2 else 0), int(words[-1])
        body = self._file.read(size + 2)[:-2]
        first, *lines = body[:head].decode().split("\r\n")
        pairs = [line.partition(":") for line in lines if line]
        headers = {"Status": first[9:12]} | {name: value.strip() for name, _, value in pairs}
        message = Arrived(subject, body[head:], reply[0] if reply else "", headers)
        if subject in self._answers:
            self._answers.pop(subject).set_result(message)
        else:
            self.messages.put(message)

    def listen(self, subject: str) -> None:
        self.send(f"SUB {subject} {next(self._numbers)}\r\n".encode())

    def publish(self, subject: str, payload: bytes, reply: str = "", headers: dict[str, str] | None = None) -> None:
        """Return when the server has handled it."""
        where = f"{subject} {reply}".strip()
        block = "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items()) + "\r\n"
        if headers:
            self.send(f"HPUB {where} {len(block)} {len(block) + len(payload)}\r\n{block}".encode() + payload + b"\r\n")
        else:
            self.send(f"PUB {where} {len(payload)}\r\n".encode() + payload + b"\r\n")

    def request(self, subject: str, payload: bytes) -> Future[Arrived]:
        """Ask, and go on; the answer comes later."""
        inbox = f"_INBOX.peer.{next(self._numbers)}"
        self._answers[inbox] = answer = Future[Arrived]()
        self.publish(subject, payload, inbox)
        return answer

    def ask(self, question: str, **keys: Any) -> dict[str, Any]:
        """A question to JetStream's interface."""
        answer: dict[str, Any] = json.loads(self.request(f"$JS.API.{question}", json.dumps(keys).encode()).result(PATIENCE).data)
        assert "error" not in answer, answer
        return answer

    def stream(self, name: str, *subjects: str, **keys: Any) -> None:
        self.ask(f"STREAM.CREATE.{name}", name=name, subjects=subjects, **keys)

    def consumers(self, stream: str) -> list[dict[str, Any]]:
        """One that ends while the server makes the list stands there as null."""
        return [one for one in self.ask(f"CONSUMER.LIST.{stream}")["consumers"] or [] if one is not None]

    def next(self) -> Arrived:
        return self.messages.get(timeout=PATIENCE)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._socket.close()
