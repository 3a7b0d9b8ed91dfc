"""The roamer in cases that the seeds of `simulation/roaming.py` do not reach: clean starts, brokers that are given up, odd answers."""

from __future__ import annotations

import pytest
from mqmesh.mesh.roaming import wire
from mqmesh.mesh.roaming.places import State
from mqmesh.mesh.roaming.wire import Answer, Said
from simulation.roaming import CLIENT, Broker, World


def mesh(size: int = 3) -> World:
    """Brokers in reach of each other, the client's session at 0 and known everywhere."""
    seed = next(seed for seed in range(1000) if len(World(seed).brokers) == size)
    world = World(seed)
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


def test_a_clean_start_does_not_wait_and_discards_what_is_elsewhere() -> None:
    world = mesh()
    leave(world)
    world.publish(world.brokers[2])
    world.settle()
    assert waiting(world.brokers[0])
    there = world.brokers[1]
    there.clock()
    assert there.roamer.connect(CLIENT, True)
    world.at = there
    world.let_in(there)
    world.settle()
    assert world.brokers[0].main is None
    assert world.got == {}
    assert not any(broker.leaving or broker.aside for broker in world.brokers)


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
    new.clock()
    assert new.roamer.connect(CLIENT, True)
    assert new.main is None
    world.let_in(new)
    before = dict(world.got)
    world.settle()
    assert world.got == before
    assert not old.leaving
    assert new.roamer.places[CLIENT].state is State.HERE


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
