"""Retained messages across sites, rule by rule: keys, hashes, one comparison, what is told, what is forgotten, what survives."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.mesh.retained import Key, Kind, PutValue, RetainedSync
from mqmesh.mesh.retained.record import pack_row, read_mark, read_row, record_hash, topic_id, unpack_key
from mqmesh.mesh.retained.replica import RECORDS, STATE, STATE_KEY
from mqmesh.mesh.retained.tree import RecordTree
from mqmesh.mesh.retained.wire import PIECE, Say, decode, encode
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.run import Run

WALL = 1_700_000_000.0
T = 1000.0
KEYS = st.builds(Key, st.integers(0, 2**48 - 1), st.integers(0, 65_535), st.integers(0, 2**48 - 1))


def site(number: int, now: float = 0.0, *, skew: float = 0.0, members: Iterable[int] = (1, 2), persist: bool = False) -> RetainedSync:
    sync = RetainedSync(number, int((WALL + skew + now) * 1000), WALL + skew, now, tombstone_seconds=T, compare_every=30.0, persist=persist)
    sync.set_members(members)
    return sync


def message(topic: str, payload: str, now: float, qos: int = 0, expiry: int | None = None) -> Run:
    return Run(topic.encode(), qos, True, [payload.encode()], b"", expiry, now)


def put(sync: RetainedSync, topic: str, payload: str, now: float, *, custody: int = 0, qos: int = 0, expiry: int | None = None) -> bytes:
    return sync.put_local(message(topic, payload, now, qos, expiry), custody, now)


class Talk:
    """A link between two sites: what they say to each other until both are silent."""

    def __init__(self, a: RetainedSync, b: RetainedSync, now: float) -> None:
        self.sites = {1: a, 2: b}
        self.sizes: list[int] = []
        self.updates: dict[int, list[tuple[str, str, bool]]] = {1: [], 2: []}
        b.link_up(1, now)
        a.link_up(2, now)
        self.run(now)

    def run(self, now: float) -> None:
        while True:
            said = [(number, *sync.take()) for number, sync in self.sites.items()]
            for number, _, updates in said:
                self.updates[number] += [(u.record.topic.decode(), u.record.payload.decode(), u.announce) for u in updates]
            if not any(sends for _, sends, _ in said):
                return
            for number, sends, _ in said:
                for send in sends:
                    self.sizes.append(len(send.data))
                    self.sites[send.peer].receive(number, send.data, now)

    def end(self) -> None:
        self.sites[1].link_down(2)
        self.sites[2].link_down(1)


def talk(a: RetainedSync, b: RetainedSync, now: float, times: int = 1) -> Talk:
    """Link, compare `times` times, unlink."""
    found = Talk(a, b, now)
    for count in range(1, times):
        for sync in (a, b):
            sync.handle_timer(now + 30.0 * count)
        found.run(now + 30.0 * count)
    found.end()
    assert times == 1 or a.digest() == b.digest()
    return found


def contents(sync: RetainedSync) -> dict[str, str]:
    return {record.topic.decode(): record.payload.decode() for record in sync.values()}


# Keys and hashes


@given(KEYS, KEYS)
def test_packed_keys_compare_like_keys(one: Key, other: Key) -> None:
    assert unpack_key(one.pack()) == one
    assert (one < other) == (one.pack() < other.pack())


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans(), KEYS), max_size=60))
def test_the_tree_is_what_its_records_make_it(changes: list[tuple[int, bool, Key]]) -> None:
    tree = RecordTree()
    kept: dict[bytes, Key] = {}
    for number, gone, key in changes:
        topic = f"t/{number}".encode()
        known = tree.get(topic)
        if gone and known is not None:
            tree.delete(known)
            del kept[topic]
        elif not gone:
            sync = site(1)
            sync.put_local(message(f"t/{number}", "x", 0.0), 0, 0.0)
            record = sync.get(topic)
            assert record is not None
            record.key = key
            tree.set(record)
            kept[topic] = key
    root = 0
    for topic, key in kept.items():
        root ^= record_hash(topic_id(topic), key)
    assert tree.root == root
    for level in range(4):
        for index in {int.from_bytes(topic_id(topic)[:2], "big") >> 4 * (4 - level) for topic in kept}:
            whole = 0
            for child in tree.children(level, index):
                whole ^= child
            assert level or whole == root
    assert sorted(record.topic for record in tree) == sorted(kept)


@given(st.data())
@settings(max_examples=60)
def test_live_messages_end_in_the_same_state_in_any_order(data: st.DataObject) -> None:
    origins = [site(n, skew=data.draw(st.integers(-100, 100)), members=range(1, 4)) for n in (1, 2, 3)]
    sent: list[tuple[Run, bytes]] = []
    for step in range(data.draw(st.integers(1, 12))):
        run = message(
            f"t/{data.draw(st.integers(0, 2))}", data.draw(st.sampled_from(["", "a", "b"])), float(step), data.draw(st.integers(0, 1))
        )
        origin = data.draw(st.sampled_from(origins))
        sent.append((run, origin.put_local(run, 0, float(step))))
        if data.draw(st.booleans()):
            data.draw(st.sampled_from(origins)).apply(*data.draw(st.sampled_from(sent)), float(step))
    receivers = [*origins, site(4), site(5)]
    for receiver in receivers:
        for run, mark in data.draw(st.permutations(sent)):
            receiver.apply(run, mark, 50.0)
    assert len({receiver.digest() for receiver in receivers}) == 1
    assert len({str(sorted(contents(receiver).items())) for receiver in receivers}) == 1


# One comparison


@given(st.data())
@settings(max_examples=40)
def test_two_sites_that_compare_are_equal(data: st.DataObject) -> None:
    a, b = site(1), site(2)
    numbers = st.lists(st.integers(0, 400), max_size=60)
    for sync in (a, b):
        for number in data.draw(numbers):
            put(sync, f"t/{number}", data.draw(st.sampled_from(["", "x", "yy" * 50])), 1.0)
    talk(a, b, 2.0)
    assert a.digest() == b.digest()
    assert contents(a) == contents(b)


def test_what_travels_is_what_differs() -> None:
    a, b = site(1), site(2)
    for number in range(5000):
        run = message(f"site/{number % 50}/device/{number}", "x" * 40, 1.0)
        b.apply(run, a.put_local(run, 0, 1.0), 1.0)
    equal = talk(a, b, 2.0)
    assert len(equal.sizes) == 2
    assert sum(equal.sizes) < 300
    for number in range(10):
        put((a, b)[number % 2], f"site/{number}/device/{number * 100}", "y", 3.0)
    few = talk(a, b, 4.0)
    assert a.digest() == b.digest()
    assert len(few.sizes) < 25
    assert sum(few.sizes) < 10 * 800 + 1000
    many = talk(site(1, 5.0), b, 5.0)
    assert sum(many.sizes) > 5000 * 80  # everything, in pieces
    assert max(many.sizes) <= 65_536


def test_a_large_message_travels_in_pieces_a_few_at_a_time() -> None:
    a, b = site(1), site(2)
    put(a, "large", "x" * 1_000_000, 1.0)
    put(a, "small", "y", 1.0)
    b.link_up(1, 2.0)
    a.link_up(2, 2.0)
    under_way = most = 0
    while sends := [(1, send) for send in a.take()[0]] + [(2, send) for send in b.take()[0]]:
        for _, send in sends:
            under_way += {Say.DATA: 1, Say.MORE: -1}.get(decode(send.data).say, 0)
            most = max(most, under_way)
            assert len(send.data) <= PIECE + 100
        for number, send in sends:
            (a, b)[send.peer - 1].receive(number, send.data, 2.0)
    assert contents(b) == contents(a)
    assert most == 4


def test_a_bucket_with_very_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody chooses topics so that all fall into one bucket: lists are cut by identifiers."""
    for module in ("tree", "record"):
        monkeypatch.setattr(f"mqmesh.mesh.retained.{module}.topic_id", lambda topic: b"\0\7" + topic_id(topic)[2:])
    a, b = site(1), site(2)
    topics = [f"t{n}" for n in range(2600)]
    for sync in (a, b):
        for topic in topics:
            put(sync, topic, "x", 1.0)
    talk(a, b, 2.0)
    assert a.digest() == b.digest()


def test_sides_change_while_they_compare() -> None:
    a, b = site(1), site(2)
    for number in range(300):
        put(a, f"a/{number}", "x", 1.0)
        put(b, f"b/{number}", "x", 1.0)
    b.link_up(1, 2.0)
    a.link_up(2, 2.0)
    step = 0
    while sends := [(1, send) for send in a.take()[0]] + [(2, send) for send in b.take()[0]]:
        for number, send in sends:
            step += 1
            if step < 40:
                put(a, f"b/{step}", "newer" if step % 2 else "", 2.0 + step / 100)
                put(b, f"a/{step}", "newer" if step % 3 else "", 2.0 + step / 100)
            (a, b)[send.peer - 1].receive(number, send.data, 2.0 + step / 100)
    a.link_down(2)
    b.link_down(1)
    talk(a, b, 40.0)
    assert a.digest() == b.digest()
    assert len(contents(a)) == 600 - 19 - 13


# What is told


def test_reconciliation_tells_what_is_new_here_and_only_that() -> None:
    a, b = site(1), site(2)
    run = message("live", "x", 1.0)
    assert b.apply(run, a.put_local(run, 0, 1.0), 1.0) == (True, True)
    put(a, "missed", "y", 1.0)
    assert talk(a, b, 2.0).updates == {1: [], 2: [("missed", "y", True)]}
    put(b, "missed", "", 3.0)
    assert talk(a, b, 4.0).updates == {1: [("missed", "", True)], 2: []}
    assert talk(a, b, 40.0).updates == {1: [], 2: []}


def test_a_late_message_that_reconciliation_has_told_is_not_delivered() -> None:
    a, b = site(1), site(2)
    first, second, third = message("t", "1", 1.0), message("t", "2", 2.0), message("t", "3", 3.0)
    marks = [a.put_local(run, 0, run.received) for run in (first, second)]
    talk(a, b, 2.5)
    assert b.apply(second, marks[1], 3.0) == (False, False)
    assert b.apply(first, marks[0], 3.0) == (False, False)
    assert b.apply(third, a.put_local(third, 0, 3.0), 3.0) == (True, True)


def test_what_custody_brings_is_not_told_by_reconciliation() -> None:
    a, b = site(1), site(2)
    talk(a, b, 0.5)
    run = message("t", "x", 1.0, qos=1)
    mark = a.put_local(run, 1 << 2, 1.0)
    assert talk(a, b, 2.0).updates[2] == [("t", "x", False)]
    assert b.apply(run, mark, 3.0) == (False, True)
    elsewhere = message("u", "x", 3.0, qos=1)
    mark = a.put_local(elsewhere, 1 << 7, 3.0)
    assert talk(a, b, 4.0).updates[2] == [("u", "x", True)]


def test_what_was_announced_and_comes_as_a_pick_after_a_restart_is_not_told_again() -> None:
    a, b = site(1), site(2, persist=True)
    talk(a, b, 0.5)
    run = message("t", "x", 1.0, qos=1)
    mark = a.put_local(run, 0, 1.0)
    assert talk(a, b, 2.0).updates[2] == [("t", "x", True)]
    rows = {(change.table, change.key): change.value for change in b.take_changes(2.0) if isinstance(change, PutValue)}
    again = site(2, 3.0, persist=True)
    again.load(rows[STATE, STATE_KEY], [(topic, row) for (table, topic), row in rows.items() if table == RECORDS], 3.0)
    assert again.apply(run, mark, 4.0) == (False, False)


def test_a_new_broker_tells_what_an_earlier_one_of_its_number_would_have_got() -> None:
    a, b = site(1), site(2)
    run = message("t", "x", 1.0, qos=1)
    mark = a.put_local(run, 1 << 2, 1.0)
    assert talk(a, b, 2.0).updates[2] == [("t", "x", True)]
    assert b.apply(run, mark, 3.0) == (False, False)  # should it come nevertheless


def test_a_deletion_that_nobody_was_told_of_is_told_behind_an_older_message() -> None:
    a, b = site(1), site(2)
    talk(a, b, 0.5)
    old = message("t", "x", 1.0, qos=1)
    mark = a.put_local(old, 1 << 2, 1.0)
    put(a, "t", "", 2.0, qos=1, custody=1 << 7)
    assert talk(a, b, 3.0).updates[2] == [], "nothing was retained there"
    assert b.apply(old, mark, 4.0) == (False, True)
    _, updates = b.take()
    assert [(u.record.topic, u.record.payload, u.announce) for u in updates] == [(b"t", b"", True)]
    assert b.get(b"t") is None
    other = message("t", "y", 0.5, qos=1)
    assert b.apply(other, site(3).put_local(other, 1 << 2, 0.5), 5.0) == (False, True)
    assert b.take()[1] == [], "once"


def test_an_untold_deletion_survives_a_restart() -> None:
    a, b = site(1), site(2, persist=True)
    talk(a, b, 0.5)
    old = message("t", "x", 1.0, qos=1)
    mark = a.put_local(old, 1 << 2, 1.0)
    put(a, "t", "", 2.0)
    talk(a, b, 3.0)
    rows = {(change.table, change.key): change.value for change in b.take_changes(3.0) if isinstance(change, PutValue)}
    again = site(2, 4.0, persist=True)
    again.load(rows[STATE, STATE_KEY], [(topic, row) for (table, topic), row in rows.items() if table == RECORDS], 4.0)
    assert again.apply(old, mark, 5.0).deliver
    assert [u.record.payload for u in again.take()[1]] == [b""]


# What is forgotten


def test_a_deletion_is_forgotten_when_all_have_it() -> None:
    a, b = site(1), site(2)
    put(a, "t", "x", 1.0)
    talk(a, b, 2.0, times=2)
    put(b, "t", "", 50.0)
    talk(a, b, 60.0, times=5)
    assert a.status()["buried"] == b.status()["buried"] == 0
    assert a.digest() == b.digest() == "0" * 16


def test_a_deletion_waits_for_an_absent_member_until_t() -> None:
    a, b = site(1, members=(1, 2, 3)), site(2, members=(1, 2, 3))
    put(a, "t", "x", 1.0)
    put(a, "t", "", 2.0)
    talk(a, b, 10.0, times=20)
    assert a.status()["buried"] == b.status()["buried"] == 1
    talk(a, b, 20.0 + T, times=3)
    assert a.status()["buried"] == b.status()["buried"] == 0


def test_a_lone_broker_forgets_at_once() -> None:
    a = site(1, members=())
    put(a, "t", "x", 1.0)
    put(a, "t", "", 2.0)
    a.handle_timer(a.next_deadline())
    assert a.status()["buried"] == 0


def test_who_was_away_for_longer_than_t_brings_nothing_deleted_back_and_loses_nothing() -> None:
    everyone = (1, 2, 3)
    a, b = site(1, members=everyone), site(2, members=everyone)
    for number in range(5):
        put(a, f"t/{number}", "old", 1.0)
    talk(a, b, 2.0)
    put(a, "t/0", "", 10.0)
    put(a, "t/1", "changed", 10.0)
    put(b, "t/2", "changed there", 10.0)
    put(b, "new", "there", 20.0)
    for now in range(30, int(3 * T), 30):
        a.handle_timer(float(now))
    assert a.status()["buried"] == 0
    updates = talk(a, b, 3 * T).updates
    expected = {"t/1": "changed", "t/2": "changed there", "t/3": "old", "t/4": "old", "new": "there"}
    for sync in (a, b):
        sync.handle_timer(3 * T + 1)
    assert contents(a) == contents(b) == expected
    assert ("t/0", "old", True) not in updates[1]
    assert a.take()[1] == []
    told = [*updates[2], *[(u.record.topic.decode(), u.record.payload.decode(), u.announce) for u in b.take()[1]]]
    assert sorted(told) == [("t/0", "", True), ("t/1", "changed", True)]


def test_an_old_live_message_of_what_is_deleted_and_forgotten_is_delivered_but_not_retained() -> None:
    a, b = site(1), site(2)
    run = message("t", "x", 1.0, qos=1)
    mark = a.put_local(run, 1 << 2, 1.0)
    put(a, "t", "", 2.0)
    talk(a, b, 60.0, times=5)
    assert b.apply(run, mark, 300.0) == (False, True)
    assert contents(b) == {}


def test_messages_expire_everywhere_counted_from_their_publication() -> None:
    a, b = site(1), site(2)
    put(a, "t", "x", 1.0, expiry=10)
    put(a, "u", "x", 1.0, expiry=100)
    assert sorted(talk(a, b, 5.0).updates[2]) == [("t", "x", True), ("u", "x", True)]
    assert b.next_deadline() == pytest.approx(11.0, abs=0.01)
    b.handle_timer(11.1)
    assert contents(b) == {"u": "x"}
    assert a._replica.tree.root == b._replica.tree.root  # though only one has buried it
    c = site(2)
    assert sorted(talk(a, c, 60.0).updates[2]) == [("u", "x", True)]
    record = b.get(b"u")
    assert record is not None
    run = record.run(WALL, 60.0)
    assert (run.received, run.expiry, run.expired(100.0), run.expired(102.0)) == (1.0, 100, False, True)


@pytest.mark.parametrize("skew", [-500.0, 500.0])
def test_what_replaces_is_above_whatever_the_clock_says(skew: float) -> None:
    a, b = site(1), site(2, skew=skew)
    run = message("t", "a", 1.0)
    b.apply(run, a.put_local(run, 0, 1.0), 1.0)
    run = message("t", "b", 2.0)
    assert a.apply(run, b.put_local(run, 0, 2.0), 2.0).stored
    run = message("t", "", 3.0)
    assert b.apply(run, a.put_local(run, 0, 3.0), 3.0).stored
    assert contents(a) == contents(b) == {}


# What survives a restart


def rows_of(sync: RetainedSync, now: float, rows: dict[tuple[str, bytes], bytes]) -> dict[tuple[str, bytes], bytes]:
    for change in sync.take_changes(now):
        if isinstance(change, PutValue):
            rows[change.table, change.key] = change.value
        else:
            rows.pop((change.table, change.key), None)
    return rows


def again(rows: dict[tuple[str, bytes], bytes], number: int, now: float, *, skew: float = 0.0) -> RetainedSync:
    sync = site(number, now, skew=skew, persist=True)
    sync.load(rows[STATE, STATE_KEY], [(key, row) for (table, key), row in rows.items() if table == RECORDS], now)
    return sync


def test_a_restart_keeps_everything() -> None:
    a, b = site(1, persist=True), site(2)
    for number in range(20):
        put(a, f"t/{number}", "x", 1.0)
    put(a, "t/3", "", 2.0)
    put(a, "t/4", "x", 2.0, expiry=50)
    rows = rows_of(a, 3.0, {})
    talk(a, b, 4.0)
    rows = rows_of(a, 5.0, rows)
    assert rows_of(a, 5.0, dict(rows)) == rows
    new = again(rows, 1, 6.0)
    assert (new.digest(), contents(new), new.status()["buried"]) == (a.digest(), contents(a), 1)
    assert new.next_deadline() <= 52.1
    put(new, "t/5", "after", 7.0)
    assert talk(new, b, 8.0).updates == {1: [], 2: [("t/5", "after", True)]}
    talk(new, b, 50.0, times=5)
    assert "t/3" not in contents(b)
    assert b.status()["buried"] == 0
    assert (RECORDS, b"t/3") not in rows_of(new, 300.0, rows)


def test_rows_that_cannot_be_read() -> None:
    a = site(1, persist=True)
    put(a, "t", "x", 1.0)
    rows = rows_of(a, 2.0, {})
    state, row = rows[STATE, STATE_KEY], rows[RECORDS, b"t"]
    for bad_state, records in (
        (state[:-1], []),
        (msgpack.packb([1, 1, [], 0.0, True, []]), []),
        (msgpack.packb([9, 1, [[5, 5]], 0.0, True, []]), []),
        (None, [(b"t", row)]),
        (state, [(b"t", row[:-1])]),
        (state, [(b"$x", row)]),
        (state, [(b"t", b"")]),
    ):
        with pytest.raises(ValueError, match="retained message"):
            site(1).load(bad_state, records, 3.0)
    with pytest.raises(ValueError, match="broker 1"):
        site(2).load(state, [], 3.0)
    record = read_row(b"t", row)
    assert pack_row(record) == row


def test_an_old_copy_does_not_delete_what_was_published_after_it_was_made() -> None:
    a, b = site(1, persist=True), site(2)
    put(a, "kept", "x", 1.0)
    talk(a, b, 2.0)
    copy = dict(rows_of(a, 3.0, {}))
    for number in range(10):
        put(a, f"later/{number}", "x", 50.0 + number)
    put(a, "kept", "", 60.0)
    talk(a, b, 70.0)
    old = again(copy, 1, 100.0)
    assert contents(old) == {"kept": "x"}
    put(old, "own", "y", 101.0)
    talk(old, b, 102.0, times=4)
    assert contents(old) == contents(b) == {**{f"later/{n}": "x" for n in range(10)}, "own": "y"}


def test_the_last_words_of_a_life_that_is_forgotten_are_not_taken_for_heard() -> None:
    """A broker lost its memory and its clock went back: it takes a name above its earlier life's, and closes nothing below."""
    old, b, c = site(1, skew=100.0), site(2), site(2, 0.5)
    put(old, "first", "x", 1.0)
    talk(old, b, 2.0)
    mark = put(old, "last", "words", 3.0)
    c.apply(message("last", "words", 3.0), mark, 3.0)
    talk(site(1, 4.0, skew=200.0), b, 5.0)  # another such life
    new = site(1, 10.0)
    put(new, "own", "y", 11.0)
    talk(new, b, 12.0, times=2)
    talk(new, c, 60.0)
    assert contents(new) == contents(c) == {"first": "x", "last": "words", "own": "y"}


@pytest.mark.parametrize("complete", [True, False])
def test_a_life_that_was_killed_is_not_taken_for_heard_to_its_end(complete: bool) -> None:
    """Else what it said last is taken for replaced, and what it replaced is gone too."""
    a, b, c = site(1, persist=True), site(2), site(2, 0.5)
    put(a, "t", "old", 1.0)
    talk(a, b, 2.0)
    talk(a, c, 3.0)
    rows = dict(rows_of(a, 4.0, {}))
    mark = put(a, "t", "new", 5.0)  # never committed
    c.apply(message("t", "new", 5.0), mark, 5.0)
    new = site(1, 10.0, persist=True)
    records = [(key, row) for (table, key), row in rows.items() if table == RECORDS]
    new.load(rows[STATE, STATE_KEY], records, 10.0, complete)
    talk(new, b, 11.0)
    talk(new, c, 12.0)
    assert (contents(new) == contents(c) == {"t": "new"}) != complete


def test_a_life_takes_no_name_that_a_forgotten_life_had() -> None:
    """The broker lost its memory several times, and its clock is behind; neighbours know all of its lives."""
    b = site(2)
    lives = [site(1, skew=float(n)) for n in range(3)]  # born 1 s apart
    for n, life in enumerate(lives):
        put(life, f"t/{n}", "x", 1.0)
        talk(life, b, 2.0 + n)
    names = {life._replica.born for life in lives}
    a = site(1, skew=-100.0)
    a._replica.born = min(names) - 1
    put(a, "u", "y", 5.0)
    talk(a, b, 6.0)
    assert a._replica.born > max(names)
    record = b.get(b"u")
    assert record is not None
    assert record.payload == b"y"


def test_a_life_that_finds_its_name_taken_takes_another() -> None:
    b = site(2)
    earlier = site(1)
    put(earlier, "t", "x", 1.0)
    talk(earlier, b, 50.0)
    a = site(1, skew=-30.0)
    a._replica.born = earlier._replica.born
    put(a, "u", "y", 51.0)
    talk(a, b, 52.0)
    assert a._replica.born > earlier._replica.born
    for sync in (a, b):
        record = sync.get(b"u")
        assert record is not None
        assert (record.payload, record.key.born) == (b"y", a._replica.born)


def test_a_broker_whose_clock_has_gone_back_by_years_is_still_heard() -> None:
    """Without memory and with a clock that begins in 1970, beside one that has closed its earlier lives."""
    a, b = site(1, persist=True), site(2)
    put(a, "t", "x", 1.0)
    talk(a, b, 2.0)
    kept = again(rows_of(a, 3.0, {}), 1, 10.0)
    talk(kept, b, 11.0)
    fresh = site(1, 20.0, skew=20.0 - WALL)
    put(fresh, "mine", "y", 21.0)
    put(fresh, "t", "mine", 21.0)
    talk(fresh, b, 22.0, times=3)
    assert contents(fresh) == contents(b) == {"t": "x", "mine": "y"}
    put(fresh, "t", "mine", 100.0)
    talk(fresh, b, 101.0)
    assert contents(b)["t"] == "mine"


# Bad input


def begin(*values: Any) -> bytes:
    return encode(Say.BEGIN, 1, *values)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb(5),
        msgpack.packb([]),
        msgpack.packb([99, 1]),
        msgpack.packb([0, 1]),
        msgpack.packb([0, -1, 1, 0, 0, [], []]),
        begin(2, 0, 0, [], []),
        begin(1, 0, 0, [[1, 2]], []),
        begin(1, 0, 0, [[70_000, 2, 3]], []),
        begin(1, 0, 2**48, [], []),
        begin(1, "0", 0, [], []),
        encode(Say.ASK, 1, 4, b"\0\0"),
        encode(Say.ASK, 1, 0, b"\0"),
        encode(Say.NODES, 1, 0, b"\0\0", b"\0" * 8),
        encode(Say.LIST, 1, [[0, b"", b"", b"\0" * 27]]),
        encode(Say.LIST, 1, [[70_000, b"", b"", b""]]),
        encode(Say.ANSWER, 1, b"\0" * 13, b""),
        encode(Say.DATA, 1, b"\0" * (PIECE + 1)),
        encode(Say.MORE, 1, 1),
    ],
)
def test_a_malformed_message_is_the_peers_error(data: bytes) -> None:
    sync = site(2)
    sync.link_up(1, 0.0)
    with pytest.raises(PeerError, match=r"\$mesh/retained"):
        sync.receive(1, data, 0.0)


@pytest.mark.parametrize(
    "data",
    [
        encode(Say.STATE, 1, 0, 0, [], []),
        encode(Say.ANSWER, 1, b"", b""),
        encode(Say.FINISHED, 1),
        encode(Say.MORE, 1),
        encode(Say.ASK, 2, 0, b"\0\0"),
        encode(Say.ASK, 1, 1, b"\0\x10"),
        encode(Say.DATA, 1, msgpack.packb([b"t"])),
        encode(Say.DATA, 1, b"\xc1"),
        encode(Say.DATA, 1, msgpack.packb([b"$x", 1, 1, 1, 0, 0, b"", b"x", 1, None, b"", []])),
        encode(Say.DATA, 1, msgpack.packb([b"a/#", 1, 1, 1, 0, 0, b"", b"x", 1, None, b"", []])),
        encode(Say.DATA, 1, msgpack.packb([b"t", 1, 1, 1, 0, 0, b"", b"", 1, None, b"", []])),
        encode(Say.DATA, 1, msgpack.packb([b"t", 1, 1, 1, 1, 0, b"", b"x", 1, None, b"", []])),
        encode(Say.DATA, 1, msgpack.packb([b"t", 1, 1, 1, 0, 3, b"", b"x", 1, None, b"", []])),
        encode(Say.DATA, 1, msgpack.packb([b"t", 1, 1, 1, 0, 0, b"\x0b\x01", b"x", 1, None, b"", []])),
        encode(Say.DATA, 1, msgpack.packb([b"t", 1, 1, 1, 0, 0, b"\x26\0", b"x", 1, None, b"", []])),
    ],
)
def test_a_message_out_of_place_is_the_peers_error(data: bytes) -> None:
    sync = site(2)
    sync.link_up(1, 0.0)
    sync.receive(1, begin(1, 5, 0, [], []), 0.0)
    with pytest.raises(PeerError):
        sync.receive(1, data, 0.0)


def test_a_cut_record_at_the_end_is_the_peers_error() -> None:
    sync = site(2)
    sync.link_up(1, 0.0)
    sync.receive(1, begin(1, 5, 0, [], []), 0.0)
    sync.receive(1, encode(Say.DATA, 1, msgpack.packb([b"t", 1])[:-1]), 0.0)
    with pytest.raises(PeerError, match="cut off"):
        sync.receive(1, encode(Say.FINISH, 1), 0.0)


@given(st.data())
@settings(max_examples=150)
def test_damaged_messages_end_in_a_peer_error_or_are_accepted(data: st.DataObject) -> None:
    a, b = site(1), site(2)
    for number in range(30):
        put(a, f"a/{number}", "x", 1.0)
        put(b, f"b/{number}", "x", 1.0)
    b.link_up(1, 2.0)
    a.link_up(2, 2.0)
    for _ in range(data.draw(st.integers(0, 12))):
        for sync in (a, b):
            for send in sync.take()[0]:
                (a, b)[send.peer - 1].receive(3 - send.peer, send.data, 2.0)
    sends = [*a.take()[0], *b.take()[0]] or [*site_begin()]
    send = data.draw(st.sampled_from(sends))
    raw = bytearray(send.data)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(PeerError):
        (a, b)[send.peer - 1].receive(3 - send.peer, bytes(raw), 2.0)


def site_begin() -> Iterable[Any]:
    sync = site(1)
    sync.link_up(2, 0.0)
    return sync.take()[0]


@pytest.mark.parametrize("mark", [b"", msgpack.packb([1, 2, 3]), msgpack.packb([1, 70_000, 3, b"", []]), msgpack.packb([1, 2, 3, "", []])])
def test_a_bad_mark_is_the_peers_error(mark: bytes) -> None:
    with pytest.raises(PeerError):
        site(1).apply(message("t", "x", 1.0), mark, 1.0)


def test_topics_that_stay_at_their_broker() -> None:
    with pytest.raises(ValueError, match="not shared"):
        put(site(1), "$SYS/x", "x", 1.0)


def test_the_mark_says_the_key() -> None:
    a = site(1)
    key, mask, over = read_mark(put(a, "t", "x", 1.0, custody=0b101, qos=1))
    record = a.get(b"t")
    assert record is not None
    assert (key, mask, over) == (record.key, 0b101, ())
    assert record.kind is Kind.VALUE
    assert key.time == int((WALL + 1.0) * 1000)
