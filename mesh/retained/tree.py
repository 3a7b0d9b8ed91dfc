"""The records of a site and the tree of hashes over them.

Topics fall into 65,536 buckets by a hash. A bucket's hash is the exclusive or of its records' (topic, key) hashes; above the buckets
stand three more levels and a root, each node the exclusive or of its 16 children. So a change touches five numbers, whatever
the number of topics, and two sites with the same records have the same numbers at each node.

    level     0     1     2      3       4
    nodes     1    16   256   4096   65536 = buckets

Invariants
- each node is the exclusive or of its children, each bucket that of its records;
- whether a record is buried is no part of its hash.

It does not know which of two records counts, nor who else has them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from .record import Record, record_hash, topic_id

FAN_OUT = 16
DEPTH = 4
BUCKETS = FAN_OUT**DEPTH


class RecordTree:
    """topic -> record, with hashes."""

    def __init__(self) -> None:
        self._records: dict[bytes, Record] = {}
        self._buckets: list[list[Record] | None] = [None] * BUCKETS
        self._levels = [array("Q", bytes(8 * FAN_OUT**level)) for level in range(DEPTH + 1)]
        self.buried = 0  # how many records are
        self.alive = 0  # exclusive or of the hashes of those that are not

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    @property
    def root(self) -> int:
        """One number for everything."""
        return self._levels[0][0]

    def get(self, topic: bytes) -> Record | None:
        """The topic's record."""
        return self._records.get(topic)

    def set(self, record: Record) -> None:
        """Keep a record in place of its topic's earlier one."""
        identifier = topic_id(record.topic)
        index = identifier[0] << 8 | identifier[1]
        bucket = self._buckets[index]
        old = self._records.get(record.topic)
        change = fresh = record_hash(identifier, record.key)
        if old is None:
            if bucket is None:
                self._buckets[index] = [record]
            else:
                bucket.append(record)
        else:
            assert bucket is not None
            bucket[bucket.index(old)] = record
            before = record_hash(identifier, old.key)
            if old.kind:
                self.buried -= 1
            else:
                self.alive ^= before
            change ^= before
        if record.kind:
            self.buried += 1
        else:
            self.alive ^= fresh
        self._records[record.topic] = record
        self._change(index, change)

    def delete(self, record: Record) -> None:
        """Forget a record that is here."""
        identifier = topic_id(record.topic)
        index = identifier[0] << 8 | identifier[1]
        bucket = self._buckets[index]
        assert bucket is not None
        bucket.remove(record)
        if not bucket:
            self._buckets[index] = None
        change = record_hash(identifier, record.key)
        if record.kind:
            self.buried -= 1
        else:
            self.alive ^= change
        del self._records[record.topic]
        self._change(index, change)

    def _change(self, index: int, change: int) -> None:
        for level in reversed(self._levels):
            level[index] ^= change
            index >>= 4

    def children(self, level: int, index: int) -> array[int]:
        """The hashes of a node's 16 children. level: 0 to 3, of the node."""
        return self._levels[level + 1][index * FAN_OUT : (index + 1) * FAN_OUT]

    def bucket(self, index: int) -> list[tuple[bytes, Record]]:
        """(identifier, record) of each record of a bucket, in no particular order."""
        return [(topic_id(record.topic), record) for record in self._buckets[index] or ()]
