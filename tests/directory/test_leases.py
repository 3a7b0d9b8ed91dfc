"""Leases against a model, in virtual time; and the cases that users meet, one by one."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from mqmesh.directory import leases
from mqmesh.directory import records as all_records
from mqmesh.directory.leases import Claim
from mqmesh.directory.records import Record
from mqmesh.directory.storage.accounts import add_account
from mqmesh.directory.storage.errors import DirectoryError
from mqmesh.directory.storage.store import Store
from mqmesh.directory.storage.tables import Account
from mqmesh.directory.uddi.saving import prepare
from support.examples import examples

ALICE, BOB = Account("alice", "acme"), Account("bob", "other")
KEEP = 1000.0


class World:
    """A directory in memory with a clock that tests set."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.store = Store("sqlite://", lambda: self.now)
        prepare(self.store)

    def claim(
        self, holder: uuid.UUID, name: str, number: int | None = None, seconds: float = 30.0, owner: Account = ALICE, **more: Any
    ) -> Any:
        services = [Record("service", one, "ring", addresses=["mqtt://a"]) for one in more.pop("services", ())]
        broker = Record("broker", name, "ring", number=number, addresses=["mqtt://h:1"], **more)
        with self.store.writing(owner) as records:
            return leases.claim(records, owner, Claim(str(holder), broker, services, seconds), KEEP)

    def number(self, holder: uuid.UUID, name: str, *given: Any, **more: Any) -> int:
        return int(self.claim(holder, name, *given, **more).lease.number)

    def leave(self, holder: uuid.UUID) -> None:
        with self.store.writing(ALICE) as records:
            leases.leave(records, ALICE, "ring", str(holder))

    def register(self, name: str, number: int | None, owner: Account = ALICE, **more: Any) -> None:
        with self.store.writing(owner) as records:
            all_records.put(records, owner, Record("broker", name, "ring", number=number, **more))

    def found(self, sort: str = "broker") -> dict[str, int | None]:
        with self.store.reading() as records:
            return {one.name: one.number for one in all_records.find(records, sort, "ring")}


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.store.close()


def refused(code: str, says: str | None = None) -> pytest.RaisesExc[DirectoryError]:
    return pytest.raises(DirectoryError, match=says, check=lambda error: error.code == code)


A, B, C = (uuid.UUID(int=number) for number in (1, 2, 3))


def test_a_broker_is_found_while_it_renews(world: World) -> None:
    assert world.number(A, "porto", services=["weather"]) == 1
    for _ in range(3):
        world.now += 29
        assert world.number(A, "porto", 1, services=["weather"]) == 1
    assert (world.found(), world.found("service")) == ({"porto": 1}, {"weather": None})
    world.now += 30
    assert (world.found(), world.found("service")) == ({}, {}), "readers miss it at the end of the lease, before anybody writes"
    assert world.number(B, "lyon") == 2
    assert world.number(A, "porto") == 1
    world.leave(A)
    assert world.found() == {"lyon": 2}
    with refused("E_invalidKeyPassed"):
        world.leave(A)


def test_a_renewal_that_changes_nothing_leaves_the_record_as_it_is(world: World) -> None:
    def modified() -> float:
        with world.store.reading() as records:
            return all_records.get(records, "broker", "ring", "porto").modified

    world.claim(A, "porto", 1)
    first = modified()
    world.now += 10
    world.claim(A, "porto", 1)
    assert modified() == first
    world.claim(A, "porto", 1, description="on the roof")
    assert modified() == world.now


def test_the_number_of_a_name_goes_to_another_holder_behind_the_lease_only(world: World) -> None:
    world.claim(A, "porto")
    with refused("E_valueNotAllowed", "its lease ends in 30 s"):
        world.claim(B, "porto")
    world.now += 30
    assert world.number(B, "porto") == 1, "a wiped data folder"
    with refused("E_valueNotAllowed"):
        world.claim(A, "porto")
    assert world.number(A, "lyon") == 2


def test_a_number_is_kept_for_its_broker_and_no_record_takes_it(world: World) -> None:
    world.claim(A, "porto")
    world.now += 30
    with refused("E_valueNotAllowed", "kept for the broker 'porto'"):
        world.claim(B, "lyon", 1)
    with refused("E_valueNotAllowed", "kept for the broker 'porto'"):
        world.register("lyon", 1)
    world.now += KEEP - 1
    assert world.number(B, "lyon") == 2
    world.now += 1
    assert world.number(C, "graz") == 1


def test_a_number_of_a_record_is_not_given(world: World) -> None:
    world.claim(A, "porto", 5)
    world.register("fixed", 1)
    assert world.number(B, "lyon") == 2
    with refused("E_valueNotAllowed"):
        world.claim(C, "graz", 1)


def test_what_was_registered_by_hand_stands(world: World) -> None:
    world.claim(B, "other")
    world.register("porto", 7, addresses=["mqtt://public:1"])
    granted = world.claim(A, "porto")
    assert (granted.lease.number, granted.static) == (7, True)
    with refused("E_valueNotAllowed", "has the number 7, not 8"):
        world.claim(A, "porto", 8)
    world.register("lyon", None)
    assert world.number(C, "lyon") == 2
    world.now += 10_000
    assert world.found() == {"porto": 7, "lyon": 2}


def test_a_record_that_is_written_over_a_lease_stays(world: World) -> None:
    world.claim(A, "porto", services=["weather"])
    world.register("porto", 1)
    world.now += 30
    assert (world.found(), world.found("service")) == ({"porto": 1}, {})
    assert world.claim(A, "porto", 1).static


def test_a_service_goes_over_to_the_next_broker_that_offers_it(world: World) -> None:
    world.claim(A, "porto", services=["weather"])
    assert world.claim(B, "lyon", services=["weather", "tides"]).refused == ["another service here has the name 'weather'"]
    world.now += 20
    world.claim(B, "lyon", services=["weather", "tides"])
    assert set(world.found("service")) == {"weather", "tides"}
    world.now += 15
    assert world.claim(B, "lyon", services=["weather", "tides"]).refused == []
    assert set(world.found("service")) == {"weather", "tides"}
    world.claim(B, "lyon", services=["tides"])
    assert set(world.found("service")) == {"tides"}


def test_a_broker_changes_its_number_and_its_name(world: World) -> None:
    world.claim(A, "porto")
    assert world.number(A, "porto", 9) == 9
    assert world.found() == {"porto": 9}
    assert world.number(A, "oporto") == 9
    assert world.found() == {"oporto": 9}
    assert world.number(A, "oporto", 1) == 1, "the one that it had is kept for it"
    assert world.number(B, "porto") == 2


def test_the_number_of_a_record_stays_with_it_when_its_broker_takes_another_name(world: World) -> None:
    world.claim(B, "other")
    world.register("porto", 6)
    assert world.number(A, "porto") == 6
    assert world.number(A, "lyon") == 2
    assert world.found() == {"other": 1, "porto": 6, "lyon": 2}


def test_only_the_owner_claims_renews_and_leaves(world: World) -> None:
    world.claim(A, "porto")
    for act in (
        lambda: world.claim(B, "lyon", owner=BOB),
        lambda: world.claim(A, "porto", owner=BOB),
    ):
        with refused("E_userMismatch"):
            act()
    with world.store.writing(BOB) as records, refused("E_userMismatch"):
        leases.leave(records, BOB, "ring", str(A))
    for look in (lambda records: leases.listed(records, BOB, "ring"), lambda records: leases.forget(records, BOB, "ring", 1)):
        with world.store.writing(BOB) as records, refused("E_userMismatch"):
            look(records)


def test_the_owner_frees_a_number(world: World) -> None:
    world.claim(A, "porto")
    with world.store.writing(ALICE) as records:
        [listed] = leases.listed(records, ALICE, "ring")
        assert (listed["number"], listed["name"], listed["expires_in"]) == (1, "porto", 30.0)
        with refused("E_valueNotAllowed", "for another 30 s"):
            leases.forget(records, ALICE, "ring", 1)
    world.leave(A)
    with world.store.writing(ALICE) as records:
        leases.forget(records, ALICE, "ring", 1)
    assert world.number(B, "lyon") == 1


def test_a_mesh_that_is_for_an_organisation_stays_so(world: World) -> None:
    add_account(world.store, "alice", "acme")
    world.claim(A, "porto", visibility="organisation")
    assert world.found() == {}
    with world.store.reading(ALICE) as records:
        assert [one.visibility for one in all_records.find(records, "mesh")] == ["organisation"]
    with world.store.writing(BOB) as records, refused("E_invalidKeyPassed"):
        leases.leave(records, BOB, "ring", str(A))
    with refused("E_valueNotAllowed"):
        world.claim(B, "lyon", owner=BOB)


def test_a_mesh_that_is_deleted_takes_its_leases_along(world: World) -> None:
    world.claim(A, "porto", 3)
    with world.store.writing(ALICE) as records:
        all_records.delete(records, ALICE, "mesh", "", "ring")
    assert world.number(B, "lyon", 3) == 3


@pytest.mark.parametrize(
    ("holder", "body"),
    [
        ("no-uuid", {"name": "a", "seconds": 30}),
        (str(A), []),
        (str(A), {"name": "a"}),
        (str(A), {"seconds": 30}),
        (str(A), {"name": 1, "seconds": 30}),
        (str(A), {"name": "a", "seconds": True}),
        (str(A), {"name": "a", "seconds": 0.5}),
        (str(A), {"name": "a", "seconds": 86401}),
        (str(A), {"name": "a", "seconds": 30, "number": 65536}),
        (str(A), {"name": "a", "seconds": 30, "services": {}}),
        (str(A), {"name": "a", "seconds": 30, "services": [{"addresses": []}]}),
        (str(A), {"name": "a", "seconds": 30, "services": [{"name": "s"}, {"name": "s"}]}),
        (str(A), {"name": "a", "seconds": 30, "services": [{"name": "s"}] * 65}),
        (str(A), {"name": "a", "seconds": 30, "services": [{"name": "s", "colour": 1}]}),
        (str(A), {"name": "a", "seconds": 30, "colour": 1}),
    ],
)
def test_what_is_wrong_is_refused(holder: str, body: object) -> None:
    with refused("E_invalidValue"):
        leases.read_claim("ring", holder, body)


HOLDERS = [uuid.UUID(int=number) for number in range(1, 6)]
NAMES = ["a", "b", "c", "d"]


class Machine(RuleBasedStateMachine):
    """Holders claim, renew, leave and fall silent; a model says who has which number until when."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.live: dict[uuid.UUID, tuple[str, int, float]] = {}  # holder -> name, number, end of the lease
        self.kept: dict[int, tuple[uuid.UUID, str, float]] = {}  # number -> its last holder and name, until when it is kept
        self.fixed: dict[str, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.store.close()

    def _held(self) -> dict[uuid.UUID, tuple[str, int, float]]:
        return {holder: one for holder, one in self.live.items() if one[2] > self.world.now}

    def _granted(self, *wanted: Any) -> Any:
        """The answer, None for E_valueNotAllowed."""
        try:
            return self.world.claim(*wanted)
        except DirectoryError as error:
            if error.code == "E_valueNotAllowed":
                return None
            raise

    @rule(
        holder=st.sampled_from(HOLDERS),
        name=st.sampled_from(NAMES),
        wish=st.none() | st.integers(1, 6),
        seconds=st.sampled_from([10.0, 30.0]),
    )
    def claim(self, holder: uuid.UUID, name: str, wish: int | None, seconds: float) -> None:
        now, held = self.world.now, self._held()
        before = {number: one for number, one in self.kept.items() if one[2] > now}
        others = {number for other, number in self.fixed.items() if other != name}
        had = [number for number, (other, _, _) in before.items() if other == holder and number not in others]
        of_name = [number for number, (_, other, _) in before.items() if other == name and number not in others]
        granted = self._granted(holder, name, wish, seconds)
        if granted is None:
            taken_name = any(other != holder and one[0] == name for other, one in held.items())
            fixed_otherwise = name in self.fixed and wish not in (None, self.fixed[name])
            number = self.fixed.get(name, wish)
            taken = number is not None and (
                any(other != holder and one[1] == number for other, one in held.items())
                or (number in before and before[number][0] != holder and before[number][1] != name)
                or any(other != name and one == number for other, one in self.fixed.items())
            )
            assert taken_name or fixed_otherwise or taken
            return
        number = granted.lease.number
        for other, one in held.items():
            assert other == holder or (one[0] != name and one[1] != number), "a number or name is handed out twice"
        if number in before:
            assert before[number][0] == holder or before[number][1] == name, "a number that is kept goes to another broker"
        if wish is not None:
            assert number == wish
        elif name not in self.fixed and (had or of_name):
            assert number in had + of_name, "a broker that comes back gets its own number"
        if holder in held and held[holder][1] != number:
            self.kept[held[holder][1]] = (holder, held[holder][0], now + KEEP)
        self.live[holder] = (name, number, now + seconds)
        self.kept[number] = (holder, name, now + seconds + KEEP)

    @rule(holder=st.sampled_from(HOLDERS))
    def renew(self, holder: uuid.UUID) -> None:
        if holder not in self._held():
            return
        name, number, _ = self.live[holder]
        granted = self.world.claim(holder, name, number)
        assert granted.lease.number == number
        self.live[holder] = (name, number, self.world.now + 30)
        self.kept[number] = (holder, name, self.world.now + 30 + KEEP)

    @rule(holder=st.sampled_from(HOLDERS))
    def leave(self, holder: uuid.UUID) -> None:
        if holder not in self._held():
            return
        name, number, _ = self.live.pop(holder)
        self.world.leave(holder)
        self.kept[number] = (holder, name, self.world.now + KEEP)

    @rule(name=st.sampled_from(["a", "x"]), number=st.integers(1, 8))
    def register(self, name: str, number: int) -> None:
        if name not in self.fixed and name not in {one[0] for one in self._held().values()} and self.live:
            with contextlib.suppress(DirectoryError):  # the number is another one's
                self.world.register(name, number)
                self.fixed[name] = number

    @rule(seconds=st.sampled_from([1.0, 9.0, 30.0, KEEP]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    @invariant()
    def who_holds_a_lease_is_found_and_nobody_else(self) -> None:
        if hasattr(self, "world"):
            expected = {name: number for name, number, _ in self._held().values()} | self.fixed
            assert self.world.found() == expected


Machine.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=30, deadline=None)
TestMachine = Machine.TestCase
