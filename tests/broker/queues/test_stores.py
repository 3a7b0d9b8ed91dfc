"""Every store of the queues' log against its port (`broker/queues/log/port.py`), and the log in each of them (docs/queues.md, "Stores")."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.queue import Queue
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.log.locations import KINDS, LOG, segments_in
from mqmesh.broker.queues.log.port import Away, Segments
from mqmesh.broker.queues.log.store import LogStore
from support.peers.logs import PRODUCTS, SERVERS, Server, log_at
from support.steps import ended
from support.storage.disks import mounted

from .test_carry import carry, commit, everything, killed, opened, waiting, work

pytestmark = pytest.mark.process

Make = Callable[[], Segments]


@pytest.fixture(params=[*KINDS, *[pytest.param(name, marks=pytest.mark.service) for name in SERVERS]])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name if name in KINDS else log_at(request.getfixturevalue("servers")(name))


@pytest.fixture
def make(kind: str, tmp_path: Path) -> Make:
    return lambda: segments_in(tmp_path / "queues", kind)


def written(make: Make) -> Segments:
    """A store with two segments."""
    store = make()
    assert store.open() == []
    for number in (1, 2):
        store.begin(number)
        assert store.append(number, 0, [b"first", b"second"]) == 11
        store.commit()
    assert store.append(1, 11, [b"third" * 10_000]) == 50_011
    store.commit()
    return store


def test_what_is_committed_is_there(make: Make) -> None:
    store = written(make)
    for _ in range(2):
        assert [store.size(number) for number in (1, 2)] == [50_011, 11]
        assert store.read(1, 0, 11) == b"firstsecond"
        assert store.read(1, 3, 5) == b"stsec"
        assert store.read(1, 9, 7) == b"ndthird"  # of two appends
        assert store.read(1, 50_009, 100) == b"rd"
        assert store.read(1, 50_011, 100) == b""
        assert store.read(2, 11, 5) == b""
        assert store.name_of(1) != store.name_of(2)
        store.close()
        store = make()
        assert store.open() == [1, 2]
    store.close()


def test_only_who_writes_sees_what_is_not_committed(make: Make, kind: str) -> None:
    store = written(make)
    with ThreadPoolExecutor(1) as other:
        assert store.append(2, 11, [b"new"]) == 14
        assert store.read(2, 6, 100) == b"econdnew"
        assert other.submit(store.read, 2, 6, 5).result() == b"econd"
        store.commit()
        assert other.submit(store.read, 2, 6, 100).result() == b"econdnew"
        assert other.submit(store.append, 2, 14, [b"er"]).result() == 16
        other.submit(store.commit).result()
    assert store.read(2, 11, 100) == b"newer"
    store.close()


def test_what_is_given_up_is_gone(make: Make) -> None:
    store = written(make)
    store.append(2, 11, [b"new"])
    store.undo(2, 11)
    store.append(1, 50_011, [b"more"])
    store.commit()
    assert [store.size(number) for number in (1, 2)] == [50_015, 11]
    store.append(2, 11, [b"other"])
    store.commit()
    assert store.read(2, 6, 100) == b"econdother"
    store.close()


def test_what_was_committed_is_given_up_too(make: Make) -> None:
    """A commit may count although its caller was told otherwise."""
    store = written(make)
    store.append(1, 50_011, [b"unknown"])
    store.commit()
    store.undo(1, 50_011)
    store.begin(3)
    store.append(3, 0, [b"x"])
    store.commit()
    store.close()
    again = make()
    assert again.open() == [1, 2, 3]
    assert again.size(1) == 50_011
    again.close()


def test_a_segment_that_is_dropped_or_begun_again_is_empty(make: Make) -> None:
    store = written(make)
    store.drop(1)
    store.begin(2)
    store.append(2, 0, [b"new"])
    store.commit()
    assert store.size(2) == 3
    store.close()
    again = make()
    assert again.open() == [2]
    assert again.read(2, 0, 100) == b"new"
    assert again.set_aside()
    again.give_up()
    again.close()


def test_the_log_is_the_same_in_each(tmp_path: Path, kind: str) -> None:
    store = everything(tmp_path, kind)
    truth = waiting(store)
    history = {position: ended(store.history(store.queues["orders"], position))[1] for position in truth}
    store.close()
    again = opened(tmp_path, kind=kind, segment_bytes=4000)
    assert waiting(again) == truth
    queue = again.queue("orders", Rules())
    work(again, queue, b"x" * 5000)  # so that a segment begins
    truth = waiting(again)
    assert carry(again, 20)
    assert waiting(again) == truth
    again.close()
    said: list[str] = []
    last = opened(tmp_path, said, kind=kind)
    assert not said
    assert waiting(last) == truth
    found = last.queues["orders"]
    for position in truth:
        assert ended(last.history(found, position))[1][: len(history[position])] == history[position]
    last.close()


def test_a_commit_that_fails_is_made_again(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, kind=kind)
    queue = store.queue("orders", Rules())
    member = queue.join("a")
    queue.put([b"1", b"2"], Meta("shop"), 1)
    commit(store)
    (one,) = queue.take(member, 1, 1)
    queue.settle(member, one.part, one.start, 1, Subscriber.DONE, 1)
    queue.put([b"3"], Meta("shop"), 1)
    with monkeypatch.context() as patched:
        real = store.where.commit

        def effect_and_error() -> None:
            real()
            raise OSError(errno.ENOSPC, "full")

        patched.setattr(store.where, "commit", effect_and_error)
        for _ in range(2):  # in the segment, and at the beginning of the next one
            batch = store.gather(1)
            assert batch is not None
            with pytest.raises(OSError, match="full"):
                store.write(batch)
            store.failed(batch, OSError(errno.ENOSPC, "full"))
    assert commit(store)
    queue.put([b"4"], Meta("shop"), 1)
    commit(store)
    store.close()
    again = opened(tmp_path, kind=kind)
    assert [one[2] for one in waiting(again).values()] == [b"2", b"4"]
    again.close()


def test_kill_9_loses_nothing(tmp_path: Path, kind: str) -> None:
    if kind != LOG:  # that is in test_carry.py
        killed(tmp_path, 150, kind)


@pytest.mark.service
@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_is_killed_loses_nothing(tmp_path: Path, servers: Callable[[str], Server], name: str) -> None:
    running = servers(name)
    url = log_at(running)
    store = opened(tmp_path, kind=url, durability="fsync")
    queue = store.queue("orders", Rules())
    queue.put([b"1"], Meta("shop"), 1)
    commit(store)
    running.kill()
    queue.subscribe("s")
    for _ in range(2):
        batch = store.gather(1)
        assert batch is not None
        with pytest.raises(Away, match=url.partition("@")[0].partition(":")[0] + "://"):
            store.write(batch)
        store.failed(batch, OSError(errno.EIO, "gone"))
    with pytest.raises(Away):
        store.where.read(1, 1, 1)
    running.start()
    while not committed(store):  # a server that has just started may be slow to answer: a broker commits again
        pass
    queue.put([b"2"], Meta("shop"), 1)
    assert commit(store)
    assert store.bodies.payloads(queue.blocks[1]) == [b"1"]
    queue.blocks[1].payloads = None
    assert store.bodies.payloads(queue.blocks[1]) == [b"1"]
    store.close()
    again = opened(tmp_path, kind=url)
    assert [one[2] for one in waiting(again).values()] == [b"1", b"2"]
    assert list(again.queues["orders"].subscribers) == ["s"]
    again.close()


@pytest.mark.service
def test_a_schema_has_one_broker(tmp_path: Path, servers: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqmesh.broker.queues.log.places.postgresql.LOCK_WAIT", 0.0)
    postgres = servers("postgres")
    url = log_at(postgres)
    store = opened(tmp_path, kind=url)
    with pytest.raises(OSError, match="is open in another broker"):
        opened(tmp_path, kind=url)
    with pytest.raises(OSError, match="63 lower-case letters"):
        opened(tmp_path, kind=f"{postgres.url}?schema=Queues-1")
    store.close()
    opened(tmp_path, kind=url).close()


@pytest.mark.service
@pytest.mark.parametrize("name", PRODUCTS)
def test_who_opens_a_log_shuts_out_who_had_it(
    tmp_path: Path, servers: Callable[[str], Server], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = log_at(servers(name))
    old = opened(tmp_path, kind=url)
    queue = old.queue("orders", Rules())
    queue.put([b"1"], Meta("shop"), 1)
    commit(old)
    if name == "rabbitmq":  # who has the connection has the lock
        monkeypatch.setattr("mqmesh.broker.queues.log.products.rabbitmq.LOCK_WAIT", 0.0)
        with pytest.raises(OSError, match="is open in another broker"):
            opened(tmp_path, kind=url)
        monkeypatch.undo()
        product = old.where._product  # type: ignore[attr-defined]
        product._aside.call(product._lose())
    new = opened(tmp_path, kind=url)
    for number in range(2):
        queue.put([b"late"], Meta("shop"), 1)
        batch = old.gather(1)
        assert batch is not None
        with pytest.raises(OSError, match=r"(was opened by|is open in) another broker"):
            old.write(batch)
        old.failed(batch, OSError(errno.EBUSY, "gone"))
        new.queue("orders", Rules()).put([b"%d" % (2 + number)], Meta("shop"), 1)
        commit(new)
    new.close()
    with pytest.raises(OSError, match="was opened by another broker"):
        old.where.commit() if old.where.append(9, 0, [b"later"]) else None
    old.close()
    again = opened(tmp_path, kind=url)
    assert [one[2] for one in waiting(again).values()] == [b"1", b"2", b"3"]
    again.close()


@pytest.mark.service
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_commit_of_which_a_part_is_there_is_cut_off(tmp_path: Path, servers: Callable[[str], Server], name: str) -> None:
    """A frame of several entries, of which the last ones are not there: the broker or the product has ended between."""
    url = log_at(servers(name))
    store = opened(tmp_path, kind=url)
    queue = store.queue("orders", Rules())
    queue.put([b"1"], Meta("shop"), 1)
    commit(store)
    queue.put([os.urandom(700_000)], Meta("shop"), 1)
    product = store.where._product  # type: ignore[attr-defined]
    send = product.send

    def torn(entries: list[tuple[int, bytes]]) -> None:
        send(entries[:1])
        raise Away(errno.EIO, "killed")

    product.send = torn
    batch = store.gather(1)
    assert batch is not None
    with pytest.raises(Away):
        store.write(batch)
    store.close()
    for _ in range(2):
        said: list[str] = []
        store = opened(tmp_path, said, kind=url)
        assert len(said) == 1
        assert "that were never confirmed" in said[0]
        assert [one[2] for one in waiting(store).values()] == [b"1"]
        store.close()
    store = opened(tmp_path, kind=url)
    store.queue("orders", Rules()).put([b"2"], Meta("shop"), 1)
    commit(store)
    store.close()
    said = []
    store = opened(tmp_path, said, kind=url)
    assert not said
    assert [one[2] for one in waiting(store).values()] == [b"1", b"2"]
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_takes_states_and_recovers(tmp_path: Path, kind: str) -> None:
    with mounted(tmp_path / "small", 24) as folder:
        store = opened(folder / "queues", durability="fsync", kind=kind, segment_bytes=2 << 20)
        queue = store.queue("orders", Rules())
        member = queue.join("a")
        put = done = 0
        while filled(store, queue):
            put += 200
        assert put > 5000
        assert store.full is not None
        while queue.waiting:
            for one in queue.take(member, 500, 1):
                queue.settle(member, one.part, one.start, one.length, Subscriber.DONE, 1)
                done += one.length
            assert committed(store)
        assert done == put
        store.trim(1)
        assert any(filled(store, queue) for _ in range(3))  # LMDB uses what is free after two commits
        assert store.full is None
        store.close()
        again = opened(folder / "queues", kind=kind)
        assert len(waiting(again)) == 200
        again.close()


def filled(store: LogStore, queue: Queue) -> bool:
    """200 messages are put, if there is room."""
    queue.put([os.urandom(1000) for _ in range(200)], Meta("shop"), 1)
    return committed(store)


def committed(store: LogStore) -> bool:
    batch = store.gather(1)
    if batch is None:
        return True
    try:
        store.write(batch)
    except OSError as error:
        store.failed(batch, error)
        return False
    store.applied(batch, 1)
    return True
