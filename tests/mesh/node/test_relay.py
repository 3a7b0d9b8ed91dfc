"""The data path: any chunking of any frames gives the same deliveries, and bad bytes end in `PeerError`, nothing else."""

from __future__ import annotations

import contextlib
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mqmesh.mesh.custody.journal import Journal
from mqmesh.mesh.node.actions import Deliver, Send
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.node.node import Identity, Node
from mqmesh.mesh.view.remembered import Remembered
from mqmesh.mesh.wire.identity import BLOCK
from mqmesh.mqtt.batch.run import Run
from mqmesh.mqtt.errors import PeerError
from support.examples import examples
from support.models.mesh_net import Net

messages = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "longer/topic"]),
        st.integers(0, 2),
        st.integers(0, 3),  # payload length
        st.sampled_from([1, 1, 1, 2, 6]),  # in one run
        st.sampled_from([b"", b"", b"", b"", b"\x09\x00\x01i", b"\x08\x00\x01r", b"\x26\x00\x01k\x00\x01v", b"\x26\x00\x01k\x00\x01w"]),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=12,
)


def line(mode: str = "routed") -> Net:
    """1 - 2 - 3 - 4, where 2 and 4 want all and 3 wants b."""
    net = Net(1, 2, 3, 4, config=MeshConfig(mode=mode))  # type: ignore[arg-type]
    for a in (1, 2, 3):
        net.link(a, a + 1)
    net.nodes[2].subscribe("#", None, 1, 0.0)
    net.nodes[4].subscribe("#", None, 1, 0.0)
    net.nodes[3].subscribe("b", None, 1, 0.0)
    net.settle()
    for number in (1, 2, 3):
        net.publish(number, "warm", 1)
    net.settle()
    net.delivered.clear()
    return net


def packets_of(data: bytes) -> list[bytes]:
    """Cut into MQTT packets."""
    found = []
    position = 0
    while position < len(data):
        at, length, shift = position + 1, 0, 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        found.append(data[position : at + length])
        position = at + length
    return found


counted: list[list[tuple]] = []  # by each `play`, for each node


def play(given_messages: list, cuts: list[int], mode: str, direct: bool = False) -> list[tuple]:
    """What is delivered when the bytes come in chunks of so many packets. direct: the direct lane has what it takes of them."""
    net = line(mode)
    for topic, qos, length, count, properties, retain in given_messages:
        payloads = [bytes((i,)) * length for i in range(count)]
        net.publish(1, topic, qos, payloads=payloads, properties=properties, retain=retain)
    turn = 0
    busy = True
    while busy:
        busy = False
        for number in (1, 2, 3, 4):
            while actions := net.nodes[number].take():
                busy = True
                for action in actions:
                    net._do(number, action)
            deadline = net.nodes[number].next_deadline()
            if deadline is not None and deadline <= net.now + 1.0:  # not the next comparison of retained messages
                net.now = max(net.now, deadline)
                net.nodes[number].handle_timer(net.now)
        for end in list(net.flying):
            packets = packets_of(b"".join(net.flying.pop(end)))
            target = net.ends[end]
            while packets:
                size = cuts[turn % len(cuts)]
                turn += 1
                chunk, packets = packets[:size], packets[size:]
                node, data = net.nodes[target[0]], b"".join(chunk)
                if not direct or not net.receive_one(*target, data):
                    node.receive(target[1], data, net.now)
                    for action in node.take() if direct else ():
                        net._do(target[0], action)
                busy = True
    totals = [node.counters for node in net.nodes.values()]
    counted.append([(c.published, c.delivered, c.sent, c.received, c.relayed, c.duplicates, c.dropped_stale) for c in totals])
    return [
        (number, topic, d.run.qos, d.run.retain, d.run.properties, payload)
        for number in (2, 3, 4)
        for n, d in net.delivered
        if n == number
        for topic, payload in d.run.messages()
    ]


@settings(deadline=None, max_examples=examples(60))
@given(messages, st.lists(st.integers(1, 9), min_size=1, max_size=5), st.sampled_from(["routed", "flood"]))
@example([("a", 0, 1, 6, b"", False), ("a", 1, 1, 6, b"", False), ("a", 0, 1, 6, b"", False)], [4], "routed")
def test_chunks_do_not_matter(given_messages: list, cuts: list[int], mode: str) -> None:
    whole, cut = play(given_messages, [10_000], mode), play(given_messages, cuts, mode)
    for qos in (True, False):  # custody and the rest are ordered each for itself
        assert [m for m in whole if bool(m[2]) == qos] == [m for m in cut if bool(m[2]) == qos]
    expected = [
        (topic.encode(), qos, retain, properties, bytes((i,)) * length)
        for topic, qos, length, count, properties, retain in given_messages
        for i in range(count)
    ]
    for number, wanted in (
        (2, expected),
        (4, expected),
        (3, [m for m in expected if m[0] == b"b" or m[2] or (mode == "flood" and not m[1])]),
    ):
        for custody in (True, False):
            got = [m[1:] for m in whole if m[0] == number and bool(m[2]) == custody]
            assert got == [m for m in wanted if bool(m[1]) == custody]


@settings(deadline=None, max_examples=examples(60))
@given(messages, st.lists(st.integers(1, 2), min_size=1, max_size=5), st.sampled_from(["routed", "flood"]))
@example([("a", 0, 1, 6, b"", False), ("a", 1, 1, 6, b"", False), ("b", 0, 200, 6, b"", False)], [1], "routed")
def test_the_direct_lane_does_what_the_general_way_does(given_messages: list, cuts: list[int], mode: str) -> None:
    counted.clear()
    general, direct = play(given_messages, cuts, mode), play(given_messages, cuts, mode, direct=True)
    assert direct == general
    assert counted[0] == counted[1]


def test_the_direct_lane_takes_single_frames() -> None:
    net = line()
    taken = []
    for qos in (0, 1, 2):
        for payload in (b"1", b"22", b"", b"x" * 300):
            net.publish(1, "b", qos, payloads=[payload])
            for number, link in ((1, 1), (2, 2), (3, 3)):
                for action in net.nodes[number].take():
                    net._do(number, action)
                for data in net.flying.pop((number, link), []):
                    taken.append(net.receive_one(number + 1, link, data))
                    if not taken[-1]:
                        net.nodes[number + 1].receive(link, data, net.now)
                        for action in net.nodes[number + 1].take():
                            net._do(number + 1, action)
    assert taken == [False] * 3 + [True] * 9 + [False] * 3 + [True] * 9 + [False] * 3 + [True] * 9
    assert [(n, d.run.qos, d.run.payloads[0]) for n, d in net.delivered if n == 4] == [
        (4, qos, payload) for qos in (0, 1, 2) for payload in (b"1", b"22", b"", b"x" * 300)
    ]


@pytest.mark.parametrize("cut", range(1, 60))
def test_the_direct_lane_leaves_what_is_cut_off_to_the_general_way(cut: int) -> None:
    net = line()
    net.publish(1, "b", 0, payloads=[b"x" * 20])
    net.settle()
    net.publish(1, "b", 0, payloads=[b"x" * 20])
    data = next(bytes(action.data) for action in net.nodes[1].take() if isinstance(action, Send))
    node = net.nodes[2]
    assert node.receive_one(1, data[:-cut], 0.0) is None
    assert node.receive_one(1, data[: cut - 1], 0.0) is None
    assert node.receive_one(1, bytes((data[0], data[1] - cut)) + data[2:-cut], 0.0) is None or cut <= 20
    assert node.receive_one(1, data, 0.0) is not None or cut <= 20


def frames(qos: int, count: int = 3) -> tuple[Node, bytes]:
    """A destination that is joined to its origin's tree, and frames for it."""
    net = Net(1, 2)
    net.capabilities -= {BLOCK}
    net.link(1, 2)
    net.nodes[2].subscribe("#", None, 1, 0.0)
    net.settle()
    net.publish(1, "warm", 1)
    net.settle()
    route = net.nodes[1].route(b"some/topic")
    assert route is not None
    net.nodes[1].publish(route, Run(b"some/topic", qos, False, [b"x" * 20] * count, b"\x09\x00\x01i\x08\x00\x01r"), 0.0)
    data = b"".join(bytes(a.data) for a in net.nodes[1].take() if isinstance(a, Send))
    return net.nodes[2], data


def test_frames_with_gaps_are_one_run_for_each_stretch() -> None:
    node, data = frames(1, 10)
    size = len(data) // 10
    kept = [i for i in range(10) if i not in (3, 6)]
    node.receive(1, b"".join(data[i * size : (i + 1) * size] for i in kept), 0.0)
    runs = [a.run.count for a in node.take() if isinstance(a, Deliver)]
    assert runs == [3, 2, 3]


def test_repeated_frames_are_delivered_once() -> None:
    node, data = frames(1, 10)
    size = len(data) // 10
    node.receive(1, data[: 4 * size], 0.0)
    node.receive(1, data, 0.0)
    node.receive(1, data, 0.0)
    assert [a.run.count for a in node.take() if isinstance(a, Deliver)] == [4, 6]
    assert node.counters.duplicates == 14


@pytest.mark.parametrize("qos", [0, 1])
def test_frames_cut_at_every_byte_are_the_peers_error(qos: int) -> None:
    node, data = frames(qos, 2)
    for end in range(1, len(data)):
        if end == len(data) // 2:
            continue
        with pytest.raises(PeerError):
            node.receive(1, data[:end], 0.0)


@settings(deadline=None, max_examples=examples(300))
@given(st.data(), st.integers(0, 1))
def test_changed_bytes_are_taken_or_the_peers_error(data: st.DataObject, qos: int) -> None:
    node, good = frames(qos, 2)
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PeerError):
        node.receive(1, bytes(bad), 0.0)
    for action in node.take():
        if isinstance(action, Deliver) and action.token is not None:
            node.delivered(action.token, 0.0)
    node.take()


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_the_peers_error(raw: bytes) -> None:
    node = Node(Identity("m", "a", 1, UUID(int=1), 5))
    node.link_up(1, Identity("m", "b", 2, UUID(int=2), 5), 9, 1, 0.0)
    for data in (raw, b"\x30" + raw):
        with contextlib.suppress(PeerError):
            node.receive(1, data, 0.0)


def test_bytes_of_a_link_that_is_over_are_ignored() -> None:
    node, data = frames(1)
    node.link_down(1, 0.0)
    node.take()
    node.receive(1, data, 0.0)
    assert not node.take()


def test_a_frame_of_an_old_tree_goes_nowhere() -> None:
    node, data = frames(1)
    node.receive(1, data.replace((1000 << 16 | 1).to_bytes(8, "big"), (1000 << 16).to_bytes(8, "big")), 0.0)
    assert not [a for a in node.take() if isinstance(a, Deliver)]
    assert node.counters.dropped_stale == 3


def test_system_topics_are_refused_from_a_peer() -> None:
    node, data = frames(0)
    with pytest.raises(PeerError, match="does not leave a broker"):
        node.receive(1, data.replace(b"some/topic", b"$SYS/topic"), 0.0)


def test_a_receipt_that_is_owed_again_after_all_were_said_is_timed() -> None:
    """A delivery is carried out, the receipts that are owed go, and then it is committed: its own receipt needs a time."""
    net = line()
    relay = net.nodes[4]._relay
    window = relay.window(1, net.nodes[1].identity.uuid.bytes)
    epoch, last = window.seen
    relay.tokens[99] = (window, window.take(epoch, last + 1, last + 1), 1)
    relay._core.journal, relay._core.stirred, relay._due = Journal(0.0, Remembered(1)), False, None
    relay._owed.clear()
    relay.delivered(99)
    assert relay._owed
    assert relay._core.stirred, "nobody asks when it is due"
