"""A Mosquitto that keeps what it has on disk, for tests that kill it and start it again."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from support.services import PATIENCE, free_port, require, wait_until

CONNECT = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x0a\x00\x05ready"  # MQTT 3.1.1, clean session, client identifier "ready"
CONNACK = b"\x20"  # the first byte; it answers so what it refuses, too
AGAIN = 1.0  # seconds after which it is asked once more to save


class Mosquitto:
    """Started on entry. saves: it writes each change, so that little is lost when it is killed. lines: more of its configuration."""

    def __init__(self, folder: Path, lines: str = "", name: str = "mosquitto", saves: bool = False) -> None:
        self.folder, self.name, self.port = folder, name, free_port()
        self.config = folder / f"{name}.conf"
        data = folder / f"{name}-data"
        data.mkdir(exist_ok=True)
        saved = "autosave_on_changes true\nautosave_interval 1\n" if saves else ""
        self.config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {data}/\n"
            f"max_queued_messages 0\nuser root\n{saved}{lines}"
        )
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return once it serves.

        It listens before it is ready for signals: one that comes then is ignored, or ends it with nothing saved.
        """
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen([require("mosquitto"), "-c", str(self.config)], stdout=subprocess.DEVNULL, stderr=log)
        wait_until(self._answers, PATIENCE, f"answer of Mosquitto at port {self.port}")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), PATIENCE) as link:
            link.sendall(CONNECT)
            return link.recv(1) == CONNACK
        return False

    def save(self) -> None:
        """Return once it has written a database that has all that it has done by now."""
        assert self.process is not None
        database = self.folder / f"{self.name}-data" / "mosquitto.db"

        def written() -> tuple[int, int]:
            found = database.stat() if database.exists() else None
            return (found.st_ino, found.st_mtime_ns) if found else (0, 0)

        asked = -AGAIN

        def saved(before: tuple[int, int]) -> bool:
            nonlocal asked
            if written() == before and time.monotonic() > asked + AGAIN:  # it forgets a signal that comes while it ends a save
                assert self.process is not None
                self.process.send_signal(signal.SIGUSR1)
                asked = time.monotonic()
            return written() != before

        for _ in range(2):  # the first one may have begun before
            asked = -AGAIN
            wait_until(partial(saved, written()), PATIENCE, "Mosquitto's database")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal, and return once it has ended."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(PATIENCE)
        self.process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process is not None:
            self.stop(signal.SIGKILL)
