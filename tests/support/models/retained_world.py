"""Sites whose retained messages are kept equal by `RetainedSync`, in one thread and virtual time, under faults.

Beside the sites stands a model of the rest of a mesh: live messages of QoS 0 that may be lost, custody of QoS 1 that delivers in order and
once, links with delay. Watched at each step: no site goes back to an older key; nobody is told a value twice. At the end: all
sites have the same, and it is what the keys say.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from mqmesh.mesh.retained import DeleteValue, Key, Kind, Record, RetainedSync
from mqmesh.mesh.retained.record import read_mark
from mqmesh.mesh.retained.replica import RECORDS, STATE, STATE_KEY
from mqmesh.mqtt.batch.run import Run

T = 600.0  # seconds that the sites here remember what not all have confirmed
EVERY = 30.0
WALL = 1_700_000_000.0


class Written(NamedTuple):
    """What a site's client published. before: what its site knew of the topic then, or None."""

    key: Key
    payload: bytes
    before: Key | None
    site: int
    life: int


class Live(NamedTuple):
    """A message in the mesh."""

    run: Run
    mark: bytes
    life: int  # of the destination, as its origin knew it


class Site:
    """A broker: its state of retained messages, its store's rows, its subscriber."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.offset = WALL
        self.rows: dict[tuple[str, bytes], bytes] = {}
        self.life = 0  # rises when the memory is lost
        self.process = 0
        self.sync: RetainedSync | None = None
        self.lives: dict[int, int] = defaultdict(int)  # of the others, as last seen
        self.owed: dict[int, deque[Live]] = defaultdict(deque)  # custody, by destination
        self.shown: dict[bytes, Key] = {}  # highest key that this life has stored, by topic
        self.told: set[tuple[bytes, Key, bool]] = set()
        self.values: dict[bytes, bytes] = {}  # what the broker would keep
        self.last_told: dict[bytes, bytes] = {}

    def start(self) -> None:
        now = self.world.now
        skew = self.world.skew
        self.offset = WALL + self.world.chance.uniform(-skew, skew)  # the clock may stand otherwise than before, too
        self.process += 1
        epoch = int((now + self.offset) * 1000)
        self.sync = RetainedSync(self.number, epoch, self.offset, now, tombstone_seconds=self.world.keep, compare_every=EVERY, persist=True)
        state = self.rows.get((STATE, STATE_KEY))
        self.sync.load(state, [(key, row) for (table, key), row in self.rows.items() if table == RECORDS], now)
        self.sync.set_members(self.world.sites)
        self.values = {record.topic: record.payload for record in self.sync.values()}
        self._wake(self.process)

    def _wake(self, process: int) -> None:
        if self.sync is None or self.process != process:
            return
        self.sync.handle_timer(self.world.now)
        self.settle()
        self.world.at(max(self.sync.next_deadline(), self.world.now + 0.01), lambda: self._wake(process))

    def crash(self, *, wiped: bool, rows: dict[tuple[str, bytes], bytes] | None = None) -> None:
        """wiped: without memory. rows: with this old memory."""
        self.sync = None
        for other in self.world.sites:
            self.world.cut(self.number, other)
        if wiped or rows is not None:
            self.rows = dict(rows or {})
            self.life += 1
            self.owed.clear()
            self.shown.clear()
            self.told.clear()
            self.last_told.clear()

    def settle(self) -> None:
        """Commit, send, tell."""
        assert self.sync is not None
        for change in self.sync.take_changes(self.world.now):
            if isinstance(change, DeleteValue):
                self.rows.pop((change.table, change.key), None)
            else:
                self.rows[change.table, change.key] = change.value
        sends, updates = self.sync.take()
        for peer, data in sends:
            self.world.send(self.number, peer, data)
        for record, announce in updates:
            self.store(record.topic, record.key, record.payload)
            if announce:
                self.tell(record.topic, record.key, record.payload, record.kind is not Kind.VALUE)

    def store(self, topic: bytes, key: Key, payload: bytes) -> None:
        known = self.shown.get(topic)
        if known is not None and payload:
            self.world.check_step(self, topic, known, key)
        if known is None or key > known:
            self.shown[topic] = key
        if payload:
            self.values[topic] = payload
        else:
            self.values.pop(topic, None)

    def tell(self, topic: bytes, key: Key, payload: bytes, gone: bool = False) -> None:
        what = (topic, key, gone)
        # A life without memory cannot always tell what custody still brings it. After more than T a deletion may be met again.
        assert what not in self.told or self.life or (gone and not self.world.strict), f"site {self.number} is told {what} twice"
        self.told.add(what)
        self.last_told[topic] = payload

    def publish(self, topic: bytes, payload: bytes, qos: int, expiry: int | None = None) -> None:
        assert self.sync is not None
        world = self.world
        run = Run(topic, qos, True, [payload], b"", expiry, world.now)
        before = self.shown.get(topic)
        live = world.reachable(self.number) - {self.number}
        for number in live:
            self.lives[number] = world.sites[number].life
        known = live | (set(world.sites) - {self.number} if world.chance.random() < 0.5 else set())
        mark = self.sync.put_local(run, sum(1 << n for n in known), world.now)
        key = read_mark(mark)[0]
        assert before is None or key > before, f"site {self.number} writes {key} over {before}"
        world.written[topic].append(Written(key, payload, before, self.number, self.life))
        self.store(topic, key, payload)
        self.tell(topic, key, payload, not payload)
        self.settle()
        for number in known if qos else live:
            message = Live(run, mark, self.lives[number])
            if qos:
                self.owed[number].append(message)
                world.after(world.custody_delay(), lambda n=number: self.hand_over(n))
            elif world.chance.random() < 0.8:
                world.after(world.delay() * 3, lambda n=number, m=message: world.arrive(self.number, n, m))

    def hand_over(self, number: int) -> None:
        """Custody: in order, once, and only while there is a path."""
        queue = self.owed.get(number)
        if self.sync is None or not queue or number not in self.world.reachable(self.number):
            return
        site = self.world.sites[number]
        while queue:
            message = queue.popleft()
            if message.life == site.life:  # else it is returned: the destination is another one
                site.live(message)

    def live(self, message: Live) -> None:
        assert self.sync is not None
        run, mark, _ = message
        topic, key = bytes(run.topic), read_mark(mark)[0]
        own = Run(topic, run.qos, True, run.payloads, b"", run.expiry, run.received)
        stored, deliver = self.sync.apply(own, mark, self.world.now)
        if stored:
            self.store(topic, key, run.payloads[0])
        if deliver:
            self.tell(topic, key, run.payloads[0], not run.payloads[0])
        self.settle()


class World:
    """Sites 1 to n and links between pairs."""

    def __init__(self, seed: int, count: int, edges: list[tuple[int, int]], skew: float = 0.0, keep: float = T) -> None:
        self.chance = Random(seed)
        self.now = 1000.0
        self.skew = skew
        self.keep = keep
        self.strict = True  # highest key at each site; off once a site has been away for more than T
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0
        self.written: dict[bytes, list[Written]] = defaultdict(list)
        self.edges = [tuple(sorted(edge)) for edge in edges]
        self.up: dict[tuple[int, int], int] = {}  # link -> its incarnation
        self._ready: dict[tuple[int, int], float] = {}  # (from, to) -> when the last bytes arrive
        self._incarnations = 0
        self.bytes = 0
        self.messages: list[int] = []
        self.sites = {n: Site(self, n) for n in range(1, count + 1)}
        for site in self.sites.values():
            site.start()
        for a, b in self.edges:
            self.mend(a, b)

    # time

    def at(self, time: float, what: Callable[[], None]) -> None:
        self._asked += 1
        heapq.heappush(self._heap, (max(time, self.now), self._asked, what))

    def after(self, delay: float, what: Callable[[], None]) -> None:
        self.at(self.now + delay, what)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._heap and self._heap[0][0] <= until:
            self.now, _, what = heapq.heappop(self._heap)
            what()
        self.now = until

    def delay(self) -> float:
        return self.chance.choice((0.002, 0.02, 0.3))

    def custody_delay(self) -> float:
        return self.chance.choice((0.001, 0.02, 0.3, 0.3, 50.0))

    # links

    def mend(self, a: int, b: int) -> None:
        link = (min(a, b), max(a, b))
        if link in self.up or link not in self.edges or self.sites[a].sync is None or self.sites[b].sync is None:
            return
        self._incarnations += 1
        self.up[link] = self._incarnations
        for site, peer in ((a, b), (b, a)):
            sync = self.sites[site].sync
            assert sync is not None
            sync.link_up(peer, self.now)
        for site in (a, b):
            self.sites[site].settle()
        for site in self.sites.values():
            for number in list(site.owed):
                self.after(self.custody_delay(), lambda s=site, n=number: s.hand_over(n))

    def cut(self, a: int, b: int) -> None:
        link = (min(a, b), max(a, b))
        if self.up.pop(link, None) is None:
            return
        for site, peer in ((a, b), (b, a)):
            sync = self.sites[site].sync
            if sync is not None:
                sync.link_down(peer)

    def send(self, source: int, target: int, data: bytes) -> None:
        link = (min(source, target), max(source, target))
        incarnation = self.up.get(link)
        if incarnation is None:
            return
        assert len(data) <= 65_536
        self.bytes += len(data)
        self.messages.append(len(data))
        way = (source, target)
        self._ready[way] = max(self._ready.get(way, 0.0), self.now + self.delay())

        def arrive() -> None:
            if self.up.get(link) == incarnation:
                site = self.sites[target]
                assert site.sync is not None
                site.sync.receive(source, data, self.now)
                site.settle()

        self.at(self._ready[way], arrive)

    def reachable(self, number: int) -> set[int]:
        found = {number}
        todo = [number]
        while todo:
            at = todo.pop()
            for a, b in self.up:
                for here, there in ((a, b), (b, a)):
                    if here == at and there not in found:
                        found.add(there)
                        todo.append(there)
        return found

    def arrive(self, source: int, target: int, message: Live) -> None:
        if self.sites[target].sync is not None and target in self.reachable(source):
            self.sites[target].live(message)

    # checks

    def ancestors(self, topic: bytes, key: Key) -> set[Key]:
        """The keys that a key's writer replaced, knowing of them, itself or through others."""
        before = {w.key: w.before for w in self.written[topic]}
        found: set[Key] = set()
        at = before.get(key)
        while at is not None:
            found.add(at)
            at = before.get(at)
        return found

    def check_step(self, site: Site, topic: bytes, known: Key, key: Key) -> None:
        """A site that showed `known` now shows the value of `key`."""
        if self.strict:
            assert key > known, f"site {site.number} goes back from {known} to {key} for {topic!r} at {self.now:.3f}"
        else:
            assert key not in self.ancestors(topic, known), f"site {site.number} shows {key} again after {known} at {self.now:.3f}"

    def heal(self) -> None:
        for site in self.sites.values():
            if site.sync is None:
                site.start()
        for a, b in self.edges:
            self.mend(a, b)

    def survivors(self) -> dict[bytes, Record]:
        """The highest record of each topic that any site has, buried or not."""
        best: dict[bytes, Record] = {}
        for site in self.sites.values():
            for record in site.sync._replica.tree if site.sync else ():
                if record.topic not in best or record.key > best[record.topic].key:
                    best[record.topic] = record
        return best

    def check_survivors(self, best: dict[bytes, Record]) -> None:
        """What was the highest at any site is what all have now."""
        for site in self.sites.values():
            here = self.records(site)
            for topic, record in best.items():
                if record.key < max(self.written[topic]).key:
                    continue  # an old copy of what the others may have deleted and forgotten
                if record.kind is Kind.VALUE:
                    assert topic in here, f"site {site.number} lost {topic!r} {record.key}"
                    assert here[topic].key == record.key, f"site {site.number} lost {topic!r} {record.key}"
                else:
                    assert topic not in here, f"site {site.number} has {topic!r} again"

    def records(self, site: Site) -> dict[bytes, Record]:
        assert site.sync is not None
        return {record.topic: record for record in site.sync.values()}

    def check(self, lost: bool) -> None:
        """All sites are equal, and it is right. lost: a site has lost its memory on the way."""
        first = self.sites[1]
        assert first.sync is not None
        here = {topic: record.key for topic, record in self.records(first).items()}
        for site in self.sites.values():
            assert site.sync is not None
            there = {topic: record.key for topic, record in self.records(site).items()}
            assert there == here, f"sites {first.number} and {site.number} differ: {set(here.items()) ^ set(there.items())}"
            kept = {topic: record.payload for topic, record in self.records(site).items()}
            assert kept == site.values, f"site {site.number}'s broker was not told of {set(kept.items()) ^ set(site.values.items())}"
        if self.strict and not lost:
            for topic, written in self.written.items():
                best = max(written, key=lambda w: w.key)
                assert here.get(topic) == (best.key if best.payload else None), f"{topic!r}: {here.get(topic)} instead of {best}"
        if not lost:
            for site in self.sites.values():
                for topic, key in here.items():
                    assert (topic, key, False) in site.told, f"site {site.number} was never told {topic!r} {key}"

    def check_digests(self) -> None:
        """What is buried is the same everywhere too."""
        found = {site.number: site.sync.status() for site in self.sites.values() if site.sync}
        assert len({status["digest"] for status in found.values()}) == 1, found
        assert len({site.sync._replica.tree.root for site in self.sites.values() if site.sync}) == 1, found
