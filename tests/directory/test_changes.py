"""The feed of changes: what it tells to whom, when, and the caches that follow it, also over the death of a process."""

from __future__ import annotations

import asyncio
import queue
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from mqmesh.directory import leases
from mqmesh.directory import records as all_records
from mqmesh.directory.client import ClientError
from mqmesh.directory.clients import Clients
from mqmesh.directory.feed import Feed
from mqmesh.directory.leases import Claim
from mqmesh.directory.lookups import Lookups
from mqmesh.directory.records import Record
from mqmesh.directory.storage import rows
from mqmesh.directory.storage.errors import DirectoryError
from mqmesh.directory.storage.store import Store
from mqmesh.directory.storage.tables import Account
from mqmesh.directory.uddi.saving import prepare
from mqmesh.directory.watch import Watch
from support.directories import Directory
from support.peers import postgres
from support.services import PATIENCE, wait_until

ALICE, ANNA, BOB = Account("alice", "acme"), Account("anna", "acme"), Account("bob", "other")
HOLDER = str(uuid.UUID(int=1))


class World:
    """A directory in memory with a clock that tests set."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.store = Store("sqlite://", lambda: self.now)
        prepare(self.store)

    def claim(self) -> None:
        """A broker with a service, for 30 s."""
        broker = Record("broker", "porto", "ring", addresses=["mqtt://h:1"])
        with self.store.writing(ALICE) as records:
            leases.claim(records, ALICE, Claim(HOLDER, broker, [Record("service", "weather", "ring")], 30.0))


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.store.close()


def told(store: Store, after: int, reader: Account | None = None) -> list[tuple[str, str, str]] | None:
    with store.reading(reader) as records:
        found = records.changes(after, 1000)[1]
    return None if found is None else [(one["sort"], one["mesh"], one["name"]) for one in found]


def last(store: Store) -> int:
    with store.reading() as records:
        return records.last_change()


def put(store: Store, *wanted: Record, owner: Account = ALICE) -> int:
    """Write records; the number of the last change before."""
    before = last(store)
    with store.writing(owner) as records:
        all_records.put_all(records, owner, list(wanted))
    return before


def test_each_way_to_change_a_record_is_told(world: World) -> None:
    store = world.store
    assert told(store, put(store, Record("mesh", "m"), Record("service", "s", "m"))) == [("mesh", "m", "m"), ("service", "m", "s")]
    assert told(store, put(store, Record("service", "s", "m", addresses=["mqtt://a:1"]))) == [("service", "m", "s")]
    before = last(store)
    with store.writing(ALICE) as records:
        all_records.delete(records, ALICE, "service", "m", "s")
    assert told(store, before) == [("service", "m", "s")]
    before = put(store, Record("service", "t", "m"))
    with store.writing(ALICE) as records:
        all_records.delete(records, ALICE, "mesh", "", "m")
    assert told(store, before) == [("service", "m", "t"), ("mesh", "m", "m")]
    assert told(store, last(store)) == []


def test_leases_tell_when_they_begin_and_end_and_not_when_they_are_renewed(world: World) -> None:
    store = world.store
    world.claim()
    assert ("service", "ring", "weather") in (told(store, 0) or [])
    before = last(store)
    world.claim()
    assert told(store, before) == []
    world.now += 31
    with store.writing():
        pass
    assert sorted(told(store, before) or []) == [("broker", "ring", "porto"), ("service", "ring", "weather")]


def test_what_is_for_an_organisation_is_told_there_alone(world: World) -> None:
    store = world.store
    put(store, Record("mesh", "m"), Record("mesh", "hidden", visibility="organisation"))
    before = put(store, Record("service", "s", "m", visibility="organisation"), Record("service", "t", "hidden"))
    both = [("service", "m", "s"), ("service", "hidden", "t")]
    assert (told(store, before), told(store, before, BOB), told(store, before, ANNA)) == ([], [], both)
    before = put(store, Record("service", "s", "m"))
    assert told(store, before) == [("service", "m", "s")], "it is to be seen now"
    before = put(store, Record("service", "s", "m", visibility="organisation"))
    assert told(store, before) == [("service", "m", "s")], "it is not to be seen any more"


def test_what_is_for_some_organisations_is_told_to_each_of_them(world: World) -> None:
    store, listed = world.store, {"visibility": "list", "visible_to": [BOB.organisation]}
    put(store, Record("mesh", "m"), Record("mesh", "some", **listed))
    before = put(store, Record("service", "s", "m", **listed), Record("service", "t", "some"))
    both = [("service", "m", "s"), ("service", "some", "t")]
    assert (told(store, before), told(store, before, BOB), told(store, before, ANNA)) == ([], both, both)
    before = put(store, Record("service", "s", "m", visibility="organisation"), Record("service", "u", "some", visibility="organisation"))
    assert told(store, before, BOB) == [("service", "m", "s")], "it is not to be seen any more"
    assert told(store, before, ANNA) == [("service", "m", "s"), ("service", "some", "u")]


def test_changes_that_are_forgotten_are_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CHANGES", 3)
    put(world.store, Record("mesh", "m"))
    put(world.store, *(Record("service", f"s{at}", "m") for at in range(5)))
    number = last(world.store)
    assert told(world.store, number - 3) == [("service", "m", f"s{at}") for at in (2, 3, 4)]
    assert told(world.store, number - 4) is None
    assert told(world.store, number + 1) is None, "of a database that was there before"


@pytest.mark.process
def test_one_that_waits_hears_of_a_change_at_once(directory: Directory) -> None:
    alice, reader = directory.client("alice"), directory.client()
    number = reader.changes()["last"]
    heard: queue.Queue[dict[str, Any]] = queue.Queue()
    thread = threading.Thread(target=lambda: heard.put(reader.changes(number, 30)))
    thread.start()
    wait_until(lambda: reader._feed is not None and reader._feed.sock is not None, PATIENCE, "question")
    alice.put("mesh", "heard")
    answer = heard.get(timeout=PATIENCE)
    thread.join()
    assert (answer["lost"], answer["changes"]) == (False, [{"sort": "mesh", "mesh": "heard", "name": "heard"}])
    assert reader.changes(answer["last"], 0) == {"last": answer["last"], "lost": False, "changes": []}
    assert reader.changes(10**9)["lost"]


@pytest.mark.process
def test_a_lease_that_ends_is_told_though_nobody_writes(directory: Directory) -> None:
    directory.client("alice").claim("ending", str(uuid.uuid4()), "porto", 1)
    reader = directory.client()
    number = reader.changes()["last"]
    answer = reader.changes(number, 30)
    assert answer["changes"] == [{"sort": "broker", "mesh": "ending", "name": "porto"}]


@pytest.mark.process
def test_waiting_can_be_ended(directory: Directory) -> None:
    reader, ended = directory.client(), threading.Event()
    number = reader.changes()["last"]

    def ask() -> None:
        with pytest.raises(ClientError):
            reader.changes(number, 30)
        ended.set()

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: reader._feed is not None and reader._feed.sock is not None, PATIENCE, "question")
    while not ended.wait(0.01):
        reader.stop_waiting()
    thread.join()


@pytest.mark.process
def test_a_watch_goes_on_after_the_directory_was_away(tmp_path: Path) -> None:
    first = Directory(f"sqlite:///{tmp_path / 'd.db'}", tmp_path / "log")
    first.accounts()
    listen = first.url.removeprefix("http://")
    heard: queue.Queue[Any] = queue.Queue()
    watch = Watch([first.client()], heard.put)
    watch.start()
    assert heard.get(timeout=PATIENCE) is None
    first.client("alice").put("mesh", "one")
    assert heard.get(timeout=PATIENCE) == [{"sort": "mesh", "mesh": "one", "name": "one"}]
    first.kill()
    first.start(listen)
    assert heard.get(timeout=PATIENCE) is None, "anything may have changed"
    watch.end()
    first.kill()


@pytest.mark.service
def test_caches_are_right_at_once_though_one_of_two_directories_dies(tmp_path: Path) -> None:
    with postgres.server() as server:
        one, two = (Directory(server.url, tmp_path / f"log{number}") for number in (1, 2))
        one.accounts()
        two.secrets = one.secrets
        alice = two.client("alice")
        alice.put("mesh", "ring")
        clients = Clients([one.url, two.url], PATIENCE)
        with Lookups(clients, fresh=3600.0) as lookups:
            assert lookups.find("service", "ring", "weather").records == []

            def addresses() -> list[str]:
                found = lookups.find("service", "ring", "weather")
                return [address for record in found.records for address in record["addresses"]]

            alice.put("service", "weather", "ring", addresses=["mqtt://a:1"])
            wait_until(lambda: addresses() == ["mqtt://a:1"], PATIENCE, "change of the other process")
            one.kill()
            alice.put("service", "weather", "ring", addresses=["mqtt://b:1"])
            wait_until(lambda: addresses() == ["mqtt://b:1"], PATIENCE, "change after the death of a process")
        two.kill()


def test_a_watch_that_goes_on_is_said(caplog: pytest.LogCaptureFixture) -> None:
    heard: queue.Queue[object] = queue.Queue()

    class Asked:
        answers: ClassVar[list[object]] = [OSError("no secret"), {"last": 1, "lost": True, "changes": []}]

        def changes(self, after: int | None, wait: float) -> Any:
            answer = self.answers.pop(0)
            if isinstance(answer, OSError):
                raise answer
            return answer

        def stop_waiting(self) -> None:
            pass

    watch = Watch([Asked()], lambda changes: (heard.put(changes), watch.end()))  # type: ignore[func-returns-value, arg-type, return-value]
    watch.start()
    heard.get(timeout=PATIENCE)
    assert [one.split()[0] for one in caplog.messages] == ["event=directory-watch-waits", "event=directory-watch-goes-on"]


def test_a_feed_that_goes_on_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("mqmesh.directory.feed.LOOK", 0.0)
    feed, busy = Feed(Mock()), DirectoryError("E_busy", "it does not answer")
    monkeypatch.setattr(feed, "_newest", Mock(side_effect=[busy, busy, 1, busy, 8]))
    both = ["event=feed-waits", "event=feed-goes-on"]

    async def story() -> None:
        for seen in (0, 1):
            assert await feed.wait(seen, PATIENCE), "a change"
            assert [one.split()[0] for one in caplog.messages] == both * (seen + 1)

    asyncio.run(story())


def test_directories_that_are_away_are_said_once_and_so_is_their_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two that does not answer is nothing to say; nor is that nobody waits any more."""
    monkeypatch.setattr("mqmesh.directory.watch.FIRST_PAUSE", 0.001)
    away, answer = ClientError(0, "", "it does not answer"), {"last": 1, "lost": False, "changes": []}
    tellers = [Mock(), Mock()]
    answers = iter([away, answer, away, away, away, answer, away, answer, None])

    def changes(after: int | None, wait: float) -> Any:
        found = next(answers)
        if found is None:
            watch.end()
            raise away
        if found is away:
            raise away
        return found

    for teller in tellers:
        teller.changes = changes
    watch = Watch(tellers, lambda changes: None)
    watch.start()
    watch._thread.join(PATIENCE)
    assert caplog.messages == ["event=directory-watch-waits error=it does not answer", "event=directory-watch-goes-on"]
