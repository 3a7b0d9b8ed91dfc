"""The roamer in cases that the seeds of `simulation/roaming.py` do not reach: clean starts, brokers that are given up, odd answers."""

from __future__ import annotations

import pytest
from mqmesh.mesh.roaming import wire
from mqmesh.mesh.roaming.places import Forward, State
from mqmesh.mesh.roaming.wire import Answer, Said
from simulation.roaming import CLIENT, Broker, World
from simulation.roaming_site import WAIT


def mesh(size: int = 3, owned: bool = False) -> World:
    """Brokers in reach of each other, the client's session at 0 and known everywhere. owned: it is a user's, and there is another one."""
    seed = next(seed for seed in range(1000) if len(World(seed, owned).brokers) == size)
    world = World(seed, owned)
    world.connect(world.brokers[0])
    world.settle()
    assert world.at is world.brokers[0]
    return world


def leave(world: World) -> None:
    """The client goes; its broker knows it."""
    assert world.at is not None
    assert world.at.main is not None
    world.at.main.connected = False
    world.at = None


def waiting(broker: Broker) -> list[tuple[int, int]]:
    assert broker.main is not None
    return sorted(broker.main.queue)


def test_a_client_that_is_here_asks_nobody() -> None:
    world = mesh()
    world.connect(world.brokers[0])
    assert not any(world.streams.values())
    assert world.brokers[0].main is not None
    assert world.brokers[0].main.connected


def wait_at(world: World, broker: Broker, clean: bool = False, brief: bool = False) -> None:
    """The client comes there, and has to wait."""
    world.connect(broker, clean, brief)
    assert broker.waiting


def test_a_clean_start_is_over_when_all_in_reach_have_discarded_what_they_had() -> None:
    world = mesh()
    leave(world)
    world.publish(world.brokers[2])
    world.settle()
    assert waiting(world.brokers[0])
    there = world.brokers[1]
    wait_at(world, there, clean=True)
    while not there.main:
        assert world.brokers[0].main is not None or (0, 1) in world.streams
        world.carry(world.chance.choice(list(world.streams)))
    assert world.brokers[0].main is None
    world.settle()
    assert world.got == {}
    assert not any(broker.leaving or broker.aside for broker in world.brokers)


def test_a_clean_start_waits_for_nobody_who_is_out_of_reach() -> None:
    world = mesh(2)
    leave(world)
    world.reachability(lambda: world.apart.add(1))
    there = world.brokers[1]
    world.connect(there, clean=True)
    assert there.main is not None
    world.settle()
    assert world.brokers[0].main is None
    assert there.main is not None
    assert there.main.generations == {2}


@pytest.mark.parametrize("brief", [False, True])
def test_what_a_clean_start_discarded_is_not_found_by_who_was_told_last(brief: bool) -> None:
    """The client does not wait for the clean start, and the holder hears of it last."""
    world = mesh(3)
    leave(world)
    old, fresh, last = world.brokers
    world.publish(old)
    wait_at(world, fresh, clean=True, brief=brief)
    while world.streams[1, 2]:
        world.carry((1, 2))
    wait_at(world, last)
    world.carry((2, 0))  # the holder hears of the later claim first, and gives its session
    assert old.main is None
    for leave_ in list(old.leaving):
        for _ in range(9):
            old.push(leave_)
    while world.streams[0, 2]:
        world.carry((0, 2))
    assert last.main is not None  # it has come, and nobody has it yet
    assert last.waiting
    while world.streams[2, 1] or world.streams[1, 2]:
        world.carry((2, 1))
        world.carry((1, 2))
    world.settle()
    assert last.main is not None
    assert last.main.connected
    assert world.got == {}
    assert not any(broker.leaving for broker in world.brokers)


def test_a_clean_start_where_the_session_is_goes_on_being_known() -> None:
    """Its place is not lost with the session that it discards."""
    world = mesh(2)
    here, there = world.brokers
    world.connect(here, clean=True)
    assert CLIENT in here.roamer.places
    world.connect(there)
    world.settle()
    assert here.main is None
    assert there.main is not None
    assert there.main.generations == {2}


def test_a_clean_start_while_the_session_comes_drops_what_comes() -> None:
    world = mesh(2)
    leave(world)
    for _ in range(9):
        world.publish(world.brokers[0])
    old, new = world.brokers
    world.connect(new)
    world.carry((1, 0))  # the claim
    while new.roamer.places[CLIENT].state is not State.TAKING:
        world.carry((0, 1))
    wait_at(world, new, clean=True)
    assert new.main is None
    before = dict(world.got)
    world.settle()
    assert world.got == before
    assert not old.leaving
    assert new.roamer.places[CLIENT].state is State.HERE


def test_what_was_on_its_way_at_a_clean_start_is_dropped_when_the_new_session_has_ended() -> None:
    """It was sent for a claim before the clean start, and comes when nobody has the client any more."""
    world = mesh(3)
    leave(world)
    old, new, _ = world.brokers
    wait_at(world, new)
    world.carry((1, 0))
    assert old.main is None
    world.reachability(lambda: world.apart.add(1))
    world.connect(new, clean=True, brief=True)
    assert new.main is not None
    world.cut_off(new)
    new.disconnected()
    world.reachability(world.apart.clear)
    world.settle()
    assert new.main is None
    assert not any(broker.leaving or broker.roamer.places for broker in world.brokers)


def test_a_session_that_ends_while_others_still_answer_is_no_more_at_its_holder() -> None:
    """Its time is over before any origin was asked for its marker."""
    world = mesh(3)
    leave(world)
    _, new, _ = world.brokers
    wait_at(world, new)
    world.carry((1, 0))
    while new.main is None:
        world.carry((0, 1))
    new.waiting = False
    new.end()
    world.settle()
    assert not any(broker.leaving or broker.roamer.places for broker in world.brokers)


def test_what_comes_to_a_session_that_ends_with_its_broker_is_no_more_at_its_holder() -> None:
    """The new broker is killed before one of the origins could be asked for its marker."""
    world = mesh(3)
    leave(world)
    _, new, origin = world.brokers
    world.reachability(lambda: world.apart.add(1))
    wait_at(world, new, brief=True)
    world.now += WAIT
    world.tick([new])
    assert new.main is not None
    world.reachability(origin.crash)
    world.reachability(world.apart.clear)
    world.catch_up()
    while not new.roamer.places[CLIENT].sources:
        world.carry((1, 0))
        world.carry((0, 1))
    world.reachability(new.crash)
    assert new.main is None
    world.reachability(new.start)
    world.settle()
    assert not any(broker.leaving or broker.roamer.places for broker in world.brokers)


def test_who_passes_on_to_a_claim_says_with_each_answer_that_something_may_come() -> None:
    world = mesh(2)
    leave(world)
    here, there = world.brokers
    key, newer = (5, 1), (2**40, 0)
    here.roamer.forwards.of[CLIENT] = [Forward((3, 0), key, 1 << 1, ())]
    here.roamer.received(1, wire.CLAIM, wire.encode_claims([wire.Claim(CLIENT, key, False)]))
    assert said(world, here, there)[-1].more
    here.roamer.forwards.of[CLIENT] = [Forward((3, 0), newer, 1 << 1, ())]
    here.roamer.received(1, wire.CLAIM, wire.encode_claims([wire.Claim(CLIENT, key, False)]))
    assert not said(world, here, there)[-1].more


def said(world: World, origin: Broker, to: Broker) -> list[Answer]:
    """The answers that are on their way."""
    found = [wire.decode(kind, body) for kind, body in world.streams[origin.number, to.number] if kind == wire.ANSWER]
    return [answer for answer in found if isinstance(answer, Answer)]


def test_an_answer_that_there_is_a_newer_claim_is_the_last_one_for_what_is_passed_on() -> None:
    world = mesh(2)
    here, there = world.brokers
    key, newer = (5, 0), (2**40, 1)
    here.roamer.forwards.of[CLIENT] = [Forward(key, newer, 1 << 1, ())]
    here.roamer.received(1, wire.ANSWER, wire.encode_answer(Answer(CLIENT, key, Said.NEWER, newer, False, False, False)))
    assert not here.roamer.forwards.of
    assert [(one.key, one.said, one.more) for one in said(world, here, there)] == [(newer, Said.NONE, False)]


def test_an_answer_that_an_earlier_claim_was_not_the_newest_says_nothing_of_the_last_one() -> None:
    """A clean start is claimed once more before the claim that follows it: who has a session from between sends it for that."""
    world = mesh(2)
    here, _ = world.brokers
    clean, between, key, newer = (5, 0), (6, 1), (7, 0), (2**40, 1)
    here.roamer.forwards.of[CLIENT] = [Forward(key, newer, 1 << 1, ())]
    here.roamer.received(1, wire.ANSWER, wire.encode_answer(Answer(CLIENT, clean, Said.NEWER, between, True, False, False)))
    assert here.roamer.forwards.of
    here.roamer.received(1, wire.SESSION, wire.encode(CLIENT, key, between, [], False, b"wide subscribed 1"))
    assert here.main is None or between not in here.roamer.places[CLIENT].sources
    assert [kind for kind, _ in world.streams[0, 1]] == [wire.SESSION]


def test_a_session_that_comes_back_to_its_first_broker_and_goes_on_leaves_it_whole() -> None:
    """That nothing more of it comes is said to who had it first, too."""
    world = mesh(2)
    here, _ = world.brokers
    first, back, newer = (4, 0), (6, 0), (2**40, 1)
    here.roamer.forwards.of[CLIENT] = [Forward(back, newer, 0, (first,))]
    here.roamer.received(1, wire.LEFT, wire.encode(CLIENT, back, first))
    assert not here.roamer.forwards.of
    assert [kind for kind, _ in world.streams[0, 1]] == [wire.LEFT, wire.ANSWER]


@pytest.mark.parametrize(("said", "known"), [(Said.NEWER, (2**40, 2)), (Said.NONE, (1, 1)), (Said.NONE, None)])
@pytest.mark.parametrize("fenced", [False, True])
def test_who_has_a_session_that_leaves_is_told_of_the_markers_whatever_it_answers(fenced: bool, said: Said, known: wire.Key | None) -> None:
    """It takes messages until then, and the session here does too: each would come twice."""
    world = mesh(3)
    leave(world)
    old, new, _ = world.brokers
    wait_at(world, new)
    world.carry((1, 0))
    while new.main is None:
        world.carry((0, 1))
    while fenced and world.streams[1, 2]:
        world.carry((1, 2))
    while fenced and not new.roamer.places[CLIENT].cut.fenced:
        world.carry((2, 1))
    key = new.roamer.places[CLIENT].key
    new.roamer.received(2, wire.ANSWER, wire.encode_answer(Answer(CLIENT, key, said, known, False, False, True)))
    world.now += WAIT
    world.tick([new])
    fences = [found for kind, body in world.streams[1, 0] if isinstance(found := wire.decode(kind, body), wire.Fence)]
    assert fences[-1].holders >> 2 & 1
    assert old.leaving


@pytest.mark.parametrize("arrived", [0, 1, 3])
def test_what_goes_to_a_broker_that_is_given_up_comes_back(arrived: int) -> None:
    """arrived: how much of it had come there, and is lost with it."""
    world = mesh(2)
    leave(world)
    old, new = world.brokers
    for _ in range(9):
        world.publish(old)
    published = waiting(old)
    world.connect(new)
    world.carry((1, 0))
    while not all(old.roamer._port.sent(leave) for leave in old.leaving):
        for leave_ in list(old.leaving):
            old.push(leave_)
    stream = world.streams[0, 1]
    for _ in range(arrived):
        world.carry((0, 1))
    old.given_up = 1 << new.number
    old.roamer.member_gone(new.number)
    while stream:
        kind, body = stream.popleft()
        if kind:
            old.roamer.returned(new.number, kind, body)
    assert not old.leaving
    assert old.roamer.places[CLIENT].state is State.HERE
    lost = max(0, arrived - 2)  # behind the session itself and `ready`
    assert waiting(old) == published[lost:]


def test_the_holder_is_given_up_while_its_session_comes() -> None:
    world = mesh(2)
    leave(world)
    old, new = world.brokers
    for _ in range(9):
        world.publish(old)
    world.connect(new)
    world.carry((1, 0))
    world.carry((0, 1))
    assert new.roamer.places[CLIENT].state is State.FETCHING
    new.given_up = 1 << old.number
    new.roamer.member_gone(old.number)
    assert new.roamer.places[CLIENT].state is not State.FETCHING
    assert new.main is not None
    assert new.main.connected


def test_answers_that_nobody_waits_for_change_nothing() -> None:
    world = mesh()
    roamer = world.brokers[0].roamer
    before = world.brokers[0].describe()
    for said in Said:
        for client, key in (("stranger", (1, 1)), (CLIENT, (1, 0)), (CLIENT, (2**50, 0))):
            roamer.received(1, wire.ANSWER, wire.encode_answer(Answer(client, key, said, (5, 1), False, False, False)))
    for kind in (wire.READY, wire.END, wire.LEFT):
        roamer.received(1, kind, wire.encode(CLIENT, (1, 0), (7, 1)))
    roamer.received(1, wire.MARKER, wire.encode(CLIENT, (1, 1)))
    roamer.received(1, wire.PIECE, wire.encode("stranger", (1, 0), (7, 1), False, b"0 1 0"))
    assert world.brokers[0].describe() == before
    with pytest.raises(ValueError, match="roam/claim"):
        roamer.received(1, wire.CLAIM, b"\x91\x01")


def test_a_session_that_ends_is_forgotten_and_a_late_one_finds_a_place() -> None:
    world = mesh(2)
    roamer = world.brokers[0].roamer
    world.brokers[0].main = None
    roamer.ended(CLIENT)
    assert CLIENT not in roamer.places
    assert CLIENT not in world.brokers[0].places


@pytest.mark.parametrize("clean", [False, True])
def test_who_has_just_given_a_session_to_its_owner_says_so_to_another_user(clean: bool) -> None:
    """The other user comes first, his claim is there last: the old broker has no session any more, the new one none yet."""
    world = mesh(3, owned=True)
    leave(world)
    old, other, new = world.brokers
    other.thief.connect(clean, False)
    assert other.thief.waiting
    world.connect(new)
    world.carry((1, 2))  # his claim is the older one of two who ask
    world.carry((2, 0))
    assert old.main is None
    world.carry((1, 0))
    while other.thief.waiting:
        world.carry((2, 1) if world.streams[2, 1] else (0, 1))
    assert other.thief.main is None
    assert world.denials
    world.settle()
    assert new.main is not None
    assert new.main.connected


def test_another_user_waits_for_the_broker_that_is_in_reach_again() -> None:
    """The owner's broker was out of reach when he came first, and has answered nothing yet when he comes again."""
    world = mesh(3, owned=True)
    his = world.brokers[1]
    his.thief.connect(clean=True, brief=False)
    world.reachability(lambda: world.apart.add(0))
    world.reachability(world.apart.clear)
    his.thief.connect(clean=False, brief=False)
    while world.streams[1, 2] or world.streams[2, 1]:
        world.carry((1, 2))
        world.carry((2, 1))
    assert his.thief.waiting
    world.settle()
    assert his.thief.main is None
    assert world.denials


def test_a_session_that_comes_late_for_an_old_claim_goes_on_to_whoever_asks() -> None:
    """Its broker has said to the newer claim that it has none."""
    world = mesh(3)
    leave(world)
    new, old, _ = world.brokers
    new.end()
    wait_at(world, new)
    while world.streams[0, 1] or world.streams[1, 0]:
        world.carry((0, 1))
        world.carry((1, 0))
    key, held = (5, 1), (1, 2)
    old.roamer.received(2, wire.SESSION, wire.encode(CLIENT, key, held, [], False, b"wide subscribed 1"))
    for kind in (wire.READY, wire.END, wire.LEFT):
        old.roamer.received(2, kind, wire.encode(CLIENT, key, held))
    assert old.main is not None
    new.roamer.received(1, wire.CLAIM, wire.encode_claims([wire.Claim(CLIENT, key, False)]))
    world.settle()
    assert old.main is None
    assert new.main is not None
    assert new.main.connected
