"""Deadlines of clients that wait for answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.roaming.asking import Asking
from mqmesh.mesh.roaming.names import Places
from mqmesh.mesh.roaming.places import NEVER, NO_KEY, Input, Place


class Watched(Place):
    """A place that counts how often it is asked whether it waits."""

    __slots__ = ()
    looks = 0

    @property
    def waits(self) -> bool:
        Watched.looks += 1
        return super().waits


def waiting(places: Places, client: str, until: float) -> Place:
    place = places[client] = Watched(client, (1, 1))
    place.until = until
    return place


def test_a_storm_of_clients_costs_each_of_them_the_same() -> None:
    places = Places()
    asking = Asking(places)
    Watched.looks = 0
    for i in range(1000):
        asking.add(waiting(places, f"c{i}", 3.0 + i))
        assert asking.next() == 3.0
    assert Watched.looks < 3000


def test_who_waits_for_nothing_leaves_nothing() -> None:
    places = Places()
    asking = Asking(places)
    asking.add(waiting(places, "a", NEVER))
    assert not asking._heap


def test_a_place_that_gets_longer_is_found_at_its_later_time() -> None:
    places = Places()
    asking = Asking(places)
    place = waiting(places, "a", 3.0)
    asking.add(place)
    place.until = 60.0
    assert list(asking.due(3.0, 10)) == []
    assert asking.next() == 60.0
    assert list(asking.due(60.0, 10)) == [place]


def test_who_waits_all_the_same_is_found_again() -> None:
    places = Places()
    asking = Asking(places)
    place = waiting(places, "a", 3.0)
    asking.add(place)
    assert list(asking.due(3.0, 10)) == [place]
    assert list(asking.due(3.0, 10)) == [place]
    place.step(Input.NOBODY)
    assert list(asking.due(3.0, 10)) == []
    assert asking.next() is None


def test_what_the_turn_before_has_ended_is_left_alone() -> None:
    places = Places()
    asking = Asking(places)
    first, second = waiting(places, "a", 1.0), waiting(places, "b", 1.0)
    asking.add(first)
    asking.add(second)
    found = []
    for place in asking.due(1.0, 10):
        found.append(place)
        place.step(Input.NOBODY)
        del places["b"]
    assert found == [first]


steps = st.lists(
    st.tuples(st.sampled_from(["claim", "longer", "over", "gone", "later"]), st.integers(0, 4), st.integers(0, 9)), max_size=40
)


@given(steps)
def test_as_a_look_at_all_of_them(todo: list[tuple[str, int, int]]) -> None:
    """next() is never too late, and due() finds what a look at each place finds."""
    places, now = Places(), 0.0
    asking = Asking(places)
    for what, number, time in todo:
        client = f"c{number}"
        place = places.get(client)
        if what == "claim":
            asking.add(waiting(places, client, now + time))
        elif what == "longer" and place is not None and place.until != NEVER:
            place.until += time
        elif what == "over" and place is not None:
            place.until, place.pending = NEVER, NO_KEY
        elif what == "gone" and place is not None:
            del places[client]
        elif what == "later":
            now += time
        waits = [one for one in places.values() if one.waits]
        deadline = asking.next()
        assert (deadline is None) == (not waits)
        assert deadline is None or deadline <= min(one.until for one in waits)
        late = {one.client for one in waits if one.until <= now}
        assert {one.client for one in asking.due(now, 10)} == late


def test_most_are_found_at_once() -> None:
    places = Places()
    asking = Asking(places)
    for i in range(5):
        asking.add(waiting(places, f"c{i}", float(i)))
    found = []
    for place in asking.due(9.0, 2):
        found.append(place.client)
        place.step(Input.NOBODY)
    assert found == ["c0", "c1"]
    assert asking.next() == 2.0
