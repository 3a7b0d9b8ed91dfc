"""The store in LMDB: one memory-mapped B+ tree file in a folder; the fastest of the embedded ones for many small runs.

Layout (numbers big-endian, so that they sort):

    meta         b"program", b"schema"          -> text
    runs         id:8                           -> checksum:4 published:8 expires:8 length:4 count:4 qos:1 retain:1
                                                   topic length:2 properties length:4  topic properties payloads
    recipients   name, or a digest of a long one -> number:4
    names        number:4                       -> name
    deliveries   recipient's number:4 order:8   -> run:8 start:4 count:4 qos:1 state:2 packet identifier:2  extra
    values       table 00 key, or a digest      -> checksum:4 key length:2 key value

LMDB's keys are short (511 bytes), hence numbers for recipients and digests for what is longer.

With `sync` a commit waits for the disk twice (data, then the page that makes it count), without it once: the file stays sound after
a power loss, and the last commits may be missing. LMDB itself trusts its file, so a file of moderate size is walked through by its
offline verifier before it is opened, and runs and values carry checksums.

What it does not know: what states and values mean.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from struct import Struct
from struct import error as StructError
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

import lmdb
from lmdb.verify import VerifyError, verify

from .base import PAGE, SCHEMA_VERSION, SIZES_PAGE, Kind, StoreError, damaged, wrong_version
from .folder import FolderLock, full, make_folder, os_error, out_of_space, read_only, space_of, sync_folder
from .records import Batch, StoredDelivery, StoredRun

MAP_SIZE = 64 << 30  # address space reserved for the file, not disk; it grows as needed up to this
CHECKED_SIZE = 16 << 20  # bytes of a file that are walked through at open
LONGEST_KEY = 511
LOCK_SIZE = 8192  # bytes of its lock file with the usual 126 readers
VALUE_PAGE = 100

_RUN = Struct(">IddIIBBHI")
_RUN_ID = Struct(">Q")
_NUMBER = Struct(">I")
_DELIVERY = Struct(">QIIBHH")
_DELIVERY_KEY = Struct(">IQ")
_VALUE = Struct(">IH")
_DATABASES = ("meta", "runs", "recipients", "names", "deliveries", "values")
_CORRUPT = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.PanicError, lmdb.VersionMismatchError)

if TYPE_CHECKING:
    Transaction = lmdb.Transaction[bytes]
T = TypeVar("T")


class LmdbStore:
    """One folder with LMDB's files.

    folder: made if need be, and locked. sync: whether `commit` waits until the disk has everything. map_size: bytes that the file
    may grow to.
    """

    def __init__(self, folder: Path, sync: bool = True, map_size: int = MAP_SIZE) -> None:
        self._folder = folder
        self._name = str(folder)
        self._sync = sync
        self._map_size = map_size
        self._folder_lock = FolderLock(folder)
        self._lock = Lock()  # held by queries, and to change `_environment`
        self._environment: lmdb.Environment | None = None
        self._databases: dict[str, lmdb._Database] = {}
        self._numbers: dict[str, int] = {}  # recipients, for the committing thread
        self._next_number = 1

    def open(self) -> None:
        """Make or check the folder, see `Store.open`."""
        make_folder(self._folder, self._name)
        self._folder_lock.acquire(self._name)
        try:
            self._guarded(self._prepare)
        except BaseException:
            self.close()
            raise

    def attach(self) -> None:
        """Open for queries only, from another process than the one that writes; see `Store.attach`."""
        if not (self._folder / "data.mdb").exists():
            raise StoreError(Kind.OTHER, self._name, "does not exist: no broker has used it yet")

        def start() -> None:
            self._environment = lmdb.open(self._name, self._map_size, readonly=True, create=False, max_dbs=len(_DATABASES))
            self._databases = {name: self._environment.open_db(name.encode(), create=False) for name in _DATABASES}
            with self._environment.begin() as txn:
                self._check_version(txn)

        try:
            self._guarded(start)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._environment is not None:
                self._environment.close()
                self._environment = None
        self._folder_lock.release()

    # Writing.

    def commit(self, batch: Batch) -> None:
        """Apply a batch in one transaction."""
        added: dict[str, int] = {}
        try:
            self._guarded(lambda: self._apply(batch, added))
        except BaseException as error:
            crowded = out_of_space(self._folder, 4 * batch.size)
            with contextlib.suppress(StoreError):  # the first error counts; the next commit meets the second one itself
                self._guarded(self._recover)
            if crowded and isinstance(error, StoreError) and error.kind is Kind.OTHER:
                raise full(self._name) from error  # LMDB calls a write that ended early an input/output error
            raise
        for recipient in batch.recipients:
            self._numbers.pop(recipient, None)
        self._numbers.update(added)
        self._next_number += len(added)

    def _apply(self, batch: Batch, added: dict[str, int]) -> None:
        data = self._databases
        with self._open_environment().begin(write=True) as txn:
            for recipient in batch.recipients:
                self._drop_recipient(txn, recipient)
            numbers = {name: self._number(txn, name, batch, added) for name, orders in batch.deliveries.items() if orders}
            if batch.runs:
                txn.cursor(data["runs"]).putmulti([(_RUN_ID.pack(id), _encode_run(run)) for id, run in batch.runs.items()], overwrite=False)
            for recipient, gone in batch.gone.items():
                number = numbers.get(recipient) or (0 if recipient in batch.recipients else self._numbers.get(recipient, 0))
                for order in gone if number else ():
                    txn.delete(_DELIVERY_KEY.pack(number, order), db=data["deliveries"])
            if batch.deliveries:
                rows = [
                    (_DELIVERY_KEY.pack(numbers[recipient], order), _DELIVERY.pack(d[2], d[3], d[4], d[5], d[6], d[7]) + d[8])
                    for recipient, orders in batch.deliveries.items()
                    for order, d in orders.items()
                ]
                txn.cursor(data["deliveries"]).putmulti(rows)
            for run in batch.runs_gone:
                txn.delete(_RUN_ID.pack(run), db=data["runs"])
            for table, key, value in batch.value_changes():
                if value is None:
                    txn.delete(_value_key(table, key), db=data["values"])
                else:
                    txn.put(_value_key(table, key), _encode_value(key, value), db=data["values"])

    def _number(self, txn: Transaction, recipient: str, batch: Batch, added: dict[str, int]) -> int:
        """The recipient's number; a new one if it has none, or has just been dropped."""
        number = None if recipient in batch.recipients else self._numbers.get(recipient)
        if number is None:
            number = added[recipient] = self._next_number + len(added)
            txn.put(_short(recipient.encode()), _NUMBER.pack(number), db=self._databases["recipients"])
            txn.put(_NUMBER.pack(number), recipient.encode(), db=self._databases["names"])
        return number

    def _drop_recipient(self, txn: Transaction, recipient: str) -> None:
        number = self._numbers.get(recipient)
        if number is None:
            return
        prefix = _NUMBER.pack(number)
        cursor = txn.cursor(self._databases["deliveries"])
        found = cursor.set_range(prefix)
        while found and cursor.key().startswith(prefix):
            found = cursor.delete()
        txn.delete(_short(recipient.encode()), db=self._databases["recipients"])
        txn.delete(prefix, db=self._databases["names"])

    # Queries.

    def run(self, run: int) -> StoredRun | None:
        """The run of this id, or None."""
        return self.runs((run,)).get(run)

    def runs(self, ids: Iterable[int]) -> dict[int, StoredRun]:
        """The runs of these ids that are there."""
        wanted = list(ids)

        def read(txn: Transaction, part: list[int]) -> dict[int, bytes | None]:
            return {run: txn.get(_RUN_ID.pack(run), db=self._databases["runs"]) for run in part}

        found = {}
        for i in range(0, len(wanted), VALUE_PAGE):
            part = wanted[i : i + VALUE_PAGE]
            for run, data in self._query(lambda txn, part=part: read(txn, part)).items():  # type: ignore[misc]
                if data is not None:
                    found[run] = self._decode_run(run, data)
        return found

    def deliveries(
        self, recipient: str | None = None, state: int | None = None, after: int = 0, limit: int | None = None
    ) -> Iterator[StoredDelivery]:
        """Deliveries in their order, see `Store.deliveries`."""
        left = math.inf if limit is None else limit
        names = list(self._pages("names", b"")) if recipient is None else [(self._query(lambda txn: self._find(txn, recipient)), b"")]
        for number, name in names:
            if not number:
                continue
            for key, data in self._pages("deliveries", number, _DELIVERY_KEY.pack(_NUMBER.unpack(number)[0], after)):
                if left <= 0:
                    return
                delivery = self._decode_delivery(recipient or name.decode(), key, data)
                if state is None or delivery.state == state:
                    left -= 1
                    yield delivery

    def count(self, recipient: str, state: int | None = None) -> int:
        """How many messages are stored for a recipient."""
        return sum(delivery.count for delivery in self.deliveries(recipient, state))

    def value(self, table: str, key: bytes) -> bytes | None:
        """One value, or None."""
        data = self._query(lambda txn: txn.get(_value_key(table, key), db=self._databases["values"]))
        return None if data is None else self._decode_value(table, data)[1]

    def values(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All (key, value) of a table."""
        for _, data in self._pages("values", table.encode() + b"\0", size=VALUE_PAGE):
            yield self._decode_value(table, data)

    def highest_run(self) -> int:
        """The highest id of a stored run, 0 without any."""

        def last(txn: Transaction) -> int:
            cursor = txn.cursor(self._databases["runs"])
            return int(_RUN_ID.unpack(cursor.key())[0]) if cursor.last() else 0

        return self._query(last)

    def highest_order(self, recipient: str) -> int:
        """The highest order among a recipient's deliveries, 0 without any."""

        def last(txn: Transaction) -> int:
            number = self._find(txn, recipient)
            if not number:
                return 0
            cursor = txn.cursor(self._databases["deliveries"])
            beyond = cursor.set_range(number + b"\xff" * 8)
            found = cursor.prev() if beyond else cursor.last()
            key = cursor.key()
            return int(_DELIVERY_KEY.unpack(key)[1]) if found and key.startswith(number) else 0

        return self._query(last)

    def run_sizes(self) -> Iterator[tuple[int, int]]:
        """(id, bytes) of each run; long ones are not read."""
        yield from self._sizes("runs", lambda key, data: (_RUN_ID.unpack(key)[0], len(data) - _RUN.size))

    def value_sizes(self) -> Iterator[tuple[str, bytes, int]]:
        """(table, key, bytes) of each value."""

        def size(key: bytes, data: memoryview) -> tuple[str, bytes, int]:
            end = _VALUE.size + _VALUE.unpack_from(data)[1]
            return key.partition(b"\0")[0].decode(), bytes(data[_VALUE.size : end]), len(data) - end

        yield from self._sizes("values", size)

    def space(self) -> int | None:
        """What its file takes and what is free on its disk, at most what it may grow to."""
        found = space_of(self._folder / "data.mdb")
        return None if found is None else min(found, self._map_size)

    # Inside.

    def _sizes(self, database: str, size: Callable[[bytes, memoryview], T]) -> Iterator[T]:
        """What `size` makes of all keys and entries, which are not copied."""

        def page(after: bytes) -> tuple[list[T], bytes]:
            with self._lock, self._open_environment().begin(buffers=True) as txn:
                cursor = txn.cursor(self._databases[database])
                found = cursor.set_range(after) if after else cursor.first()
                if found and after and bytes(cursor.key()) == after:
                    found = cursor.next()
                sizes = []
                for key, data in islice(cursor, SIZES_PAGE) if found else ():
                    after = bytes(key)
                    sizes.append(size(after, data))
                return sizes, after

        sizes, after = self._guarded(partial(page, b""))
        while sizes:
            yield from sizes
            sizes, after = self._guarded(partial(page, after))

    def _prepare(self) -> None:
        path = self._folder / "data.mdb"
        if path.exists() and 0 < path.stat().st_size <= CHECKED_SIZE:
            self._verify()
        self._start()
        with self._open_environment().begin(write=True) as txn:
            meta = self._databases["meta"]
            if txn.get(b"program", db=meta) is None and txn.stat(meta)["entries"] == 0:
                txn.put(b"program", b"mqmesh", db=meta)
                txn.put(b"schema", str(SCHEMA_VERSION).encode(), db=meta)
            self._check_version(txn)
            self._tidy(txn)
        sync_folder(self._folder)

    def _verify(self) -> None:
        try:
            problems = verify(self._name)  # type: ignore[no-untyped-call]
        except VerifyError as error:
            raise damaged(self._name, str(error)) from error
        if problems:
            raise damaged(self._name, problems[0])

    def _start(self) -> None:
        self._reserve_lock_file()
        environment = lmdb.open(self._name, self._map_size, metasync=self._sync, mode=0o600, max_dbs=len(_DATABASES), max_spare_txns=4)
        self._environment = environment
        pages = environment.info()["last_pgno"] + 1
        if (self._folder / "data.mdb").stat().st_size < pages * environment.stat()["psize"]:
            raise damaged(self._name, "its file is shorter than it says")
        self._databases = {name: environment.open_db(name.encode()) for name in _DATABASES}

    def _reserve_lock_file(self) -> None:
        """LMDB maps this file for writing: on a full disk a page of it that is not there yet would end the process (SIGBUS)."""
        file = os.open(self._folder / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, LOCK_SIZE)
        finally:
            os.close(file)

    def _recover(self) -> None:
        """After a failed commit: a last write that failed leaves the environment unusable until it is opened again."""
        try:
            with self._open_environment().begin() as txn:
                self._load_numbers(txn)
        except lmdb.PanicError:
            with self._lock:
                self._open_environment().close()
                self._start()
            with self._open_environment().begin() as txn:
                self._load_numbers(txn)

    def _check_version(self, txn: Transaction) -> None:
        meta = self._databases["meta"]
        found = txn.get(b"schema", db=meta)
        if txn.get(b"program", db=meta) != b"mqmesh" or found is None:
            raise StoreError(Kind.SCHEMA, self._name, "is an LMDB folder of another program: name another folder")
        if int(found) != SCHEMA_VERSION:
            raise wrong_version(self._name, int(found))

    def _tidy(self, txn: Transaction) -> None:
        """Forget runs that no delivery names and names that have no delivery."""
        deliveries = txn.cursor(self._databases["deliveries"])
        named = {data[:8] for data in deliveries.iternext(keys=False, values=True)}
        runs = txn.cursor(self._databases["runs"])
        for key in [key for key in runs.iternext(keys=True, values=False) if key not in named]:
            txn.delete(key, db=self._databases["runs"])
        for number, name in list(txn.cursor(self._databases["names"]).iternext()):
            if not (deliveries.set_range(number) and deliveries.key().startswith(number)):
                txn.delete(number, db=self._databases["names"])
                txn.delete(_short(name), db=self._databases["recipients"])
        self._load_numbers(txn)

    def _load_numbers(self, txn: Transaction) -> None:
        names = txn.cursor(self._databases["names"]).iternext()
        self._numbers = {name.decode(): _NUMBER.unpack(number)[0] for number, name in names}
        self._next_number = max(self._numbers.values(), default=0) + 1

    def _open_environment(self) -> lmdb.Environment:
        if self._environment is None:
            raise StoreError(Kind.OTHER, self._name, "is not open")
        return self._environment

    def _find(self, txn: Transaction, recipient: str) -> bytes:
        """The recipient's number as bytes, b"" if it is not known."""
        return txn.get(_short(recipient.encode()), db=self._databases["recipients"]) or b""

    def _query(self, read: Callable[[Transaction], T]) -> T:
        def run() -> T:
            with self._lock, self._open_environment().begin() as txn:
                return read(txn)

        return self._guarded(run)

    def _pages(self, database: str, prefix: bytes, after: bytes = b"", size: int = PAGE) -> Iterator[tuple[bytes, bytes]]:
        """All entries whose key has a prefix and lies beyond `after`, read page by page."""

        def page(txn: Transaction, after: bytes) -> list[tuple[bytes, bytes]]:
            cursor = txn.cursor(self._databases[database])
            if not cursor.set_range(max(prefix, after)):
                return []
            if cursor.key() == after and not cursor.next():
                return []
            found: list[tuple[bytes, bytes]] = []
            for key, data in cursor:
                if len(found) == size or not key.startswith(prefix):
                    break
                found.append((key, data))
            return found

        while True:
            found = self._query(lambda txn, after=after: page(txn, after))  # type: ignore[misc]
            yield from found
            if len(found) < size:
                return
            after = found[-1][0]

    def _decode_run(self, run: int, data: bytes) -> StoredRun:
        try:
            checksum, published, expires, length, count, qos, retain, topic_length, properties_length = _RUN.unpack_from(data)
        except StructError as error:
            raise damaged(self._name, f"run {run} is cut off") from error
        if checksum != crc32(memoryview(data)[4:]):
            raise damaged(self._name, f"run {run} does not have its checksum")
        properties = _RUN.size + topic_length
        payloads = properties + properties_length
        expires_at = None if math.isnan(expires) else expires
        topic = data[_RUN.size : properties]
        return StoredRun(run, topic, qos, retain == 1, data[properties:payloads], expires_at, published, length, count, data[payloads:])

    def _decode_value(self, table: str, data: bytes) -> tuple[bytes, bytes]:
        if len(data) < _VALUE.size or _VALUE.unpack_from(data)[0] != crc32(memoryview(data)[4:]):
            raise damaged(self._name, f"a value in {table} does not have its checksum")
        end = _VALUE.size + _VALUE.unpack_from(data)[1]
        return data[_VALUE.size : end], data[end:]

    def _decode_delivery(self, recipient: str, key: bytes, data: bytes) -> StoredDelivery:
        try:
            fields: tuple[Any, ...] = _DELIVERY.unpack_from(data)
            return StoredDelivery._make((recipient, _DELIVERY_KEY.unpack(key)[1], *fields, data[_DELIVERY.size :]))
        except StructError as error:
            raise damaged(self._name, "a delivery is cut off") from error

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except lmdb.Error as error:
            raise self._error(error) from error
        except OSError as error:
            raise os_error(self._name, error) from error

    def _error(self, error: lmdb.Error) -> StoreError:
        code = getattr(error, "code", 0)
        if isinstance(error, lmdb.MapFullError):
            return StoreError(Kind.FULL, self._name, f"has reached its largest size of {self._map_size >> 20} MiB (map_size): raise it")
        if code == errno.ENOSPC or "No space left" in str(error):
            return full(self._name)
        if isinstance(error, lmdb.ReadonlyError) or code in (errno.EROFS, errno.EACCES, errno.EPERM):
            return read_only(self._name, str(error))
        if isinstance(error, _CORRUPT):
            return damaged(self._name, str(error))
        return StoreError(Kind.OTHER, self._name, str(error))


def _encode_run(run: StoredRun) -> bytes:
    expires = math.nan if run.expires_at is None else run.expires_at
    fields = (run.published_at, expires, run.length, run.count, run.qos, run.retain, len(run.topic), len(run.properties))
    data = b"".join((_RUN.pack(0, *fields), run.topic, run.properties, run.payloads))
    return crc32(memoryview(data)[4:]).to_bytes(4, "big") + data[4:]


def _encode_value(key: bytes, value: bytes) -> bytes:
    data = _VALUE.pack(0, len(key)) + key + value
    return crc32(memoryview(data)[4:]).to_bytes(4, "big") + data[4:]


def _short(key: bytes) -> bytes:
    """A key that LMDB takes: itself, or FF (which no UTF-8 starts with) and a digest."""
    return key if len(key) <= LONGEST_KEY else b"\xff" + sha256(key).digest()


def _value_key(table: str, key: bytes) -> bytes:
    """The table, 00, and the key itself behind 00 or its digest behind 01."""
    head = table.encode() + b"\0"
    return head + b"\0" + key if len(head) + 1 + len(key) <= LONGEST_KEY else head + b"\1" + sha256(key).digest()
