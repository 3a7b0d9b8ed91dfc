"""One site's copy of the mesh's retained messages, and the rules by which it changes.

Rules
- *The highest key wins.* A new message's key is above the record that it replaces, whatever the clocks say.
- *Deleted is remembered.* A deletion, like an expired message, is a buried record: key without content. It is forgotten when every
  member has it (`Coverage.stable`), or T seconds of running time after it was buried here.
- *What was forgotten stays gone.* A message is taken only if its key has not been heard (`coverage.py`): what was heard is here, or
  was replaced, or has been deleted and forgotten. So a broker that comes back after more than T brings nothing back that the mesh
  had deleted; and what it has and the mesh has never heard of, such as its own messages of that time, is taken.
- *No hole in what is forgotten.* A buried record is forgotten only when its key and the keys in its `over` have been heard. `over`
  holds the keys that it replaced, itself or through others, as far as the site where that happened had not heard them. So who has
  forgotten a deletion has heard everything that it deleted. (A key of the same origin needs no place in `over`: it is heard when
  the later one is.) And this site's clock has passed its key, so that what is published here next is above it. What a broker said
  in its last seconds before it lost its memory counts as heard T after it was buried.
- *Each value is told once.* A live message is delivered as any message. Reconciliation announces what it changes, unless the origin
  holds the message in custody for this site (`Record.mask`): then it comes as a message. A live message of QoS 0 that comes after
  reconciliation has announced it or a later one is not delivered. A message that comes behind its deletion is followed by that
  deletion, though it may be forgotten by then.

Invariants
- all keys of this site in the future are above `promised`; what it said to have heard it has, or it is gone for good.

It does not know links or messages between sites; time is `now`, and running time is counted through restarts.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import NamedTuple

import msgpack

from ...mqtt.batch.batch import Batch
from .coverage import Coverage, Heard
from .record import HIGHEST_TIME, Key, Kind, Record, integer, pack_row, read_row
from .tree import RecordTree

CLOCK_TURNED_BACK = 86_400_000  # ms by which the clock may be behind an earlier life's promise before that is taken for a mistake
EARLIER_MAX = 16  # lives that are not closed
EARLY_MAX = 15  # announced keys, but for the last, that a record remembers since they may come as messages too
STEP = 2000  # records that one call of `work` touches of each kind
RECORDS = "mesh_retained"  # a store's table: topic -> row
STATE = "mesh_retained_state"  # a store's table of one row
STATE_KEY = b"state"
FORM = 1


class Update(NamedTuple):
    """A topic's message has changed here through reconciliation.

    record: the new one; if its kind is not VALUE, nothing is retained for the topic now. announce: whether subscribers get it as an
    ordinary message (an empty one for a deletion).
    """

    record: Record
    announce: bool


class Applied(NamedTuple):
    """What to do with a live message. stored: it is the retained message of its topic now. deliver: subscribers get it."""

    stored: bool
    deliver: bool


class PutValue(NamedTuple):
    """A store's change: set a row."""

    table: str
    key: bytes
    value: bytes


class DeleteValue(NamedTuple):
    """A store's change: delete a row."""

    table: str
    key: bytes


class AnothersState(ValueError):
    """What was kept is whole, and is another broker's."""


class Replica:
    """The records, what has been heard, what is buried."""

    def __init__(self, number: int, epoch: int, wall_offset: float, tombstone_seconds: float, persist: bool, now: float) -> None:
        """See `RetainedSync`."""
        self.number = number
        self.born = epoch
        self._own_step = epoch % 1009  # lives that rise above the same one shall not meet there
        self.wall_offset = self.kept_offset = wall_offset
        self.tree = RecordTree()
        self.coverage = Coverage(number)
        self.promised = 0
        self.updates: list[Update] = []
        self._keep_seconds = tombstone_seconds
        self._earlier: list[tuple[int, int]] = []  # lives that are not closed: born, promised
        self._joined = False  # it has reconciled with a neighbour since it remembers
        self._started = now  # minus the running time of earlier lives
        self._ends: list[tuple[int, bytes, Key]] = []
        self._by_time: list[tuple[int, bytes, Key]] = []
        self._by_age: list[tuple[float, bytes, Key]] = []
        self._doomed: deque[tuple[bytes, Key]] = deque()
        self._line = -1
        self.moment = self.wall(now)  # of the message that is worked on
        self.given = 0  # records sent to neighbours that lacked them
        self.taken = 0  # the same, from neighbours
        self._dirty: dict[bytes, None] | None = {} if persist else None
        self._state_dirty = True

    # ---- time

    def wall(self, now: float) -> int:
        """The wall clock in ms since 1970, as it stood when this life began: jumps since then are not in it."""
        return min(max(0, int((now + self.wall_offset) * 1000)), HIGHEST_TIME)

    @property
    def _ahead(self) -> int:
        """Milliseconds by which the clock of what is stored is ahead of `wall`."""
        return round((self.kept_offset - self.wall_offset) * 1000)

    def running(self, now: float) -> float:
        """Seconds that this site has run, earlier lives included."""
        return now - self._started

    # ---- what this site's clients publish

    def put(self, run: Batch, custody: int, now: float, at: int | None = None) -> Record:
        """Retain the last message of a local run. See `RetainedSync.put_local`. at: its time, if it is not now: ms since 1970."""
        topic = bytes(run.topic)
        payload = bytes(run.payloads[-1])
        wall = self.wall(now) if at is None else at
        known = self.tree.get(topic)
        time = max(wall, self.promised + 1, known.key.time + 1 if known is not None else 0)
        key = Key(min(time, HIGHEST_TIME), self.number, self.born)
        published = min(max(0, int((run.received + self.wall_offset) * 1000)), HIGHEST_TIME)
        if published == key.time:
            published = key.time  # one object for both
        if payload:
            record = Record(topic, key, Kind.VALUE, run.qos, bytes(run.properties), payload, published, run.expiry, custody)
        else:
            record = Record(topic, key, Kind.DELETED, run.qos, b"", b"", published, None, custody)
        self._replace(record, known, now)
        return record

    # ---- what comes from elsewhere

    def apply(self, record: Record, now: float) -> Applied:
        """A live message with its key."""
        known = self.tree.get(record.topic)
        heard = self.coverage.vector.covers(record.key)
        told, early = (known.told, known.early) if known is not None else (None, ())
        stored = not heard and (known is None or record.key > known.key)
        if stored:
            self._replace(record, known, now)
        if record.key in early or (told is not None and (record.key == told or (record.key < told and not record.qos))):
            return Applied(stored, False)
        deliver = bool(record.qos) or stored or not heard
        if deliver and not stored and record.kind is Kind.VALUE:
            if known is None:  # what deleted it is forgotten, as everybody had heard of it while this waited in custody
                gone = Record(record.topic, record.key, Kind.DELETED, record.qos, b"", b"", record.published, None, record.mask)
                self.updates.append(Update(gone, True))
            elif known.silent:
                self._say_gone(known)
        return Applied(stored, deliver)

    def _say_gone(self, record: Record) -> None:
        """An older message has come behind a deletion that nobody here was told of: tell them, behind that message."""
        record.silent, record.told = False, record.key
        self.updates.append(Update(record, True))
        if self._dirty is not None:
            self._dirty[record.topic] = None

    def merge(self, record: Record, now: float) -> None:
        """A record that a neighbour has and this site has not."""
        known = self.tree.get(record.topic)
        again = known is not None and record.kind is Kind.DELETED  # it was forgotten here before the older one came
        if (self.coverage.vector.covers(record.key) and not again) or (known is not None and record.key <= known.key):
            return
        ends = record.ends
        if record.kind is Kind.VALUE and ends is not None and ends < self.wall(now):
            record = record.buried(Kind.EXPIRED)
        alive = known is not None and known.kind is Kind.VALUE
        coming = self._comes_as_message(record)
        announce = not coming and (record.kind is Kind.VALUE or (record.kind is Kind.DELETED and alive))
        record.silent = not coming and record.kind is Kind.DELETED and not alive
        self._replace(record, known, now)
        if announce:
            record.told = record.key
            if record.qos:  # it may come for a shared subscription, or for an earlier memory
                record.early = (*record.early[-EARLY_MAX:], record.key)
        if record.kind is Kind.VALUE or alive:
            self.updates.append(Update(record, announce))

    def _comes_as_message(self, record: Record) -> bool:
        """Whether the origin holds the message for this broker, or held it until it had come. For an earlier memory is not for this."""
        return self._joined and bool(record.qos) and bool(record.mask >> self.number & 1)

    def know(self, numbers: frozenset[int]) -> None:
        """The members are these and this one."""
        members = numbers | {self.number}
        if members != self.coverage.members:
            self.coverage.members = members
            self._state_dirty = True

    def doom(self, gone: list[tuple[bytes, Key]]) -> None:
        """A neighbour with whom this site has just reconciled had heard these and does not have them."""
        self._doomed.extend(gone)

    def give(self, topic: bytes) -> Record | None:
        """A record for a neighbour that lacks it; instead of when it was published it says how long ago, so that clocks need not agree."""
        record = self.tree.get(topic)
        if record is None:
            return None
        self.given += 1
        given = Record(topic, record.key, *record.content)
        given.published = max(0, self.moment - record.published)
        return given

    def receive(self, record: Record, now: float) -> None:
        """What a neighbour's `give` has given."""
        self.taken += 1
        record.published = max(0, self.moment - record.published)
        self.merge(record, now)

    # ---- keeping

    def _replace(self, record: Record, known: Record | None, now: float) -> None:
        if known is not None:
            record.told, record.early = known.told, known.early
            if known.over or known.key[1:] != record.key[1:] or record.over:
                record.over = self._over(record, known)
        self._keep(record, now)

    def _over(self, record: Record, known: Record) -> tuple[Key, ...]:
        """What a record stands for that may not have been heard: the latest key of each origin but its own."""
        covers = self.coverage.vector.covers
        latest: dict[tuple[int, int], Key] = {}
        for key in (*record.over, *known.over, known.key):
            source = key[1:]
            if source != record.key[1:] and not covers(key) and (source not in latest or key > latest[source]):
                latest[source] = key
        return tuple(latest.values())

    def _keep(self, record: Record, now: float) -> None:
        if record.kind is Kind.VALUE:
            if record.ends is not None:
                heapq.heappush(self._ends, (record.ends, record.topic, record.key))
        else:
            record.buried_at = self.running(now)
            self._will_forget(record)
        self.tree.set(record)
        if self._dirty is not None:
            self._dirty[record.topic] = None

    def _will_forget(self, record: Record) -> None:
        heapq.heappush(self._by_time, (record.key.time, record.topic, record.key))
        heapq.heappush(self._by_age, (record.buried_at + self._keep_seconds, record.topic, record.key))

    def _forget(self, record: Record) -> None:
        self.tree.delete(record)
        if self._dirty is not None:
            self._dirty[record.topic] = None
            self._state_dirty = True  # so that the promise, which is above its key, is kept with its absence

    def _forgettable(self, record: Record) -> bool:
        """Whether all that it replaced has been heard, so that nothing of it could be taken for news, and the next key is above it."""
        covers = self.coverage.vector.covers
        return record.key.time <= self.promised and covers(record.key) and all(covers(key) for key in record.over)

    # ---- promises

    def claim(self, now: float) -> None:
        """Promise that no later key is at or below the clock, and say how far this site has heard."""
        self.promised = max(self.promised, min(self.wall(now), HIGHEST_TIME - 1))
        self.coverage.vector.merge([Heard(self.number, self.born, self.promised)])
        self.coverage.say(self.born, self.promised)
        self._state_dirty = True

    def hear_of_itself(self, born: int, time: int, now: float) -> None:
        """A neighbour has heard some life of this broker up to a time."""
        if any(life == born and time > promised for life, promised in self._earlier):
            self._earlier = []  # this memory is an old copy, others have what it lacks: nothing can be closed
        closed = time >= HIGHEST_TIME and born >= self.born
        taken = born == self.born and time > self.promised  # a life that is forgotten here had this very name
        if born > self.born or closed or taken:  # such a life had a later clock: be the latest again
            own, self.born = self.born, born + 1 + self._own_step
            self._state_dirty = True
            if closed or taken:
                self._write_again(own, now)
            else:
                self._earlier = []  # to close them would close that life too, whose last words others may have

    def _write_again(self, born: int, now: float) -> None:
        """Give the messages of this life its new name: under the old one nobody would take them."""
        own = (self.number, born)
        for record in [record for record in self.tree if record.key[1:] == own]:
            again = Record(record.topic, record.key._replace(born=self.born), *record.content)
            self._replace(again, record, now)

    def reconciled(self, heard: list[Heard]) -> None:
        """All that a neighbour had when it had heard this far is here."""
        self.coverage.vector.merge(heard)
        if self._earlier:
            self.coverage.vector.merge([Heard(self.number, self._earlier[-1][0], HIGHEST_TIME)])
            self._earlier = []
        self._joined = True
        self._state_dirty = True

    # ---- forgetting and expiring

    def forget_up_to(self, time: int) -> None:
        """Every member has what is at or below a time: some of what is buried may go."""
        self._line = max(self._line, min(time, self.coverage.floor()))
        self._forget_by_time()

    def work(self, now: float) -> bool:
        """Do a part of what is due; whether more is."""
        more = self._expire(now)
        more |= self._forget_by_time()
        more |= self._forget_by_age(now)
        return self._forget_doomed(now) or more

    def next_end(self) -> float | None:
        """When the next message expires, on the caller's clock."""
        return self._ends[0][0] / 1000 - self.wall_offset + 0.0015 if self._ends else None  # behind the millisecond, as floats round

    def _known(self, topic: bytes, key: Key) -> Record | None:
        record = self.tree.get(topic)
        return record if record is not None and record.key == key else None

    def _expire(self, now: float) -> bool:
        wall = self.wall(now)
        ends = self._ends
        for _ in range(STEP):
            if not ends or ends[0][0] >= wall:
                return False
            record = self._known(*heapq.heappop(ends)[1:])
            if record is not None and record.kind is Kind.VALUE:
                self._keep(record.buried(Kind.EXPIRED), now)
        return True

    def _forget_by_time(self) -> bool:
        graves = self._by_time
        for _ in range(STEP):
            if not graves or graves[0][0] > self._line:
                return False
            record = self._known(*heapq.heappop(graves)[1:])
            if record is not None and record.kind is not Kind.VALUE and self._forgettable(record):
                self._forget(record)
        return True

    def _forget_by_age(self, now: float) -> bool:
        running = self.running(now)
        graves = self._by_age
        for _ in range(STEP):
            if not graves or graves[0][0] > running:
                return False
            _, topic, key = heapq.heappop(graves)
            record = self._known(topic, key)
            if record is None or record.kind is Kind.VALUE:
                continue
            self._close_ended(record)
            if self._forgettable(record):
                self._forget(record)
            else:
                heapq.heappush(graves, (running + max(self._keep_seconds / 8, 1.0), topic, key))
        return True

    def _close_ended(self, record: Record) -> None:
        """What an origin that is no more said last, just before, is never heard of as such: after so long it counts as heard."""
        coverage = self.coverage
        ended = [
            Heard(key.origin, key.born, key.time)
            for key in (record.key, *record.over)
            if key.origin not in coverage.members or (coverage.vector.born(key.origin) or 0) > key.born
        ]
        coverage.vector.merge(ended)

    def _forget_doomed(self, now: float) -> bool:
        for _ in range(STEP):
            if not self._doomed:
                return False
            record = self._known(*self._doomed.popleft())
            if record is None:
                continue
            alive = record.kind is Kind.VALUE
            buried = record.buried(Kind.DELETED) if alive else record
            if self._forgettable(record):
                self._forget(record)
            elif alive:
                self._keep(buried, now)
            if alive:
                self.updates.append(Update(buried, record.expiry is None))
        return True

    # ---- what survives a restart

    @property
    def changed(self) -> bool:
        """Whether there is something to keep since then."""
        return self._dirty is not None and (self._state_dirty or bool(self._dirty))

    def take_changes(self, now: float) -> list[PutValue | DeleteValue]:
        """What a store must keep since the last call, as one batch."""
        if self._dirty is None:
            return []
        found: list[PutValue | DeleteValue] = []
        ahead = self._ahead
        for topic in self._dirty:
            record = self.tree.get(topic)
            found.append(DeleteValue(RECORDS, topic) if record is None else PutValue(RECORDS, topic, pack_row(record, ahead)))
        self._dirty.clear()
        if self._state_dirty:
            self._state_dirty = False
            lives = [*self._earlier, (self.born, self.promised)]
            entries, members = self.coverage.vector.entries(), sorted(self.coverage.members)
            state = [FORM, self.number, lives, self.running(now), self._joined, entries, members]
            found.append(PutValue(STATE, STATE_KEY, msgpack.packb(state)))
        return found

    def load_state(self, state: bytes, now: float, complete: bool, former: int | None = None) -> None:
        """Go on where an earlier life was. complete: it is in the store to its end. former: a number that this broker had before; the lives
        under it are another broker's now. Raises ValueError."""
        try:
            form, number, lives, running, joined, heard, members = msgpack.unpackb(state)
            self._earlier = [(integer(born, 48), integer(promised, 48)) for born, promised in lives][-EARLIER_MAX:]
            born, self.promised = self._earlier[-1]
            entries = [Heard(integer(n, 16), integer(b, 48), integer(t, 48)) for n, b, t in heard]
            known = frozenset(integer(n, 16) for n in members)
            seconds = float(running)
        except (ValueError, TypeError, IndexError, msgpack.exceptions.UnpackException) as error:
            raise ValueError(f"the state of the retained messages cannot be read: {error}") from None
        if form != FORM:
            raise ValueError(f"the retained messages have form {form}, this version reads {FORM}")
        if number not in (self.number, former):
            raise AnothersState(f"the retained messages are those of broker {number}, this is broker {self.number}")
        self.born = max(self.born, born + 1)
        if number != self.number:
            self.promised, self._state_dirty = 0, True
        if not complete or number != self.number:
            self._earlier = []  # what it said last may be elsewhere only: nobody may take it for heard
        if self.promised > self.wall(now) + CLOCK_TURNED_BACK:
            self.promised = 0
        self._started = now - seconds
        self._joined = bool(joined)
        self.coverage.vector.merge(entries)
        self.coverage.members = known | {self.number}

    def load_record(self, topic: bytes, row: bytes, now: float) -> None:
        """A record of an earlier life. Raises ValueError."""
        record = read_row(topic, row, self._ahead)
        record.published = min(record.published, self.wall(now))  # of no clock's future: it would live for longer than it may
        if record.kind is Kind.VALUE:
            if record.ends is not None:
                heapq.heappush(self._ends, (record.ends, record.topic, record.key))
        else:
            record.buried_at = min(record.buried_at, self.running(now))
            self._will_forget(record)
        self.tree.set(record)
