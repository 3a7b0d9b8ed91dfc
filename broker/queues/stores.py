"""The stores of a broker's queues: each queue has one, and each store has a log of its own with commits of its own.

What happens together stands in one commit, so a queue and its dead letters have one store (`settings.py` sees to it).

A queue that is declared with another store than it has moves there at the next start, if it is empty: it keeps its number, its next
position and its subscribers.

What it does not know: clients, what is in a log.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from ...base.settings import ConfigError
from ...mqtt.errors import UsageError
from .committer import Committer
from .core.queue import Queue
from .core.rules import Rules
from .log.locations import LOG, in_use, shown
from .log.store import LogStore

if TYPE_CHECKING:
    from .committer import Waiting
    from .core.blocks import Block, Meta
    from .core.stock import Move
    from .log.store import Batch
    from .settings import QueueSettings


Done = Callable[[OSError | None], None]


class Stores:
    """See the module. say: is told of damage, one line each. queues: all of the broker, by name; those that are not declared too.

    here: the stores by kind.
    """

    def __init__(self, settings: QueueSettings, say: Callable[[str], None]) -> None:
        self.queues: dict[str, Queue] = {}
        self.here: dict[str, LogStore] = {}
        self.committers: list[Committer] = []
        self._settings = settings
        self._say = say
        self._of: dict[str, Committer] = {}

    # ---- life

    def open(self, now: int) -> None:
        """Find the queues as they were, and those that are declared. Raises OSError, ConfigError."""
        settings = self._settings
        assert settings.folder is not None
        kinds = {LOG, *(rules.store for rules in settings.rules.values()), *in_use(settings.folder)}
        for kind in sorted(kinds):
            store = self.here[kind] = LogStore(settings.folder, settings.durability, self._say, kind=kind)
            store.open(lambda name: settings.rules.get(name, Rules()), now)
            for name, queue in store.queues.items():
                self._found(kind, name, queue)
        for name, rules in settings.rules.items():
            self._declared(name, rules)

    def _found(self, kind: str, name: str, queue: Queue) -> None:
        """A queue of an earlier life. What it has moved away from counts for nothing, if it is empty."""
        rules = self._settings.rules.get(name) or self._settings.shared.get(name)
        if rules is not None and rules.store != kind and queue.blocks:
            raise ConfigError(str(self._settings.folder), f"queues.{name}.store", shown(rules.store), _left_in(queue, kind))
        if name not in self.queues or (rules is not None and rules.store == kind):
            known, self.queues[name] = self.queues.get(name), queue
        else:
            known = queue
        if known is not None:
            self.queues[name].next = max(self.queues[name].next, known.next)

    def _declared(self, name: str, rules: Rules) -> Queue:
        store = self.here[rules.store]
        self._of.pop(name, None)
        known = self.queues.get(name)
        numbers = max((queue.number for queue in self.queues.values()), default=0)
        queue = self.queues[name] = store.queue(name, rules, known.number if known is not None else numbers + 1)
        if known is not None and known is not queue:
            queue.next = max(queue.next, known.next)
            for subscriber in known.subscribers:
                queue.subscribe(subscriber)
        return queue

    def start(
        self,
        call: Callable[..., Any],
        now: Callable[[], int],
        done: Callable[[OSError | None], None],
        noted: Callable[[Batch], None] | None,
    ) -> None:
        """Have commits made; see `Committer`."""
        self._committed = call, now, done, noted
        for store in self.here.values():
            self._commit(store)

    def _commit(self, store: LogStore) -> None:
        call, now, done, noted = self._committed
        committer = Committer(store, call, now, done)
        if noted is not None:
            committer.noted = noted
        self.committers.append(committer)

    def adopt(self, kind: str, store: LogStore) -> None:
        """A shared store is open, and is this broker's from now on."""
        self.here[kind] = store
        for name, queue in store.queues.items():
            self._found(kind, name, queue)
        self._commit(store)

    def drop(self, kind: str, text: str) -> None:
        """A shared store is another broker's now. text: for those who wait for its commits."""
        store = self.here.pop(kind)
        for name, queue in store.queues.items():
            if self.queues.get(name) is queue:
                del self.queues[name]
                self._of.pop(name, None)
        committer = next(one for one in self.committers if one.store is store)
        self.committers.remove(committer)
        committer.abandon(text)

    def close(self) -> None:
        """Write what is left, and stop. Blocks."""
        for committer in self.committers:
            committer.close()
        for store in self.here.values():
            store.close()

    # ---- one queue

    def of(self, queue: Queue) -> LogStore:
        """The store of a queue."""
        return self.committer(queue).store

    def committer(self, queue: Queue) -> Committer:
        """Who commits what a queue has to write."""
        found = self._of.get(queue.name)
        if found is None:
            found = next((one for one in self.committers if one.store.queues.get(queue.name) is queue), None)
            if found is None:
                raise UsageError(f"another broker is home of queue {queue.name!r} now")
            self._of[queue.name] = found
        return found

    def queue(self, name: str, rules: Rules) -> Queue:
        """A queue that is declared now, with its rules."""
        return self._declared(name, rules)

    def refusal(self, name: str, rules: Rules) -> str | None:
        """Why a queue cannot be declared by a request with the store that it names; None: it can."""
        known = self.queues.get(name)
        if rules.store not in self.here:
            return f"no queue of this broker's file has the store {shown(rules.store)}: declare this one in the file"
        kind = next((kind for kind, store in self.here.items() if known is not None and store.queues.get(name) is known), rules.store)
        return _left_in(known, kind) if known is not None and known.blocks and kind != rules.store else None

    def payloads(self, queue: Queue, block: Block) -> list[bytes]:
        """See `LogStore`."""
        return block.payloads if block.payloads is not None else self.of(queue).payloads(block)

    def served(self, queue: Queue, block: Block) -> None:
        """See `LogStore`."""
        self.of(queue).served(block)

    def forget(self, queue: Queue, block: Block) -> None:
        """See `LogStore`."""
        self.of(queue).forget(block)

    def history(self, queue: Queue, position: int) -> Generator[None, None, tuple[Block | None, list[Move]]]:
        """See `LogStore`."""
        return self.of(queue).history(queue, position)

    def bury_failed(self, queue: Queue, payload: bytes, meta: Meta, why: str, priority: int, topic: bytes, now: int) -> None:
        """See `LogStore`."""
        self.of(queue).bury_failed(queue, payload, meta, why, priority, topic, now)

    # ---- all of them

    @property
    def parcels(self) -> set[bytes]:
        """Parcels of other sites that the logs brought when they were opened."""
        return set().union(*[store.parcels for store in self.here.values()])

    @property
    def resident(self) -> int:
        """Bytes of payloads in memory."""
        return sum(store.resident for store in self.here.values())

    @property
    def dirty(self) -> bool:
        """Whether something is to be written."""
        return any(store.dirty for store in self.here.values())

    @property
    def trim_soon(self) -> bool:
        """Whether a segment may go."""
        return any(store.trim_soon for store in self.here.values())

    @property
    def busy(self) -> bool:
        """Whether a batch is being written."""
        return any(committer.busy for committer in self.committers)

    @property
    def failing(self) -> bool:
        """Whether all that is to be written is of stores that take nothing."""
        return all(committer.error is not None for committer in self.committers if committer.store.dirty)

    def begin(self) -> None:
        """Write what is new."""
        for committer in self.committers:
            committer.begin()

    def after(self, queue: Queue, waiting: Waiting) -> None:
        """Have something go when everything of a queue so far is on the disk."""
        self.committer(queue).after(waiting)

    def trimming(self, now: int) -> Iterator[None]:
        """Let go of what nobody needs, a piece of work at a time."""
        for kind, store in list(self.here.items()):
            for step in store.trimming(now):
                yield step
                if self.here.get(kind) is not store:
                    break
        self.begin()


def _left_in(queue: Queue, kind: str) -> str:
    return f"messages of queue {queue.name!r} are in its store so far, {shown(kind)}: work them first, or give that store"
