"""The store: what keeps runs, deliveries and values, and the errors it ends in.

A store is blocking and simple: it is opened, takes one batch after the other from one thread, and answers queries from any
thread. Whoever wants group commit, counting of references or retries puts a `Writer` in front of it.

Invariants that every implementation holds, and the contract suite checks:
- `commit` applies a batch as a whole or not at all, and when it returns the batch is kept as `sync` says;
- a query sees all that `commit` has returned for, and never half of a batch;
- after a `StoreError` from `commit` the batch may have been applied or not; giving it again is always right;
- one data folder (or one schema of a server) is open for writing in one process only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from typing import Protocol

from .records import Batch, Counts, StoredDelivery, StoredRun, StoredValue

SCHEMA_VERSION = 2
CONVERTED = (1,)  # earlier ones, which `open` converts in place
CHECKED_SIZE = 64 << 20  # bytes of an SQLite file whose pages are all checked when it is opened; those of larger ones beside the work
SIZES_PAGE = 10_000  # how many sizes
PAGE = 1000  # how many rows one query reads at a time, so that a long iteration holds no transaction open


class Kind(Enum):
    """Why a store failed. The remedy differs for each kind."""

    FULL = "full"  # no space left: free some; the same commit then succeeds
    READ_ONLY = "read-only"  # the folder, file or server refuses writing
    CORRUPT = "corrupt"  # what is read back is not what was written
    SCHEMA = "schema"  # written by another version or another program
    BUSY = "busy"  # another process has it open
    UNREACHABLE = "unreachable"  # the server does not answer or refuses us
    OTHER = "other"


class Away(OSError):
    """The server that keeps something cannot be reached."""


class StoreError(Exception):
    """A store could not do what was asked: one line that names the store, the cause and, where there is one, the remedy.

    kind: what sort of failure. store: the file, folder or address. text: cause and remedy. cause: without the remedy, where it is known.
    """

    def __init__(self, kind: Kind, store: str, text: str, cause: str | None = None) -> None:
        self.kind, self.store, self.text = kind, store, " ".join(text.split())
        self.cause = cause or self.text
        super().__init__(kind, store, self.text)

    def __str__(self) -> str:
        return f"store {self.store}: {self.text}"


class Store(Protocol):
    """The operations of every store. Every method raises only `StoreError`.

    counted: it keeps the counts that batches carry, and counts nothing itself. name: its file, folder or address, as errors show it.
    """

    counted: bool
    name: str

    def open(self) -> None:
        """Make or check what is there, take the lock, delete runs that no delivery names; ready for everything."""

    def attach(self) -> None:
        """Ready for queries only, beside the process that has it open for writing. It must exist."""

    def close(self) -> None:
        """Release all resources; may be called at any time, and twice."""

    def commit(self, batch: Batch) -> None:
        """Apply a batch. All or nothing; only ever called from one thread at a time."""

    def run(self, run: int) -> StoredRun | None:
        """The run of this id, or None."""

    def runs(self, ids: Iterable[int]) -> dict[int, StoredRun]:
        """The runs of these ids, by id; those that are not there are left out."""

    def deliveries(
        self, recipient: str | None = None, state: int | None = None, after: int = 0, limit: int | None = None
    ) -> Iterator[StoredDelivery]:
        """Deliveries in their order; of all recipients (one after the other, in no particular order) if none is given.

        state: only those in this state. after: only those with a higher order. limit: at most so many. A long iteration is
        no snapshot: what is committed meanwhile may or may not be in it.
        """

    def count(self, recipient: str, state: int | None = None) -> int:
        """How many messages (not deliveries) are stored for a recipient, or are in one state."""

    def value(self, table: str, key: bytes) -> bytes | None:
        """One value, or None."""

    def values(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All (key, value) of a table, in no particular order."""

    def highest_run(self) -> int:
        """The highest id of a stored run, 0 without any."""

    def highest_order(self, recipient: str) -> int:
        """The highest order among a recipient's deliveries, 0 without any."""

    def run_sizes(self) -> Iterator[tuple[int, int]]:
        """(id, bytes of topic, properties and payloads) of each run, without reading the payloads; in no particular order."""

    def value_sizes(self) -> Iterator[tuple[str, bytes, int]]:
        """(table, key, bytes) of each value of all tables, in no particular order."""

    def counts(self) -> Counts | None:
        """How many rows there were after the last commit that said so; None: none did."""

    def remains(self, say: Callable[[str], object]) -> Iterator[StoredDelivery | StoredValue]:
        """All deliveries and values that are whole, of a store that may be damaged. Some may come twice.

        say: told of each damaged row, and where reading ended. A part that cannot be read to its end is read backwards too.
        """

    def snapshot(self) -> AbstractContextManager[None]:
        """Inside, `counts`, `remains` and `run` of one thread see one state, whatever is committed meanwhile. Space that a writer frees
        is not used again before its end."""

    def check_pages(self) -> None:
        """Walk through all pages, as far as the store knows how. Raises StoreError (corrupt)."""

    def space(self) -> int | None:
        """Bytes that the store has plus those that are free on its disk; None if unknown."""


def wrong_version(store: str, found: int) -> StoreError:
    """The error for a store of another schema version than ours."""
    if found in CONVERTED:
        remedy = "it was written by an older mqmesh: start the broker, which converts it"
    elif found > SCHEMA_VERSION:
        remedy = "it was written by a newer mqmesh: run that version, or move the data away and start empty"
    else:
        remedy = "it was written by an older mqmesh: run that version until its queues are empty, then move the data away and start empty"
    return StoreError(Kind.SCHEMA, store, f"has schema version {found}, this mqmesh reads version {SCHEMA_VERSION}: {remedy}")


REMEDY = "restore a copy, or move it away and start empty, or keep what is whole with 'mqmesh store salvage'"


def damaged(store: str, what: str) -> StoreError:
    """The error for a store that cannot be read."""
    return StoreError(Kind.CORRUPT, store, f"is damaged ({what}): {REMEDY}", what)


def check_counts(store: Store, found: Counts) -> None:
    """Compare what was found with what there has to be. Raises StoreError (corrupt)."""
    right = store.counts()
    if right is not None and right != found:
        wrong = [f"{here:,} of {there:,} {name}" for name, here, there in zip(Counts._fields, found, right, strict=True) if here != there]
        raise damaged(store.name, f"it has {', '.join(wrong)}")


def gapless(numbers: Collection[int]) -> tuple[int, int] | None:
    """(lowest, highest) of distinct numbers if none is missing between, as acknowledgements in order leave them; else None."""
    low, high = min(numbers), max(numbers)
    return (low, high) if high - low + 1 == len(numbers) else None
