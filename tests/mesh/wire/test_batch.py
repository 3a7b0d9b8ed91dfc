"""Spans are found where they are, whatever their payloads hold, and what is found is what was sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.node.actions import Deliver, Send
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.node.node import Node, Verdict
from mqmesh.mesh.wire.batch import Span, Spans, encode_span, seam
from mqmesh.mesh.wire.envelope import encode_head
from mqmesh.mqtt.batch.parts import PartsBatch
from support.models.mesh_net import Net

HEAD = encode_head(1, 3, 77, 5, 1)
TIME = (1234).to_bytes(6, "big")


def loose(pairs: list[tuple[bytes, bytes]], qos: int = 1) -> PartsBatch:
    return PartsBatch([len(topic).to_bytes(2, "big") + topic for topic, _ in pairs], [payload for _, payload in pairs], qos, 0.0)


def find(spans: Spans, data: bytes, pairs: list[tuple[bytes, bytes]], first: int, position: int = 0) -> Span | None:
    topic, payload = pairs[0]
    remaining = 2 + len(topic) + len(seam(HEAD, b"\1", TIME, first)) + 2 + len(payload)
    at = position + (2 if remaining < 128 else 3 if remaining < 16_384 else 4)
    seam_at = at + 2 + len(topic)
    return spans.find(data, at, seam_at, seam_at + len(seam(HEAD, b"\1", TIME, first)), len(payload), len(data))


nasty = seam(HEAD, b"\1", TIME, 0)
payloads = st.one_of(st.binary(max_size=30), st.sampled_from([b"", nasty, nasty[:-1], b"\x30\x05\x00\x01a" + nasty, b"x" * 200]))
pairs_of = st.lists(st.tuples(st.sampled_from([b"a", b"b/c", b"t" * 130]), payloads), min_size=2, max_size=20)


@given(pairs_of, st.integers(1, 65_000), st.binary(max_size=50))
def test_what_is_found_is_what_was_sent(pairs: list[tuple[bytes, bytes]], first: int, behind: bytes) -> None:
    data = b"".join(encode_span(loose(pairs), 0, HEAD, b"\1", TIME, first)) + behind
    spans = Spans()
    span = find(spans, data, pairs, first)
    if span is None:  # a payload that looks like a seam stands in one of the first two
        assert any(nasty[:20] in payload for _, payload in pairs[:2])
        return
    count = len(span.names)
    assert [(name[2:], payload) for name, payload in zip(span.names, span.payloads, strict=True)] == pairs[:count]
    assert (span.first, span.last) == (first, first + count - 1)
    assert data[: span.stop] == b"".join(encode_span(loose(pairs[:count]), 0, HEAD, b"\1", TIME, first))
    if count < len(pairs):
        assert any(nasty[:20] in payload for _, payload in pairs[count : count + 1])


def test_a_span_ends_where_the_high_sequence_changes() -> None:
    pairs = [(b"a", b""), (b"b", b"1"), (b"a", b"22"), (b"c", b"333"), (b"a", b"")]
    data = b"".join(encode_span(loose(pairs), 0, HEAD, b"\1", TIME, 65_533))
    span = find(Spans(), data, pairs, 65_533)
    assert span is not None
    assert (span.first, span.last, len(span.names)) == (65_533, 65_535, 3)
    rest = find(Spans(), data, pairs[3:], 65_536, span.stop)
    assert rest is not None
    assert (rest.first, rest.last, rest.stop) == (65_536, 65_537, len(data))


def test_sequences_with_gaps_are_a_span_and_sequences_that_fall_are_none() -> None:
    frame = [b"".join(encode_span(loose([(topic, b"x")]), 0, HEAD, b"\1", TIME, n)) for topic, n in ((b"a", 5), (b"bb", 9), (b"a", 12))]
    span = find(Spans(), b"".join(frame), [(b"a", b"x")], 5)
    assert span is not None
    assert (span.first, span.last, len(span.names)) == (5, 12, 3)
    assert find(Spans(), b"".join((frame[1], frame[0], frame[2])), [(b"bb", b"x")], 9) is None
    assert find(Spans(), frame[0] + frame[0], [(b"a", b"x")], 5) is None


def test_long_spans_widen_the_window() -> None:
    spans = Spans()
    pairs = [(b"t%d" % (i % 50), b"p" * (i % 7)) for i in range(5_000)]
    data = b"".join(encode_span(loose(pairs), 0, HEAD, b"\1", TIME, 1))
    position = taken = rounds = 0
    while taken < len(pairs):
        span = find(spans, data, pairs[taken:], 1 + taken, position)
        assert span is not None
        taken, position, rounds = taken + len(span.names), span.stop, rounds + 1
    assert position == len(data)
    assert rounds < 12


def line(qos: int, config: MeshConfig | None = None) -> Net:
    """1 - 2 - 3, where 2 wants a/#, 3 wants all; the tree of 1 stands."""
    net = Net(1, 2, 3, config=config)
    net.link(1, 2)
    net.link(2, 3)
    net.nodes[2].subscribe("a/#", None, 1, 0.0)
    net.nodes[3].subscribe("#", None, 1, 0.0)
    net.settle()
    net.publish(1, "a/warm", qos)
    net.settle()
    net.delivered.clear()
    return net


def give(net: Net, pairs: list[tuple[bytes, bytes]], qos: int) -> Verdict | None:
    route = net.nodes[1].route(pairs[0][0])
    assert route is not None
    assert route.mask is not None
    return net.nodes[1].publish_parts(route.mask, loose(pairs, qos), net.now)


def test_a_span_arrives_as_one_everywhere() -> None:
    for qos in (0, 1, 2):
        net = line(qos)
        pairs = [(b"a/%d" % (i % 3), b"p" * i) for i in range(300)]
        assert give(net, pairs, qos) is Verdict.TAKEN
        net.settle()
        for number in (2, 3):
            runs = [d.run for n, d in net.delivered if n == number]
            assert [pair for run in runs for pair in run.messages()] == pairs
            assert len(runs) < 10
            assert all(run.qos == qos for run in runs)
        assert net.nodes[1].custody() == (0, 0)
        assert net.nodes[3].counters.received == 301


def test_a_span_repeated_in_part_is_delivered_once() -> None:
    net = line(1)
    pairs = [(b"a/%d" % (i % 3), b"p" * i) for i in range(20)]
    give(net, pairs[:8], 1)
    first = b"".join(bytes(a.data) for a in net.nodes[1].take() if isinstance(a, Send))
    give(net, pairs[8:], 1)
    second = b"".join(bytes(a.data) for a in net.nodes[1].take() if isinstance(a, Send))
    node: Node = net.nodes[2]
    node.take()
    for data in (first, first + second, second):
        node.receive(1, data, 0.0)
    got = [pair for a in node.take() if isinstance(a, Deliver) for pair in a.run.messages()]
    assert got == pairs
    assert node.counters.duplicates == 20


def test_a_span_waits_in_custody_and_goes_with_the_next_tree() -> None:
    net = line(1)
    net.cut(2)
    net.settle()
    pairs = [(b"a/%d" % (i % 3), b"p" * i) for i in range(50)]
    assert give(net, pairs, 1) is Verdict.TAKEN
    net.settle()
    assert [pair for n, d in net.delivered if n == 2 for pair in d.run.messages()] == pairs
    assert net.nodes[1].custody()[0] == 50
    net.link(2, 3)
    net.settle()
    assert [pair for n, d in net.delivered if n == 3 for pair in d.run.messages()] == pairs
    assert net.nodes[1].custody() == (0, 0)


def test_custody_says_when_a_span_does_not_fit() -> None:
    net = line(1, MeshConfig(custody_messages=60))
    net.cut(2)
    net.settle()
    pairs = [(b"a/1", b"p"), (b"a/2", b"")] * 20
    assert give(net, pairs, 1) is Verdict.TAKEN
    net.settle()
    assert give(net, pairs, 1) is Verdict.REFUSED
    assert give(net, pairs, 0) is Verdict.TAKEN


def test_while_interest_changes_nothing_is_done() -> None:
    net = line(1)
    route = net.nodes[1].route(b"a/1")
    assert route is not None
    assert route.mask is not None
    net.nodes[3].subscribe("a/1", None, 1, 0.0)
    for action in net.nodes[3].take():
        net._do(3, action)
    net.nodes[2].receive(2, b"".join(net.flying.pop((3, 2))), 0.0)
    for action in net.nodes[2].take():
        net._do(2, action)
    net.nodes[1].receive(1, b"".join(net.flying.pop((2, 1))), 0.0)
    assert net.nodes[1].publish_parts(route.mask, loose([(b"a/1", b""), (b"a/2", b"")]), 0.0) is None
    net.settle()
    assert give(net, [(b"a/1", b""), (b"a/2", b"")], 1) is Verdict.TAKEN
