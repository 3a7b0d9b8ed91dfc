"""Directories for tests: real processes of `mqmesh directory serve`, over SQLite files or a PostgreSQL server of the tests' own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import command
from mqmesh.directory.accounts import add_account
from mqmesh.directory.client import Client
from mqmesh.directory.store import Store

ACCOUNTS = {"alice": "acme", "anna": "acme", "bob": "other"}  # name -> organisation


class Directory:
    """A process over a database with three accounts."""

    def __init__(self, database: str, log: Path, listen: str = "127.0.0.1:0", options: tuple[str, ...] = ()) -> None:
        self.database, self.log, self._options = database, log, options
        self.secrets: dict[str, str] = {}
        self.start(listen)

    def start(self, listen: str) -> None:
        """Start it; `url` is where it is once it listens."""
        self._process = command.start(
            "directory", "serve", "--listen", listen, "--database", self.database, *self._options, stderr=self.log
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("ready "), self.log.read_text()
        self.url = line.split()[1]

    def accounts(self) -> None:
        """Make the accounts, each with a secret of its own."""
        store = Store(self.database)
        for name, organisation in ACCOUNTS.items():
            self.secrets[name] = add_account(store, name, organisation)
        store.close()

    def client(self, account: str | None = None) -> Client:
        """A REST client, logged in as an account."""
        client = Client(self.url)
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
