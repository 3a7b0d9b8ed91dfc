"""Who waits for whom: lanes of requests, writers, leases beside them, and what one account may write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import pytest
from mqmesh.directory import leases, turns
from mqmesh.directory import records as all_records
from mqmesh.directory.leases import Claim
from mqmesh.directory.records import Record
from mqmesh.directory.storage import store as store_module
from mqmesh.directory.storage.errors import DirectoryError
from mqmesh.directory.storage.rates import Rates
from mqmesh.directory.storage.store import Store
from mqmesh.directory.storage.tables import Account
from mqmesh.directory.storage.writers import TooLate, WriterTurns
from mqmesh.directory.turns import AllTurns, Lane, Turns
from mqmesh.directory.uddi.saving import prepare
from support.peers import postgres
from support.services import PATIENCE

P = ParamSpec("P")
ALICE = Account("alice", "acme")
HOLDER = "00000000-0000-0000-0000-000000000001"


def in_a_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """A test that runs in an event loop."""

    @wraps(test)
    def run(*given: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*given, **named))

    return run


@in_a_loop
async def test_those_who_wait_take_turns() -> None:
    made, order = Turns(1), list[str]()

    async def ask(who: str) -> None:
        async with made.turn(who):
            order.append(who)

    async with made.turn("first"):
        asked = [asyncio.create_task(ask(who)) for who in ("many", "many", "many", "one", "other")]
        await asyncio.sleep(0)
    await asyncio.gather(*asked)
    assert order == ["many", "one", "other", "many", "many"]


@in_a_loop
async def test_one_that_gives_up_leaves_its_turn_to_the_next() -> None:
    made = Turns(1)
    async with made.turn("first"):
        asked = [asyncio.create_task(made.turn(who).__aenter__()) for who in ("gone", "late", "stays")]
        await asyncio.sleep(0)
        asked[0].cancel()
        await asyncio.sleep(0)
    asked[1].cancel()  # it was its turn a moment ago
    await asked[2]
    assert asked[0].cancelled()
    assert asked[1].cancelled()


@in_a_loop
async def test_too_many_that_wait_are_refused_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "WAITING_EACH", 2)
    made = Turns(1)
    async with made.turn("first"):
        asked = [asyncio.create_task(made.turn("many").__aenter__()) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(DirectoryError, match="too many"):
            await asked[2]
        other = asyncio.create_task(made.turn("other").__aenter__())
        await asyncio.sleep(0)
        assert not other.done()
        for one in (*asked[:2], other):
            one.cancel()


@in_a_loop
async def test_a_search_is_worked_at_by_itself_while_it_is_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    made = AllTurns(searches=1)
    async with made.turn(Lane.READ, "first"):
        other = asyncio.create_task(made.turn(Lane.READ, "other").__aenter__())
        await asyncio.sleep(0)
        assert not other.done()
    await other
    monkeypatch.setattr(turns, "BRIEF", 0.0)
    made = AllTurns(searches=1)
    held = [made.turn(Lane.READ, "slow") for _ in range(Lane.READ.together)]
    for one in held:
        await one.__aenter__()
    late = asyncio.create_task(made.turn(Lane.READ, "late").__aenter__())
    await asyncio.sleep(0.01)
    assert not late.done(), "all may not be more than are worked at together"
    for one in held:
        await one.__aexit__(None, None, None)
    await late


@in_a_loop
async def test_one_that_gives_up_a_search_leaves_its_turn_to_the_next() -> None:
    made = Turns(2, 1)
    async with made.turn("first"):
        asked = [asyncio.create_task(made.turn(who).__aenter__()) for who in ("late", "stays")]
        await asyncio.sleep(0)
    asked[0].cancel()  # it was its turn a moment ago
    await asked[1]
    assert asked[0].cancelled()


@in_a_loop
async def test_lanes_do_not_wait_for_each_other() -> None:
    made = AllTurns()
    for lane in Lane:
        held = [made.turn(lane, "many") for _ in range(lane.together)]
        for one in held:
            await one.__aenter__()
        for other in Lane:
            if other is not lane:
                async with made.turn(other, "one"):
                    pass
        for one in held:
            await one.__aexit__(None, None, None)


def test_writers_of_leases_go_first() -> None:
    made, order, waiting = WriterTurns(), list[str](), threading.Semaphore(0)

    def write(name: str, first: bool) -> None:
        waiting.release()
        with made.turn(first, PATIENCE):
            order.append(name)

    threads = [threading.Thread(target=write, args=(name, name == "lease")) for name in ("bulk", "lease")]
    with made.turn(False, PATIENCE):
        for thread in threads:
            thread.start()
            waiting.acquire()
        while len(made._waiting) < 2:
            threading.Event().wait(0.001)
        with pytest.raises(TooLate), made.turn(True, 0.0):
            pass
    for thread in threads:
        thread.join()
    assert order == ["lease", "bulk"]


def test_an_account_writes_a_burst_and_then_so_much_a_second() -> None:
    rates = Rates(10.0, 100.0)
    assert rates.wait("alice", 0.0) == 0.0
    rates.charge("alice", 120, 0.0)
    assert rates.wait("alice", 0.0) == pytest.approx(2.1)
    assert rates.wait("alice", 1.0) > 0.0
    assert rates.wait("alice", 2.2) == 0.0
    assert rates.wait("bob", 0.0) == 0.0
    rates = Rates(0.0, 100.0)
    rates.charge("alice", 1000, 0.0)
    assert rates.wait("alice", 0.0) == 0.0


def test_one_that_has_written_too_much_is_told_so(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'd.db'}")
    prepare(store)
    store.rates = Rates(1.0, 2.0)
    with store.writing(ALICE) as records:
        store.admit(ALICE)
        all_records.put(records, ALICE, Record("mesh", "one"))
        all_records.put_all(records, ALICE, [Record("service", f"s{at}", "one") for at in range(5)])
    with pytest.raises(DirectoryError, match="too much") as caught:
        store.admit(ALICE)
    assert caught.value.code == "E_busy"
    store.admit(Account("bob", "other"))
    store.close()


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Store]:
    with postgres.server() as server:
        made = Store(server.url)
        prepare(made)
        yield made
        made.close()


def _claim() -> Claim:
    return Claim(HOLDER, Record("broker", "porto", "ring", addresses=["mqtt://h:1"]), [Record("service", "weather", "ring")])


def _renewed(store: Store) -> bool:
    try:
        with store.renewing() as records:
            leases.renew(records, ALICE, _claim())
    except leases.NotRenewed:
        return False
    return True


@pytest.mark.service
def test_a_lease_is_renewed_while_another_account_saves(stored: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY", 0.1)
    assert not _renewed(stored), "there is none yet"
    with stored.writing(ALICE) as records:
        first = leases.claim(records, ALICE, _claim()).lease.expires
    with stored.writing(Account("bob", "other")) as saving:
        all_records.put(saving, Account("bob", "other"), Record("mesh", "bulk"))
        assert _renewed(stored), "though the writers' lock is held"
    with stored.reading() as records:
        [lease] = records.leases(all_records.mesh_of(records, "ring").key)
    assert lease.expires > first


@pytest.mark.service
def test_what_somebody_deleted_meanwhile_is_not_renewed_without_it(stored: Store) -> None:
    with stored.writing(ALICE) as records:
        leases.claim(records, ALICE, _claim())
    assert _renewed(stored)
    with stored.writing(ALICE) as records:
        all_records.delete(records, ALICE, "service", "ring", "weather")
    assert not _renewed(stored)
    with stored.writing(ALICE) as records:
        leases.claim(records, ALICE, _claim())
    assert _renewed(stored)
