"""`RetainedSync`: keeps one site's retained messages equal to those of its mesh, sans-IO.

Messages that are retained while all is linked travel once, as messages; a *mark* with the key goes with each. What was lost, or
happened while a link was down, is found by comparing hashes with each neighbour when a link comes up and every `compare_every` seconds.

    record.py    a retained message and its key          session.py  one comparison with one neighbour
    tree.py      records under a tree of hashes          stream.py   records in pieces, a few under way
    coverage.py  what has been heard of whom             wire.py     the forms of what neighbours say
    replica.py   the rules                               sync.py     neighbours, time, what the caller has to do

The rules and why they are so: docs/retained.md. What it does not know: sockets, subscribers, which way messages take through the mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...mqtt.batch.batch import Batch
from .record import Kind, Record, pack_mark, read_mark
from .replica import RECORDS, STATE, STATE_KEY, Applied, DeleteValue, PutValue, Replica, Update
from .session import Asking, Serving, Session, wrong
from .wire import Say, decode, encode

WEEK = 7 * 86_400.0

__all__ = ["RECORDS", "STATE", "STATE_KEY", "Applied", "DeleteValue", "PutValue", "RetainedSync", "Send", "Update"]


class Send(NamedTuple):
    """Give a neighbour these bytes, in order, not urgent."""

    peer: int
    data: bytes


class _Neighbour:
    """A linked site.

    asks: whether it is the one that begins comparisons. due: when to compare next; None while a comparison runs, or if the neighbour
    asks. again: compare once more when this comparison ends. root: of the records when it began.
    """

    __slots__ = ("again", "asks", "due", "root", "session", "sessions")

    def __init__(self, asks: bool, now: float) -> None:
        self.asks = asks
        self.due = None if asks else now
        self.again = False
        self.root = 0
        self.session: Session | None = None
        self.sessions = 0


class RetainedSync:
    """The retained messages of one broker."""

    def __init__(
        self,
        number: int,
        epoch: int,
        wall_offset: float,
        now: float,
        *,
        tombstone_seconds: float = WEEK,
        compare_every: float = 30.0,
        persist: bool = False,
    ) -> None:
        """number, epoch: of the broker's identity; the epoch is that of this life. wall_offset: seconds since 1970
        minus the clock that `now` is of. tombstone_seconds: how long a deletion is remembered if not every member confirms it, in running
        time of this broker. compare_every: seconds between two comparisons with a neighbour. persist: whether `take_changes` is called.
        """
        self._replica = Replica(number, epoch, wall_offset, tombstone_seconds, persist, now)
        self._every = compare_every
        self._neighbours: dict[int, _Neighbour] = {}
        self._sends: list[Send] = []
        self._tick = now + compare_every
        self._more = False

    # ---- what survives a restart; before any link

    def set_kept_offset(self, offset: float) -> None:
        """Seconds from the clock of `now` to that by which the store has when messages were published: a clock that does not jump.
        Once before `load`, again when it has changed. Without this it is that of `wall_offset`."""
        self._replica.kept_offset = offset

    def load(
        self, state: bytes | None, records: Iterable[tuple[bytes, bytes]], now: float, complete: bool = True, former: int | None = None
    ) -> None:
        """Go on where an earlier life of this broker was.

        state: the row `STATE_KEY` of the table `STATE`, or None for a first life. records: all rows (topic, row) of the table `RECORDS`.
        complete: all that the earlier life ever said is in them; False for one that was killed and said things ahead of their commit.
        former: a number that this broker had before.
        Raises ValueError for what cannot be read, and for records without state.
        """
        if state is not None:
            self._replica.load_state(state, now, complete, former)
        for topic, row in records:
            if state is None:
                raise ValueError("there are retained messages but no state that belongs to them")
            self._replica.load_record(topic, row, now)

    def take_changes(self, now: float) -> list[PutValue | DeleteValue]:
        """Rows to set and delete since the last call; commit them in one batch, and with the publisher's acknowledgement."""
        return self._replica.take_changes(now)

    @property
    def changed(self) -> bool:
        """Whether `take_changes` has something to give."""
        return self._replica.changed

    # ---- messages

    def put_local(self, run: Batch, custody: int, now: float) -> bytes:
        """A client of this broker retains a message, or deletes one with an empty payload.

        run: its last message counts. custody: for QoS 1 and 2, the brokers for which the mesh takes it into custody (bit n: broker n); they
        will get it as a message. Returns the mark that travels with the run's *last* message, and with no other one.
        Raises ValueError for a topic that begins with `$`: such topics stay at their broker.
        """
        if run.topic.startswith(b"$"):
            raise ValueError(f"{run.topic!r} is not shared between sites")
        return pack_mark(self._replica.put(run, custody if run.qos else 0, now))

    def adopt(self, run: Batch, now: float) -> None:
        """A message that this broker retained before it was in a mesh, as of when it was published. For the beginning, behind `load`."""
        if run.topic.startswith(b"$"):
            raise ValueError(f"{run.topic!r} is not shared between sites")
        self._replica.put(run, 0, now, max(0, int((run.received + self._replica.wall_offset) * 1000)))

    def apply(self, run: Batch, mark: bytes, now: float) -> Applied:
        """A message from another site with its mark. Raises `PeerError` for a mark that is none."""
        key, mask, over = read_mark(mark)
        replica = self._replica
        payload = bytes(run.payloads[-1])
        published = max(0, int((run.received + replica.wall_offset) * 1000))
        kind, properties, expiry = (Kind.VALUE, bytes(run.properties), run.expiry) if payload else (Kind.DELETED, b"", None)
        return replica.apply(Record(bytes(run.topic), key, kind, run.qos, properties, payload, published, expiry, mask, over), now)

    def get(self, topic: bytes) -> Record | None:
        """The retained message of a topic."""
        record = self._replica.tree.get(topic)
        return record if record is not None and record.kind is Kind.VALUE else None

    def values(self) -> Iterable[Record]:
        """All retained messages, for a broker that starts."""
        return (record for record in self._replica.tree if record.kind is Kind.VALUE)

    # ---- members and links

    def set_members(self, numbers: Iterable[int]) -> None:
        """The brokers of the mesh, reachable or not, but for those that are given up. Deletions wait for all of them."""
        self._replica.know(frozenset(numbers))

    @property
    def members(self) -> frozenset[int]:
        """As set, or as an earlier life knew them; this one included."""
        return self._replica.coverage.members

    def link_up(self, peer: int, now: float) -> None:
        """A neighbour is linked: the one with the lower number begins to compare."""
        self._neighbours[peer] = _Neighbour(peer < self._replica.number, now)
        self._ask(now)

    def link_down(self, peer: int) -> None:
        """A link is over; an unknown one is ignored."""
        self._neighbours.pop(peer, None)

    def receive(self, peer: int, data: bytes, now: float) -> None:
        """One message from a neighbour. Raises `PeerError`: close the link. Messages of a link that is over are ignored."""
        neighbour = self._neighbours.get(peer)
        if neighbour is None:
            return
        message = decode(data)
        replica = self._replica
        if message.say is Say.NUDGE:
            if neighbour.asks:
                raise wrong("NUDGE from the neighbour that asks")
            self._compare_soon(peer, neighbour, now)
            self._ask(now)
            return
        if message.say is Say.BEGIN:
            if not neighbour.asks or (neighbour.session is not None and neighbour.session.number == message.session):
                raise wrong("BEGIN from the neighbour that does not ask")
            neighbour.root = replica.tree.root
            neighbour.session = Serving(replica, message, self._sender(peer), now)
            ended = neighbour.session.done
        else:
            found = neighbour.session
            if found is None or found.number != message.session:
                raise wrong(f"{message.say.name} of another session")
            before = found.done
            found.receive(message, now)
            ended = found.done and not before
            if ended and not neighbour.asks:
                neighbour.session = None
                neighbour.due = now if neighbour.again else now + self._every
        self._more = replica.work(now)
        if ended and replica.tree.root != neighbour.root:
            for number, other in self._neighbours.items():
                if other is not neighbour:
                    self._compare_soon(number, other, now)
        if ended:
            self._ask(now)

    def _compare_soon(self, peer: int, neighbour: _Neighbour, now: float) -> None:
        """What a comparison has brought is news to other neighbours too: do not let them wait."""
        if neighbour.asks:
            self._sends.append(Send(peer, encode(Say.NUDGE, 0)))
        elif neighbour.due is None:
            neighbour.again = True
        else:
            neighbour.due = now

    def _sender(self, peer: int) -> Callable[[bytes], None]:
        return lambda data: self._sends.append(Send(peer, data))

    def _ask(self, now: float) -> None:
        for peer, neighbour in self._neighbours.items():
            if neighbour.due is not None and neighbour.due <= now:
                neighbour.due = None
                neighbour.again = False
                neighbour.root = self._replica.tree.root
                neighbour.sessions += 1
                neighbour.session = Asking(self._replica, neighbour.sessions, self._sender(peer), now)

    # ---- output and time

    def take(self) -> tuple[list[Send], list[Update]]:
        """What neighbours must be sent, and what has changed here through reconciliation, since the last call, each in order."""
        sends, self._sends = self._sends, []
        updates, self._replica.updates = self._replica.updates, []
        return sends, updates

    def next_deadline(self) -> float:
        """When `handle_timer` wants to be called."""
        if self._more:
            return 0.0
        deadline = min([self._tick, *[neighbour.due for neighbour in self._neighbours.values() if neighbour.due is not None]])
        end = self._replica.next_end()
        return deadline if end is None else min(deadline, end)

    def handle_timer(self, now: float) -> None:
        """Compare where it is due, forget and expire what is due; a part at a time if it is much."""
        replica = self._replica
        if now >= self._tick:
            self._tick = now + self._every
            replica.claim(now)
            replica.forget_up_to(replica.coverage.stable())
        self._ask(now)
        self._more = replica.work(now)

    # ---- for people

    @property
    def count(self) -> int:
        """How many topics have a retained message."""
        return len(self._replica.tree) - self._replica.tree.buried

    @property
    def buried(self) -> int:
        """How many deletions and expired messages are remembered."""
        return self._replica.tree.buried

    @property
    def exchanged(self) -> tuple[int, int]:
        """How many records comparisons have sent and brought."""
        return self._replica.given, self._replica.taken

    def digest(self) -> str:
        """The same at all sites with the same retained messages."""
        return f"{self._replica.tree.alive:016x}"

    def status(self) -> dict[str, object]:
        """Figures, fit for JSON. stable: ms since 1970 up to which every member has everything, -1 when not known."""
        replica = self._replica
        comparing = [peer for peer, n in self._neighbours.items() if n.session is not None and not n.session.done]
        stable = replica.coverage.stable()
        return {"messages": self.count, "buried": replica.tree.buried, "digest": self.digest(), "stable": stable, "comparing": comparing}
