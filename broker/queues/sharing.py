"""Stores that several brokers have in turn: who has the lease is home of their queues (docs/queues.md, "Several homes").

    waits     asks for the lease, again and again
    gained    opens the log, in a thread; then the queues have their home here
    lost      another broker has the lease: the queues have their home there, and what was not written is given up

The time of a broker with such a store is that of the database, which all homes share: what one has written with a time means the same
at the next one, whatever their own clocks say.

The lease is asked for and renewed in a thread. Once it is over by this broker's own clock, nothing is given to members until the database
says that nobody else has taken it.

What it does not know: databases.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from ...store.lease_keeper import POLL, Keeper
from .log.locations import lease_at, segments_of, shown
from .log.store import LogStore

if TYPE_CHECKING:
    from .settings import QueueSettings
    from .shell import Queues

log = logging.getLogger("mqmesh.broker")


def common_clock(settings: QueueSettings) -> float | None:
    """Seconds from `time.monotonic` to the clock of the first shared store. None: there is none, or it cannot be asked now. Blocks."""
    for kind in sorted({rules.store for rules in settings.shared.values()})[:1]:
        with contextlib.suppress(OSError):
            lease = lease_at(kind, settings.site)
            with contextlib.closing(lease):
                lease.look()
                return float(lease.offset)
    return None


class Sharing:
    """The shared stores of a broker. terms: the token of each queue that has its home here by one."""

    def __init__(self, queues: Queues) -> None:
        self.terms: dict[str, int] = {}
        self._queues = queues
        self._keepers: dict[str, Keeper] = {}
        self._tokens: dict[str, int] = {}  # kind -> of the lease that this broker has

    def start(self) -> None:
        """Ask for the leases. Raises OSError."""
        settings, call = self._queues.settings, self._queues.context.loop.call_soon_threadsafe
        for kind in sorted({rules.store for rules in settings.shared.values()}):
            self._keepers[kind] = Keeper(
                lease_at(kind, settings.site), call, partial(self._gained, kind), partial(self._lost, kind), partial(self._stir, kind)
            )

    def look_at_clock(self) -> None:
        """Let the broker's time follow the clock of the first store."""
        for keeper in list(self._keepers.values())[:1]:
            if keeper.lease.offset is not None:
                self._queues.context.common = keeper.lease.offset

    def close(self) -> None:
        """Other brokers may take the stores, which are closed. Blocks."""
        for keeper in self._keepers.values():
            keeper.close()

    def _names(self, kind: str) -> list[str]:
        return [name for name, rules in self._queues.settings.shared.items() if rules.store == kind]

    def _gained(self, kind: str, token: int) -> None:
        """Open the log."""
        queues = self._queues
        if queues.context.stopping:
            return
        settings, keeper = queues.settings, self._keepers[kind]
        assert settings.folder is not None
        self._tokens[kind] = token
        store = LogStore(
            settings.folder, settings.durability, queues.say, kind=kind, where=segments_of(keeper.lease, kind, settings.durability)
        )
        store.held = keeper.valid
        opening = queues.context.loop.run_in_executor(None, store.open, settings.shared.__getitem__, queues.now())
        opening.add_done_callback(partial(self._opened, kind, token, store))

    def _opened(self, kind: str, token: int, store: LogStore, opening: Any) -> None:
        queues = self._queues
        if opening.cancelled() or queues.context.stopping or self._tokens.get(kind) != token:
            store.where.close()
            return
        if (error := opening.exception()) is not None:
            log.error("event=queues-unopened store=%s text=%s", shown(kind), error)
            store.where.close()
            queues.context.loop.call_later(POLL, self._again, kind, token)
            return
        log.info("event=queues-gained store=%s term=%d", shown(kind), token)
        queues.context.refresh()
        names = self._names(kind)
        self.terms.update(dict.fromkeys(names, token))
        queues.store.adopt(kind, store)
        for name in names:
            queues.begin(name, queues.settings.shared[name], queues.settings.subscribers.get(name, []))
            queues.found(queues.store.queues[name])
        queues.context.flush()

    def _again(self, kind: str, token: int) -> None:
        if self._tokens.get(kind) == token:
            self._gained(kind, token)

    def outdone(self, name: str) -> None:
        """Another broker has a later term: this one may be cut off from the database."""
        kind = self._queues.settings.shared[name].store
        self._keepers[kind].outdone()
        self._queues.context.loop.call_soon(self._lost, kind)

    def _lost(self, kind: str) -> None:
        """Another broker has the store."""
        queues = self._queues
        self._tokens.pop(kind, None)
        if queues.context.stopping or kind not in queues.store.here:
            return
        log.warning("event=queues-lost store=%s text=another broker is home of its queues", shown(kind))
        queues.context.refresh()
        for name in self._names(kind):
            del self.terms[name]
            queues.end(name)
        queues.store.drop(kind, "another broker is home of the queue now: try again")
        queues.context.flush()

    def _stir(self, kind: str) -> None:
        """Members may be given messages again."""
        self._queues.context.refresh()
        for name in self._names(kind):
            self._queues.stir(name)
        self._queues.context.flush()
