"""A store that fails on command: for tests of everything that stands on a store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

from mqmesh.store.base import Kind, Store, StoreError
from mqmesh.store.records import Batch, Counts, StoredDelivery, StoredRun, StoredValue

_TEXTS = {kind: f"failing on command ({kind.value})" for kind in Kind}


class FailingStore:
    """Wraps a store. Commands:

    fail_open: kind with which `open` fails, None to let it. fail_next(kind, after_effect, times): the next commits fail, before
    or after they took effect. fail_on: the same for the n-th commit from now. hold: commits wait until `release`; `entered` is
    set while one waits. fail_queries: kind with which queries fail.
    """

    counted = False

    def __init__(self, store: Store) -> None:
        self.store = store
        self.name = store.name
        self.fail_open: Kind | None = None
        self.fail_queries: Kind | None = None
        self.commits = 0
        self.entered = threading.Event()
        self._plan: dict[int, tuple[Kind, bool]] = {}  # number of the commit -> (kind, after its effect)
        self._gate = threading.Event()
        self._gate.set()

    def fail_on(self, commit: int, kind: Kind = Kind.FULL, after_effect: bool = False) -> None:
        """The `commit`-th commit from now (1: the next) fails."""
        self._plan[self.commits + commit] = (kind, after_effect)

    def fail_next(self, kind: Kind = Kind.FULL, after_effect: bool = False, times: int = 1) -> None:
        """The next `times` commits fail."""
        for commit in range(1, times + 1):
            self.fail_on(commit, kind, after_effect)

    def recover(self) -> None:
        """Forget all commands; commits that are held go on."""
        self._plan.clear()
        self.fail_open = self.fail_queries = None
        self.release()

    def hold(self) -> None:
        """Commits wait from now on, as on a slow disk."""
        self.entered.clear()
        self._gate.clear()

    def release(self) -> None:
        """Commits go on."""
        self._gate.set()

    def open(self) -> None:
        """Open, or fail."""
        self._raise_if(self.fail_open)
        self.store.open()

    def attach(self) -> None:
        """Attach, or fail as `open` does."""
        self._raise_if(self.fail_open)
        self.store.attach()

    def close(self) -> None:
        """Close the wrapped store."""
        self.store.close()

    def commit(self, batch: Batch) -> None:
        """Wait while held; then fail before the effect, after it, or not at all."""
        self.entered.set()
        self._gate.wait()
        self.commits += 1
        kind, after_effect = self._plan.pop(self.commits, (None, False))
        if not after_effect:
            self._raise_if(kind)
        self.store.commit(batch)
        self._raise_if(kind)

    def run(self, run: int) -> StoredRun | None:
        """As the wrapped store, or fail."""
        self._raise_if(self.fail_queries)
        return self.store.run(run)

    def runs(self, ids: Iterable[int]) -> dict[int, StoredRun]:
        """As the wrapped store, or fail."""
        self._raise_if(self.fail_queries)
        return self.store.runs(ids)

    def deliveries(
        self, recipient: str | None = None, state: int | None = None, after: int = 0, limit: int | None = None
    ) -> Iterator[StoredDelivery]:
        """As the wrapped store, or fail."""
        self._raise_if(self.fail_queries)
        return self.store.deliveries(recipient, state, after, limit)

    def count(self, recipient: str, state: int | None = None) -> int:
        """As the wrapped store, or fail."""
        self._raise_if(self.fail_queries)
        return self.store.count(recipient, state)

    def value(self, table: str, key: bytes) -> bytes | None:
        """As the wrapped store, or fail."""
        self._raise_if(self.fail_queries)
        return self.store.value(table, key)

    def values(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """As the wrapped store, or fail."""
        self._raise_if(self.fail_queries)
        return self.store.values(table)

    def highest_run(self) -> int:
        """As the wrapped store, or fail."""
        self._raise_if(self.fail_queries)
        return self.store.highest_run()

    def highest_order(self, recipient: str) -> int:
        """As the wrapped store, or fail."""
        self._raise_if(self.fail_queries)
        return self.store.highest_order(recipient)

    def run_sizes(self) -> Iterator[tuple[int, int]]:
        """As the wrapped store, or fail."""
        self._raise_if(self.fail_queries)
        return self.store.run_sizes()

    def value_sizes(self) -> Iterator[tuple[str, bytes, int]]:
        """As the wrapped store, or fail."""
        self._raise_if(self.fail_queries)
        return self.store.value_sizes()

    def counts(self) -> Counts | None:
        """As the wrapped store, or fail."""
        self._raise_if(self.fail_queries)
        return self.store.counts()

    def remains(self, say: Callable[[str], object]) -> Iterator[StoredDelivery | StoredValue]:
        """As the wrapped store."""
        return self.store.remains(say)

    def snapshot(self) -> AbstractContextManager[None]:
        """The wrapped store's."""
        return self.store.snapshot()

    def check_pages(self) -> None:
        """As the wrapped store."""
        self.store.check_pages()

    def space(self) -> int | None:
        """As the wrapped store, or fail."""
        self._raise_if(self.fail_queries)
        return self.store.space()

    def _raise_if(self, kind: Kind | None) -> None:
        if kind is not None:
            raise StoreError(kind, "failing", _TEXTS[kind])
