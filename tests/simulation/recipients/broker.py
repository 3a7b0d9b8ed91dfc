"""A real broker in the virtual loop: its store is in memory and outlives it, its commits take a moment and are no thread's."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from mqmesh.broker import ports
from mqmesh.broker.client.connection import Connection
from mqmesh.broker.config import BrokerConfig
from mqmesh.broker.management.lists.settings import LogTail
from mqmesh.broker.mesh import identity, incoming, shell
from mqmesh.broker.mesh.link import LinkProtocol
from mqmesh.broker.persistence import commits
from mqmesh.broker.publish import accept
from mqmesh.broker.recipients.handover import order
from mqmesh.broker.recipients.machine import Action
from mqmesh.broker.recipients.recipient import Recipient
from mqmesh.broker.routing import spread
from mqmesh.broker.routing.shared import ShareGroup
from mqmesh.broker.server import Broker
from mqmesh.broker.session.session import Session
from mqmesh.broker.turns import Turns
from mqmesh.mesh.wire import keys
from mqmesh.mqtt.session import Delivery
from mqmesh.store import Writer
from mqmesh.store.memory import MemoryStore
from mqmesh.store.records import StoredDelivery

from .virtual import LIFE, Life, VirtualLoop

if TYPE_CHECKING:
    from random import Random

WALL = 1.7e9  # seconds since 1970 at the loop's zero


class _Jobs:
    """The writer's jobs: what its thread would do is done by the loop, a moment later."""

    def __init__(self, writer: SimulatedWriter) -> None:
        self._writer = writer

    def put(self, job: Any) -> None:
        """Do it."""
        if job is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(job if isinstance(job, float) else SimulatedWriter.commit * (0.5 + SimulatedWriter.chance()), self._done, job)

    def _done(self, job: Any) -> None:
        self._writer.done(job)


class SimulatedWriter(Writer):
    """A writer without a thread. chance: from 0 to 1, by the seed. commit: seconds that a commit takes, about."""

    commit = 0.002
    chance: Callable[[], float] = staticmethod(lambda: 0.5)

    def start(self, seen: Callable[[Iterable[StoredDelivery]], Iterable[StoredDelivery]] | None = None) -> None:
        """Learn what the store holds."""
        self._jobs = _Jobs(self)  # type: ignore[assignment]
        with mock.patch.object(self._thread, "start"):
            super().start(seen)

    def done(self, job: Any) -> None:
        """A commit, or a pause, is over."""
        self._results.put((None, None) if isinstance(job, float) else (job, self._commit(job)))
        self._collect()

    def close(self, timeout: float) -> bool:
        """Commit what is pending."""
        self._closing = True
        batch = self._coalescer.sealed or (self._coalescer.seal() if self._coalescer.open.size else None)
        if batch is not None:
            self._commit(batch)
        return True


class Place:
    """A broker's place: its configuration and its store, and a life of it while there is one."""

    def __init__(self, loop: VirtualLoop, config: BrokerConfig) -> None:
        self.loop, self.config = loop, config
        self.store = MemoryStore()
        self.registrar: Any = None  # its client of a directory
        self.life: Life | None = None
        self.broker: Broker | None = None
        self.lives = 0

    @property
    def name(self) -> str:
        return self.config.name

    async def start(self) -> None:
        """A life begins, with what the store has."""
        assert self.life is None
        self.life = Life(self.name)
        self.lives += 1
        broker = self.broker = Broker(self.config, self.store)
        broker.site.registrar = self.registrar
        turns = broker.context.turns
        turns.clock, turns._meter = self.loop.time, lambda: 0.0  # what takes long on this machine changes nothing
        context = contextvars.copy_context()
        context.run(LIFE.set, self.life)
        await asyncio.Task(broker.start(), loop=self.loop, context=context)

    def kill(self) -> None:
        """It ends at once."""
        assert self.life is not None
        self.life.end()
        self.life = self.broker = None
        self.loop.network.servers.pop(self.name, None)


@contextlib.contextmanager
def simulated(seed: int) -> Iterator[tuple[VirtualLoop, Random]]:
    """A virtual loop whose brokers draw everything that is random from the seed."""
    import os
    import random

    chance = random.Random(seed)
    secret = random.Random(seed + 1)
    loop = VirtualLoop()
    loop.network.delay = lambda: 0.0005 + chance.random() * 0.002
    state = random.getstate()
    numbers: dict[int, tuple[int, object]] = {}

    def number(self: object) -> int:
        """The order of a set's members is that in which they came there, not that of their addresses in memory."""
        return numbers.setdefault(id(self), (len(numbers), self))[0]

    def wall(context: ports.Context) -> float:
        return WALL + loop.time()

    def lasting(data: object) -> keys.Signer:
        """A broker's key outlives it, as its store does: both are in its data folder."""
        life = LIFE.get()
        assert life is not None
        return keys.Signer(hashlib.sha256(life.place.encode()).digest())

    random.seed(seed + 2)
    with (
        mock.patch.object(commits, "Writer", SimulatedWriter),
        mock.patch.object(SimulatedWriter, "chance", staticmethod(chance.random)),
        mock.patch.object(SimulatedWriter, "commit", SimulatedWriter.commit),  # a scenario may change it
        mock.patch.object(shell, "own_signer", lasting),
        mock.patch.object(keys, "verified", functools.cache(keys.verified)),  # all brokers hear the same statements
        mock.patch.object(shell.MeshShell, "status", return_value={}),  # nobody reads it
        mock.patch.object(LogTail, "begin"),  # nor that: who is killed would leave it to the next ones, for ever
        mock.patch.object(ports.Context, "wall", wall),
        mock.patch.object(LinkProtocol, "__hash__", number),
        mock.patch.object(Connection, "__hash__", number),
        mock.patch.object(Session, "__hash__", number),
        mock.patch.object(ShareGroup, "__hash__", number),
        mock.patch.object(identity, "time", SimpleNamespace(time=lambda: WALL + loop.time())),
        mock.patch.object(os, "urandom", secret.randbytes),
        mock.patch.object(random, "_urandom", secret.randbytes),
    ):
        try:
            asyncio.set_event_loop(loop)
            yield loop, chance
        finally:
            random.setstate(state)
            asyncio.set_event_loop(None)
            loop.close()


@contextlib.contextmanager
def sliced(seed: int) -> Iterator[None]:
    """Every message goes to its subscribers in turns, one at a time, and the loop does something else between two turns as often as not."""
    import random

    chance = random.Random(seed)

    def over(turns: Turns) -> bool:
        ends = chance.random() < 0.5
        if ends:
            turns.end_round()
        return ends

    with (
        mock.patch.object(accept, "WIDE", (0, 0, 0)),
        mock.patch.object(accept, "GROUPS", 0),
        mock.patch.object(incoming, "WIDE", (0, 0, 0)),
        mock.patch.object(spread, "STEP", 1),
        mock.patch.object(order, "FENCE", 60.0),  # where every message is a commit of its own, answers take long
        mock.patch.object(Turns, "over", over),
    ):
        yield


@contextlib.contextmanager
def probes(found: set[int]) -> Iterator[None]:
    """Note the numbers of probes: what a recipient has kept in FAULT, and what leaves it once it is DEFUNCT, or serves again. They come
    late at others. A round of taking that began in FAULT goes on: what it takes beside the probe is no probe."""
    closing: set[Recipient] = set()
    carry_out, give = Recipient._carry_out, Recipient.give

    def carried(self: Recipient, actions: tuple[Action, ...], now: float) -> None:
        if Action.CLOSE in actions or (Action.RESTORE in actions and self.probing):
            closing.add(self)
        elif actions:
            closing.discard(self)
        carry_out(self, actions, now)

    def given(self: Recipient, session: Session, delivery: Delivery, sent: bool) -> bool:
        taken = give(self, session, delivery, sent)
        if taken and self in closing and kept_until_now(self, session):
            closing.discard(self)
            payload = bytes(delivery.payloads[0])
            found.update({int(payload)} if payload else ())
        return taken

    def kept_until_now(self: Recipient, session: Session) -> bool:
        removal = self._removal
        return removal._seizure is None or (not removal._seizure.keep and removal._keeper in (None, session))

    with mock.patch.object(Recipient, "_carry_out", carried), mock.patch.object(Recipient, "give", given):
        yield
