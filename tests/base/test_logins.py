"""Who is looked at next: under floods of logins others get their turn, and guesses are not faster for being made at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.logins import BURST, LONGEST_PAUSE, REFILL, Logins

COST = 0.02  # seconds of a comparison


class World:
    """Virtual time. right: names whose logins are right. at: when each ticket was answered."""

    def __init__(self, right: set[str], most: int = 1000, together: int = 2) -> None:
        self.logins: Logins[int] = Logins(most, together)
        self.right, self.now = right, 0.0
        self.names: dict[int, str] = {}
        self.sources: dict[int, str] = {}
        self.under_way: dict[int, float] = {}
        self.at: dict[int, float] = {}
        self.refused: set[int] = set()

    def ask(self, source: str, name: str) -> int:
        ticket = len(self.names)
        self.names[ticket], self.sources[ticket] = name, source
        gone = self.logins.ask(ticket, source, name)
        if gone is not None:
            self.refused.add(gone)
        return ticket

    def run(self, seconds: float) -> None:
        """Look at logins until a time."""
        end = self.now + seconds
        while True:
            while (ticket := self.logins.take(self.now)) is not None:
                self.under_way[ticket] = self.now + COST
                together = [one.paused_as for one in self.logins._under_way.values()]
                assert len(set(together)) == len(together), "one comparison at a time for a name, and for an address where it was right"
            times = [*self.under_way.values()]
            at = self.logins.next_time(self.now)
            if at is not None:
                times.append(at)
            then = max(self.now, min(times, default=end))
            if then >= end:
                self.now = end
                return
            self.now = then
            for ticket, done in list(self.under_way.items()):
                if done <= self.now:
                    del self.under_way[ticket]
                    self.at[ticket] = self.now
                    self.logins.done(ticket, self.names[ticket] in self.right, self.now)


def test_a_flood_for_a_user_who_does_not_exist_keeps_nobody_out() -> None:
    """Fifty a second for a minute, from one address; others come from there and from elsewhere."""
    world = World({"anna", "bob"})
    for second in range(60):
        for _ in range(50):
            world.ask("10.0.0.1", "nobody")
        there, elsewhere = world.ask("10.0.0.1", "anna"), world.ask("10.0.0.2", "bob")
        world.run(1.0)
        assert world.at[there] - second <= 2 * COST + 1e-9
        assert world.at[elsewhere] - second <= 2 * COST + 1e-9


def test_a_flood_of_different_names_leaves_other_addresses_room() -> None:
    world = World({"bob"})
    for second in range(60):
        for number in range(50):
            world.ask("10.0.0.1", f"name{second}-{number}")
        ticket = world.ask("10.0.0.2", "bob")
        world.run(1.0)
        assert world.at[ticket] - second <= COST + 1e-9
    assert sum(world.sources[one] == "10.0.0.1" for one in world.at) <= BURST + 60 * REFILL + 1, "guesses at many names are slow too"


def test_guesses_at_once_are_no_more_than_guesses_in_turn() -> None:
    turns, once = World(set()), World(set())
    for _ in range(600):
        once.ask("10.0.0.1", "anna")
        if not turns.logins.waiting:
            turns.ask("10.0.0.1", "anna")
        once.run(0.1)
        turns.run(0.1)
    assert abs(len(once.at) - len(turns.at)) <= 1
    assert len(once.at) <= 13


def test_guesses_from_many_addresses_are_no_more_either() -> None:
    world = World(set())
    for number in range(600):
        world.ask(f"10.0.{number}", "anna")
        world.run(0.1)
    assert len(world.at) <= 13


def test_who_was_right_before_is_not_kept_out_by_guesses_from_elsewhere() -> None:
    world = World({"anna"})
    world.ask("10.0.0.2", "anna")
    world.run(1.0)
    world.right = set()
    for _ in range(100):
        world.ask("10.0.0.1", "anna")
    world.run(30.0)
    world.right = {"anna"}
    began = world.now
    ticket = world.ask("10.0.0.2", "anna")
    world.run(1.0)
    assert world.at[ticket] - began <= 2 * COST


def test_who_makes_room_when_too_many_wait() -> None:
    world = World(set(), most=10)
    tickets = [world.ask("10.0.0.1", "nobody") for _ in range(20)]
    assert world.refused == set(tickets[10:])
    for number in range(5):
        world.ask(f"10.0.1.{number}", "anna")
    assert len(world.refused) == 15
    assert all(world.sources[one] == "10.0.0.1" for one in world.refused)
    assert world.logins.waiting == 10


names = st.sampled_from(["anna", "bob", "x", "y"])
sources = st.sampled_from(["1", "2", "3"])
steps = st.lists(st.one_of(st.tuples(sources, names), st.floats(0.001, 3.0), st.integers(0, 30)), max_size=60)


@given(steps)
def test_everybody_is_answered_or_refused_once(steps: list[tuple[str, str] | float | int]) -> None:
    world = World({"anna", "bob"}, most=8)
    gone: set[int] = set()
    for step in steps:
        if isinstance(step, tuple):
            world.ask(*step)
        elif isinstance(step, int):
            if step in world.names and step not in world.at and step not in world.under_way:
                gone.add(step)
            world.logins.withdraw(step)
        else:
            world.run(step)
    world.run(100 * LONGEST_PAUSE)
    assert set(world.at) | world.refused | gone == set(world.names)
    assert not set(world.at) & world.refused
    logins = world.logins
    assert not any((logins.waiting, logins._waiting, logins._count, logins._of, logins._under_way))
