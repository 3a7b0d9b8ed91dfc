"""Retained messages across sites: what subscribers are told, and when a deletion is forgotten."""

from __future__ import annotations

import pytest
from mqmesh.mesh.retained import PutValue, RetainedSync
from mqmesh.mesh.retained.replica import RECORDS, STATE, STATE_KEY
from support.models.retained_sites import WALL, T, contents, message, put, site, talk


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


@pytest.mark.parametrize("forgetful", [1, 2])
def test_a_deletion_that_one_site_has_forgotten_counts_over_an_older_message_that_came_there_since(forgetful: int) -> None:
    """The message is of a site that was given up; the other site knows one that has not heard of the deletion."""
    a, b = site(forgetful, members=()), site(3 - forgetful, members=(1, 2, 9))
    away = site(3 if forgetful == 1 else 0, members=(0, 1, 2, 3))

    def meet(one: RetainedSync, other: RetainedSync, now: float) -> None:
        talk(one, other, now) if forgetful == 1 else talk(other, one, now)

    put(away, "t", "x", 1.0)
    put(b, "t", "", 5.0)
    meet(a, b, 6.0)
    for now in range(30, 200, 30):
        a.handle_timer(float(now))
    oldest = message("t", "w", 0.5)
    a.apply(oldest, site(7).put_local(oldest, 0, 0.5), 199.0)  # so that what replaces it is kept when it is deleted
    meet(a, away, 200.0)
    assert (contents(a), b.status()["buried"]) == ({"t": "x"}, 1)
    for turn in range(1, 4):
        meet(a, b, 200.0 + 2 * turn)
        meet(a, away, 201.0 + 2 * turn)
    assert contents(a) == contents(b) == contents(away) == {}


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
