"""What a subscriber and a publisher find, against an oracle, however the bytes are cut into chunks."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from benchmarks.load_generator import wire
from benchmarks.load_generator.connection import Connection
from benchmarks.load_generator.publisher import Expected, Publisher
from benchmarks.load_generator.subscriber import Subscriber
from benchmarks.load_generator.traffic import Traffic

WINDOW = 50
TRAFFIC = {(qos, topics): Traffic(0, qos, 5, topics, (16, 16), WINDOW) for qos in (0, 1, 2) for topics in (1, 10)}
SIZES = Traffic(0, 0, 4, 1, (16, 80), WINDOW)


class Offline:
    """A connection without a socket that remembers what was pushed."""

    def __init__(self, *_: object, **__: object) -> None:
        self.version = 5
        self.left = bytearray()
        self.kept = bytearray()
        self.slow_packets = 0
        self.pushed = bytearray()
        self.receive_maximum = 65535

    def subscribe(self, *_: object) -> None:
        pass

    def push(self, data: bytes) -> None:
        self.pushed += data


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__init__", "subscribe", "push"):
        monkeypatch.setattr(Connection, name, getattr(Offline, name))


def chunks(data: bytes, chance: random.Random, largest: int) -> list[bytes]:
    """The data in pieces of random length."""
    out, position = [], 0
    while position < len(data):
        length = chance.randint(1, largest)
        out.append(data[position : position + length])
        position += length
    return out


# A script: for each group of messages what happens to it.
SCRIPTS = st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["lose", "repeat", "swap", "nothing"])), max_size=12)


def play(script: list[tuple[int, str]], cycle: int) -> tuple[list[int], int, dict[str, int]]:
    """The message numbers that arrive, how many were sent, and what must be found."""
    arrive: list[int] = []
    found = {"missing": 0, "duplicates": 0, "disorder": 0}
    number = 0
    for good, event in script:
        arrive += range(number, number + good)
        number += good
        if event == "lose":
            number += 1
            found["missing"] += 1
        elif event == "repeat" and arrive:
            arrive.append(arrive[-1])
            found["duplicates"] += 1
        elif event == "swap":
            arrive += [number + 1, number]
            number += 2
            found["disorder"] += 1
    return [n % cycle for n in [*arrive, *range(number, number + 3)]], number + 3, found


@settings(max_examples=examples(150), deadline=None)
@given(script=SCRIPTS, seed=st.integers(0, 1 << 30), qos=st.sampled_from([0, 1, 2]), topics=st.sampled_from([1, 10]), start=st.booleans())
def test_faults_are_found_in_any_chunks(script: list[tuple[int, str]], seed: int, qos: int, topics: int, start: bool) -> None:
    traffic, chance = TRAFFIC[qos, topics], random.Random(seed)
    judge(traffic, script, chance, qos, near_end=start)


@settings(max_examples=examples(80), deadline=None)
@given(script=SCRIPTS, seed=st.integers(0, 1 << 30), start=st.booleans())
def test_faults_are_found_in_frames_of_any_size(script: list[tuple[int, str]], seed: int, start: bool) -> None:
    judge(SIZES, script, random.Random(seed), 0, near_end=start)


def judge(traffic: Traffic, script: list[tuple[int, str]], chance: random.Random, qos: int, near_end: bool) -> None:
    """Feed the script to a subscriber and compare what it found; `near_end`: over the end of the cycle."""
    arrive, sent, found = play(script, traffic.cycle)
    begin = traffic.cycle - 10 if near_end else 0
    subscriber: Any = Subscriber(("", 0), "s", [traffic])
    subscriber.version = traffic.version
    source = subscriber.only
    source.received = begin
    pid = chance.randint(1, 65535)
    data, pids = bytearray(traffic.probe(0)), []
    for index in arrive:
        index = (begin + index) % traffic.cycle
        data += wire.publish(traffic.topic(index), traffic.payloads[index], qos, traffic.version, pid)
        if qos:
            pids.append(pid)
            pid = pid % 65535 + 1
        if qos == 2 and chance.random() < 0.3:
            while pids:
                data += wire.acknowledgement(wire.PUBREL, pids.pop(0))
    for chunk in chunks(bytes(data), chance, chance.choice([3, 40, 400])):
        subscriber.read(memoryview(chunk))
    got = {"missing": len(source.missing), "duplicates": source.duplicates, "disorder": source.disorder}
    assert got == found
    assert source.corrupt == 0
    assert source.received == begin + sent
    if qos == 1:
        assert [p for kind, p in answers(subscriber.pushed)][1:] == pids
    if qos == 2:
        kinds = [kind for kind, _ in answers(subscriber.pushed)]
        assert kinds.count(wire.PUBREC) == len(arrive) + 1
        assert kinds.count(wire.PUBCOMP) == len(arrive) - len(pids)


def answers(pushed: bytearray) -> list[tuple[int, int]]:
    """(type, packet identifier) of the acknowledgements."""
    return [(pushed[i] >> 4, pushed[i + 2] << 8 | pushed[i + 3]) for i in range(0, len(pushed), 4)]


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 1 << 30), qos=st.sampled_from([1, 2]), tail=st.sampled_from([b"", b"\0", b"\0\0"]), shuffle=st.booleans())
def test_acknowledgements_in_any_form_and_order(seed: int, qos: int, tail: bytes, shuffle: bool) -> None:
    traffic, chance = TRAFFIC[qos, 1], random.Random(seed)
    publisher: Any = Publisher(("", 0), "p", traffic, [])
    if chance.random() < 0.5:
        publisher.probe_acknowledgements = {wire.PUBACK: tail, wire.PUBREC: tail, wire.PUBCOMP: tail}
    publisher.start()
    count = publisher.sent = traffic.cycle + 30
    order = list(range(count))
    if shuffle:
        for i in range(0, count - 8, 8):
            part = order[i : i + 8]
            chance.shuffle(part)
            order[i : i + 8] = part

    def said(kind: int, number: int) -> bytes:
        short = wire.acknowledgement(kind, number % traffic.cycle + 1)
        return bytes((short[0], 2 + len(tail))) + short[2:] + tail

    first = wire.PUBACK if qos == 1 else wire.PUBREC
    data = b"".join(said(first, number) for number in order)
    if qos == 2:
        data += b"".join(said(wire.PUBCOMP, number) for number in order)
    for chunk in chunks(data, chance, chance.choice([3, 40, 4000])):
        publisher.read(memoryview(chunk))
    assert {kind: expected.count for kind, expected in publisher.expected.items()} == dict.fromkeys(publisher.expected, count)
    if qos == 2:
        assert [pid for _, pid in answers(publisher.pushed)] == [number % traffic.cycle + 1 for number in order]


@settings(max_examples=examples(80), deadline=None)
@given(seed=st.integers(0, 1 << 30), longest=st.sampled_from([1, 3, 500]), event=st.sampled_from(["", "lose", "repeat"]))
def test_several_publishers_in_any_mixture(seed: int, longest: int, event: str) -> None:
    chance = random.Random(seed)
    traffics = [Traffic(i, 0, 4, 1, (16, 16), WINDOW) for i in range(3)]
    subscriber: Any = Subscriber(("", 0), "s", traffics)
    subscriber.version = 4
    data, sent, victim = bytearray(), [0, 0, 0], chance.randrange(1500)
    for traffic in traffics:
        data += traffic.probe(0)
    while sum(sent) < 3000:
        which = chance.randrange(3)
        for _ in range(chance.randint(1, longest)):
            traffic = traffics[which]
            frame = wire.publish(traffic.topic(0), traffic.payloads[sent[which] % traffic.cycle], 0, 4)
            data += frame * ({"lose": 0, "repeat": 2}.get(event, 1) if sum(sent) == victim else 1)
            sent[which] += 1
    for chunk in chunks(bytes(data), chance, chance.choice([50, 5000, 50000])):
        subscriber.read(memoryview(chunk))
    sources = subscriber.sources.values()
    assert [source.received for source in sources] == sent
    assert sum(len(source.missing) for source in sources) == (event == "lose")
    assert sum(source.duplicates for source in sources) == (event == "repeat")
    assert not any(source.disorder or source.corrupt for source in sources)


def test_an_acknowledgement_of_nothing_is_an_error() -> None:
    expected = Expected(wire.PUBACK, 2048, b"")
    expected.single(1, 10)
    with pytest.raises(wire.WireError, match="waits for none"):
        expected.single(1, 10)
    with pytest.raises(wire.WireError, match="waits for none"):
        expected.single(11, 10)
    with pytest.raises(wire.WireError, match="reason 0x97"):
        wire.decode_acknowledgement(0x40, b"\0\1\x97")


def test_a_wrong_topic_or_qos_is_altered_traffic() -> None:
    traffic = TRAFFIC[0, 1]
    subscriber: Any = Subscriber(("", 0), "s", [traffic])
    subscriber.read(memoryview(traffic.probe(0)))
    for topic, qos in ((b"bench/99", 0), (traffic.topic(0), 1)):
        subscriber.read(memoryview(wire.publish(topic, traffic.payloads[0], qos, 5, 1)))
    assert subscriber.only.corrupt == 2
    subscriber.read(memoryview(wire.publish(traffic.topic(0), traffic.payloads[0], 0, 5)))
    assert subscriber.only.received == 1
