"""Retained messages across sites: keys, hashes, and one comparison between two sites."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.mesh.retained import Key
from mqmesh.mesh.retained.record import record_hash, topic_id, unpack_key
from mqmesh.mesh.retained.tree import RecordTree
from mqmesh.mesh.retained.wire import PIECE, Say, decode
from mqmesh.mqtt.batch.run import Run
from support.examples import examples
from support.models.retained_sites import KEYS, contents, message, put, site, talk


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
@settings(max_examples=examples(60))
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
@settings(max_examples=examples(40))
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
