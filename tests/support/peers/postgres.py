"""A PostgreSQL server of the tests' own: a fresh cluster in a temporary folder, on a random port, run by an unprivileged user."""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from support.services import PATIENCE, end_with_parent, free_port, require, wait_until

UNPRIVILEGED = ("postgres", "nobody")  # PostgreSQL refuses to be run by root


def _user() -> str | None:
    """Whom to become: None to stay who we are."""
    if os.getuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in UNPRIVILEGED if name in known)


@cache
def _fresh() -> Path:
    """A cluster as initdb makes it, once for this process: each server begins with a copy."""
    folder = Path(tempfile.mkdtemp(prefix="mqmesh-initdb-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    user = _user()
    if user:
        shutil.chown(folder, user)
    initdb = [str(Path(require("postgres")).parent / "initdb"), "-D", str(folder / "data"), "-A", "trust", "-U", "mqmesh"]
    options = ["-E", "UTF8", "--locale=C", "--no-sync", "--data-checksums"]
    subprocess.run([*initdb, *options], check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)
    return folder / "data"


class Server:
    """A cluster that can be started, killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"postgresql://mqmesh@127.0.0.1:{self.port}/postgres"
        self._user = _user()
        self._postgres = require("postgres")
        self._process: subprocess.Popen[bytes] | None = None
        if self._user:
            shutil.chown(folder, self._user)
        subprocess.run(["cp", "-a", str(_fresh()), str(folder / "data")], check=True)

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [self._postgres, "-D", str(self.folder / "data"), "-k", str(self.folder), "-p", str(self.port)]
        settings = ["listen_addresses=127.0.0.1", "shared_buffers=64MB", "max_connections=40", "max_wal_size=256MB"]
        options = [part for setting in settings for part in ("-c", setting)]
        log = open(self.folder / "log", "ab")  # noqa: SIM115 - the server keeps it
        ends = partial(end_with_parent, signal.SIGQUIT)
        self._process = subprocess.Popen([*command, *options], user=self._user, cwd=self.folder, stdout=log, stderr=log, preexec_fn=ends)
        log.close()
        wait_until(self._answers, PATIENCE, "answer from PostgreSQL")

    def kill(self) -> None:
        """End it without a chance to tidy up: SIGQUIT is PostgreSQL's immediate shutdown, which a crash recovery follows."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """End it at once, in order."""
        self._end(signal.SIGINT)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _answers(self) -> bool:
        import psycopg

        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url, connect_timeout=15):
            return True
        return False


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """A running server; nothing of it is left afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="mqmesh-postgres-"))
    folder.chmod(0o755)
    running = None
    try:
        running = Server(folder)
        running.start()
        yield running
    finally:
        if running is not None:
            running.stop()
        shutil.rmtree(folder, ignore_errors=True)
