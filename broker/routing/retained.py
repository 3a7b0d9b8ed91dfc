"""Retained messages: the last one of each topic (MQTT 5: 3.3.1.3), as subscribers find them.

Those with a Message Expiry Interval also stand in a heap by the time at which they end, so that `sweep` forgets them without
looking at the others (MQTT-3.3.2-5). What is kept holds on to its own bytes only, not to the chunk it came in. There may be millions, so
that each is as small as it can be; whoever sends one makes a run of it (`Kept.run`).

In a mesh this is a view: which message counts, what is kept in the store and what other sites must hear is decided by `mesh/retained/`,
and `store` is told the result. A comparison with a neighbour may bring a message ahead of its delivery (`expect`); who subscribes in
between finds it here, and is left out when it comes (`came`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING
from weakref import WeakSet

from ...mqtt.batch.batch import Batch
from ...mqtt.batch.run import Run
from ...mqtt.topics import TopicTree
from ..ledger import DELETED, RETAINED, SHARE, Account, Ledger

if TYPE_CHECKING:
    from ..ports import RetainedStore

OVERHEAD = 512  # bytes that a retained message is taken to need beside its payload, topic and properties, with four levels of its topic
LEVEL = 72  # the same of each further level
BURIED = 768  # the same of a deletion that the mesh remembers, topic included


SPARE = 64  # ends of messages that are replaced or gone, beside as many as there are messages
CHANGED_MAX = 100_000  # topics that changed while replays were under way; beyond, a replay may send what has come as a message


class Mark:
    """Where a replay began in the order of changes."""

    __slots__ = ("__weakref__", "serial")

    def __init__(self, serial: int) -> None:
        self.serial = serial


class Kept:
    """One retained message. payer: for whom it is held; the other attributes are those of a run of one message."""

    __slots__ = ("expiry", "payer", "payload", "properties", "qos", "received", "topic")

    def __init__(self, run: Batch, payer: Account) -> None:
        self.topic = bytes(run.topic)
        self.qos = run.qos
        self.payload = bytes(run.payloads[-1])
        self.properties = run.properties
        self.expiry = run.expiry
        self.received = run.received
        self.payer = payer

    @property
    def length(self) -> int:
        """Bytes of the payload."""
        return len(self.payload)

    def expired(self, now: float) -> bool:
        """See `Batch`."""
        return self.expiry is not None and now - self.received > self.expiry

    def run(self) -> Run:
        """As a message."""
        return Run(self.topic, self.qos, True, [self.payload], self.properties, self.expiry, self.received)


class Retained:
    """topic -> a run of one message; an empty payload deletes."""

    def __init__(self, ledger: Ledger) -> None:
        self.keeper: RetainedStore | None = None  # the store, when there is one and the mesh does not write it
        self.store_full = False  # the store has no room for more
        self._tree: TopicTree[Kept] = TopicTree()
        self._coming: dict[bytes, tuple[bytes, set[str]]] = {}  # topic -> key of the message that comes, clients that found it here
        self._marks: WeakSet[Mark] = WeakSet()  # of the replays under way
        self._changed: dict[int, int] = {}  # hash of a topic -> serial of its last change, while there are any
        self._serial = 0
        self._ledger = ledger
        self._ends: list[tuple[float, bytes]] = []
        self.expired = 0
        self.sys_count = self.sys_bytes = 0  # of those below $SYS, which nobody has published

    def __len__(self) -> int:
        return len(self._tree)

    def room(self, run: Batch, payer: Account | None = None) -> bool:
        """Whether there is room in a mesh for the run's last message, or for remembering that it deletes. payer: see `store`."""
        ledger = self._ledger
        buries = not run.length and SHARE * ledger.free < ledger.held[DELETED]  # nobody in particular pays for what is remembered
        if not (payer or ledger.own).full and not self.store_full and not buries:
            return True
        old = self._tree.get(bytes(run.topic))
        return old is not None and (not run.length or _weight(run) <= _weight(old))

    def has(self, topic: bytes) -> bool:
        """Whether something is retained for a topic."""
        return self._tree.get(bytes(topic)) is not None

    def grows(self, run: Batch) -> bool:
        """Whether more would be retained with the run's last message than is now."""
        if not run.length:
            return False
        old = self._tree.get(bytes(run.topic))
        return old is None or _weight(run) > _weight(old)

    def store(self, run: Batch, always: bool = False, payer: Account | None = None) -> bool:
        """Keep the run's last message (MQTT-3.3.1-5), or delete what is there (MQTT-3.3.1-6, -7).

        always: whether there is room or not, as the other sites keep it. payer: account of the client that publishes it; None: it is no
        client of this broker. False: there was no room.
        """
        topic = bytes(run.topic)
        if self._marks:
            self._note(topic)
        elif self._changed:
            self._changed.clear()
        old = self._tree.get(topic)
        if not run.length:
            if old is not None:
                self._forget(old)
            return True
        weight = _weight(run)
        if (
            not always
            and ((payer or self._ledger.own).full or (self.store_full and not topic.startswith(b"$")))
            and (old is None or weight > _weight(old))
        ):
            return False
        kept = self._keep(run, old, payer)
        if self.keeper is not None:
            self.keeper.retain(kept.run())
        if run.expiry is not None:
            heapq.heappush(self._ends, (run.received + run.expiry, topic))
            if len(self._ends) > 2 * len(self._tree) + SPARE:
                self._rebuild()
        return True

    def restore(self, run: Batch) -> None:
        """A message that the store kept."""
        topic = bytes(run.topic)
        self._keep(run, self._tree.get(topic), None)
        if run.expiry is not None:
            heapq.heappush(self._ends, (run.received + run.expiry, topic))

    def matching(self, topic_filter: str, now: float) -> list[Batch]:
        """What a new subscription gets."""
        return [kept.run() for _, kept in self._tree.match(topic_filter) if not kept.expired(now)]

    def replay(self, topic_filter: str, client_id: str) -> Iterator[Batch | None]:
        """The same one by one, for a client who is sent each at once. None, now and then: nothing was found in this step.

        What is retained from now on is left out: it comes as a message.
        """
        mark = Mark(self._serial)
        self._marks.add(mark)
        return self._replay(mark, topic_filter, client_id)

    def _replay(self, mark: Mark, topic_filter: str, client_id: str) -> Iterator[Batch | None]:
        for kept in self._tree.walk(topic_filter):
            if kept is not None:
                if self._changed and self._changed.get(hash(kept.topic), 0) > mark.serial:
                    kept = None
                elif self._coming:
                    found = self._coming.get(kept.topic)
                    if found is not None:
                        found[1].add(client_id)
            yield None if kept is None else kept.run()

    def _note(self, topic: bytes) -> None:
        """A topic's message has changed while replays are under way."""
        self._serial += 1
        if len(self._changed) >= CHANGED_MAX:
            self._changed.clear()
        self._changed[hash(topic)] = self._serial  # topics of 60 kB may be gone, and need not be kept

    def expect(self, topic: bytes, key: bytes) -> None:
        """The message that is retained now comes as a message too."""
        self._coming[bytes(topic)] = (key, set())

    def came(self, topic: bytes, key: bytes) -> set[str]:
        """A message with this key has come: the clients who have it already."""
        found = self._coming.get(topic) if self._coming else None
        if found is None or found[0] != key:
            return set()
        del self._coming[topic]
        return found[1]

    def pieces(self, size: int) -> Iterator[list[Kept]]:
        """All of them in lists of about so many, while they may change; see `TopicTree.pieces`."""
        return self._tree.pieces(size)

    def all(self) -> list[Batch]:
        """All of them."""
        return [kept.run() for topic in self._tree if (kept := self._tree.get(topic)) is not None]

    def due(self, now: float) -> bool:
        """Whether something may have expired."""
        return bool(self._ends) and self._ends[0][0] < now

    def sweep(self, now: float) -> Iterator[None]:
        """Forget what has expired, one by one: very many may expire at one moment. They may change meanwhile."""
        while self.due(now):
            _, topic = heapq.heappop(self._ends)
            kept = self._tree.get(topic)
            if kept is not None and kept.expired(now):
                self.expired += 1
                self._forget(kept)
            yield

    def _keep(self, run: Batch, old: Kept | None, payer: Account | None) -> Kept:
        """Keep a run's last message in place of the old one, and charge it to who has published it."""
        if old is not None:
            self._give_back(old)
        ledger = self._ledger
        kept = Kept(run, ledger.own if payer is None else ledger.estate(payer))
        self._charge(kept, 1)
        self._tree.set(kept.topic, kept)
        return kept

    def _forget(self, kept: Kept) -> None:
        self._give_back(kept)
        self._tree.delete(kept.topic)
        self._coming.pop(kept.topic, None)
        if self.keeper is not None:
            self.keeper.forget_retained(kept.topic)

    def _give_back(self, kept: Kept) -> None:
        """What was charged for a message that is kept no more."""
        self._charge(kept, -1)
        self._ledger.leave_estate(kept.payer)

    def _charge(self, kept: Kept, sign: int) -> None:
        weight = sign * _weight(kept)
        kept.payer.charge(RETAINED, weight)
        if kept.topic.startswith(b"$SYS/"):
            self.sys_count += sign
            self.sys_bytes += weight

    def _rebuild(self) -> None:
        """Leave out of the heap what has been replaced."""
        found = [(topic, self._tree.get(topic)) for topic in self._tree]
        self._ends = [(kept.received + kept.expiry, topic) for topic, kept in found if kept is not None and kept.expiry is not None]
        heapq.heapify(self._ends)

    @property
    def bytes(self) -> int:
        """What all of them stand for in memory."""
        return self._ledger.held[RETAINED]


def _weight(run: Batch | Kept) -> int:
    return OVERHEAD + LEVEL * max(0, run.topic.count(b"/") - 3) + run.length + len(run.topic) + len(run.properties)
