"""The stores of a broker's queues: each queue has one, and each store has a log of its own with commits of its own.

What happens together stands in one commit, so a queue and its dead letters have one store (`settings.py` sees to it).

A queue that is declared with another store than it has goes there while it is worked (`moving/`), with those that it belongs to. It keeps
its positions, subscribers and history, and its number if that is free there.

What it does not know: clients, what is in a log.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.settings import ConfigError
from ...mqtt.errors import UsageError
from ...store.folder import words
from .committer import Committer
from .core.queue import Queue
from .core.rules import Rules
from .log.dead import failed_meta
from .log.locations import LOG, in_use, shown
from .log.places.memory import MEMORY, SEGMENT_BYTES, MemorySegments
from .log.store import LogStore
from .moving.moving import Between, Moving, State
from .moving.remembered import Remembered

if TYPE_CHECKING:
    from .committer import Waiting
    from .core.blocks import Block, Meta
    from .core.stock import Move
    from .log.batch import Batch
    from .log.segments import Segment
    from .settings import QueueSettings


log = logging.getLogger("mqmesh.broker")

Done = Callable[[OSError | None], None]


class Stores:
    """See the module. say: is told of damage, one line each. queues: all of the broker, by name; those that are not declared too.

    here: the stores by kind. may_go: asked before a segment of a store goes, with the time when its retention was over. archiving: whether
    messages of a store are being archived.
    """

    def __init__(self, settings: QueueSettings, say: Callable[[str], None]) -> None:
        self.queues: dict[str, Queue] = {}
        self.here: dict[str, LogStore] = {}
        self.committers: list[Committer] = []
        self.may_go: Callable[[str, LogStore, Segment, int], bool] = lambda kind, store, segment, due: True
        self.archiving: Callable[[], bool] = lambda: False
        self._settings = settings
        self._say = say
        self._of: dict[str, Committer | Between] = {}
        self._moves: deque[Moving] = deque()  # one after the other
        self._stopped = False
        self._highest = 0  # number of a queue; 0: to be looked for
        self._opening: dict[str, list[Done]] = {}
        self._opener = ThreadPoolExecutor(1, "queue-stores")
        self._memory = MemorySegments()
        self._call: Callable[..., Any] = lambda *_: None
        self._now: Callable[[], int] = lambda: 0
        self._done: Done = lambda error: None
        self._send: Callable[[], None] = lambda: None
        self._noted: Callable[[Batch], None] | None = None

    # ---- life

    def open(self, now: int) -> None:
        """Find the queues as they were, and those that are declared. Raises OSError, ConfigError."""
        settings = self._settings
        assert settings.folder is not None
        self._remembered = Remembered(settings.folder)
        named = {rules.store for rules in settings.rules.values()}
        others = {shown(one) for one in (*named, *(rules.store for rules in settings.shared.values()))}
        before = {one for one in self._remembered.read() if shown(one) not in others}
        self._remembered.write(named | before)
        for kind in sorted({LOG, *named, *before, *in_use(settings.folder)}):
            self.here[kind] = self.opened(kind, now)
        for name in sorted({name for store in self.here.values() for name in store.queues}):
            self._found(name)
        for group in groups_of(settings.rules):
            self._settle(group)
        self._remembered.write(named | {kind for kind in before if self.here[kind].queues})

    def open_memory(self, now: int) -> None:
        """Have a store for temporary queues, on any broker."""
        store = LogStore(Path(), say=self._say, segment_bytes=SEGMENT_BYTES, kind=MEMORY, where=self._memory)
        store.open(lambda name: Rules(), now)
        store.eager = True
        self.here[MEMORY] = store

    def opened(self, kind: str, now: int) -> LogStore:
        """A store that is not in use yet. Blocks. Raises OSError."""
        rules, folder = self._settings.rules, self._settings.folder
        assert folder is not None
        store = LogStore(folder, self._settings.durability, self._say, kind=kind)
        store.open(lambda name: rules.get(name, Rules()), now)
        store.may_go = partial(self._may_go, kind, store)
        return store

    def have(self, kind: str, then: Done) -> None:
        """Have a store in use, and known after a crash. then: called in the loop when it is; with an error, if it cannot be."""
        name = self._named(kind)
        if any(same(kind, rules.store) for rules in self._settings.shared.values()):
            then(OSError(errno.EBUSY, "several brokers have it in turn, with the queues that are declared there with homes"))
            return
        if name in self.here and self._remembered.has(name):
            then(None)
            return
        waiting = self._opening.setdefault(name, [])
        waiting.append(then)
        if len(waiting) == 1:
            future = self._opener.submit(self._open_late, name, self._now())
            future.add_done_callback(lambda found: self._call(self._opened_late, name, found))

    def _open_late(self, kind: str, now: int) -> LogStore:
        self._remembered.write({*self.here, kind})
        return self.here.get(kind) or self.opened(kind, now)

    def _opened_late(self, kind: str, found: Future[LogStore]) -> None:
        error = found.exception()
        if not isinstance(error, OSError | None):
            raise error
        if error is None and kind not in self.here:
            store = found.result()
            if (text := self._left_in(store)) is not None or self._stopped:
                error = OSError(errno.EEXIST, text)
                store.close()
            else:
                for name in [name for name in store.queues if name in self.queues]:
                    store.release(store.queues[name].number)
                self.queues |= store.queues
                self.here[kind] = store
                self._commit(store)
        for then in self._opening.pop(kind):
            then(error)

    def _left_in(self, store: LogStore) -> str | None:
        """Why a store cannot be used: it has messages of a queue that another one has, and not of an earlier time."""
        for name, queue in store.queues.items():
            known = self.queues.get(name)
            if known is not None and queue.blocks:
                claim = self.here[self._kind_of(known)].claims.epoch(known.number)
                if store.claims.epoch(queue.number) >= claim:
                    return f"it has messages of a queue {name!r} of its own: work them first, or give another store"
        return None

    def _may_go(self, kind: str, store: LogStore, segment: Segment, due: int) -> bool:
        return self.may_go(kind, store, segment, due)

    def _found(self, name: str) -> None:
        """A queue of an earlier life: the store has it that claims it last. What others have of it counts for nothing."""
        rules = self._settings.rules.get(name)
        found = []
        for kind, store in self.here.items():
            if (queue := store.queues.get(name)) is not None:
                wanted = rules is not None and same(rules.store, kind)
                found.append((store.claims.epoch(queue.number), bool(queue.blocks), wanted, kind))
        found.sort()
        epoch, waits, _, kind = found[-1]
        if waits and name in self._settings.shared:
            text = f"messages of queue {name!r} are in {shown(kind)}: work them there first, then give it several homes"
            raise ConfigError(str(self._settings.folder), f"queues.{name}.homes", shown(kind), text)
        self.queues[name] = queue = self.here[kind].queues[name]
        for claim, waits, _, other in found[:-1]:
            if waits and claim == epoch:
                text = f"two stores have messages of queue {name!r}, {shown(kind)} and {shown(other)}: take one of them away"
                raise ConfigError(str(self._settings.folder), f"queues.{name}.store", shown(kind), text)
            known = self.here[other].queues[name]
            queue.next = max(queue.next, known.next)
            self.here[other].release(known.number)

    def _settle(self, group: list[str]) -> str:
        """Queues that belong together are in one store: which. It is the one that has messages of them. Raises ConfigError."""
        wanted = self._settings.rules[group[0]].store
        at = {name: self._kind_of(self.queues[name]) for name in group if name in self.queues}
        full = sorted({kind for name, kind in at.items() if self.queues[name].blocks})
        if len(full) > 1:
            text = (
                f"its dead letters are in another store: {' and '.join(map(shown, full))}. Give it none until these queues have one store"
            )
            raise ConfigError(str(self._settings.folder), f"queues.{group[0]}.dead_letters", ", ".join(group), text)
        if self._settings.rules[group[0]].homes:
            kind = self._named(wanted)
        else:
            kind = full[0] if full else next(iter(at.values())) if len(set(at.values())) == 1 else self._named(wanted)
        for name in group:
            self._settle_one(name, kind)
        return kind

    def _settle_one(self, name: str, kind: str) -> None:
        """A queue is in a store: it is new, or empty, or is there."""
        store, rules, known = self.here[kind], self._settings.rules[name], self.queues.get(name)
        if known is None:
            self._highest = self._highest or max((queue.number for queue in self.queues.values()), default=0)
            made = self.queues[name] = store.queue(name, rules, self._highest + 1)
            self._highest = max(self._highest, made.number)
        elif (old := self._kind_of(known)) != kind:
            epoch, number = self._epoch(), known.number
            begin = store.begin_copy(epoch)
            self.here[old].leave(known)
            store.adopt(known, store.number_for(known), epoch, begin)
            self.here[old].release(number)
            self._of.pop(name, None)
        self.queues[name].rules = rules

    def _epoch(self) -> int:
        return 1 + max(store.claims.highest for store in self.here.values())

    def _kind_of(self, queue: Queue) -> str:
        """The store that has a queue; if it is held, the one that it comes from."""
        store = self._of[queue.name].store if queue.name in self._of else None
        return next(kind for kind, one in self.here.items() if one is store or (store is None and one.queues.get(queue.name) is queue))

    def _named(self, kind: str) -> str:
        """The name here of a store."""
        return next((one for one in self.here if same(one, kind)), kind)

    def start(
        self,
        call: Callable[..., Any],
        now: Callable[[], int],
        done: Callable[[OSError | None], None],
        noted: Callable[[Batch], None] | None,
        send: Callable[[], None] = lambda: None,
    ) -> None:
        """Have commits made; see `Committer`. Queues that are to be in another store begin to go there."""
        self._call, self._now, self._done, self._noted, self._send = call, now, done, noted, send
        for store in self.here.values():
            self._commit(store)
        for group in groups_of(self._settings.rules):
            self._move(group)

    def _commit(self, store: LogStore) -> Committer:
        committer = Committer(store, self._call, self._now, self._committed)
        committer.send = self._send
        if self._noted is not None:
            committer.noted = self._noted
        self.committers.append(committer)
        return committer

    def adopt(self, kind: str, store: LogStore) -> None:
        """A shared store is open, and is this broker's from now on."""
        self.here[kind] = store
        self._highest = 0
        for name, queue in store.queues.items():
            known, self.queues[name] = self.queues.get(name), queue
            if known is not None:  # it is empty
                queue.next = max(queue.next, known.next)
                self.here[self._kind_of(known)].release(known.number)
                self._of.pop(name, None)
        self._commit(store)

    def drop(self, kind: str, text: str) -> None:
        """A shared store is another broker's now. text: for those who wait for its commits."""
        store = self.here.pop(kind)
        for name, queue in store.queues.items():
            if self.queues.get(name) is queue:
                del self.queues[name]
                self._of.pop(name, None)
        committer = self._committer_of(store)
        self.committers.remove(committer)
        committer.abandon(text)

    def _committed(self, error: OSError | None) -> None:
        if self._moves:
            self._step()
        self._done(error)

    # ---- from one store to another

    def _move(self, group: list[str]) -> None:
        """Have queues that belong together go to the store that their rules name, if they are not there. It is open."""
        queues = [self.queues[name] for name in group]
        kind, wanted = self._kind_of(queues[0]), self._named(queues[0].rules.store)
        for one in [one for one in self._moves if any(queue in one.queues for queue in queues)]:
            if one.to == wanted and len(one.queues) == len(queues):
                return
            one.close("it is to go elsewhere")
            if one.state is State.CLAIMS:  # it is there as soon as that is written; then it goes on from there
                return
            self._moves.remove(one)
        if kind == wanted or self._stopped or any(queue.rules.homes for queue in queues):
            return
        source, target = self._committer_of(self.here[kind]), self._committer_of(self.here[wanted])
        self._moves.append(
            Moving(queues, source, target, wanted, self._wake, lambda: self._now() / 1000, self._set, self._epoch, self.archiving)
        )
        self._wake()

    def _wake(self) -> None:
        self._call(self._step)

    def _committer_of(self, store: LogStore) -> Committer:
        return next(one for one in self.committers if one.store is store)

    def _set(self, queue: Queue, committer: Committer | Between) -> None:
        self._of[queue.name] = committer

    def _step(self) -> None:
        """Go on with what moves."""
        if self._moves:
            self._moves[0].step()
            if self._moves and self._moves[0].state is State.MOVED:
                group = [queue.name for queue in self._moves.popleft().queues]
                if all(name in self._settings.rules for name in group):
                    self._move(group)  # if it is to be somewhere else by now
                self._wake()

    def tick(self) -> None:
        """Called every now and then."""
        for store in self.here.values():
            store.look_for_room()
        for committer in self.committers:
            committer.say_recovered()
        if self._moves:
            self._moves[0].tick()
            if len(self._moves) > 1 and self._moves[0].state is State.WAITS:
                self._moves.rotate(-1)  # it may be long until that one goes on
            self._step()

    def stop_moving(self) -> None:
        """Queues stay where they are. Blocks while a piece is read."""
        self._stopped = True
        self._opener.shutdown(wait=True, cancel_futures=True)
        for one in self._moves:
            one.close("the broker ends")
        self._moves.clear()

    def progress(self, queue: Queue) -> dict[str, Any] | None:
        """How far a queue is on its way to another store; None: it does not go."""
        return next((one.progress for one in self._moves if queue in one.queues), None)

    def kind_of(self, queue: Queue) -> str:
        """The store that has a queue, without a password."""
        return shown(self._kind_of(queue))

    def change(self, stores: dict[str, str]) -> None:
        """Queues are declared with other stores, which are in use: they go there. Those that belong together have one."""
        for name, store in stores.items():
            self._settings.rules[name].store = store
        for group in groups_of(self._settings.rules):
            if not stores.keys().isdisjoint(group):
                self._move(group)

    def renew(self, rules: dict[str, Rules]) -> None:
        """The broker's file was read again: its queues go to the stores that it names now."""
        settings = self._settings
        mine = {name for name in rules if name in settings.rules and name not in settings.declared and name not in settings.shared}
        for group in groups_of(settings.rules):
            wanted = {rules[name].store if name in mine else settings.rules[name].store for name in group}
            if len(wanted) > 1:
                text = "these queues belong together, and have one store: what else has changed is taken at the next start"
                log.error("event=not-reloaded queues=%s text=%s", ",".join(group), text)
            elif not same(store := wanted.pop(), settings.rules[group[0]].store):
                self.have(store, partial(self._renewed, group, store))

    def _renewed(self, group: list[str], store: str, error: OSError | None) -> None:
        if error is not None:
            log.error("event=not-reloaded queues=%s store=%s text=%s", ",".join(group), shown(store), error.strerror or error)
        else:
            self.change({name: store for name in group if name in self._settings.rules})

    def close(self) -> None:
        """Write what is left, and stop. Blocks."""
        self.stop_moving()
        for committer in self.committers:
            committer.close()
        for store in self.here.values():
            store.close()

    # ---- one queue

    def of(self, queue: Queue) -> LogStore:
        """The store of a queue."""
        return self.committer(queue).store

    def committer(self, queue: Queue) -> Committer | Between:
        """Who commits what a queue has to write."""
        found = self._of.get(queue.name)
        if found is None:
            found = next((one for one in self.committers if one.store.queues.get(queue.name) is queue), None)
            if found is None:
                raise UsageError(f"another broker is home of queue {queue.name!r} now")
            self._of[queue.name] = found
        return found

    def queue(self, name: str) -> Queue:
        """A queue that is declared now, with its rules."""
        group = next(group for group in groups_of(self._settings.rules) if name in group)
        self._settle(group)
        self._move(group)
        return self.queues[name]

    def begin_temporary(self, name: str, rules: Rules) -> None:
        """A queue that is in memory only."""
        self.queues[name] = self.here[MEMORY].queue(name, rules)

    def end_temporary(self, name: str) -> None:
        """It is empty, and nothing of it is to be written."""
        self.here[MEMORY].release(self.queues.pop(name).number)
        self._of.pop(name, None)

    def refusal(self, name: str, rules: Rules) -> str | None:
        """Why a queue cannot be declared by a request with the store that it names; None: it can."""
        if not any(same(rules.store, one) for one in self.here):
            return f"no queue of this broker's file has the store {shown(rules.store)}: declare this one in the file"
        group = next(group for group in groups_of({**self._settings.rules, name: rules}) if name in group)
        found = {self._kind_of(self.queues[one]) for one in group if one in self.queues and self.queues[one].blocks}
        return f"messages of {', '.join(group)} are in several stores: move them first" if len(found) > 1 else None

    def payloads(self, queue: Queue, block: Block) -> list[bytes]:
        """See `Bodies`."""
        return block.payloads if block.payloads is not None else self.of(queue).bodies.payloads(block)

    def served(self, queue: Queue, block: Block) -> None:
        """See `Bodies`."""
        self.of(queue).bodies.served(block)

    def forget(self, queue: Queue, block: Block) -> None:
        """See `Bodies`."""
        self.of(queue).bodies.forget(block)

    def history(self, queue: Queue, position: int) -> Generator[None, None, tuple[Block | None, list[Move]]]:
        """See `LogStore`."""
        return self.of(queue).history(queue, position)

    def bury_failed(
        self, queue: Queue, payload: bytes, meta: Meta, why: str, priority: int, topic: bytes, now: int
    ) -> tuple[Queue, Block, int]:
        """A message that fails the checks of its queue, and cannot be refused any more, is a dead letter: where it is."""
        queue.counts["refused"] += 1
        queue.counts["dead"] += 1
        dead = failed_meta(queue.name, meta, now, why)
        letters = self.queues[queue.rules.dead_letters]
        return letters, *letters.put([payload], dead, now, topic, priority, delay=0)

    # ---- all of them

    @property
    def parcels(self) -> set[bytes]:
        """Parcels of other sites that the logs brought when they were opened."""
        return set().union(*[store.parcels for store in self.here.values()])

    @property
    def resident(self) -> int:
        """Bytes of payloads in memory, and of the log that is there."""
        return sum(store.bodies.resident for store in self.here.values()) + self._memory.held

    def touched(self) -> Iterator[Queue]:
        """The queues in which something is new."""
        for store in self.here.values():
            yield from store.touched

    def forget_calm(self) -> None:
        """Look no more at queues in which nothing is new."""
        for store in self.here.values():
            store.forget_calm()

    @property
    def quiet(self) -> bool:
        """Whether it is neither `dirty` nor `pressing`, without a look at queues: asked at the end of each piece of the broker's work."""
        for one in self.committers:  # noqa: SIM110  (a generator would take longer)
            if one.gate.waiting or not one.store.quiet:
                return False
        return True

    @property
    def dirty(self) -> bool:
        """Whether something is to be written."""
        return any(store.dirty for store in self.here.values())

    @property
    def pressing(self) -> bool:
        """Whether something is to be written now: somebody waits for it, or would."""
        for one in self.committers:  # noqa: SIM110  (a generator would take longer)
            if one.gate.waiting or one.store.pressing:
                return True
        return False

    @property
    def trim_soon(self) -> bool:
        """Whether a segment may go."""
        for store in self.here.values():  # noqa: SIM110  (a generator would take longer)
            if store.trim_soon:
                return True
        return False

    @property
    def busy(self) -> bool:
        """Whether a batch is being written."""
        return any(committer.busy for committer in self.committers)

    @property
    def failing(self) -> bool:
        """Whether all that is to be written is of stores that take nothing."""
        return all(committer.error is not None for committer in self.committers if committer.store.dirty)

    def why(self, error: OSError) -> str:
        """In words, why something could not be written."""
        return words(error, self._settings.folder)

    def begin(self) -> None:
        """Write what is new."""
        for committer in self.committers:
            committer.begin()

    def begin_together(self) -> None:
        """Write what is new, with what sockets bring of the same."""
        for committer in self.committers:
            committer.begin_together()

    def after(self, queue: Queue, waiting: Waiting) -> None:
        """Have something go when everything of a queue so far is on the disk."""
        self.committer(queue).after(waiting)

    @property
    def newest(self) -> dict[str, int]:
        """The last segment of each store: what is put from now on is in it, or in a later one."""
        return {kind: max(store.segments, default=0) for kind, store in self.here.items()}

    def trimming(self, now: int, soon: bool, before: Mapping[str, int]) -> Iterator[None]:
        """Let go of what nobody needs, a piece of work at a time. soon: of stores only of which a segment may go. before: the first segment
        of each store that stays.
        """
        for kind, store in list(self.here.items()):
            if soon and not store.trim_soon:
                continue
            for step in store.trimming(now, before.get(kind, 0)):
                yield step
                if self.here.get(kind) is not store:
                    break
        self.begin()


def same(one: str, other: str) -> bool:
    """Whether two names are of one store: a password may have changed."""
    return shown(one) == shown(other)


def groups_of(rules: dict[str, Rules]) -> list[list[str]]:
    """Queues that belong together, because one takes the dead letters of another."""
    found: dict[str, set[str]] = {}
    for name, one in rules.items():
        group = found.get(name, {name})
        if one.dead_letters in rules:
            group |= found.get(one.dead_letters, {one.dead_letters})
        for member in group:
            found[member] = group
    return [sorted(group) for group in {id(group): group for group in found.values()}.values()]
