"""Receipts of single messages: at once without a commit, up their tree by the direct lane, as the general way would."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mqmesh.mesh.node.actions import Deliver, Send
from mqmesh.mesh.node.framing import Framer
from mqmesh.mesh.node.single.frames import TAIL, Taken
from mqmesh.mesh.wire.control import Receipt, decode, encode
from mqmesh.mesh.wire.envelope import ASKS
from mqmesh.mesh.wire.identity import CAPABILITIES, RECEIPTS
from mqmesh.mqtt.errors import PeerError
from support.examples import examples
from support.models.mesh_net import Net


def chain(lacks: int = 0, durable: bool = True) -> Net:
    """1 publishes "t", 2 relays, 3 subscribes; what 3 takes is left to the test. lacks: the broker whose release gives no receipts."""
    net = Net(durable=durable)
    for number in (1, 2, 3):
        net.able = CAPABILITIES - {RECEIPTS} if number == lacks else CAPABILITIES
        net.add(number)
    net.link(1, 2)
    net.link(2, 3)
    net.nodes[3].subscribe("t", None, 1, 0.0)
    net.settle()
    for payload in (b"first", b"0"):  # the general way takes the first one of its kind
        net.publish(1, "t", payloads=[payload])
        net.settle()
    net.hold = True
    return net


def bring(net: Net, payload: bytes, asks: bool = False) -> Taken:
    """A message comes to 3, which takes it; it is not delivered yet. asks: for its receipt."""
    net.publish(1, "t", payloads=[payload])
    for number, link in ((1, 1), (2, 2)):
        for action in net.nodes[number].take():
            net._do(number, action)
        [data] = net.flying.pop((number, link))
        if number == 1 and asks:
            data = asking(data, payload)
        taken = net.nodes[number + 1].receive_one(link, bytes(data), net.now)
        assert taken is not None
        for out, frame in taken.sends():
            net._do(number + 1, Send(out, frame, False))
    return taken


def asking(frame: bytes, payload: bytes) -> bytes:
    """The same frame, asking for its receipt at once."""
    asks = bytearray(frame)
    asks[-len(payload) - TAIL] |= ASKS
    return bytes(asks)


def hand_on(net: Net, taken: Taken) -> int:
    """3 has it delivered as any other message: its token."""
    token = net.nodes[3].single.delivery(taken, net.now).token
    assert token is not None
    return token


def test_a_receipt_goes_up_by_itself() -> None:
    net = chain()
    taken = bring(net, b"1", asks=True)
    stirred = net.nodes[3].stirred
    sends = [net.nodes[3].single.given(taken, net.now)]
    assert net.nodes[3].stirred is stirred
    for number, link in ((2, 2), (1, 1)):
        [(out, packet)] = sends
        assert out == link
        sends = net.nodes[number].single.take_receipt(link, packet, net.now)
    assert sends == []
    assert net.nodes[1].custody() == (0, 0)
    assert not net.nodes[1].single.unwritten(2)
    assert net.nodes[1].settled(3) == net.nodes[1].position()
    assert not net.nodes[3].take()  # it is said


def test_what_is_said_without_a_commit_is_kept_with_the_next() -> None:
    net = chain()
    net.nodes[3].single.given(bring(net, b"1", asks=True), net.now)
    records = net.nodes[3].records()
    assert records is not None
    assert [key[:1] for key, _ in records.values] == [b"w"]


def test_an_earlier_delivery_that_waits_for_its_commit_holds_the_receipt_back() -> None:
    net = chain()
    first = hand_on(net, bring(net, b"1"))
    second = bring(net, b"2", asks=True)
    node = net.nodes[3]
    node.handed(first, net.now)
    assert node.single.given(second, net.now) is None
    net.save(3)
    net.settle()
    assert net.nodes[1].custody()[0] == 2
    node.delivered(first, net.now)
    net.settle()
    assert net.nodes[1].custody()[0] == 0


@pytest.mark.parametrize("credit", [50_000, 24])
def test_without_a_store_a_message_that_is_given_leaves_what_any_delivery_leaves(credit: int) -> None:
    """Windows, what is due when, and the receipts that go. credit: few messages, so that their receipts are hurried, or many."""
    found: list[list[object]] = []
    for at_once in (True, False):
        net = chain(durable=False)
        node = net.nodes[3]
        node._core.config = replace(node._core.config, credit_messages=credit)
        states: list[object] = []
        for index in range(12):
            net.now += 0.004
            taken = bring(net, b"%d" % index)
            node.handle_timer(net.now)
            states.append([(action.link, action.data) for action in node.take() if isinstance(action, Send)])
            if at_once:
                assert node.single.given(taken, net.now) is None
            else:
                node.delivered(hand_on(net, taken), net.now)
            window = taken.outcome.stream.window
            assert window is not None
            states.append((node.stirred, node.next_deadline(), window.seen, window.committed, len(window.pending)))
        found.append(states)
    assert found[0] == found[1]
    assert any(isinstance(state, list) and state for state in found[0])


def test_an_origin_that_does_not_ask_gets_receipts_together() -> None:
    net = chain()
    assert net.nodes[3].single.given(bring(net, b"1"), net.now) is None
    assert net.nodes[1].custody()[0] == 1
    net.settle()
    assert net.nodes[1].custody()[0] == 0


@pytest.mark.parametrize("older", [1, 2, 3])
def test_nobody_is_asked_in_a_tree_with_a_broker_of_the_last_release(older: int) -> None:
    net = chain(lacks=older)
    net.save(1)
    assert net.nodes[1].single.may_ask is (older == 1)
    taken = bring(net, b"1")
    assert net.nodes[3].single.given(taken, net.now) is None


@pytest.mark.parametrize("apart", [False, True])
def test_a_single_message_goes_as_the_general_way_sends_it(monkeypatch: pytest.MonkeyPatch, apart: bool) -> None:
    """Frames, custody, records and counters. apart: it is for brokers behind two links."""
    found = []
    for direct in (True, False):
        net = chain()
        net.nodes[2].subscribe("t", None, 1, 0.0)
        if apart:
            net.add(4).subscribe("t", None, 1, 0.0)
            net.link(1, 4)
        net.hold = False
        net.settle()
        node = net.nodes[1]
        net.publish(1, "t", payloads=[b"joins"])
        net.settle()
        route = node.route(b"t")
        assert route is not None
        assert route.mask == (0b11100 if apart else 0b1100)
        while node.take():
            pass
        if not direct:
            monkeypatch.setattr(Framer, "fronts", lambda *_: None)
        with mock.patch.object(Framer, "send", autospec=True, side_effect=Framer.send) as general:
            sends = []
            for payload in (b"1", b"", b"x" * 300):
                sends.append(node.publish_one(route.mask, b"t", 1, payload, net.now))
                assert node.keep_one() is direct
        assert general.call_count == (0 if direct else 3)
        destinations = [(d.number, d.reached, d.sent, d.flight_bytes, d.moved) for d in node._dispatch.custody.destinations.values()]
        records = node.records()
        assert records is not None
        entries = [(order, run.topic, run.payloads, run.received, extra) for order, run, extra in records.entries]
        found.append(([dict(one) for one in sends], destinations, entries, records.values, node.held(), node.counters, node.stirred))
    assert found[0] == found[1]


def test_a_message_that_one_of_its_destinations_may_not_have_yet_goes_the_general_way() -> None:
    net = chain()
    net.nodes[2].subscribe("t", None, 1, 0.0)
    net.settle()
    route = net.nodes[1].route(b"t")
    assert route is not None
    net.nodes[1]._dispatch.custody.destinations[3].credit_bytes = 0
    sent = []
    for payload in (b"1", b"2"):  # one may always be under way
        sends = net.nodes[1].publish_one(route.mask, b"t", 1, payload, net.now)
        assert sends is not None
        sent += sends
        assert net.nodes[1].keep_one() is (payload == b"1")
    assert [link for link, _ in sent] == [1, 1]
    assert [len(net.nodes[1]._dispatch.custody.destinations[number].flight) for number in (2, 3)] == [2, 1]
    net.hold = False
    for link, frame in sent:
        net.nodes[2].receive(link, bytes(frame), net.now)
    net.settle()
    assert net.got(2)[-2:] == net.got(3)[-2:] == [b"1", b"2"]


@pytest.mark.parametrize("length", [0, 1, 300])
def test_a_frame_that_asks_is_the_same_but_for_the_question(length: int) -> None:
    net, now = chain(), 0.0
    found = []
    for asks in (False, True):
        node, route = net.nodes[1], net.nodes[1].route(b"t")
        assert route is not None
        assert route.mask
        while node.take():
            pass
        sends = node.publish_one(route.mask, b"t", 1, b"x" * length, now, asks)
        assert sends is not None
        assert node.keep_one()
        [(link, frame)] = sends
        taken = net.nodes[2].receive_one(link, bytes(frame), now)
        assert taken is not None
        assert taken.asks is asks
        [(onwards, relayed)] = taken.sends()
        taken = net.nodes[3].receive_one(onwards, relayed, now)
        assert taken is not None
        assert taken.asks is asks
        found.append(net.nodes[3].single.delivery(taken, now))
    assert found[0].published == found[1].published
    assert found[0].run.payloads == found[1].run.payloads


def test_the_general_way_reads_the_publish_time_of_a_message_that_asks() -> None:
    net = chain()
    route = net.nodes[1].route(b"t")
    assert route is not None
    assert route.mask
    sends = net.nodes[1].publish_one(route.mask, b"t", 1, b"x", net.now, asks=True)
    assert sends is not None
    assert net.nodes[1].keep_one()
    [(link, frame)] = sends
    net.nodes[2].receive(link, bytes(frame), net.now)
    for action in net.nodes[2].take():
        if isinstance(action, Send):
            net.nodes[3].receive(action.link, bytes(action.data), net.now)
    [delivery] = [action for action in net.nodes[3].take() if isinstance(action, Deliver)]
    assert delivery.published == net.nodes[1]._core.wall_ms()


def test_a_message_that_waits_asks_for_nothing_and_is_in_custody_already() -> None:
    net = chain()
    node, route = net.nodes[1], net.nodes[1].route(b"t")
    assert route is not None
    node._dispatch.custody.destinations[3].credit_bytes = 0
    [(_, frame)] = node.publish_one(route.mask, b"t", 1, b"1", net.now, asks=True) or []
    assert frame == asking(bytes(frame), b"1")
    assert node.keep_one()
    assert node.publish_one(route.mask, b"t", 1, b"2", net.now, asks=True) == []
    assert node.custody()[0] == 2
    assert not node.keep_one()
    assert node.custody()[0] == 2


def test_receipts_are_asked_for_while_nothing_else_is_to_be_written() -> None:
    net = chain()
    node, route = net.nodes[1], net.nodes[1].route(b"t")
    assert route is not None
    net.save(1)
    assert node.single.may_ask
    assert node.publish_one(route.mask, b"t", 1, b"1", net.now)
    assert node.custody()[0] == 0, "its frames go first"
    assert node.keep_one()
    assert node.custody()[0] == 1
    assert node.single.hold_back()
    assert not node.single.may_ask
    assert not node.keep_one(), "once only"


def test_a_destination_goes_on_after_what_it_has_forgotten() -> None:
    """It is killed after a receipt that waited for no commit: the origin never sends that message again, and the next one is taken."""
    net = chain()
    sends = [net.nodes[3].single.given(bring(net, b"1", asks=True), net.now)]
    for number, link in ((2, 2), (1, 1)):
        sends = net.nodes[number].single.take_receipt(link, sends[0][1], net.now)
    net.cut(2)
    del net.nodes[3]
    net.settle()
    net.add(3, epoch=2000).subscribe("t", None, 1, net.now)
    net.hold = False
    net.link(2, 3)
    net.settle()
    net.publish(1, "t", payloads=[b"2"])
    net.settle()
    assert net.got(3) == [b"first", b"0", b"2"]  # 1 was given at once, which the model does not see
    assert not net.returned
    assert net.nodes[1].custody() == (0, 0)


numbers = st.integers(0, 4)


@settings(deadline=None, max_examples=examples(300))
@given(
    *(numbers, st.integers(-1, 1), numbers, st.integers(-2, 2), st.integers(-2, 2), st.booleans(), st.booleans()),
    st.sampled_from([1, 2]),
)
@example(1, 0, 3, 1, 1, False, False, 2)
@example(1, 0, 3, 1, 1, False, False, 1)
@example(1, 0, 3, 2, 2, False, False, 1)
def test_the_lane_does_what_the_general_way_does(
    origin: int, tree: int, destination: int, committed: int, seen: int, refuses: bool, two: bool, at: int
) -> None:
    """A receipt, right or wrong, comes to a node: by the lane and by the general way it goes on, and settles, alike."""
    found = []
    for lane in (True, False):
        net = chain()
        net.nodes[2].subscribe("t", None, 1, 0.0)
        net.settle()
        net.publish(1, "t", count=2)
        for number in (1, 2, 3):
            for action in net.nodes[number].take():
                net._do(number, action)
        node = net.nodes[1]
        epoch, last = node.position()
        refusals = ((epoch, last, last, ("g", "t")),) if refuses else ()
        receipt = Receipt(
            *(origin, net.nodes[1]._tree.number + tree, destination, 1000, 1000),
            *((epoch, max(0, last + committed)), (epoch, max(0, last + seen)), 50_000, 1 << 24, refusals),
        )
        packet = encode("receipts", [receipt] * (1 + two))
        target, link = net.nodes[at], at
        before = target.counters
        taken = target.single.take_receipt(link, packet, net.now) if lane else None
        sends = list(taken or ())
        if taken is None:
            target.receive(link, packet, net.now)
        went = [(action.link, action.data) for action in target.take() if isinstance(action, Send)]
        controls = [(out, decode("receipts", data[19:])) for out, data in sends + went if b"receipts" in data[:19]]
        after = target.counters
        counted = after.control_received - before.control_received, after.control_sent - before.control_sent
        found.append((controls, counted, node.custody(), node.settled(2), node.settled(3), node.held()))
    assert found[0] == found[1]


@pytest.mark.parametrize("cut", range(1, 40))
def test_what_is_damaged_is_left_to_the_general_way(cut: int) -> None:
    net = chain()
    sent = net.nodes[3].single.given(bring(net, b"1", asks=True), net.now)
    assert sent is not None
    link, packet = sent
    node = net.nodes[2]
    assert node.single.take_receipt(link, packet[:-cut], net.now) is None
    shorter = bytes((packet[0], packet[1] - cut)) + packet[2:-cut]
    assert node.single.take_receipt(link, shorter, net.now) is None
    with pytest.raises(PeerError):
        node.receive(link, shorter, net.now)
    assert node.single.take_receipt(link, packet, net.now) is not None
