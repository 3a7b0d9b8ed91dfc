"""Runs, deliveries and batches for the store's tests, and what two stores are compared by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from mqmesh.store import Batch, Store, StoredDelivery, StoredRun

TABLES = ("sessions", "retained")


@dataclass
class Place:
    """Somewhere that keeps data while stores come and go. kind: of the store. make: another store object on the same data."""

    kind: str
    make: Callable[[], Store]


def run(id: int, count: int = 1, payload: bytes = b"21.5", topic: bytes = b"site/1/temperature", **fields: Any) -> StoredRun:
    """A run of `count` equal payloads."""
    values = {"qos": 1, "retain": False, "properties": b"", "expires_at": None, "published_at": 1_700_000_000.5, **fields}
    return StoredRun(id=id, topic=topic, length=len(payload), count=count, payloads=payload * count, **values)


def delivery(recipient: str, order: int, run: int, count: int = 1, **fields: Any) -> StoredDelivery:
    """A delivery of the first `count` messages."""
    values = {"start": 0, "qos": 1, "state": 0, "packet_id": 0, "extra": b"", **fields}
    return StoredDelivery(recipient=recipient, order=order, run=run, count=count, **values)


def batch(*changes: StoredRun | StoredDelivery) -> Batch:
    """A batch that puts these."""
    made = Batch()
    for change in changes:
        if isinstance(change, StoredRun):
            made.put_run(change)
        else:
            made.put_delivery(change)
    return made


def content(store: Store) -> dict[str, Any]:
    """All that can be asked of a store, in an order of our own."""
    deliveries = list(store.deliveries())
    by_recipient: dict[str, list[StoredDelivery]] = {}
    for found in deliveries:
        by_recipient.setdefault(found.recipient, []).append(found)
    return {
        "deliveries": by_recipient,
        "runs": store.runs({found.run for found in deliveries}),
        "values": {table: dict(store.values(table)) for table in TABLES},
        "highest_run": store.highest_run(),
        "highest_order": {recipient: store.highest_order(recipient) for recipient in by_recipient},
        "count": {recipient: store.count(recipient) for recipient in by_recipient},
    }


# Changes as tuples: (name of a method of `Batch`, arguments). Few names and numbers, so that they meet.
recipients = st.sampled_from(["porto", "lyon", "s/ä€𝄞", "x" * 600])
orders = st.integers(1, 12)
run_ids = st.integers(1, 8)
keys = st.sampled_from([b"a", b"\x00\xff", b"k" * 505, b"k" * 600, b"topic/" + b"t" * 3000])
wall_clock = st.floats(0, 4e9, width=64)
deliveries = st.builds(
    StoredDelivery,
    recipient=recipients,
    order=orders,
    run=run_ids,
    start=st.integers(0, 2**32 - 1),
    count=st.integers(1, 2**20),
    qos=st.integers(0, 2),
    state=st.integers(0, 65535),
    packet_id=st.integers(0, 65535),
    extra=st.binary(max_size=20),
)


def _made_run(id: int) -> StoredRun:
    # A run never changes: everything of it follows from its id.
    return run(
        id,
        count=id,
        payload=bytes([id]) * (id * 100 % 700),
        topic=b"t/%d" % id,
        retain=id % 2 == 0,
        qos=id % 3,
        properties=b"\x01" * id,
        expires_at=None if id % 2 else id * 1.25,
    )


changes = st.one_of(
    run_ids.map(lambda id: ("put_run", (_made_run(id),))),
    run_ids.map(lambda id: ("delete_run", (id,))),
    deliveries.map(lambda found: ("put_delivery", (found,))),
    st.tuples(recipients, orders).map(lambda key: ("delete_delivery", key)),
    recipients.map(lambda recipient: ("delete_recipient", (recipient,))),
    st.tuples(st.sampled_from(TABLES), keys, st.binary(max_size=40)).map(lambda change: ("put_value", change)),
    st.tuples(st.sampled_from(TABLES), keys).map(lambda change: ("delete_value", change)),
)


def batch_of(made: list[tuple[str, tuple[Any, ...]]]) -> Batch:
    """The batch that such changes make."""
    result = Batch()
    for name, arguments in made:
        getattr(result, name)(*arguments)
    return result
