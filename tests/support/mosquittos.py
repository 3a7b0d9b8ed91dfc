"""A Mosquitto that keeps what it has on disk, for tests that kill it and start it again."""

from __future__ import annotations

import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from support.services import PATIENCE, free_port, require, wait_for_port, wait_until

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
        """Return once it listens."""
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen([require("mosquitto"), "-c", str(self.config)], stdout=subprocess.DEVNULL, stderr=log)
        wait_for_port(self.port)

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
