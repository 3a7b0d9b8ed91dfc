"""The node's part in keeping retained messages the same everywhere: what `retained/` says, over links and in actions.

A message that a client of this broker retains gets its mark here before it goes out (`put`); one that comes over a link is judged here
before it is delivered (`live`); comparisons with neighbours travel as control packets of the kind `retained`, behind what is unsent
(`receive`, `flush`). Rules: docs/retained.md.

Policies. Over a link with a policy at either end nothing is compared: what is right to differ there would look like a loss, and a partner
would be told of topics that it may not have. Messages cross it with their marks, under their names there.

Members. Deletions wait for all brokers that this one ever knew, but for those that were given up (`Node.forget`); they are kept with the
state, because a broker that restarts on its own knows nobody yet.

It does not know envelopes, trees or sessions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ...mqtt.batch.batch import Batch
from ...mqtt.errors import PeerError
from ..retained import Applied, DeleteValue, Kind, PutValue, RetainedSync, Update
from ..retained import Send as Message
from ..retained.record import read_mark
from ..retained.wire import Say, decode
from ..wire.control import encode_raw
from .actions import Retained, Send
from .core import Core, LinkEnd

KIND = "retained"


class RetainedMessages:
    """deadline: when `handle_timer` wants to be called, on the clock of `now`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._touched = True
        self._sends: list[Message] = []
        self._held: deque[tuple[int, int, bytes]] = deque()  # (mark that must be committed before, link, what to say)
        self._early: dict[int, bytes] = {}  # by link: a BEGIN that came before this end compares
        self.deadline: float | None = None
        self.sync = self._new(persist=False)

    def _new(self, persist: bool) -> RetainedSync:
        core = self._core
        return RetainedSync(
            core.number,
            core.identity.epoch,
            core.wall_offset,
            core.now,
            tombstone_seconds=core.config.deletions_kept,
            compare_every=core.config.retained_compare,
            persist=persist,
        )

    def restore(self, state: bytes | None, records: Iterable[tuple[bytes, bytes]], complete: bool) -> None:
        """Keep changes from now on, and go on where an earlier life was. Raises ValueError."""
        self.sync = self._new(persist=True)
        self.sync.set_kept_offset(self._core.kept_offset)
        former = self._core.former
        self.sync.load(state, records, self._core.now, complete, None if former is None else former.number)
        self._touched = True

    def changes(self) -> list[PutValue | DeleteValue]:
        """Rows for the store since the last call."""
        return self.sync.take_changes(self._core.now)

    # ---- messages

    def put(self, run: Batch, custody: int) -> bytes:
        """A client here retains the last message of a run, or deletes what is retained: the mark to send along."""
        self._touched = True
        return self.sync.put_local(run, custody, self._core.now)

    def adopt(self, run: Batch) -> None:
        """Retain what this broker kept before it was in a mesh, as of when it was published."""
        self._touched = True
        self.sync.adopt(run, self._core.now)

    def live(self, run: Batch, mark: bytes, origin: int) -> tuple[Applied, bytes]:
        """A message from elsewhere with its mark: what to do with it, and its key. One whose mark cannot be read is not kept."""
        core = self._core
        try:
            key = read_mark(mark)[0]
            applied = self.sync.apply(run, mark, core.now)
        except PeerError as error:
            core.event("bad_mark", origin=origin, topic=run.topic.decode(), text=error.text)
            return Applied(False, True), b""
        self._touched = True
        return applied, key.pack()

    # ---- neighbours

    def early(self, end: LinkEnd, data: bytes) -> None:
        """A neighbour compares while this end does not yet, as an earlier life of the neighbour's seems to live still. Whoever asks waits
        for its answer as long as the link stands: it gets that from `linked`. Raises `PeerError`."""
        if end.peer.number < self._core.number and decode(data).say is Say.BEGIN:
            self._early[end.id] = data

    def linked(self, end: LinkEnd) -> None:
        """A link may be used: its peer has said all that it knew."""
        self._touched = True
        self.sync.link_up(end.peer.number, self._core.now)
        begin = self._early.pop(end.id, None)
        if begin is not None:
            self.receive(end, begin)

    def lost(self, end: LinkEnd) -> None:
        """A link is gone."""
        self._touched = True
        self._early.pop(end.id, None)
        self.sync.link_down(end.peer.number)

    def receive(self, end: LinkEnd, data: bytes) -> None:
        """The body of a control packet. Raises `PeerError`."""
        self._touched = True
        self.sync.receive(end.peer.number, data, self._core.now)
        self.collect()

    def members(self, numbers: Iterable[int], behind: Iterable[int]) -> None:
        """These brokers are known too. behind: to these a policy leads, they say nothing but messages: deletions do not wait for them."""
        known = self.sync.members
        come, gone = {number for number in numbers if number not in known}.difference(behind), known.intersection(behind)
        if come or gone:
            self.sync.set_members((known | come) - gone)

    def forget(self, number: int) -> None:
        """A broker is given up: deletions do not wait for it."""
        self.sync.set_members(self.sync.members - {number})

    # ---- output and time

    def handle_timer(self) -> None:
        """See `RetainedSync.handle_timer`; harmless when it is too early."""
        if self.deadline is not None and self._core.now >= self.deadline:
            self._touched = True
            self.sync.handle_timer(self._core.now)
            self.collect()

    def collect(self) -> None:
        """Changes become actions at once: a message that came behind them in the same bytes must stay behind them."""
        sends, updates = self.sync.take()
        self._sends += sends
        for update in updates:
            self._core.actions.append(self._retained(update))

    def flush(self) -> None:
        """What neighbours must be sent and what has changed here, as actions."""
        if not self._touched:
            return
        self._touched = False
        core = self._core
        self.collect()
        sends, self._sends = self._sends, []
        journal = core.journal
        mark = 0
        if journal is not None:
            if self.sync.changed:
                journal.also()
            mark = journal.latest
        for peer, data in sends:
            end = core.by_number.get(peer)
            if end is not None:
                self._held.append((mark, end.id, data))
        self.committed(0 if journal is None else journal.committed)
        core.counters.retained_sent, core.counters.retained_received = self.sync.exchanged
        self.deadline = self.sync.next_deadline()

    def committed(self, mark: int) -> None:
        """The store has all up to a mark: say what waited for that. Nobody hears from here of what this broker may forget."""
        core, held = self._core, self._held
        while held and held[0][0] <= mark:
            _, link, data = held.popleft()
            if link in core.links:
                core.counters.control_sent += 1
                core.counters.retained_bytes += len(data)
                core.actions.append(Send(link, encode_raw(KIND, data), False))

    def _retained(self, update: Update) -> Retained:
        core, record = self._core, update.record
        coming = bool(record.qos) and bool(record.mask >> core.number & 1) and record.kind is Kind.VALUE and not update.announce
        return Retained(record.run(core.wall_offset, core.now), update.announce, record.key.pack(), coming)

    def messages(self) -> list[Batch]:
        """All that is retained."""
        core = self._core
        return [record.run(core.wall_offset, core.now) for record in self.sync.values()]
