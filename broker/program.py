"""A broker as a program: it runs until a signal ends it, and reads its files again at SIGHUP.

A directory keeps it registered (`Registrar`), and others may run inside its process (`EmbeddedClient`): metabroker and interchange do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Protocol

from .. import __version__
from ..base.address import is_loopback, parse_address
from ..base.interchange import INBOX
from ..base.process.collector import Collector
from ..base.process.descriptors import raise_file_limit
from ..base.process.memory import keep_freed_memory
from ..base.process.service_manager import READY, STOPPING, tell
from ..base.queues import TEMPORARY
from ..base.settings import ConfigError
from ..mesh.topology.listeners import LINKS, serves_of
from ..store import Kind, StoreError
from ..store.base import CHECKED_SIZE
from ..store.locations import path_of, store_at
from ..store.salvage import salvage
from .auth.service import AuthError
from .client.admission import FEW, connections_by_files
from .config import BrokerConfig, Limits
from .management.errors import Refused
from .mesh.management import Renewed
from .ports import Neighbours
from .queues.settings import QueueSettings
from .server import Broker, StartError

__all__ = ["EmbeddedClient", "Registrar", "StartError", "announce", "reload_files", "run", "serve"]

DAMAGE_SHOWN = 50  # lines of damage in the log
TAKEN = {"access", "management", "mesh", "websocket", "limits", "queues"}  # what a running broker takes from a file, or looks at in parts
LISTENERS = ("serves", "listeners")  # what `BrokerConfig` has of the key `listen` beside addresses
LIMITS_TAKEN = ("stored_bytes", "stored_sessions")

log = logging.getLogger("mqmesh.broker")


class Registrar(Neighbours, Protocol):
    """Keeps a broker registered in a directory. Nothing but `end` blocks."""

    def begin(self, broker: Broker) -> None:
        """The broker listens: register it, and keep it registered."""

    def end(self) -> None:
        """Leave the directory. It may take a few seconds."""


class EmbeddedClient(Protocol):
    """A part of the program that runs in the broker's process and event loop. table: of the broker's file, that it reads again itself."""

    table: str

    def prepare(self, broker: Broker) -> None:
        """The broker has its sessions and queues, and does not listen yet. Raises StartError."""

    async def begin(self, broker: Broker) -> None:
        """The broker listens: start, and go on until `end` whatever happens. Raises StartError."""

    def renew(self, config: BrokerConfig) -> None:
        """The broker's file was read again. A mistake is logged and changes nothing."""

    async def end(self) -> None:
        """Leave in order. It may take a few seconds."""


async def serve(
    config: BrokerConfig,
    ready: Callable[[Broker], None] | None = None,
    reload: Callable[[], BrokerConfig] | None = None,
    registrar: Registrar | None = None,
    inside: Sequence[EmbeddedClient] = (),
) -> None:
    """Run a broker until SIGTERM or SIGINT; SIGHUP looks at its certificates, users, rules, web origins and link policies again.

    ready: called once when it listens. reload: gives the configuration anew; None: it has no file. registrar: keeps it in a directory.
    inside: run beside it in its loop.
    """

    def prepare() -> None:
        for one in inside:
            one.prepare(broker)

    broker = Broker(config)
    broker.site.registrar = registrar
    try:
        await broker.start(prepare)
    except StartError as error:
        if not await asyncio.to_thread(_salvaged, config, error.__cause__):
            raise
        broker = Broker(config)
        broker.site.registrar = registrar
        await broker.start(prepare)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        broker.context.loop.add_signal_handler(number, stopped.set)
    reloading = Reloading(broker, reload, inside)
    broker.context.loop.add_signal_handler(signal.SIGHUP, reloading.begin)
    broker.deeds.reload = None if reload is None else partial(_asked_to_reload, broker, reload, inside)
    management = broker.mesh_topic.management
    if management is not None:
        management.end = stopped.set
    if registrar is not None:
        registrar.begin(broker)
    for one in inside:
        await one.begin(broker)
    say_started(broker)
    if ready is not None:
        ready(broker)
    check_in_background(config)
    collector = Collector(broker.context.loop.call_soon)
    collector.begin()
    await stopped.wait()
    tell(STOPPING)
    reloading.end()
    collector.end()
    leaving = asyncio.create_task(asyncio.to_thread(registrar.end), name="leave the directory") if registrar is not None else None
    for one in reversed(inside):
        await one.end()
    await broker.stop()
    if leaving is not None:
        await leaving
    log.info("event=stopped name=%s number=%d", config.name, config.number)


def check_in_background(config: BrokerConfig) -> threading.Thread | None:
    """Walk through the pages of a store that was too large for that at its start, in a thread; damage is an error in the log.

    None: there is no need. The thread ends with the process.
    """
    address = config.store_address
    if address is None or not address.startswith("sqlite:") or path_of(address).stat().st_size <= CHECKED_SIZE:
        return None
    thread = threading.Thread(target=_check_pages, args=(address,), name="store-check", daemon=True)
    thread.start()
    return thread


def _check_pages(address: str) -> None:
    store = store_at(address)
    try:
        store.attach()
        store.check_pages()
    except StoreError as error:
        log.error("event=store-damaged text=%s", error)
    else:
        log.info("event=store-checked store=%s", address)
    finally:
        store.close()


def _salvaged(config: BrokerConfig, error: BaseException | None) -> bool:
    """Whether a broker that did not start goes on with what is whole of its store; the rest is set aside and named in the log."""
    address = config.store_address
    if not isinstance(error, StoreError) or error.kind is not Kind.CORRUPT or config.store.on_damage != "salvage" or address is None:
        return False
    log.error("event=store-damaged text=%s", error)
    try:
        report = salvage(address, at_least=1)
    except StoreError as cause:
        log.error("event=store-not-salvaged text=%s", cause)
        return False
    for problem in report.problems[:DAMAGE_SHOWN]:
        log.error("event=store-damage text=%s", problem)
    log.error(
        "event=store-salvaged runs=%d deliveries=%d values=%d problems=%d aside=%s", *report.whole, len(report.problems), report.aside
    )
    return True


def _asked_to_reload(broker: Broker, reload: Callable[[], BrokerConfig], inside: Sequence[EmbeddedClient], dry_run: bool) -> str:
    """Read the files again for somebody who asks for it. Raises Refused for a mistake in them."""
    try:
        config = reload()
    except ConfigError as error:
        raise Refused(str(error)) from None
    if not dry_run:
        reload_files(broker, lambda: config, inside)
    return "the files of the broker are right, and are read again; its log says what has changed"


class Reloading:
    """`reload_files` at SIGHUP, with the file read in a thread: with ten thousand queues that takes a third of a second.

    A signal that comes meanwhile has it read once more.
    """

    def __init__(self, broker: Broker, reload: Callable[[], BrokerConfig] | None, inside: Sequence[EmbeddedClient]) -> None:
        self._broker = broker
        self._reload = reload
        self._inside = inside
        self._again = False
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Read the files again."""
        if self._reload is None:
            reload_files(self._broker, None, self._inside)
            return
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(self._reload), name="reload")

    async def _run(self, reload: Callable[[], BrokerConfig]) -> None:
        while self._again:
            self._again = False
            read = asyncio.get_running_loop().run_in_executor(None, reload)
            await asyncio.wait((read,))
            try:
                reload_files(self._broker, read.result, self._inside)
            except Exception:
                log.exception("event=internal-error work=reload")

    def end(self) -> None:
        """The broker ends: what is being read is not taken over."""
        if self._task is not None:
            self._task.cancel()


def reload_files(broker: Broker, reload: Callable[[], BrokerConfig] | None, inside: Sequence[EmbeddedClient] = ()) -> None:
    """Look at the certificates again, and take over what a running broker can from a file that was read anew; a mistake in it changes
    nothing."""
    if broker.site.tls is not None:
        broker.site.tls.reload()
    if reload is None:
        if broker.site.tls is None:
            log.warning("event=nothing-to-reload text=this broker has neither a configuration file nor certificates")
        return
    try:
        config = reload()
    except ConfigError as error:
        log.error("event=reload-failed text=%s", error)
        return
    try:
        ended = broker.renew_access(config.access)
    except AuthError as error:
        log.error("event=reload-failed text=%s", error)
        return
    broker.site.guard.management = config.management
    for one in inside:
        one.renew(config)
    policies, renewed, kept = 0, Renewed(0, 0, 0, []), _kept(broker.config, config, TAKEN | {one.table for one in inside})
    if broker.mesh_topic.management is not None and config.mesh is not None:
        policies, renewed = len(config.mesh.rules), broker.mesh_topic.management.renew(config.mesh)
        kept += renewed.kept
    if kept:
        log.warning("event=not-reloaded settings=%s text=they are taken at the next start", ",".join(kept))
    if broker.site.queues is not None and config.queues is not None:
        broker.site.queues.store.renew(config.queues.rules)
    if broker.site.websocket is not None:
        broker.site.websocket.origins = frozenset(config.websocket.origins)
    if broker.site.persistence is not None:
        broker.site.persistence.quota.set(config.limits, broker.site.persistence.store, broker.context.workers)
        broker.site.persistence.look()
    log.info(
        "event=reloaded policies=%d links_renewed=%d peers_added=%d peers_removed=%d origins=%d rules=%d subscriptions_ended=%d",
        *(
            policies,
            renewed.links,
            renewed.added,
            renewed.removed,
            len(config.websocket.origins),
            len(broker.site.guard.rules.rules),
            ended,
        ),
    )
    broker.context.flush()


def _kept(old: BrokerConfig, new: BrokerConfig, taken: Container[str]) -> list[str]:
    """The keys and tables of a file that differ and need a restart; those within [mesh] are not among them."""
    tables = ["mesh"] if (old.mesh is None) != (new.mesh is None) else []
    differing = ["listen" if name in LISTENERS else name for name in _differing(old, new, taken)]
    tables += list(dict.fromkeys(differing)) + _differing_queues(old.queues, new.queues)
    return tables + [f"limits.{name}" for name in _differing(old.limits, new.limits, LIMITS_TAKEN)]


def _differing(old: BrokerConfig | Limits, new: BrokerConfig | Limits, but: Container[str]) -> list[str]:
    names = [one.name for one in fields(old) if one.name not in but]
    return [name for name in names if getattr(old, name) != getattr(new, name)]


def _differing_queues(old: QueueSettings | None, new: QueueSettings | None) -> list[str]:
    """Queues whose tables differ in more than the store. old: as it has become by requests."""
    if old is None or new is None:
        return [] if old is new else ["queues"]
    before = {name: replace(rules, store="") for name, rules in old.rules.items() if name not in old.declared and name not in old.shared}
    now = {name: replace(rules, store="") for name, rules in new.rules.items() if name not in new.shared}
    differing = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    return [f"queues.{name}" for name in differing if not name.startswith((INBOX, TEMPORARY))]


def say_started(broker: Broker) -> None:
    """One line that says what runs here, and a warning where strangers may come in."""
    config = broker.config
    users = "asked" if config.access is not None and not config.access.anonymous else "open-to-all"
    store = config.store_address or "memory"
    mesh = config.mesh.name if config.mesh is not None else "none"
    text = "event=started version=%s name=%s number=%d mesh=%s listeners=%s store=%s users=%s"
    log.info(text, __version__, config.name, config.number, mesh, ",".join(broker.addresses), store.rpartition("@")[2], users)
    reached = [at for one, at in zip(config.listen, broker.addresses, strict=True) if _for_strangers(config, one) and _admits(config, one)]
    possible = connections_by_files()
    if possible < (FEW if config.limits.connections is None else config.limits.connections):
        why = f"the process may have {possible} connections open; raise its limit of open files (ulimit -n, LimitNOFILE=)"
        log.warning("event=few-descriptors connections=%d text=%s", possible, why)
    if users == "open-to-all" and reached and (config.worker is None or config.worker.first):
        why = "everybody who reaches these addresses may publish and subscribe: add [access] with users, see docs/security.md"
        log.warning("event=open-to-all listeners=%s text=%s", ",".join(reached), why)


def _admits(config: BrokerConfig, listener: str) -> bool:
    """Whether clients without a name may come in by a listener."""
    return config.access is None or config.access.admits_anonymous(config.listeners.get(listener, ""))


def _for_strangers(config: BrokerConfig, listener: str) -> bool:
    """Whether clients of other machines reach a listener without a certificate."""
    address = parse_address(listener)
    certified = address.tls and config.tls is not None and config.tls.client_certificates == "required"
    return address.scheme != "unix" and not is_loopback(address.host) and not certified and serves_of(listener, config.serves) != LINKS


def announce(broker: Broker) -> None:
    """The line on stdout that starts with `ready`, and the same for systemd."""
    http = f" http={broker.http.url}" if broker.http is not None else ""
    print(f"ready {' '.join(broker.addresses)} name={broker.config.name} number={broker.config.number}{http}", flush=True)
    tell(READY, f"STATUS=listens at {' '.join(broker.addresses)}")


def run(
    config: BrokerConfig,
    reload: Callable[[], BrokerConfig] | None = None,
    registrar: Registrar | None = None,
    inside: Sequence[EmbeddedClient] = (),
    report: Callable[[Broker], None] | None = None,
) -> None:
    """Run a broker in this thread until a signal ends it; with uvloop where it is installed. Raises StartError.

    reload: gives the configuration anew, for SIGHUP; raises ConfigError. registrar: keeps the broker in a directory. inside: run beside it
    in its loop. report: called once it has said that it is ready.
    """

    def ready(broker: Broker) -> None:
        announce(broker)
        if report is not None:
            report(broker)

    keep_freed_memory()
    raise_file_limit()
    try:
        if os.environ.get("MQMESH_LOOP") == "asyncio":
            raise ImportError
        import uvloop
    except ImportError:
        asyncio.run(serve(config, ready, reload, registrar, inside))
    else:
        uvloop.run(serve(config, ready, reload, registrar, inside))
