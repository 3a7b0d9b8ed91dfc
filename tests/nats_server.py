"""nats-server for tests: a process of its own in a folder, with JetStream and an MQTT listener, and nats-py as the far side.

Accounts: anybody is `guest`, who may do everything; gauge/gauge may publish to `allowed.>`, listen to `open.>`, and have answers. With a
certificate the listener wants TLS, and there is no MQTT listener.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import subprocess
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import nats
from nats.aio.msg import Msg
from services import PATIENCE, free_port, require, wait_for_port


class NatsServer:
    """One server. port: NATS; mqtt_port: MQTT 3.1.1."""

    def __init__(self, folder: Path, certificate: Path | None = None, key: Path | None = None, jetstream: bool = True) -> None:
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
            self._process = subprocess.Popen([require("nats-server"), "-c", str(self._config)], stdout=log, stderr=log)
        wait_for_port(self.port)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def running_nats(folder: Path, certificate: Path | None = None, key: Path | None = None, jetstream: bool = True) -> Iterator[NatsServer]:
    """A server that is up, and gone afterwards."""
    server = NatsServer(folder, certificate, key, jetstream)
    try:
        server.start()
        yield server
    finally:
        server.kill()


class NatsPeer:
    """nats-py in a thread of its own, so that tests need no loop."""

    def __init__(self, server: NatsServer) -> None:
        self.messages: queue.Queue[Msg] = queue.Queue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.client = self.run(nats.connect(server.url, connect_timeout=PATIENCE))
        self.js = self.client.jetstream(timeout=PATIENCE)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def listen(self, subject: str) -> None:
        async def take(message: Msg) -> None:
            self.messages.put(message)

        async def listen() -> None:
            await self.client.subscribe(subject, cb=take)
            await self.client.flush(PATIENCE)

        self.run(listen())

    def publish(self, subject: str, payload: bytes, **keys: Any) -> None:
        """Return when the server has handled it."""

        async def publish() -> None:
            await self.client.publish(subject, payload, **keys)
            await self.client.flush(PATIENCE)

        self.run(publish())

    def request(self, subject: str, payload: bytes) -> Future[Msg]:
        """Ask, and go on; the answer comes later."""
        return asyncio.run_coroutine_threadsafe(self.client.request(subject, payload, timeout=PATIENCE), self._loop)

    def stream(self, name: str, *subjects: str, **keys: Any) -> None:
        self.run(self.js.add_stream(name=name, subjects=list(subjects), **keys))

    def consumers(self, stream: str) -> list[Any]:
        return self.run(self.js.consumers_info(stream))

    def next(self) -> Msg:
        return self.messages.get(timeout=PATIENCE)

    def close(self) -> None:
        self.run(self.client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
