"""A Redis server of the tests' own: in a folder, at a free port of 127.0.0.1, with what is confirmed on the disk."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.services import PATIENCE, end_with_parent, free_port, missing, require, wait_until


class RedisServer:
    """One server. more: of its settings."""

    def __init__(self, folder: Path, *more: str) -> None:
        if importlib.util.find_spec("redis") is None:
            missing("the package redis is not installed: make venv")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._folder = folder
        self._command = [require("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        self._command += ["--appendonly", "yes", "--appendfsync", "always", *more]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return once it answers, with its data."""
        with (self._folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, preexec_fn=end_with_parent)
        wait_until(self._answers, PATIENCE, "answer from Redis")

    def _answers(self) -> bool:
        import redis

        with contextlib.suppress(redis.RedisError), contextlib.closing(redis.Redis(port=self.port)) as client:
            return bool(client.ping())
        return False

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def running_redis(folder: Path, *more: str) -> Iterator[RedisServer]:
    """A server that is up, and gone afterwards."""
    server = RedisServer(folder, *more)
    try:
        server.start()
        yield server
    finally:
        server.kill()
