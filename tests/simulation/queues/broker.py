"""A real broker with queues in the virtual loop: its logs are disks in memory, its commits take a moment and are no thread's."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from mqmesh.broker import ports
from mqmesh.broker.queues import committer, stores, upkeep
from mqmesh.broker.queues.committer import Committer, _looked_at
from mqmesh.broker.queues.core.queue import Queue, Slice
from mqmesh.broker.queues.log import store
from mqmesh.broker.queues.log.carry import Carry
from mqmesh.broker.queues.log.port import Segments
from mqmesh.broker.queues.log.store import Batch, LogStore
from mqmesh.broker.queues.sites import wire
from mqmesh.broker.queues.sites.sites import Sites

from ..recipients.broker import WALL, Place, simulated
from ..recipients.virtual import LIFE, VirtualLoop
from .disk import Disk, PowerOff
from .ledger import Ledger, Log

if TYPE_CHECKING:
    from random import Random

    from mqmesh.broker.config import BrokerConfig
    from mqmesh.broker.queues.core.stock import Member

FOLDER = Path("/nowhere/queues")
TRIM = 1.0  # seconds between looks for segments that nobody needs


class Jobs:
    """What the thread of a committer is to do: the loop does it, a moment later. pending: what it has not done."""

    def __init__(self, owner: SimulatedCommitter) -> None:
        self._owner = owner
        self.pending: list[Batch | Carry] = []

    def put(self, job: Batch | Carry | None) -> None:
        if job is None:  # the end: what was given to the thread before is done by now
            for one in self.pending:
                if isinstance(one, Batch):
                    self._owner._write(one)
            self.pending.clear()
            return
        self.pending.append(job)
        home = self._owner.home
        home.loop.call_later(home.commit * (0.5 + home.chance.random()), self._do)

    def _do(self) -> None:
        if self.pending:
            self._owner.do(self.pending.pop(0))


class SimulatedCommitter(Committer):
    """A committer without a thread."""

    def __init__(self, store: LogStore, *given: Any) -> None:
        with mock.patch.object(threading.Thread, "start"):
            super().__init__(store, *given)
        self.home = home_of_life()
        self.home.committers.append(self)
        self.jobs = Jobs(self)
        self._work = self.jobs  # type: ignore[assignment]
        self._thread = SimpleNamespace(join=lambda: None)  # type: ignore[assignment]

    def do(self, job: Batch | Carry) -> None:
        """What the thread does, and that it tells the loop."""
        if isinstance(job, Carry):
            self._call(self._looked, _looked_at(job))
        else:
            error, seconds = self._write(job)
            self.home.loop.call_later(self.home.chance.random() * 0.001, self._finish, job, error, seconds)

    def _write(self, batch: Batch) -> tuple[OSError | None, float]:
        error, _ = super()._write(batch)
        if error is None:
            self.home.read()
        return error, self.home.commit


class SimulatedStore(LogStore):
    """A log whose segments are small, and which is read by the ledger when it is opened. where: in memory: it is no disk."""

    def __init__(self, folder: Path, *given: Any, kind: str, segment_bytes: int = 0, where: Segments | None = None, **more: Any) -> None:
        super().__init__(folder, *given, segment_bytes=segment_bytes or home_of_life().segment_bytes, kind=kind, where=where, **more)

    def open(self, *given: Any) -> None:
        super().open(*given)
        self.where.commit()
        home_of_life().opened(self.where)


class QueuePlace(Place):
    """A place of a broker that is home of queues. ahead: seconds that its clock is ahead. logs: by the kind of store. commit: seconds that
    one of them takes, about.
    """

    def __init__(self, loop: VirtualLoop, config: BrokerConfig, ledger: Ledger, chance: Random) -> None:
        super().__init__(loop, config)
        self.chance, self.ledger = chance, ledger
        self.ahead = 0.0
        self.commit = 0.002
        self.segment_bytes = 20_000
        self.logs: dict[str, Log] = {}
        self.committers: list[SimulatedCommitter] = []

    async def start(self) -> None:
        self.committers.clear()
        await super().start()

    def disk(self, kind: str) -> Disk:
        """The disk of a kind of store."""
        if kind not in self.logs:
            self.logs[kind] = Log(Disk(), self.lives)
        return self.logs[kind].disk

    def opened(self, disk: object) -> None:
        """A life of the broker begins to write: what is on this disk counts, and what a crash has spoilt is cut off."""
        for log in self.logs.values():
            if log.disk is disk:
                self.ledger.read(log)
                log.life, log.fresh = self.lives, True

    def read(self) -> None:
        """The ledger reads what is on the disks."""
        for log in self.logs.values():
            self.ledger.read(log)

    def kill(self) -> None:
        """It ends at once, maybe in the middle of writes."""
        for one in self.committers:
            batches = [job for job in one.jobs.pending if isinstance(job, Batch)]
            if batches and self.chance.random() < 0.5:
                disk = one.store.where
                assert isinstance(disk, Disk)
                disk.cut(self.chance)
                with contextlib.suppress(PowerOff, OSError):
                    one.store.write(batches[0])
                if self.chance.random() < 0.3:
                    disk.hole(self.chance)
        self.ledger.died(set(self.config.queues.rules) if self.config.queues is not None else set())
        super().kill()


_places: dict[str, QueuePlace] = {}


def home_of_life() -> QueuePlace:
    """The place whose life runs now."""
    life = LIFE.get()
    assert life is not None
    return _places[life.place]


@contextlib.contextmanager
def simulated_queues(seed: int, ledger: Ledger, places: dict[str, QueuePlace]) -> Iterator[tuple[VirtualLoop, Random]]:
    """A virtual loop for brokers with queues. places: by name, as they are made."""
    global _places
    _places = places
    take, put_returned = Queue.take, Sites._put_returned

    def wall(context: ports.Context) -> float:
        life = LIFE.get()
        place = places.get(life.place) if life is not None else None
        return WALL + asyncio.get_running_loop().time() + (place.ahead if place is not None else 0.0)

    def taken(self: Queue, member: Member, most: int, now: int) -> list[Slice]:
        found = take(self, member, most, now)
        for one in found:
            ledger.given(self, member, one.part, one.start, one.length)
        return found

    def returned(self: Sites, destination: int, body: bytes, reason: str) -> None:
        if reason == "expired":
            ledger.expired.update(int(payload.split()[0]) for payload in wire.decode_put(body).payloads)
        put_returned(self, destination, body, reason)

    with (
        simulated(seed) as (loop, chance),
        mock.patch.object(ports.Context, "wall", wall),
        mock.patch.object(committer, "time", SimpleNamespace(monotonic=loop.time, perf_counter=loop.time)),
        mock.patch.object(stores, "Committer", SimulatedCommitter),
        mock.patch.object(stores, "LogStore", SimulatedStore),
        mock.patch.object(store, "segments_in", lambda folder, kind, durability: home_of_life().disk(kind)),
        mock.patch.object(upkeep, "TRIM", TRIM),
        mock.patch.object(Queue, "take", taken),
        mock.patch.object(Sites, "_put_returned", returned),
    ):
        yield loop, chance
