"""A ring of five under load loses, doubles and disorders nothing at the surviving sites, whatever breaks.

The rounds share one mesh, so that each begins where the one before has left it.
"""

from __future__ import annotations

import pytest
from support.scenes import Scene, assert_clean, both
from support.services import PATIENCE, wait_until

pytestmark = pytest.mark.slow


def test_nothing_breaks(ring: Scene) -> None:
    ring.load.wait(lambda: ring.load.sent >= 3000, 90)
    assert_clean(ring.check("stable"))
    wait_until(lambda: bool(ring.still()) and not ring.held, PATIENCE, "end of all custody")


def test_a_link_is_cut(ring: Scene) -> None:
    assert_clean(ring.round(ring.cut(("a", "b")), 1.0))


def test_a_relay_broker_is_killed(ring: Scene) -> None:
    assert_clean(ring.round(ring.kill("c"), 0.5))


def test_another_broker_is_killed_and_its_data_wiped(ring: Scene) -> None:
    assert_clean(ring.round(ring.kill("e", wipe=True), 0.5))


def test_a_broker_is_silent_for_a_while(ring: Scene) -> None:
    assert_clean(ring.round(ring.stop("d"), 1.5))


def test_a_broker_is_silent_for_less_than_anybody_notices(ring: Scene) -> None:
    assert_clean(ring.round(ring.stop("b"), 0.4))


def test_a_link_stalls_and_is_given_up(ring: Scene) -> None:
    assert_clean(ring.round(ring.silence(("b", "c")), 1.5))


@pytest.mark.parametrize("seconds", [0.5, 1.5])
def test_a_link_stalls_and_goes_on(ring: Scene, seconds: float) -> None:
    assert_clean(ring.round(ring.silence(("d", "e"), resume=True), seconds))


def test_two_links_at_once_part_the_mesh(ring: Scene) -> None:
    assert_clean(ring.round(ring.cut(("a", "b"), ("c", "d")), 1.5))


def test_a_site_is_alone(ring: Scene) -> None:
    assert_clean(ring.round(ring.cut(("a", "b"), ("b", "c")), 1.0))


def test_all_links_at_once(ring: Scene) -> None:
    assert_clean(ring.round(ring.cut(*ring.links), 1.0))


def test_a_link_flaps(ring: Scene) -> None:
    for _ in range(3):
        assert_clean(ring.round(ring.cut(("e", "a")), 0.1, after=0.1))


def test_two_neighbours_are_killed_at_once(ring: Scene) -> None:
    assert_clean(ring.round(both(ring.kill("a"), ring.kill("b")), 0.5))


def test_a_link_is_cut_while_a_broker_is_silent(ring: Scene) -> None:
    assert_clean(ring.round(both(ring.stop("d"), ring.cut(("a", "b"))), 1.5))
