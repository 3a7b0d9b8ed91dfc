"""What other brokers say of very many recipients is taken over in turns, and what they say next counts."""

from __future__ import annotations

from mqmesh.broker.recipients.announcing import AT_ONCE
from mqmesh.broker.recipients.handover import records
from mqmesh.broker.recipients.handover.records import Record
from mqmesh.broker.recipients.machine import State
from mqmesh.broker.recipients.shell import Recipients
from support.broker_site import until

from .test_mesh import Mesh, of

MANY = 20 * AT_ONCE


def many(count: int, state: State = State.OPERATIONAL) -> list[Record]:
    return [Record(f"r{i}", 9, "far", state) for i in range(count)]


def states(recipients: Recipients) -> dict[str, State]:
    return {name: one.state for name, one in recipients.remote.items() if one.broker == 9}


async def test_many_wait_for_turns_and_few_do_not() -> None:
    async with Mesh(count=1) as mesh:
        one = of(mesh.at(1))
        one.announcing.take(9, records.encode(many(AT_ONCE)))
        assert len(states(one)) == AT_ONCE
        one.announcing.take(9, records.encode(many(MANY)))
        assert len(states(one)) == AT_ONCE
        await until(lambda: len(states(one)) == MANY)


async def test_what_is_said_meanwhile_counts() -> None:
    async with Mesh(count=1) as mesh:
        one = of(mesh.at(1))
        one.announcing.take(9, records.encode(many(MANY), whole=True))
        one.announcing.take(9, records.encode([Record(f"r{MANY - 1}", 9, "far", State.FAULT)], ["r7"]))
        await until(lambda: len(states(one)) == MANY - 1)
        assert states(one)[f"r{MANY - 1}"] is State.FAULT
        assert "r7" not in one.remote


async def test_whoever_is_not_among_all_is_gone_though_he_waits() -> None:
    async with Mesh(count=1) as mesh:
        one = of(mesh.at(1))
        one.announcing.take(9, records.encode(many(MANY), whole=True))
        one.announcing.take(9, records.encode(many(3), whole=True))
        await until(lambda: len(states(one)) == 3)
        one.announcing.take(8, records.encode([], ["r1"]))  # another broker's word
        assert len(states(one)) == 3
