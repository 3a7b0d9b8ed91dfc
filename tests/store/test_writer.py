"""The writer: what it leaves out makes no difference, what it reports is kept, and a failing store changes neither."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mqmesh.store import Batch, Kind, StoredDelivery, StoreError, Writer
from mqmesh.store.coalescer import Coalescer
from mqmesh.store.memory import MemoryStore
from mqmesh.store.records import DELIVERY_WEIGHT, EXTRA, GONE_WEIGHT, VALUE_WEIGHT, Counts
from mqmesh.store.sqlite import SqliteStore
from support.examples import examples
from support.services import PATIENCE
from support.storage.failing_store import FailingStore
from support.stores import batch as batch_with
from support.stores import content, delivery, run

# The property: against a naive replay.


class Naive:
    """Every change done at once, on dictionaries; a run is there as long as a delivery names it."""

    def __init__(self) -> None:
        self.deliveries: dict[str, dict[int, StoredDelivery]] = {}
        self.values: dict[str, dict[bytes, bytes]] = {"sessions": {}, "retained": {}}

    def runs(self) -> set[int]:
        return {found.run for orders in self.deliveries.values() for found in orders.values()}

    def content(self) -> tuple[Any, ...]:
        deliveries = {name: dict(sorted(orders.items())) for name, orders in self.deliveries.items() if orders}
        return deliveries, self.runs(), {table: dict(values) for table, values in self.values.items()}


def held(store: MemoryStore) -> tuple[Any, ...]:
    """What a store holds, runs that no delivery names included, in the shape of `Naive.content`."""
    found = content(store)
    deliveries = {name: {entry.order: entry for entry in rows} for name, rows in found["deliveries"].items()}
    return deliveries, set(store._runs), found["values"]


def weight(batch: Batch) -> int:
    """The size of a batch, counted anew."""
    gone = len(batch.recipients) + len(batch.runs_gone) + sum(map(len, batch.gone.values()))
    values = sum(VALUE_WEIGHT + len(key) + len(value or b"") for _, key, value in batch.value_changes())
    deliveries = sum(DELIVERY_WEIGHT + len(found.extra) for found in batch.puts())
    return GONE_WEIGHT * gone + values + deliveries + sum(stored.weight for stored in batch.runs.values())


def kept_weight(store: MemoryStore) -> int:
    """What a store holds, weighed anew."""
    rows = list(store.deliveries())
    values = [(key, value) for table in ("sessions", "retained") for key, value in store.values(table)]
    return (
        sum(DELIVERY_WEIGHT + max(EXTRA, len(found.extra)) for found in rows)
        + sum(stored.weight for stored in store.runs({found.run for found in rows}).values())
        + sum(VALUE_WEIGHT + len(key) + len(value) for key, value in values)
    )


recipients = st.sampled_from(["porto", "lyon", "ghent"])
orders = st.integers(1, 6)
extras = st.binary(max_size=5) | st.sampled_from([bytes(EXTRA), bytes(EXTRA + 1), bytes(3 * EXTRA)])


class Coalescing(RuleBasedStateMachine):
    """A coalescer whose batches go to a store, sometimes failing with or without effect, and the naive replay beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.settled: list[int] = []
        self.expected_settled: list[int] = []
        self.unreported: set[int] = set()  # runs that are not known to be committed
        self.coalescer = Coalescer(self.settled.append)
        self.store = MemoryStore()
        self.naive = Naive()
        self.last_run = 0
        self.at_seal: tuple[Any, ...] = ()
        self.pending: set[int] = set()  # the tickets of changes that are not known to be committed

    def runs_gone(self, before: set[int]) -> None:
        self.expected_settled += [gone for gone in before - self.naive.runs() if gone in self.unreported]

    @rule(places=st.lists(st.tuples(recipients, orders), min_size=1, max_size=4, unique=True), extra=extras)
    def publish(self, places: list[tuple[str, int]], extra: bytes) -> None:
        self.last_run += 1
        before = self.naive.runs()
        self.unreported.add(self.last_run)
        self.coalescer.put_run(run(self.last_run, payload=extra))
        for recipient, order in places:
            made = delivery(recipient, order, self.last_run, extra=extra)
            self.coalescer.put_delivery(made)
            self.naive.deliveries.setdefault(recipient, {})[order] = made
        self.runs_gone(before)

    @precondition(lambda self: self.naive.runs())
    @rule(data=st.data(), recipient=recipients, order=orders, state=st.integers(0, 3), extra=extras)
    def change(self, data: st.DataObject, recipient: str, order: int, state: int, extra: bytes) -> None:
        known = self.naive.deliveries.get(recipient, {}).get(order)
        number = known.run if known else data.draw(st.sampled_from(sorted(self.naive.runs())))
        made = delivery(recipient, order, number, state=state, extra=extra)
        self.coalescer.put_delivery(made)
        self.naive.deliveries.setdefault(recipient, {})[order] = made

    @rule()
    def ticket(self) -> None:
        if self.coalescer.open.size:
            self.pending.add(self.coalescer.open.number)

    def check_report(self, committed: int) -> None:
        if not self.coalescer.open.size:
            self.pending.clear()
        assert all(ticket > committed for ticket in self.pending)

    @precondition(lambda self: self.coalescer.sealed is None)
    @rule()
    def pause_ends(self) -> None:
        self.check_report(self.coalescer.skip_empty())

    @rule(recipient=recipients, order=orders)
    def delete_delivery(self, recipient: str, order: int) -> None:
        before = self.naive.runs()
        known = self.naive.deliveries.get(recipient, {}).pop(order, None)
        assert self.coalescer.delete_delivery(recipient, order) is (known is not None)
        self.runs_gone(before)

    @rule(recipient=recipients)
    def delete_recipient(self, recipient: str) -> None:
        before = self.naive.runs()
        self.naive.deliveries.pop(recipient, None)
        self.coalescer.delete_recipient(recipient)
        self.runs_gone(before)

    @rule(table=st.sampled_from(["sessions", "retained"]), key=st.sampled_from([b"a", b"b"]), value=st.none() | st.binary(max_size=9))
    def change_value(self, table: str, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.coalescer.delete_value(table, key)
            self.naive.values[table].pop(key, None)
        else:
            self.coalescer.put_value(table, key, value)
            self.naive.values[table][key] = value

    @precondition(lambda self: self.coalescer.sealed is None and self.coalescer.open.size)
    @rule()
    def seal(self) -> None:
        self.ticket()
        batch = self.coalescer.seal()
        self.at_seal = self.naive.content()
        assert set(batch.runs) <= self.at_seal[1]  # nothing that nobody waits for
        if not batch.tried:  # and nothing deleted that is not there
            deliveries, runs, _ = held(self.store)
            assert batch.runs_gone <= runs
            assert all(orders <= set(deliveries[name]) for name, orders in batch.gone.items() if orders and name not in batch.recipients)

    @precondition(lambda self: self.coalescer.sealed is not None)
    @rule()
    def commit(self) -> None:
        batch = self.coalescer.sealed
        assert batch is not None
        self.store.commit(batch)
        committed = self.coalescer.committed()
        self.pending = {ticket for ticket in self.pending if ticket > batch.number}
        self.check_report(committed)
        assert committed >= batch.number
        assert held(self.store) == self.at_seal
        if not self.coalescer.open.size:
            assert self.coalescer.stored == kept_weight(self.store)
        self.unreported = set(self.coalescer.open.runs)

    @precondition(lambda self: self.coalescer.sealed is not None)
    @rule(applied=st.booleans())
    def fail(self, applied: bool) -> None:
        assert self.coalescer.sealed is not None
        if applied:
            self.store.commit(self.coalescer.sealed)
        self.coalescer.failed()

    @precondition(lambda self: self.coalescer.sealed is None)
    @rule()
    def restart(self) -> None:
        if self.coalescer.open.size:
            self.seal()
            self.commit()
        self.pending.clear()
        self.coalescer = Coalescer(self.settled.append)
        self.coalescer.load(self.store.deliveries(), self.store.run_sizes(), self.store.value_sizes())
        assert self.coalescer.stored == kept_weight(self.store)

    @invariant()
    def sizes_are_right(self) -> None:
        for batch in (self.coalescer.open, self.coalescer.sealed):
            if batch is not None:
                assert batch.size == weight(batch)

    @invariant()
    def settled_runs_are_told(self) -> None:
        assert sorted(self.settled) == sorted(self.expected_settled)

    def teardown(self) -> None:
        if self.coalescer.sealed is not None:
            self.coalescer.failed()
        if self.coalescer.open.size:
            self.seal()
            self.commit()
        assert held(self.store) == self.naive.content()
        assert self.coalescer.stored == kept_weight(self.store)


TestCoalescing = Coalescing.TestCase
TestCoalescing.settings = settings(
    max_examples=examples(200), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_delivery_needs_its_run() -> None:
    coalescer = Coalescer(lambda _: None)
    with pytest.raises(KeyError):
        coalescer.put_delivery(delivery("porto", 1, 1))
    coalescer.put_run(run(1))
    with pytest.raises(ValueError, match="run 1 is stored already"):
        coalescer.put_run(run(1))


# The thread.


class Bench:
    """A writer over a store in memory that fails on command, and a loop that the test turns."""

    def __init__(self, store: Any = None, **options: Any) -> None:
        self.store = FailingStore(store or MemoryStore())
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.tickets: list[int] = []
        self.errors: list[StoreError] = []
        self.settled: list[int] = []
        options = {"pause": 0.001, "pause_limit": 0.01, **options}
        self.writer = Writer(self.store, self.calls.put, self.tickets.append, self.errors.append, on_settled=self.settled.append, **options)

    def until(self, condition: Callable[[], Any]) -> None:
        """Run what the thread asks for until something holds; fails after ten seconds of silence."""
        while not condition():
            self.calls.get(timeout=PATIENCE)()

    def publish(self, number: int, *names: str) -> None:
        self.writer.put_run(run(number))
        for name in names or ("porto",):
            self.writer.put_delivery(delivery(name, number, number))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.writer.start()
    yield made
    made.store.recover()
    assert made.writer.close(PATIENCE)


def test_a_ticket_is_reported_when_its_changes_are_kept(bench: Bench) -> None:
    assert bench.writer.ticket() == 0 == bench.writer.committed
    bench.publish(1)
    ticket = bench.writer.ticket()
    assert bench.writer.bytes_pending > 0
    bench.until(lambda: bench.writer.committed >= ticket)
    assert bench.tickets == [bench.writer.committed]
    assert bench.store.run(1) == run(1)
    assert bench.writer.bytes_pending == 0
    assert bench.writer.ticket() == bench.writer.committed


def test_what_comes_during_a_commit_makes_one_batch(bench: Bench) -> None:
    bench.store.hold()
    for number in range(1, 101):
        bench.publish(number)
        ticket = bench.writer.ticket()
    bench.store.release()
    bench.until(lambda: bench.writer.committed >= ticket)
    assert bench.store.commits == 2
    assert bench.store.count("porto") == 100


def test_what_is_acknowledged_before_its_commit_is_never_written(bench: Bench) -> None:
    bench.store.hold()
    bench.publish(1, "porto", "lyon")
    bench.writer.ticket()
    bench.store.entered.wait(PATIENCE)
    bench.publish(2, "porto", "lyon")
    ticket = bench.writer.ticket()
    bench.writer.delete_delivery("porto", 2)
    assert bench.settled == []
    bench.writer.delete_delivery("lyon", 2)
    assert bench.settled == [2]
    assert bench.tickets == []
    bench.store.release()
    bench.until(lambda: bench.writer.committed >= ticket)
    assert bench.store.commits == 1
    assert bench.tickets == [bench.writer.committed]


def test_what_is_acknowledged_during_its_commit_is_told_at_once_and_deleted_after(bench: Bench) -> None:
    bench.store.hold()
    bench.publish(1)
    bench.writer.ticket()
    bench.store.entered.wait(PATIENCE)
    bench.writer.delete_delivery("porto", 1)
    assert bench.settled == [1]
    ticket = bench.writer.ticket()
    bench.store.release()
    bench.until(lambda: bench.writer.committed >= ticket)
    assert bench.store.run(1) is None
    bench.publish(2)
    ticket = bench.writer.ticket()
    bench.until(lambda: bench.writer.committed >= ticket)
    bench.writer.delete_delivery("porto", 2)
    assert bench.settled == [1]  # its commit was reported long since


def test_a_value_is_written_once(bench: Bench) -> None:
    bench.store.hold()
    bench.writer.put_value("sessions", b"porto", b"0")
    bench.writer.ticket()
    bench.store.entered.wait(PATIENCE)
    before = bench.writer.bytes_pending
    for number in range(1000):
        bench.writer.put_value("sessions", b"porto", b"%04d" % number)
    assert bench.writer.bytes_pending < 3 * before
    ticket = bench.writer.ticket()
    bench.store.release()
    bench.until(lambda: bench.writer.committed >= ticket)
    assert bench.store.value("sessions", b"porto") == b"0999"
    assert bench.store.commits == 2


def test_a_deferred_batch_waits_until_somebody_is_in_a_hurry(bench: Bench) -> None:
    for number in (1, 3):
        bench.publish(number)
        bench.writer.defer()
        bench.publish(number + 1)
        before = bench.store.commits
        assert bench.writer.idle
        assert bench.writer.ticket() > bench.writer.committed
        bench.writer.hurry()
        assert not bench.writer.idle
        assert bench.store.commits == before
        ticket = bench.writer.ticket()
        bench.until(lambda ticket=ticket: bench.writer.committed >= ticket)
        assert bench.store.commits == before + 1
    assert bench.store.count("porto") == 4


def test_a_batch_that_is_deferred_during_a_commit_does_not_follow_it(bench: Bench) -> None:
    bench.store.hold()
    bench.publish(1)
    first = bench.writer.ticket()
    bench.store.entered.wait(PATIENCE)
    bench.publish(2)
    bench.writer.ticket()
    bench.writer.defer()
    bench.store.release()
    bench.until(lambda: bench.writer.committed >= first)
    assert bench.writer.bytes_pending
    bench.writer.delete_delivery("porto", 2)
    assert bench.settled == [2]
    assert bench.writer.idle
    assert bench.store.commits == 1


def test_what_is_deferred_is_written_at_the_end() -> None:
    bench = Bench()
    bench.writer.start()
    bench.publish(1)
    bench.writer.defer()
    bench.writer.ticket()
    assert bench.writer.close(PATIENCE)
    assert bench.store.count("porto") == 1


@pytest.mark.parametrize("after_effect", [False, True])
def test_a_failure_is_told_once_and_tried_again(bench: Bench, after_effect: bool) -> None:
    bench.store.fail_next(Kind.FULL, after_effect, times=5)
    bench.publish(1)
    first = bench.writer.ticket()
    bench.until(lambda: bench.errors)
    assert bench.writer.error is bench.errors[0]
    bench.publish(2)
    second = bench.writer.ticket()
    assert second > first
    bench.until(lambda: bench.writer.committed >= second)
    assert bench.writer.error is None
    assert [error.kind for error in bench.errors] == [Kind.FULL]
    assert bench.tickets == [bench.writer.committed]
    assert [found.order for found in bench.store.deliveries("porto")] == [1, 2]
    bench.store.fail_next(Kind.FULL)
    bench.publish(3)
    bench.writer.ticket()
    bench.until(lambda: len(bench.errors) == 2)


def test_another_kind_of_failure_is_told_too(bench: Bench) -> None:
    for commit, kind in enumerate([Kind.FULL, Kind.FULL, Kind.READ_ONLY, Kind.READ_ONLY, Kind.FULL], 1):
        bench.store.fail_on(commit, kind)
    bench.publish(1)
    ticket = bench.writer.ticket()
    bench.until(lambda: bench.writer.committed >= ticket)
    assert [error.kind for error in bench.errors] == [Kind.FULL, Kind.READ_ONLY, Kind.FULL]


@pytest.mark.parametrize("after_effect", [False, True])
def test_a_full_disk_does_not_stop_those_who_listen(bench: Bench, after_effect: bool) -> None:
    bench.store.fail_next(Kind.FULL, after_effect, times=10_000)
    bench.publish(1)
    bench.publish(2)
    ticket = bench.writer.ticket()
    bench.until(lambda: bench.errors)
    for number in range(3, 200):
        bench.publish(number)
        bench.writer.ticket()
        bench.writer.delete_delivery("porto", number)
    bench.writer.delete_delivery("porto", 1)
    assert bench.settled[-1] == 1
    assert len(bench.settled) == 198
    assert bench.writer.committed < ticket
    bench.store.recover()
    bench.until(lambda: bench.writer.committed >= ticket and not bench.writer.bytes_pending)
    assert [found.order for found in bench.store.deliveries()] == [2]
    assert bench.store.highest_run() == 2
    assert bench.store.run(1) is None


def test_a_fault_of_ours_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryStore):
        broken = True

        def commit(self, batch: Batch) -> None:
            if self.broken:
                self.broken = False
                raise ZeroDivisionError("by mistake")
            super().commit(batch)

    bench = Bench(Broken())
    bench.writer.start()
    bench.publish(1)
    ticket = bench.writer.ticket()
    bench.until(lambda: bench.writer.committed >= ticket)
    assert bench.errors[0].kind is Kind.OTHER
    assert "ZeroDivisionError: by mistake" in str(bench.errors[0])
    assert "Traceback" in caplog.text
    assert bench.writer.close(PATIENCE)


def test_a_store_that_does_not_open_ends_the_start() -> None:
    bench = Bench()
    bench.store.fail_open = Kind.SCHEMA
    with pytest.raises(StoreError, match="schema"):
        bench.writer.start()
    bench.store.recover()
    bench.store.fail_queries = Kind.CORRUPT
    with pytest.raises(StoreError, match="corrupt"):
        bench.writer.start()


def test_after_a_restart_the_last_delivery_takes_its_run_along() -> None:
    memory = MemoryStore()
    first = Bench(memory)
    first.writer.start()
    first.publish(1, "porto", "lyon")
    assert first.writer.close(PATIENCE)
    second = Bench(memory)
    second.writer.start()
    second.writer.delete_delivery("porto", 1)
    assert second.writer.delete_delivery("porto", 1) is False
    ticket = second.writer.ticket()
    second.until(lambda: second.writer.committed >= ticket)
    assert memory.run(1) == run(1)
    second.writer.delete_recipient("lyon")
    assert second.writer.close(PATIENCE)
    assert memory.run(1) is None
    assert second.settled == []


# The end.


def counting(store: SqliteStore) -> Writer:
    return Writer(store, lambda call: None, lambda ticket: None, lambda error: None)


def test_a_run_that_was_lost_is_counted_neither_when_it_is_read_nor_when_it_goes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    store.open()
    for number in (1, 2, 3):
        store.commit(batch_with(run(number), delivery("porto", number, number)))
    store.close()
    with sqlite3.connect(tmp_path / "store.db") as file:
        file.execute("DELETE FROM runs WHERE id = 2")
    file.close()
    writer = counting(store)
    writer.start()
    writer.delete_delivery("porto", 2)
    assert writer.close(5)
    writer = counting(store)
    writer.start()
    assert store.counts() == Counts(2, 2, 0)
    assert content(store)["runs"].keys() == {1, 3}
    assert writer.close(5)


def test_a_store_that_has_lost_rows_is_named(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    store.open()
    store.commit(batch_with(run(1), delivery("porto", 1, 1)))
    counts = Batch()
    counts.counts = Counts(1, 2, 0)
    store.commit(counts)
    store.close()
    with pytest.raises(StoreError, match=r"store /.*/store.db: is damaged \(it has 1 of 2 deliveries\)"):
        counting(store).start()


def test_closing_commits_what_is_pending() -> None:
    bench = Bench()
    bench.writer.start()
    bench.publish(1)
    assert bench.writer.close(PATIENCE)
    assert bench.store.count("porto") == 1
    assert bench.writer.committed >= 1


def test_closing_does_not_wait_for_a_linger_or_a_pause() -> None:
    lingering = Bench(linger=600.0)
    lingering.writer.start()
    lingering.publish(1)
    lingering.publish(2)
    lingering.writer.ticket()
    lingering.writer.delete_delivery("porto", 1)
    assert lingering.settled == [1]
    assert lingering.writer.close(PATIENCE)
    assert lingering.store.commits == 1
    assert [found.order for found in lingering.store.deliveries()] == [2]
    pausing = Bench(pause=600.0)
    pausing.writer.start()
    pausing.store.fail_next(Kind.UNREACHABLE)
    pausing.publish(1)
    pausing.writer.ticket()
    pausing.until(lambda: pausing.errors)
    assert pausing.writer.close(PATIENCE)
    assert pausing.store.count("porto") == 1


def test_what_vanishes_while_lingering_is_reported() -> None:
    for linger in (0.01, 0.3, 3.0, 15.0):  # a busy machine may take longer between two lines
        bench = Bench(linger=linger)
        bench.writer.start()
        bench.publish(1)
        ticket = bench.writer.ticket()
        bench.writer.delete_delivery("porto", 1)
        bench.until(lambda made=bench, ticket=ticket: made.writer.committed >= ticket)
        if bench.store.commits == 0:
            break
        assert bench.writer.close(PATIENCE)
    assert bench.store.commits == 0
    assert bench.tickets == [bench.writer.committed]
    bench.publish(2)
    ticket = bench.writer.ticket()
    bench.until(lambda: bench.writer.committed >= ticket)
    assert bench.store.commits == 1
    assert bench.writer.close(PATIENCE)


def test_closing_says_when_something_is_left() -> None:
    failing = Bench()
    failing.writer.start()
    failing.store.fail_next(Kind.FULL, times=100_000)
    failing.publish(1)
    failing.writer.ticket()
    failing.until(lambda: failing.errors)
    assert not failing.writer.close(0.05)
    stuck = Bench()
    stuck.writer.start()
    stuck.store.hold()
    stuck.publish(1)
    assert not stuck.writer.close(0.05)
    stuck.store.release()
    assert Bench().writer.close(0.05)  # never started


# With a real loop and a real store.


def test_in_an_event_loop(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        last = 0

        def committed(ticket: int) -> None:
            if last and ticket >= last:
                done.set()

        def failed(error: StoreError) -> None:
            raise AssertionError(error)

        store = SqliteStore(tmp_path / "store.db")
        writer = Writer(store, loop.call_soon_threadsafe, committed, failed)
        writer.start()
        for number in range(1, 501):
            writer.put_run(run(number, count=20))
            writer.put_delivery(delivery("porto", number, number, count=20))
            if number > 3:
                writer.delete_delivery("porto", number - 3)
            last = writer.ticket()
            await asyncio.sleep(0)
        await done.wait()
        assert [found.order for found in store.deliveries()] == [498, 499, 500]
        assert store.run(497) is None
        assert store.run(498) is not None
        assert writer.close(PATIENCE)

    asyncio.run(main())
