"""The metabroker in a broker's process: the same `Server`, in the broker's event loop, connected to the broker without a socket.

A message is handled in the turn of the loop in which it came in, from a client or from a remote. Blocking work is done in threads:
directories, commits and reads of the store, certificates. An internal error ends the metabroker and not the broker; it begins again
(`supervisor.py`). A policy that was read again takes effect the same way: the metabroker ends in order and the next one begins with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.address import Address
from ...base.extras import install
from ...base.metabroker import STATUS
from ...base.settings import ConfigError
from ...broker.server import StartError
from ...mqtt.packets import Will
from ...store.base import StoreError
from ..mqtt.client import ClientMachine
from ..mqtt.connection import Connection, Line
from ..mqtt.login import Login
from ..policy import Policy, load
from ..protocol.events import Event
from .community import Community
from .listing import sessions_listing
from .resolver import Chain, Directory, Resolver, Services
from .server import Server
from .status import GONE
from .supervisor import Supervisor

if TYPE_CHECKING:
    from ...broker.config import BrokerConfig, MetabrokerSettings
    from ...broker.server import Broker
    from ...broker.settings.embedded import EmbeddedSettings
    from ...broker.transport.in_process import InProcessPair
    from ..core.sessions import Session

log = logging.getLogger(__name__)
REQUESTS = 20_000  # that may wait for the metabroker


class InProcessAddress(Address):
    """The address of the broker of this process."""

    def __str__(self) -> str:
        return "inside"


IN_PROCESS = InProcessAddress("mqtt", "inside")


class InProcessConnection(Connection):
    """Stays connected to the broker of this process."""

    reads_pause = False  # what comes in one turn of the loop comes at once
    inside = True

    def __init__(
        self,
        broker: Broker,
        machine: ClientMachine,
        on_events: Callable[[list[Event]], None],
        on_down: Callable[[bool | None, str], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        super().__init__([IN_PROCESS], machine, None, on_events, on_down)
        self._broker = broker
        self._on_error = on_error
        self._in_process: InProcessPair | None = None

    async def _dial(self, line: Line, address: Address, context: ssl.SSLContext | None) -> None:
        self._in_process = self._broker.join(line, self._on_error, self.guest)

    def flush(self) -> None:
        """Write what the machine has to say, and have the broker do it now."""
        pair = self._in_process
        if pair is None:
            super().flush()
            return
        pair.pump_after(super().flush)


@dataclass(frozen=True)
class EmbeddedCommunity(Community):
    """The broker of this process."""

    broker: Broker | None = None

    @property
    def inside(self) -> str | None:
        """See `Community`."""
        return None if self.broker is None else self.broker.config.name

    @property
    def place(self) -> str:
        """See `Community`."""
        return f"{self.login.client_id} inside {self.inside}"

    @property
    def patient(self) -> bool:
        """See `Community`."""
        return self.broker is not None and self.broker.site.mesh is not None

    def note(self, text: str) -> None:
        """See `Community`."""
        journal = None if self.broker is None else self.broker.context.journal
        if journal is not None:
            journal.gateway(text)

    def connection(
        self, on_events: Callable[[list[Event]], None], on_down: Callable[[bool | None, str], None], on_error: Callable[[Exception], None]
    ) -> Connection:
        """See `Community`."""
        assert self.broker is not None
        return InProcessConnection(self.broker, ClientMachine(self.login), on_events, on_down, on_error)


@dataclass(frozen=True)
class EmbeddedFiles:
    """What its files say. settings: of the broker's file. table: of services."""

    settings: EmbeddedSettings
    policy: Policy
    table: dict[str, list[str]]

    @classmethod
    def read(cls, settings: EmbeddedSettings) -> EmbeddedFiles:
        """Read the files. Raises ConfigError."""
        services = Services.load(settings.services) if settings.services is not None else None
        return cls(settings, load(settings.policy), services.table if services is not None else {})


class Metabroker:
    """The `EmbeddedClient` of a broker. Raises ConfigError."""

    table = "metabroker"

    def __init__(self, settings: MetabrokerSettings) -> None:
        assert settings.inside is not None
        self._client = settings.client
        self._plan = EmbeddedFiles.read(settings.inside)
        self._directory = _directory(settings.inside)
        self._broker: Broker | None = None
        self._supervisor: Supervisor | None = None
        self._task: asyncio.Task[None] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    def prepare(self, broker: Broker) -> None:
        """See `EmbeddedClient`."""

    async def begin(self, broker: Broker) -> None:
        """See `EmbeddedClient`. It waits until requests are listened to; in a mesh, whose brokers may wait for each other, it does not."""
        self._broker = broker
        broker.management.work.lists.add(sessions_listing(self._sessions))
        task = self._start()
        ready = asyncio.create_task(self._ready.wait(), name="metabroker-ready")
        await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED, timeout=None if broker.site.mesh is None else 0.0)
        ready.cancel()
        if task.done():
            try:
                await task
            except StoreError as error:
                raise StartError(f"metabroker.data: {error}") from error

    def renew(self, config: BrokerConfig) -> None:
        """See `EmbeddedClient`. Sessions that are kept go on with what the files say now, as after a restart; others end."""
        settings = config.metabroker
        if settings is None or settings.inside is None or settings.client != self._client:
            log.error("event=reload-failed text=%s", "metabroker.policy and metabroker.client are read at the start: restart the broker")
            return
        try:
            plan = EmbeddedFiles.read(settings.inside)
            if plan == self._plan:
                return
            if plan.settings.directory != self._plan.settings.directory:
                old, self._directory = self._directory, _directory(plan.settings)
                if old is not None:
                    old.end()
        except ConfigError as error:
            log.error("event=reload-failed text=%s", error)
            return
        self._plan = plan
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._begin_again(), name="metabroker-renewal")

    async def end(self) -> None:
        """See `EmbeddedClient`."""
        if self._renewal is not None:
            self._renewal.cancel()
        await self._stop()
        if self._directory is not None:
            self._directory.end()

    def _sessions(self) -> Mapping[str, Session]:
        server = self._supervisor.server if self._supervisor is not None else None
        return {} if server is None else server.core.sessions

    def _start(self, again: bool = False) -> asyncio.Task[None]:
        self._supervisor = Supervisor(self._open, again)
        self._task = asyncio.create_task(self._supervisor.run(), name="metabroker")
        self._task.add_done_callback(_ended)
        return self._task

    async def _stop(self) -> None:
        if self._task is not None and self._supervisor is not None:
            self._supervisor.leave()
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _begin_again(self) -> None:
        await self._stop()
        log.info("event=metabroker-renewed policy=%s", self._plan.settings.policy)
        self._start(again=True)

    def _status_topic(self) -> str:
        """A mesh may have a metabroker at each site."""
        assert self._broker is not None
        return STATUS + (self._client if self._broker.site.mesh is None else f"{self._client}@{self._broker.config.name}")

    async def _open(self) -> Server:
        plan, client = self._plan, self._client
        kept = isinstance(plan.settings.data, Path)
        login = Login(client, keep_alive=0, known=kept, durable=kept, receive_maximum=REQUESTS)
        if kept:
            login = replace(login, expiry=plan.policy.limits.durable)
        topic = plan.settings.status_topic
        status = self._status_topic() if topic is None else topic
        if status:
            login = replace(login, will=Will(status, GONE, retain=True))
        community = EmbeddedCommunity(IN_PROCESS, login, status=status, broker=self._broker)
        resolvers: list[Resolver] = [Services(plan.table)]
        if self._directory is not None:
            resolvers.append(self._directory)
        return await Server.open(
            community, plan.policy, Chain(*resolvers), self._ready.set, plan.settings.data, plan.settings.data_key_file
        )


def _ended(task: asyncio.Task[None]) -> None:
    """The supervisor goes on for ever, but where there was no first metabroker."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("event=metabroker-cannot-start error=%r", str(error))


def _directory(settings: EmbeddedSettings) -> Directory | None:
    """Who asks the directory. Raises ConfigError."""
    if settings.directory is None:
        return None
    try:
        return Directory(settings.directory, account())
    except ImportError as error:
        text = f"it needs an extra: {install('uddi')} ({error})"
    except ValueError as error:
        text = str(error)
    raise ConfigError(settings.file, "metabroker.directory", settings.directory, text)


def account() -> tuple[str, str] | None:
    """Of the directory; None: what is public is enough."""
    name, secret = os.environ.get("MQMESH_DIRECTORY_ACCOUNT"), os.environ.get("MQMESH_DIRECTORY_SECRET")
    return (name, secret) if name and secret else None
