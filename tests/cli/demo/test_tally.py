"""The demo's counting: it must find what was lost or duplicated, and excuse nothing that the rules do not name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.cli.demo.tally import Arrivals, Outage, Sent, delays, flowing_again, judge

SITES = ("a", "b", "c")
Losses = st.sets(st.tuples(st.sampled_from(SITES), st.sampled_from(SITES), st.integers(0, 19)))


def perfect(count: int = 20) -> tuple[dict[str, list[Sent]], dict[str, dict[str, Arrivals]]]:
    """Each site publishes reading s at time s; it arrives everywhere half a second later."""
    sent = {site: [Sent(float(s), acknowledged=True) for s in range(count)] for site in SITES}
    received = {site: {origin: Arrivals() for origin in SITES} for site in SITES}
    for origins in received.values():
        for arrivals in origins.values():
            for s in range(count):
                arrivals.note(s, s + 0.5)
    return sent, received


def lose(received: dict[str, dict[str, Arrivals]], site: str, origin: str, sequence: int) -> None:
    received[site][origin].first.pop(sequence, None)


@given(lost=Losses, again=Losses)
def test_each_loss_and_each_duplicate_is_counted_at_its_site(lost: set[tuple[str, str, int]], again: set[tuple[str, str, int]]) -> None:
    sent, received = perfect()
    for site, origin, sequence in again:
        received[site][origin].note(sequence, 99.0)
    for site, origin, sequence in lost:
        lose(received, site, origin, sequence)
    results, apart = judge(sent, received, None)
    for result in results:
        assert result.due == 60
        assert result.lost == sum(site == result.site for site, _, _ in lost)
        assert result.delivered == result.due - result.lost
        assert result.duplicates == sum(site == result.site for site, _, _ in again)
    assert (apart.own, apart.missed) == (0, 0)


@given(lost=Losses, killed=st.integers(1, 18))
def test_an_outage_excuses_nothing_between_surviving_sites(lost: set[tuple[str, str, int]], killed: int) -> None:
    sent, received = perfect()
    among = {one for one in lost if "c" not in one[:2]}
    for site, origin, sequence in among:
        lose(received, site, origin, sequence)
    results, _ = judge(sent, received, Outage("c", killed + 0.7, killed + 5.0))
    for result in results[:2]:
        assert result.lost == sum(site == result.site for site, _, _ in among)


def test_at_the_killed_site_only_what_was_on_its_way_or_came_while_it_was_away_is_excused() -> None:
    sent, received = perfect()
    outage = Outage("c", killed=10.6, back=15.0)
    for sequence in (*range(11, 15), 18):  # away: 11 to 14; 18 is a real loss after the return
        lose(received, "c", "a", sequence)
    lose(received, "c", "a", 7)  # below what had arrived: a gap, so a real loss
    result = judge(sent, received, outage)[0][2]
    apart = judge(sent, received, outage)[1]
    assert result.lost == 2
    assert apart.missed == 4


def test_readings_of_the_killed_site_that_only_its_broker_held_are_apart() -> None:
    sent, received = perfect()
    outage = Outage("c", killed=10.4, back=15.0)  # reading 10 was published at 10.0 and would have arrived at 10.5
    lose(received, "a", "c", 10)
    received["b"]["c"].note(10, 16.0)
    results, apart = judge(sent, received, outage)
    assert (apart.own, apart.own_somewhere, apart.own_lost, apart.own_duplicates) == (1, 1, 1, 1)
    assert [(one.lost, one.duplicates) for one in results[:2]] == [(0, 0), (0, 0)]
    lose(received, "a", "c", 9)  # had arrived at b and c before: only this one is lost, and 9 is not excused by that
    received["a"]["c"].first[9] = 9.5
    lose(received, "a", "c", 12)  # published after the kill
    assert judge(sent, received, outage)[0][0].lost == 1


def test_what_was_not_acknowledged_is_not_due() -> None:
    sent, received = perfect()
    sent["a"][19].acknowledged = False
    lose(received, "b", "a", 19)
    assert [(one.due, one.lost) for one in judge(sent, received, None)[0]] == [(59, 0)] * 3


def test_disorder_counts_what_arrives_behind_a_later_one() -> None:
    arrivals = Arrivals()
    for sequence in (0, 2, 1, 3, 3):
        arrivals.note(sequence, 1.0)
    assert (arrivals.disorder, arrivals.again) == (1, {3: 1})


def test_flowing_again_is_the_slowest_pair_and_none_when_one_never_flows() -> None:
    sent, received = perfect()
    received["b"]["a"].first[6] = 8.25
    for sequence in range(7, 20):
        lose(received, "b", "a", sequence)
    assert flowing_again(sent, received, 5.5, [("a", "b"), ("b", "a")]) == 2.75
    lose(received, "b", "a", 6)
    assert flowing_again(sent, received, 5.5, [("a", "b"), ("b", "a")]) is None
    assert flowing_again(sent, received, 5.5, [("b", "a")]) == 1.0


def test_delays_leave_out_the_publishers_own_site() -> None:
    sent, received = perfect(2)
    assert delays(sent, received) == [0.5] * 12
    assert delays(sent, received, leave_out="c") == [0.5] * 4


def test_what_the_client_sends_again_because_its_broker_died_with_the_puback_is_counted_apart() -> None:
    """It had reached every site; only the publisher did not know."""
    sent, received = perfect()
    sent["c"][9].acknowledged_at = 30.0
    for site in ("a", "b"):
        received[site]["c"].note(9, 30.0)
    results, apart = judge(sent, received, Outage("c", 10.0, 20.0))
    assert [one.duplicates for one in results] == [0, 0, 0]
    assert apart.own_duplicates == 2
