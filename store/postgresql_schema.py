"""One schema of a PostgreSQL database: its URL, connections to it, and the lock that keeps other brokers out.

The lock is an advisory one, which lasts as long as the connection that took it.

What it does not know: tables, what a lost connection means for a commit.
"""

from __future__ import annotations

import re
import time
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from .base import Kind, StoreError, damaged

LOCK_WAIT = 10.0  # seconds: the server may not have noticed yet that a killed broker is gone
CONNECT_TIMEOUT = 5  # seconds
BUSY = "is open in another broker: stop that broker, or give this one another schema (?schema=name)"
SILENCE = 10_000  # milliseconds without a word from the server until a commit gives up

Connection = psycopg.Connection[tuple[Any, ...]]


class Schema:
    """See the module.

    url: `postgresql://user:password@host:port/database?schema=name`; other parameters as in libpq. default: the schema, where the URL names
    none. lock_class: tells locks of one kind of store from those of another. shown: the URL without the password.
    """

    def __init__(self, url: str, default: str, lock_class: int) -> None:
        parts = urlsplit(url)
        parameters = parse_qsl(parts.query)
        self.name = dict(parameters).get("schema", default)
        self.shown = f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}?schema={self.name}"
        query = urlencode([pair for pair in parameters if pair[0] != "schema"], quote_via=quote)
        self._url = urlunsplit(parts._replace(query=query))
        self._lock_class = lock_class
        self._process = 0  # the server's process behind the last connection that had the lock

    def sibling(self, name: str) -> str:
        """The URL of another schema of the database, password included."""
        parts = urlsplit(self._url)
        return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, f"schema={name}")))))

    @property
    def application(self) -> str:
        """What its connections call themselves."""
        return f"mqmesh {self.name}"

    @property
    def wrong(self) -> str | None:
        """Why a schema cannot have this name; None: it can."""
        if re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", self.name):
            return None
        return f"schema {self.name!r}: 1 to 63 lower-case letters, digits or '_' are right"

    def connect(self) -> Connection:
        """A connection that looks for tables in the schema. Raises psycopg.Error."""
        connection = psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT,
            application_name=self.application,
            keepalives_idle=SILENCE // 1000,
            tcp_user_timeout=SILENCE,
        )
        connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(self.name)))
        connection.execute("SET client_min_messages TO warning")
        return connection

    def create(self, connection: Connection) -> None:
        """Make the schema if need be. Raises psycopg.Error."""
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.name)))

    def try_lock(self, connection: Connection) -> bool:
        """Take the lock, if no other connection has it: whether this one has it. Raises psycopg.Error."""
        query = "SELECT pg_try_advisory_lock(%s, hashtext(current_database() || '.' || %s))"
        row = connection.execute(query, (self._lock_class, self.name)).fetchone()
        return row is not None and bool(row[0])

    def lock(self, connection: Connection) -> str | None:
        """Take the lock, waiting up to `LOCK_WAIT` for another broker to let go: why it cannot be had; None: this connection has it.

        Our own last connection, which the server still holds for alive, is ended. Raises psycopg.Error.
        """
        end = time.monotonic() + LOCK_WAIT
        while True:
            if self.try_lock(connection):
                self._process = connection.info.backend_pid
                return None
            if self._process:
                query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND application_name = %s"
                connection.execute(query, (self._process, self.application))
            if time.monotonic() >= end:
                return BUSY
            time.sleep(0.05)

    def error(self, error: psycopg.Error) -> StoreError:
        """The StoreError that an error of the server amounts to."""
        state = error.sqlstate or ""
        text = str(error).strip() or type(error).__name__
        if state == "53100":
            return StoreError(Kind.FULL, self.shown, f"no space left on the server's disk: free some ({text})")
        if state in ("25006", "42501"):
            return StoreError(Kind.READ_ONLY, self.shown, f"may not be written: {text}")
        if state in ("XX001", "XX002"):
            return damaged(self.shown, text)
        if state.startswith(("08", "28", "3D", "57P", "533")) or (not state and isinstance(error, psycopg.OperationalError)):
            return StoreError(Kind.UNREACHABLE, self.shown, f"the server cannot be used now: {text}")
        return StoreError(Kind.OTHER, self.shown, f"{text} (SQLSTATE {state or 'none'})")
