"""What every store does, checked against each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from mqmesh.store import Batch, Kind, Store, StoreError
from mqmesh.store import folder as folder_module
from mqmesh.store import lmdb as lmdb_module
from mqmesh.store import postgresql as postgresql_module
from mqmesh.store import postgresql_schema as schema_module
from mqmesh.store import sqlite as sqlite_module
from mqmesh.store.memory import MemoryStore
from mqmesh.store.records import RUN_WEIGHT, Counts, StoredValue
from support.examples import examples
from support.stores import Place, batch, batch_of, changes, content, delivery, run


def test_an_empty_store_answers(store: Store) -> None:
    assert list(store.deliveries()) == []
    assert list(store.deliveries("porto", state=1, after=3, limit=2)) == []
    assert store.run(1) is None
    assert store.runs([1, 2]) == {}
    assert store.count("porto") == 0
    assert store.value("sessions", b"porto") is None
    assert list(store.values("sessions")) == []
    assert store.highest_run() == 0
    assert store.highest_order("porto") == 0
    store.commit(Batch())


@pytest.mark.parametrize(
    "stored",
    [
        run(1),
        run(2**63 - 1, count=200, payload=bytes(range(64))),
        run(3, count=5, payload=b""),
        run(4, topic="größe/€/𝄞".encode(), retain=True, qos=2, properties=b"\x26\x00\x01a\x00\x01b", expires_at=1_800_000_000.25),
        run(5, topic=b"t" * 65535, properties=b"p" * 100_000),
        run(6, payload=b"\xff" * 3_000_000),
        run(7, payload=bytes(256), expires_at=0.0, published_at=0.0),
    ],
    ids=lambda stored: f"run {stored.id}",
)
def test_a_run_comes_back_as_it_was(store: Store, stored: Any) -> None:
    store.commit(batch(stored, delivery("porto", 1, stored.id)))
    assert store.run(stored.id) == stored
    assert type(store.run(stored.id).retain) is bool  # type: ignore[union-attr]
    assert store.highest_run() == stored.id


@pytest.mark.parametrize(
    "stored",
    [
        delivery("porto", 1, 1),
        delivery(
            "s/größe 𝄞", 2**63 - 1, 2**63 - 1, start=2**32 - 1, count=2**32 - 1, qos=2, state=65535, packet_id=65535, extra=bytes(256)
        ),
        delivery("x" * 65535, 1, 1, extra=b"e" * 100_000),
    ],
    ids=["small", "extreme", "long"],
)
def test_a_delivery_comes_back_as_it_was(store: Store, stored: Any) -> None:
    store.commit(batch(run(stored.run), stored))
    assert list(store.deliveries(stored.recipient)) == [stored]
    assert list(store.deliveries()) == [stored]
    assert store.count(stored.recipient) == stored.count
    assert store.highest_order(stored.recipient) == stored.order


def test_deliveries_come_in_order_and_can_be_chosen(store: Store) -> None:
    numbers = [*range(1, 256), *range(65530, 65540), 2**31, 2**40]
    made = batch(run(1, count=3), *(delivery("porto", order, 1, count=3, state=order % 3) for order in reversed(numbers)))
    made.put_delivery(delivery("porto2", 7, 1, count=2))
    store.commit(made)
    assert [found.order for found in store.deliveries("porto")] == numbers
    assert [found.order for found in store.deliveries("porto", after=255, limit=4)] == numbers[255:259]
    assert [found.order for found in store.deliveries("porto", state=1)] == [order for order in numbers if order % 3 == 1]
    assert [found.order for found in store.deliveries("porto", state=1, after=100, limit=2)] == [103, 106]
    assert list(store.deliveries("porto", limit=0)) == []
    assert sorted((found.recipient, found.order) for found in store.deliveries(after=2**31)) == [("porto", 2**40)]
    assert store.count("porto") == 3 * len(numbers)
    assert store.count("porto", state=0) == 3 * sum(order % 3 == 0 for order in numbers)
    assert store.count("porto2") == 2
    assert store.count("port") == 0


def test_many_rows_are_read_and_deleted_whole(store: Store) -> None:
    made = Batch()
    for number in range(1, 2501):
        made.put_run(run(number, payload=b"%d" % number))
        made.put_delivery(delivery("porto" if number % 2 else "lyon", number, number))
        made.put_value("retained", b"key %d" % number, b"value %d" % number)
    store.commit(made)
    assert [found.order for found in store.deliveries("porto")] == list(range(1, 2501, 2))
    assert len(list(store.deliveries())) == 2500
    assert len(list(store.deliveries(limit=1001))) == 1001
    assert dict(store.values("retained")) == {b"key %d" % number: b"value %d" % number for number in range(1, 2501)}
    found = store.runs(range(1, 3000))
    assert {number: stored.payloads for number, stored in found.items()} == {number: b"%d" % number for number in range(1, 2501)}
    gone = Batch()
    for number in range(1, 2001):
        gone.delete_run(number)
        gone.delete_delivery("porto" if number % 2 else "lyon", number)
        gone.delete_value("retained", b"key %d" % number)
    store.commit(gone)
    assert sorted(found.order for found in store.deliveries()) == list(range(2001, 2501))
    assert sorted(store.runs(range(1, 3000))) == list(range(2001, 2501))
    assert len(dict(store.values("retained"))) == 500


def test_changes_have_their_order_within_a_batch(store: Store) -> None:
    store.commit(batch(run(1, count=9), delivery("porto", 1, 1), delivery("porto", 2, 1), delivery("lyon", 1, 1)))
    second = Batch()
    second.delete_recipient("porto")
    second.put_delivery(delivery("porto", 2, 1, state=7))
    second.put_delivery(delivery("porto", 3, 1))
    second.delete_delivery("porto", 3)
    second.delete_delivery("lyon", 1)
    second.put_delivery(delivery("lyon", 1, 1, count=5, start=4))
    second.delete_delivery("nobody", 1)
    second.delete_recipient("nobody")
    store.commit(second)
    assert list(store.deliveries("porto")) == [delivery("porto", 2, 1, state=7)]
    assert list(store.deliveries("lyon")) == [delivery("lyon", 1, 1, count=5, start=4)]


def test_values_are_set_replaced_and_deleted(store: Store) -> None:
    first = Batch()
    for key in (b"k", b"\x00", b"\xff" * 65535, b"k" * 504, b"k" * 505):
        first.put_value("sessions", key, b"1" + key)
    first.put_value("retained", b"k", b"")
    store.commit(first)
    assert store.value("sessions", b"\xff" * 65535) == b"1" + b"\xff" * 65535
    assert store.value("retained", b"k") == b""
    second = Batch()
    second.put_value("sessions", b"k", b"v" * 1_000_000)
    second.delete_value("sessions", b"\x00")
    second.delete_value("sessions", b"missing")
    second.delete_value("retained", b"k")
    store.commit(second)
    assert store.value("sessions", b"k") == b"v" * 1_000_000
    assert store.value("sessions", b"\x00") is None
    assert set(dict(store.values("sessions"))) == {b"k", b"\xff" * 65535, b"k" * 504, b"k" * 505}
    assert list(store.values("retained")) == []
    assert list(store.values("session")) == []


def test_sizes_are_those_of_what_is_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each store counts for itself, page by page; together with the deliveries this is what a writer sums up when it starts."""
    for module in (sqlite_module, lmdb_module, postgresql_module):
        monkeypatch.setattr(module, "SIZES_PAGE", 2)
    assert list(store.run_sizes()) == []
    assert list(store.value_sizes()) == []
    runs = [
        run(1),
        run(2, count=3, payload=bytes(2000)),
        run(4, payload=b""),
        run(5, payload=bytes(3_000_000)),
        run(2**63 - 1, properties=b"p"),
    ]
    made = batch(*runs, *(delivery("porto", order, stored.id) for order, stored in enumerate(runs, 1)))
    values = {
        ("sessions", b"a"): b"",
        ("sessions", b"b"): bytes(9),
        ("retained", b"\xff" * 3000): bytes(100_000),
        ("w", b"a"): b"1",
        ("z", b"\0"): b"2",
    }
    for (table, key), value in values.items():
        made.put_value(table, key, value)
    store.commit(made)
    assert sorted(store.run_sizes()) == [(stored.id, stored.weight - RUN_WEIGHT) for stored in runs]
    assert sorted(store.value_sizes()) == sorted((table, key, len(value)) for (table, key), value in values.items())


def test_a_store_on_a_disk_says_what_space_there_is(place: Place) -> None:
    store = place.make()
    store.open()
    space = store.space()
    store.close()
    if place.kind in ("memory", "failing", "postgresql"):
        assert space is None
    else:
        assert space is not None
        assert space > 0


def test_a_batch_may_be_given_twice(store: Store) -> None:
    store.commit(batch(run(1), delivery("lyon", 1, 1)))
    made = batch(run(2, count=4), delivery("porto", 1, 2), delivery("porto", 2, 2))
    made.delete_recipient("lyon")
    made.delete_run(1)
    made.put_value("sessions", b"porto", b"1")
    store.commit(made)
    once = content(store)
    made.tried = True
    store.commit(made)
    assert content(store) == once
    made.tried = False
    store.commit(made)
    assert content(store) == once


def test_a_store_keeps_what_it_has_when_closed_and_forgets_orphans(place: Place) -> None:
    store = place.make()
    store.open()
    made = batch(run(1), run(2), run(3), delivery("porto", 5, 1), delivery("lyon", 1, 3))
    made.put_value("sessions", b"porto", b"kept")
    store.commit(made)
    gone = Batch()
    gone.delete_delivery("lyon", 1)
    store.commit(gone)
    assert store.highest_run() == 3
    store.close()
    store.close()
    again = place.make()
    again.open()
    assert list(again.deliveries()) == [delivery("porto", 5, 1)]
    assert again.runs([1, 2, 3]) == {1: run(1)}
    assert again.highest_run() == 1
    assert again.value("sessions", b"porto") == b"kept"
    again.commit(batch(run(2), delivery("lyon", 1, 2)))
    assert len(list(again.deliveries())) == 2
    again.close()


def test_a_closed_store_says_so(place: Place) -> None:
    if place.kind in ("memory", "failing"):
        pytest.skip("a store in memory has nothing to close")
    store = place.make()
    store.open()
    store.close()
    with pytest.raises(StoreError, match="is not open"):
        store.commit(batch(run(1)))
    with pytest.raises(StoreError, match="is not open"):
        store.run(1)


def test_a_store_is_open_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if place.kind in ("memory", "failing"):
        pytest.skip("a store in memory belongs to one broker by its nature")
    first, second = place.make(), place.make()
    first.open()
    with monkeypatch.context() as patch:
        for module in (folder_module, schema_module):
            patch.setattr(module, "LOCK_WAIT", 0.1)
        with pytest.raises(StoreError, match=r"is open in another .*stop that broker, or give this one") as caught:
            second.open()
    assert caught.value.kind is Kind.BUSY
    first.commit(batch(run(1), delivery("porto", 1, 1)))
    first.close()
    second.open()
    assert second.count("porto") == 1
    second.close()


def test_attach_reads_what_another_left(place: Place) -> None:
    if place.kind in ("memory", "failing"):
        pytest.skip("nobody else can see a store in memory")
    reader = place.make()
    with pytest.raises(StoreError, match="no broker has used it yet"):
        reader.attach()
    writer = place.make()
    writer.open()
    writer.commit(batch(run(1), delivery("porto", 1, 1)))
    if place.kind == "lmdb":  # one process may not open it twice
        writer.close()
    reader = place.make()
    reader.attach()
    assert list(reader.deliveries()) == [delivery("porto", 1, 1)]
    assert reader.run(1) == run(1)
    with pytest.raises(StoreError):
        reader.commit(batch(run(2)))
    reader.close()
    writer.close()


def test_inside_a_snapshot_queries_see_one_state(place: Place, store: Store) -> None:
    if place.kind in ("memory", "failing"):
        pytest.skip("nobody else can see a store in memory")
    first = batch(run(1), delivery("porto", 1, 1))
    first.put_value("sessions", b"porto", b"before")
    store.commit(first)

    def seen() -> tuple[Any, ...]:
        return set(store.remains(problems.append)), store.run(1), store.run(2), store.counts()

    problems: list[str] = []
    before = seen()
    second = batch(run(2), delivery("porto", 2, 2))
    second.delete_delivery("porto", 1)
    second.delete_run(1)
    second.put_value("sessions", b"porto", b"after")
    with store.snapshot():
        assert seen() == before
        store.commit(second)
        counts = Batch()
        counts.counts = Counts(7, 7, 7)
        store.commit(counts)
        assert seen() == before
    assert seen()[:3] == ({delivery("porto", 2, 2), StoredValue("sessions", b"porto", b"after")}, None, run(2))
    assert seen()[3] != before[3] or "lmdb" in place.kind
    assert not problems


def test_queries_of_another_thread_never_see_half_a_batch(store: Store) -> None:
    done = threading.Event()
    wrong: list[Any] = []
    seen: set[int] = set()

    def read() -> None:
        while not done.is_set():
            found = [(entry.recipient, entry.run) for entry in store.deliveries("porto")]
            if len(found) not in (0, 10) or len({number for _, number in found}) > 1:
                wrong.append(found)
            seen.add(found[0][1] if found else 0)

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(1, 41):
        made = batch(run(number), *(delivery("porto", order, number) for order in range(1, 11)))
        made.delete_run(number - 1)
        store.commit(made)
        assert store.highest_run() == number
    done.set()
    thread.join()
    assert not wrong


class AgainstMemory(RuleBasedStateMachine):
    """Random batches into a store and into the one in memory; both always hold the same."""

    new_place: Callable[[str], Place]
    kind: str

    @initialize()
    def begin(self) -> None:
        self.place = type(self).new_place(self.kind)
        self.store = self.place.make()
        self.store.open()
        self.memory = MemoryStore()

    @rule(made=st.lists(changes, min_size=1, max_size=12), tried=st.booleans())
    def commit(self, made: list[tuple[str, tuple[Any, ...]]], tried: bool) -> None:
        ready = batch_of(made)
        ready.tried = tried
        self.store.commit(ready)
        self.memory.commit(ready)
        assert content(self.store) == content(self.memory)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.place.make()
        self.store.open()
        self.memory.open()
        assert content(self.store) == content(self.memory)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("sqlite", examples(40)),
        ("lmdb", examples(40)),
        pytest.param("postgresql", 15, marks=pytest.mark.service),
    ],
)
def test_random_batches_do_the_same_as_in_memory(kind: str, count: int, new_place: Callable[[str], Place]) -> None:
    machine = type("Machine", (AgainstMemory,), {"kind": kind, "new_place": staticmethod(new_place)})
    chosen = settings(max_examples=count, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=chosen)
