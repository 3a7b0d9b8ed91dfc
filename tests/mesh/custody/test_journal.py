"""Records: what a node writes down is what its next life reads."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.custody.custody import Entry
from mqmesh.mesh.custody.journal import NODE, decode_entry, decode_values, encode_entry, encode_window
from mqmesh.mesh.custody.windows import CustodyWindow
from mqmesh.mesh.wire.control import Refusal
from mqmesh.mqtt.batch.run import Run
from support.models.mesh_net import Net

numbers = st.integers(0, 2**40)
masks = st.sets(st.integers(0, 300), min_size=1).map(lambda some: sum(1 << one for one in some))
shares = st.tuples(st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=5))


@given(numbers, st.integers(1, 2**40), masks, masks, masks, st.lists(st.tuples(shares, st.integers(0, 65535)), max_size=3), st.data())
def test_an_entry_is_read_as_it_was(
    epoch: int, first: int, opened: int, ordinary: int, refusers: int, picks: list, data: st.DataObject
) -> None:
    run = Run(b"a", 1, False, [b"x", b"y"])
    entry = Entry(epoch, first, run, opened, tuple(picks), data.draw(numbers))
    entry.ordinary, entry.refusers = ordinary, refusers
    entry.picks_only, entry.repeated, entry.here = (data.draw(st.booleans()) for _ in range(3))
    entry.deadline = data.draw(st.none() | st.integers(0, 10**9).map(float))
    again = decode_entry(run, encode_entry(entry, 1000.0), 1000.0)
    for name in (
        "epoch",
        "first",
        "last",
        "count",
        "open",
        "ordinary",
        "refusers",
        "picks",
        "picks_only",
        "repeated",
        "here",
        "time",
        "deadline",
    ):
        assert getattr(again, name) == getattr(entry, name), name


@given(
    st.tuples(numbers, numbers),
    st.lists(st.builds(Refusal, numbers, numbers, numbers, shares), max_size=3),
    st.lists(st.tuples(numbers, numbers, numbers), max_size=3),
)
def test_a_window_is_read_as_it_was_handed_over(
    position: tuple[int, int], refusals: list[Refusal], early: list[tuple[int, int, int]]
) -> None:
    owner = (7, bytes(range(16)))
    value = encode_window(CustodyWindow(position, refusals, owner, early))
    window = decode_values({b"w" + (7).to_bytes(2, "big") + owner[1]: value}).windows[owner]
    assert (window.committed, window.seen, window.handed, window.refusals, window.owner) == (position, position, position, refusals, owner)
    assert window.early == early


@pytest.mark.parametrize("value", [b"", b"\xc1", msgpack.packb([]), msgpack.packb(7), msgpack.packb([99, b"u", 1, 1])])
def test_a_foreign_state_is_refused_in_one_line(value: bytes) -> None:
    with pytest.raises(ValueError, match="mesh's state") as raised:
        decode_values({NODE: value})
    assert "\n" not in str(raised.value)


def test_the_state_of_another_broker_or_of_a_later_life_is_refused() -> None:
    net = Net(1, durable=True)
    disk = net.disks[1]
    with pytest.raises(ValueError, match="not above"):
        net.add(1, epoch=1000)
    with pytest.raises(ValueError, match="is that of the broker"):
        net.add(1, uuid=99, epoch=2000)
    net.add(1, epoch=2000)
    assert net.disks[1] is disk


def test_nothing_is_written_twice_nor_without_a_change() -> None:
    net = Net(1, 2, durable=True)
    net.link(1, 2)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    assert net.nodes[1].records() is None
    net.publish(1, "a", 1, 5)
    [entry] = net.disks[1].entries.values()
    assert entry[0].count == 5  # one record for a run
    net.settle()
    assert not net.disks[1].entries
    assert net.nodes[1].records() is None
    assert net.nodes[2].records() is None


def test_qos_2_is_not_sent_before_it_is_stored() -> None:
    net = Net(1, 2, durable=True)
    net.link(1, 2)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(1, "a", 1)  # the tree and its JOIN
    net.settle()
    node = net.nodes[1]
    route = node.route(b"a")
    assert route is not None
    sent = node.counters.sent
    node.publish(route, Run(b"a", 2, False, [b"two"]), 0.0)
    node.publish(route, Run(b"a", 1, False, [b"one"]), 0.0)  # behind it, so that order is kept
    node.take()
    assert node.counters.sent == sent
    net.save(1)
    net.settle()
    assert net.got(2)[1:] == [b"two", b"one"]


def test_what_is_picked_again_is_not_sent_before_it_is_stored() -> None:
    """Else a crash in between has the old pick refused once more, and a second broker serves what a first one has served."""
    net = Net(1, 2, 3, durable=True)
    net.link(1, 2)
    net.link(1, 3)
    net.nodes[2].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.hold = True
    net.publish(1, "a", 1)
    net.settle()
    net.nodes[2].unsubscribe("a", "g", 0.0)
    net.nodes[3].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.full.add(1)
    [(number, deliver)] = net.delivered
    assert number == 2
    assert deliver.token is not None
    net.nodes[2].refuse(deliver.token, ("g", "a"), 0.0)
    net.commit(2, deliver.token)
    net.settle()
    assert net.nodes[1].counters.repicked == 1
    assert net.got(3) == []
    net.full.clear()
    net.save(1)
    net.settle()
    assert net.got(3) == [b"0"]


def test_without_a_store_nothing_is_written() -> None:
    net = Net(1, 2)
    net.link(1, 2)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.settle()
    net.publish(1, "a", 2)
    net.settle()
    assert net.got(2) == [b"0"]
    assert net.nodes[1].records() is None
