"""The store in LMDB: one memory-mapped B+ tree file in a folder; the fastest of the embedded ones for many small runs.

Layout (numbers big-endian, so that they sort):

    meta         b"program", b"schema"          -> text
    runs         id:8                           -> checksum:4 published:8 expires:8 length:4 count:4 qos:1 retain:1
                                                   topic length:2 properties length:4  topic properties payloads
    recipients   name, or a digest of a long one -> number:4
    names        number:4                       -> name
    deliveries   recipient's number:4 order:8   -> checksum:4 run:8 start:4 count:4 qos:1 state:2 packet identifier:2  extra
    values       table 00 key, or a digest      -> checksum:4 key length:2 key value

LMDB's keys are short (511 bytes), hence numbers for recipients and digests for what is longer. A checksum is over everything behind it
and the row's key; a delivery's is over the recipient's name too. LMDB itself counts the rows.

With `sync` a commit waits for the disk twice (data, then the page that makes it count), without it once: the file stays sound after
a power loss, and the last commits may be missing. LMDB itself trusts its file. So a file of moderate size is walked through by its
offline verifier before it is opened, its two meta pages are held against each other, and every row carries a checksum.

What it does not know: what states and values mean.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from struct import Struct
from struct import error as StructError
from threading import Lock
from typing import TYPE_CHECKING, TypeVar
from zlib import crc32

import lmdb
from lmdb.verify import VerifyError, verify

from ..base.process.disk import reserve
from ..base.process.files import sync_folder
from .base import CONVERTED, PAGE, SCHEMA_VERSION, SIZES_PAGE, Kind, StoreError, damaged, wrong_version
from .folder import FolderLock, full, identity, make_folder, os_error, out_of_space, read_only, refuse_gone, refuse_half_salvaged, space_of
from .records import Batch, Counts, StoredDelivery, StoredRun, StoredValue

MAP_SIZE = 64 << 30  # address space reserved for the file, not disk; it grows as needed up to this
CHECKED_SIZE = 16 << 20  # bytes of a file that are walked through at open
LONGEST_KEY = 511
LOCK_SIZE = 8192  # bytes of its lock file with the usual 126 readers
VALUE_PAGE = 100
CONVERTED_STEP = 500  # rows of an older version that one commit converts

_RUN = Struct(">IddIIBBHI")
_RUN_ID = Struct(">Q")
_NUMBER = Struct(">I")
_DELIVERY = Struct(">IQIIBHH")
_MAGIC = (0xBEEFC0DE).to_bytes(4, sys.byteorder)  # of a meta page, behind its header
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

    counted = False

    def __init__(self, folder: Path, sync: bool = True, map_size: int = MAP_SIZE) -> None:
        self._folder = folder
        self.name = str(folder)
        self._sync = sync
        self._map_size = map_size
        self._folder_lock = FolderLock(folder)
        self._identity = (0, 0)
        self._lock = Lock()  # held by queries, and to change `_environment`
        self._environment: lmdb.Environment | None = None
        self._databases: dict[str, lmdb._Database] = {}
        self._snapshot: Transaction | None = None
        self._numbers: dict[str, int] = {}  # recipients, for the committing thread
        self._next_number = 1

    def open(self) -> None:
        """Make or check the folder, see `Store.open`."""
        make_folder(self._folder, self.name)
        self._folder_lock.acquire(self.name)
        try:
            self._guarded(self._prepare)
            self._identity = identity(self._folder / "data.mdb")
        except BaseException:
            self.close()
            raise

    def attach(self) -> None:
        """Open for queries only, from another process than the one that writes; see `Store.attach`."""
        if not (self._folder / "data.mdb").exists():
            raise StoreError(Kind.OTHER, self.name, "does not exist: no broker has used it yet")

        def start() -> None:
            self._environment = lmdb.open(self.name, self._map_size, readonly=True, create=False, max_dbs=len(_DATABASES))
            self._databases = {name: self._environment.open_db(name.encode(), create=False) for name in _DATABASES}
            with self._environment.begin() as txn:
                self._check_version(txn)
                if txn.get(b"conversion", db=self._databases["meta"]) is not None:
                    raise wrong_version(self.name, CONVERTED[-1])

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
        refuse_gone(self._folder / "data.mdb", self._identity, self.name)
        try:
            self._guarded(lambda: self._apply(batch, added))
        except BaseException as error:
            crowded = out_of_space(self._folder, 4 * batch.size)
            with contextlib.suppress(StoreError):  # the first error counts; the next commit meets the second one itself
                self._guarded(self._recover)
            if crowded and isinstance(error, StoreError) and error.kind is Kind.OTHER:
                raise full(self.name) from error  # LMDB calls a write that ended early an input/output error
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
                rows = []
                for recipient, orders in batch.deliveries.items():
                    number, seed = numbers.get(recipient, 0), crc32(recipient.encode())
                    for order, delivery in orders.items():
                        key = _DELIVERY_KEY.pack(number, order)
                        rows.append((key, _encode_delivery(delivery, crc32(key, seed))))
                txn.cursor(data["deliveries"]).putmulti(rows)
            for run in batch.runs_gone:
                txn.delete(_RUN_ID.pack(run), db=data["runs"])
            for table, key, value in batch.value_changes():
                if value is None:
                    txn.delete(_value_key(table, key), db=data["values"])
                else:
                    place = _value_key(table, key)
                    txn.put(place, _encode_value(place, key, value), db=data["values"])

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
                delivery = self._decode_delivery(recipient or name.decode(errors="replace"), key, data)
                if state is None or delivery.state == state:
                    left -= 1
                    yield delivery

    def count(self, recipient: str, state: int | None = None) -> int:
        """How many messages are stored for a recipient."""
        return sum(delivery.count for delivery in self.deliveries(recipient, state))

    def value(self, table: str, key: bytes) -> bytes | None:
        """One value, or None."""
        place = _value_key(table, key)
        data = self._query(lambda txn: txn.get(place, db=self._databases["values"]))
        return None if data is None else self._decode_value(place, data)[1]

    def values(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All (key, value) of a table."""
        for place, data in self._pages("values", table.encode() + b"\0", size=VALUE_PAGE):
            yield self._decode_value(place, data)

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

    def counts(self) -> Counts | None:
        """How many rows there are, as LMDB counts them."""

        def read(txn: Transaction) -> Counts:
            return Counts._make([txn.stat(self._databases[name])["entries"] for name in ("runs", "deliveries", "values")])

        return self._query(read)

    def remains(self, say: Callable[[str], object]) -> Iterator[StoredDelivery | StoredValue]:
        """All deliveries and values that are whole, see `Store.remains`."""
        names = {}
        for number, name in self._both_ways("names", say):
            names[number] = name.decode(errors="replace")
        for key, data in self._both_ways("deliveries", say):
            try:
                yield self._decode_delivery(names.get(key[:4], ""), key, data)
            except StoreError as error:
                say(error.cause)
        for place, data in self._both_ways("values", say):
            try:
                yield StoredValue(place.partition(b"\0")[0].decode(errors="replace"), *self._decode_value(place, data))
            except StoreError as error:
                say(error.cause)

    def _both_ways(self, database: str, say: Callable[[str], object]) -> Iterator[tuple[bytes, bytes]]:
        with self._begin() as txn:
            for forward in (True, False):
                cursor = txn.cursor(self._databases[database])
                try:
                    yield from cursor.iternext() if forward else cursor.iterprev()
                except lmdb.Error as error:
                    say(self._error(error).cause)
                else:
                    return

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """One read transaction, see `Store.snapshot`. After a page that cannot be read LMDB reads nothing more in it."""
        with self._open_environment().begin() as self._snapshot:
            try:
                yield
            finally:
                self._snapshot = None

    def check_pages(self) -> None:
        """Walk through all pages, while nobody writes. Raises StoreError (corrupt)."""
        self._guarded(self._verify)
        self._guarded(partial(self._check_meta, self._folder / "data.mdb"))

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
        refuse_half_salvaged(path, self.name)
        if path.exists() and 0 < path.stat().st_size <= CHECKED_SIZE:
            self._verify()
        if path.exists() and path.stat().st_size >= 8192:
            self._check_meta(path)
        self._start()
        with self._open_environment().begin(write=True) as txn:
            meta = self._databases["meta"]
            if txn.get(b"program", db=meta) is None and txn.stat(meta)["entries"] == 0:
                txn.put(b"program", b"mqmesh", db=meta)
                txn.put(b"schema", str(SCHEMA_VERSION).encode(), db=meta)
            self._check_version(txn, CONVERTED)
        self._convert()
        with self._open_environment().begin(write=True) as txn:
            self._tidy(txn)
        sync_folder(self._folder)

    def _verify(self) -> None:
        try:
            problems = verify(self.name)  # type: ignore[no-untyped-call]
        except VerifyError as error:
            raise damaged(self.name, str(error)) from error
        if problems:
            raise damaged(self.name, problems[0])

    def _check_meta(self, path: Path) -> None:
        """The two meta pages: commits write them in turn, so that they are one transaction apart. LMDB takes the later one unasked."""
        with open(path, "rb") as file:
            head = file.read(4096)
            start = head.find(_MAGIC, 0, 64)
            size = int.from_bytes(head[start + 24 : start + 28], sys.byteorder)
            if start < 0 or not 512 <= size <= 65536 or size & (size - 1):
                raise damaged(self.name, "its first page is changed")
            file.seek(size)
            second = file.read(4096)
        at = start + 24 + 2 * 48 + 8  # behind version, addresses, two databases and the number of the last page
        first, other = (int.from_bytes(page[at : at + 8], sys.byteorder) for page in (head, second))
        if (first or other) and abs(first - other) != 1:
            raise damaged(self.name, f"its meta pages do not follow each other (transactions {first} and {other})")

    def _start(self) -> None:
        self._reserve_lock_file()
        environment = lmdb.open(self.name, self._map_size, metasync=self._sync, mode=0o600, max_dbs=len(_DATABASES), max_spare_txns=4)
        self._environment = environment
        pages = environment.info()["last_pgno"] + 1
        if (self._folder / "data.mdb").stat().st_size < pages * environment.stat()["psize"]:
            raise damaged(self.name, "its file is shorter than it says")
        self._databases = {name: environment.open_db(name.encode()) for name in _DATABASES}

    def _reserve_lock_file(self) -> None:
        """LMDB maps this file for writing: on a full disk a page of it that is not there yet would end the process (SIGBUS)."""
        file = os.open(self._folder / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            reserve(file, LOCK_SIZE)
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

    def _check_version(self, txn: Transaction, converted: Collection[int] = ()) -> None:
        meta = self._databases["meta"]
        found = txn.get(b"schema", db=meta)
        if txn.get(b"program", db=meta) != b"mqmesh" or found is None:
            raise StoreError(Kind.SCHEMA, self.name, "is an LMDB folder of another program: name another folder")
        if not found.isdigit():
            raise damaged(self.name, f"its schema version is {found[:20]!r}")
        if int(found) != SCHEMA_VERSION and int(found) not in converted:
            raise wrong_version(self.name, int(found))

    def _convert(self) -> None:
        """Convert the rows of schema version 1 (mqmesh 0.1) in place, in steps that say how far they are: the next start goes on there."""
        meta = self._databases["meta"]
        environment = self._open_environment()
        with environment.begin(write=True) as txn:
            if txn.get(b"schema", db=meta) != str(SCHEMA_VERSION).encode():
                txn.put(b"schema", str(SCHEMA_VERSION).encode(), db=meta)
                txn.put(b"conversion", b"runs\0", db=meta)
            names = dict(txn.cursor(self._databases["names"]).iternext())
        while True:
            with environment.begin(write=True) as txn:
                progress = txn.get(b"conversion", db=meta)
                if progress is None:
                    return
                table, _, after = progress.partition(b"\0")
                cursor = txn.cursor(self._databases[table.decode()])
                found = cursor.set_range(after + b"\0") if after else cursor.first()
                rows = list(islice(cursor, CONVERTED_STEP)) if found else []
                for key, data in rows:
                    txn.put(key, _converted(table, key, data, names), db=self._databases[table.decode()])
                if rows:
                    txn.put(b"conversion", table + b"\0" + rows[-1][0], db=meta)
                elif table == b"values":
                    txn.delete(b"conversion", db=meta)
                else:
                    txn.put(b"conversion", {b"runs": b"deliveries", b"deliveries": b"values"}[table] + b"\0", db=meta)

    def _tidy(self, txn: Transaction) -> None:
        """Forget runs that no delivery names and names that have no delivery."""
        deliveries = txn.cursor(self._databases["deliveries"])
        named = {data[4:12] for data in deliveries.iternext(keys=False, values=True)}
        runs = txn.cursor(self._databases["runs"])
        for key in [key for key in runs.iternext(keys=True, values=False) if key not in named]:
            txn.delete(key, db=self._databases["runs"])
        for number, name in list(txn.cursor(self._databases["names"]).iternext()):
            if not (deliveries.set_range(number) and deliveries.key().startswith(number)):
                txn.delete(number, db=self._databases["names"])
                txn.delete(_short(name), db=self._databases["recipients"])
        self._load_numbers(txn)

    def _load_numbers(self, txn: Transaction) -> None:
        numbers = {}
        for number, name in txn.cursor(self._databases["names"]).iternext():
            if txn.get(_short(name), db=self._databases["recipients"]) != number:
                raise damaged(self.name, f"the recipient {name[:40]!r} has another number than its deliveries")
            numbers[name.decode(errors="replace")] = _NUMBER.unpack(number)[0]
        if len(numbers) != txn.stat(self._databases["recipients"])["entries"]:
            raise damaged(self.name, "it has numbers of recipients without names")
        self._numbers = numbers
        self._next_number = max(self._numbers.values(), default=0) + 1

    def _open_environment(self) -> lmdb.Environment:
        if self._environment is None:
            raise StoreError(Kind.OTHER, self.name, "is not open")
        return self._environment

    def _begin(self) -> AbstractContextManager[Transaction]:
        """The transaction of a query."""
        return self._open_environment().begin() if self._snapshot is None else contextlib.nullcontext(self._snapshot)

    def _find(self, txn: Transaction, recipient: str) -> bytes:
        """The recipient's number as bytes, b"" if it is not known."""
        return txn.get(_short(recipient.encode()), db=self._databases["recipients"]) or b""

    def _query(self, read: Callable[[Transaction], T]) -> T:
        def run() -> T:
            with self._lock, self._begin() as txn:
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
            raise damaged(self.name, f"run {run} is cut off") from error
        if checksum != crc32(memoryview(data)[4:], crc32(_RUN_ID.pack(run))):
            raise damaged(self.name, f"run {run} does not have its checksum")
        properties = _RUN.size + topic_length
        payloads = properties + properties_length
        expires_at = None if math.isnan(expires) else expires
        topic = data[_RUN.size : properties]
        return StoredRun(run, topic, qos, retain == 1, data[properties:payloads], expires_at, published, length, count, data[payloads:])

    def _decode_value(self, place: bytes, data: bytes) -> tuple[bytes, bytes]:
        if len(data) < _VALUE.size or _VALUE.unpack_from(data)[0] != crc32(memoryview(data)[4:], crc32(place)):
            table, _, rest = place.partition(b"\0")
            raise damaged(self.name, f"the value at {rest[1:41]!r} in {table.decode(errors='replace')} does not have its checksum")
        end = _VALUE.size + _VALUE.unpack_from(data)[1]
        return data[_VALUE.size : end], data[end:]

    def _decode_delivery(self, recipient: str, key: bytes, data: bytes) -> StoredDelivery:
        try:
            checksum, *fields = _DELIVERY.unpack_from(data)
            order = _DELIVERY_KEY.unpack(key)[1]
        except StructError as error:
            raise damaged(self.name, "a delivery is cut off") from error
        if checksum != crc32(memoryview(data)[4:], crc32(key, crc32(recipient.encode()))):
            raise damaged(self.name, f"delivery {order} of {recipient!r} does not have its checksum")
        return StoredDelivery._make((recipient, order, *fields, data[_DELIVERY.size :]))

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except lmdb.Error as error:
            raise self._error(error) from error
        except OSError as error:
            raise os_error(self.name, error) from error

    def _error(self, error: lmdb.Error) -> StoreError:
        code = getattr(error, "code", 0)
        if isinstance(error, lmdb.MapFullError):
            return StoreError(Kind.FULL, self.name, f"has reached its largest size of {self._map_size >> 20} MiB (map_size): raise it")
        if code == errno.ENOSPC or "No space left" in str(error):
            return full(self.name)
        if isinstance(error, lmdb.ReadonlyError) or code in (errno.EROFS, errno.EACCES, errno.EPERM):
            return read_only(self.name, str(error))
        if isinstance(error, _CORRUPT):
            return damaged(self.name, str(error))
        return StoreError(Kind.OTHER, self.name, str(error))


def _converted(table: bytes, key: bytes, data: bytes, names: dict[bytes, bytes]) -> bytes:
    """A row of schema version 1 as it is now; one whose checksum was wrong keeps a wrong one."""
    if table == b"deliveries":
        return crc32(data, crc32(key, crc32(names.get(key[:4], b"")))).to_bytes(4, "big") + data
    right = crc32(memoryview(data)[4:]) == int.from_bytes(data[:4], "big")
    return (crc32(memoryview(data)[4:], crc32(key)) ^ (not right)).to_bytes(4, "big") + data[4:]


def _encode_run(run: StoredRun) -> bytes:
    expires = math.nan if run.expires_at is None else run.expires_at
    fields = (run.published_at, expires, run.length, run.count, run.qos, run.retain, len(run.topic), len(run.properties))
    data = b"".join((_RUN.pack(0, *fields), run.topic, run.properties, run.payloads))
    return _sealed(_RUN_ID.pack(run.id), data)


def _encode_value(place: bytes, key: bytes, value: bytes) -> bytes:
    return _sealed(place, _VALUE.pack(0, len(key)) + key + value)


def _encode_delivery(delivery: StoredDelivery, seed: int) -> bytes:
    _, _, run, start, count, qos, state, packet_id, extra = delivery
    data = _DELIVERY.pack(0, run, start, count, qos, state, packet_id)[4:] + extra
    return crc32(data, seed).to_bytes(4, "big") + data


def _sealed(key: bytes, data: bytes) -> bytes:
    """A row whose first four bytes are to be its checksum."""
    return crc32(memoryview(data)[4:], crc32(key)).to_bytes(4, "big") + data[4:]


def _short(key: bytes) -> bytes:
    """A key that LMDB takes: itself, or FF (which no UTF-8 starts with) and a digest."""
    return key if len(key) <= LONGEST_KEY else b"\xff" + sha256(key).digest()


def _value_key(table: str, key: bytes) -> bytes:
    """The table, 00, and the key itself behind 00 or its digest behind 01."""
    head = table.encode() + b"\0"
    return head + b"\0" + key if len(head) + 1 + len(key) <= LONGEST_KEY else head + b"\1" + sha256(key).digest()
