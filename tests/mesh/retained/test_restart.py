"""Retained messages across sites: what survives a restart, and what an old copy of a disk does."""

from __future__ import annotations

import msgpack
import pytest
from mqmesh.mesh.retained import PutValue, RetainedSync
from mqmesh.mesh.retained.record import pack_row, read_row
from mqmesh.mesh.retained.replica import RECORDS, STATE, STATE_KEY
from support.models.retained_sites import WALL, contents, message, put, site, talk


def rows_of(sync: RetainedSync, now: float, rows: dict[tuple[str, bytes], bytes]) -> dict[tuple[str, bytes], bytes]:
    for change in sync.take_changes(now):
        if isinstance(change, PutValue):
            rows[change.table, change.key] = change.value
        else:
            rows.pop((change.table, change.key), None)
    return rows


def again(
    rows: dict[tuple[str, bytes], bytes], number: int, now: float, *, skew: float = 0.0, kept_skew: float | None = None
) -> RetainedSync:
    sync = site(number, now, skew=skew, persist=True)
    sync.set_kept_offset(WALL + (skew if kept_skew is None else kept_skew))
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


@pytest.mark.parametrize("skew", [3600.0, -3600.0, -WALL])
def test_a_clock_that_is_set_between_two_lives_changes_no_life_of_a_message(skew: float) -> None:
    """Kept by a clock that goes on (`set_kept_offset`); here, and at a neighbour that gets it from the later life."""
    a, b = site(1, persist=True), site(2)
    put(a, "t", "x", 1.0, expiry=50)
    new = again(rows_of(a, 2.0, {}), 1, 10.0, skew=skew, kept_skew=0.0)
    talk(new, b, 20.0)
    for one in (new, b):
        one.handle_timer(50.9)
        assert contents(one) == {"t": "x"}
        one.handle_timer(51.1)
        assert contents(one) == {}


def test_a_message_of_the_future_lives_no_longer_than_it_may() -> None:
    a = site(1, skew=3600.0, persist=True)
    put(a, "t", "x", 1.0, expiry=50)
    new = again(rows_of(a, 2.0, {}), 1, 3.0)
    new.handle_timer(53.1)
    assert contents(new) == {}


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
