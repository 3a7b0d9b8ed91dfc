"""Directories for tests: real processes of `mqmesh directory serve`, over SQLite files or a PostgreSQL server of the tests' own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import uvicorn
from mqmesh.directory.client import Client
from mqmesh.directory.storage.accounts import add_account
from mqmesh.directory.storage.store import Store

from support import command
from support.services import PATIENCE, free_port, wait_until

ACCOUNTS = {"alice": "acme", "anna": "acme", "bob": "other"}  # name -> organisation


@contextlib.contextmanager
def in_this_process(store: Store) -> Iterator[str]:
    """A directory over a store, served by a thread; where it is. For tests that change how it works."""
    from mqmesh.directory.server import application, configured

    running = uvicorn.Server(configured(application(store)))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: running.started, PATIENCE, "server")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join()
        store.close()


class Directory:
    """A process over a database with three accounts."""

    def __init__(self, database: str, log: Path, options: tuple[str, ...] = ()) -> None:
        self.database, self.log, self._options = database, log, options
        self.secrets: dict[str, str] = {}
        self.start(f"127.0.0.1:{free_port()}")  # it is free again when the directory is started again

    def start(self, listen: str) -> None:
        """Start it; `url` is where it is once it listens."""
        self._process = command.start(
            "directory", "serve", "--listen", listen, "--database", self.database, *self._options, stderr=self.log
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("ready "), self.log.read_text()
        self.url = line.split()[1]

    def accounts(self, organisations: Mapping[str, str] = ACCOUNTS, *, interchange: bool = False) -> None:
        """Make accounts, each with a secret of its own. interchange: see `Account`."""
        store = Store(self.database)
        for name, organisation in organisations.items():
            self.secrets[name] = add_account(store, name, organisation, interchange=interchange)
        store.close()

    def client(self, account: str | None = None) -> Client:
        """A REST client, logged in as an account."""
        client = Client(self.url, PATIENCE)
        if account is not None:
            client.log_in(account, self.secrets[account])
        return client

    @property
    def process(self) -> subprocess.Popen[str]:
        return self._process

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        self._process.kill()
        self._process.wait()
