"""Many messages at once: the same packets and the same answers as one by one, whatever comes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.metabroker.core.actions import Deliver, DeliverMany, Respond, RespondMany, Send, SendMany
from mqmesh.metabroker.core.batch_path import BatchPath
from mqmesh.metabroker.core.core import Core
from mqmesh.metabroker.mqtt.client import ClientMachine
from mqmesh.metabroker.mqtt.login import Login
from mqmesh.metabroker.policy import parse
from mqmesh.metabroker.protocol.events import Abilities, BatchSettled, Message, Published, Up
from mqmesh.metabroker.protocol.messages import IncomingRun, PublishHeader
from mqmesh.metabroker.shell.deliveries import PendingRun
from mqmesh.mqtt.codec import decode, encode
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.packets import Connack, Puback, Publish, Suback
from mqmesh.mqtt.properties import Property
from support.examples import examples

REMOTE = "mqtt://far:1883"
SESSIONS = ["c/s1", "d/s2"]
Sent = tuple[str, bytes, int, bool]


class World:
    """A core with a session `c/s1`; what leaves for the remote, what is answered. fast: requests and answers come in runs."""

    def __init__(self, fast: bool, abilities: Abilities, **limits: int) -> None:
        names = itertools.count(1)
        rule = {"clients": ["*"], "remotes": ["mqtt://far:*"], "publish": ["up/#"], "subscribe": ["down/#"]}
        self.core = Core(parse({"limits": limits, "allow": [rule]}), lambda: f"s{next(names)}")
        self.fast = BatchPath(self.core, 5) if fast else None
        self.sent: list[Sent] = []
        self.answers: list[tuple[str, Any]] = []
        self.open: list[tuple[int, int]] = []  # (token, place in its burst, -1: alone) of what the remote has to acknowledge
        self.heard: list[tuple[str, int, Any]] = []
        self.acknowledged: list[int] = []
        self.now = 1.0
        self.core.on_request("metabroker/request/c/connect", msgpack.packb({"client": "c", "remote": REMOTE}), 0.0)
        self.number = max(self.core.remotes)
        if self.fast is not None:
            self.fast.enable(self.number)
        self.core.on_up(self.number, False, abilities)
        self.look()

    def look(self) -> None:
        """Carry out."""
        for action in self.core.take():
            match action:
                case Send(_, token, publish):
                    self.sent.append((publish.topic, publish.payload, publish.qos, publish.retain))
                    self.open += [(token, -1)] * bool(token)
                case SendMany(_, token, qos, messages):
                    self.sent += [(head.topic, body, head.qos, bool(head.of(len(body))[0] & 1)) for head, body in messages]
                    assert all(head.qos == qos for head, _ in messages)
                    self.open += [(token, place) for place in range(len(messages)) if token]
                case Respond(topic, body, _):
                    self.answers.append((topic, msgpack.unpackb(body)))
                case RespondMany(messages):
                    self.answers += [(head.topic, msgpack.unpackb(body)) for head, body in messages]
                case Deliver(_, packet_id, _, responses):
                    self.heard += [(one.topic, one.qos, msgpack.unpackb(one.body)) for one in responses]
                    self.acknowledged += [packet_id] * bool(packet_id)
                case DeliverMany(_, acks, _, batches):
                    for each in zip(*([(head.topic, qos, body) for head, body in messages] for qos, messages in batches), strict=True):
                        self.heard += [(topic, qos, msgpack.unpackb(body)) for topic, qos, body in each]
                    self.acknowledged += [acks[i + 2] << 8 | acks[i + 3] for i in range(0, len(acks), 4)]

    def requests(self, bodies: list[bytes], session: str = "c/s1", verb: str = "publish") -> None:
        topic = f"metabroker/request/{session}/{verb}"
        if self.fast is None:
            for body in bodies:
                self.core.on_request(topic, body, self.now)
        else:
            for _, group in itertools.groupby(bodies, len):  # as they come from the wire: bodies of one size
                self.fast.on_requests(IncomingRun(topic, 1, list(group), (), b"", 1), self.now)
        self.look()

    def acknowledge(self, place: int, count: int, reason: int) -> None:
        """The remote acknowledges some of what it has, not always in order."""
        taken, self.open[place : place + count] = self.open[place : place + count], []
        while taken:
            token, first = taken[0]
            many = 1
            while first >= 0 and many < len(taken) and taken[many] == (token, first + many):
                many += 1
            if first < 0:
                self.core.publishing.on_published(token, reason)
            else:
                assert self.fast is not None
                self.fast.on_batch_settled(self.number, token, first, many, reason)
            del taken[:many]
        self.look()


def body(**keys: Any) -> bytes:
    return bytes(msgpack.packb(keys))


MESSAGES = st.one_of(st.integers(0, 12), st.sampled_from(["a", "b", "x" * 300, "é" * 600, -1, 1 << 63, None, 1.5, True]))
PAYLOADS = st.one_of(st.binary(max_size=3), st.integers(36, 42).map(bytes))  # the largest that a remote takes below is between
NUMBERS = st.one_of(st.integers(0, 40), st.integers(300, 330), st.integers(70_000, 70_030), st.integers((1 << 63) - 1, 1 << 63))
GIVEN = {"topic": st.sampled_from(["up/a", "up/b"]), "payload": PAYLOADS}
PLAIN = st.fixed_dictionaries({"message": NUMBERS, **GIVEN}, optional={"qos": st.integers(0, 1), "retain": st.booleans()})
QUIET = st.fixed_dictionaries(GIVEN, optional={"qos": st.just(0), "retain": st.booleans()})
ODD = st.fixed_dictionaries(
    {},
    optional={
        "message": MESSAGES,
        "topic": st.sampled_from(["up/a", "up/\0", "up/+", "", "other", "up/" + "l/" * 300, b"up/a", 5]),
        "payload": st.one_of(st.binary(max_size=80), st.text(max_size=3), st.integers(0, 3)),
        "qos": st.sampled_from([0, 1, 2, 3, True, "1"]),
        "retain": st.sampled_from([True, False, 0, 1]),
        "properties": st.sampled_from([None, {}, {"expiry": 7}, {"nothing": 1}]),
        "more": st.integers(0, 3),
    },
)
BODIES = st.one_of(
    PLAIN.map(msgpack.packb),
    QUIET.map(msgpack.packb),
    PLAIN.map(msgpack.packb),
    ODD.map(msgpack.packb),
    st.binary(max_size=9),
    st.just(msgpack.packb({1: 2})),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("requests"), st.lists(BODIES, min_size=1, max_size=12)),
        st.tuples(st.just("acknowledge"), st.tuples(st.integers(0, 3), st.integers(1, 6), st.sampled_from([0, 0, 0, 0x10, 0x87]))),
        st.tuples(st.just("remote"), st.booleans()),
        st.tuples(st.just("congested"), st.booleans()),
        st.tuples(st.just("time"), st.sampled_from([0.3, 1.0, 2.5])),
    ),
    max_size=12,
)
ABILITIES = st.sampled_from([Abilities(), Abilities(largest=60), Abilities(qos=0), Abilities(retain=False), Abilities(qos=1)])


@settings(max_examples=examples(150), deadline=None)
@given(steps=STEPS, abilities=ABILITIES, waiting=st.sampled_from([1, 3, 10, 1000]), largest=st.sampled_from([45, 60, 100_000]))
def test_requests_have_the_same_effect_and_answers_in_runs_and_one_by_one(
    steps: list[Any], abilities: Abilities, waiting: int, largest: int
) -> None:
    worlds = [World(fast, abilities, waiting=waiting, body=largest) for fast in (False, True)]
    for name, value in steps:
        for world in worlds:
            if name == "requests":
                world.requests(value)
            elif name == "acknowledge":
                world.acknowledge(*value)
            elif name == "congested":
                world.core.on_congested(world.number, value)
            elif name == "time":
                world.now += value
                world.core.on_timer(world.now)
            elif value:
                world.core.on_up(world.number, True, abilities)
            else:
                from mqmesh.base.metabroker import Code

                world.core.on_failed(world.number, Code.REMOTE_UNREACHABLE, "it is away")
            world.look()
    slow, fast = worlds
    assert fast.sent == slow.sent
    assert fast.answers == slow.answers
    assert len(fast.open) == len(slow.open)
    assert [list(world.core.sessions["c/s1"].done.items()) for world in worlds[:1]] == [list(fast.core.sessions["c/s1"].done.items())]
    assert fast.core.sessions["c/s1"].open == slow.core.sessions["c/s1"].open
    assert fast.core.counts == slow.core.counts


TOPICS = st.sampled_from(["up/a", "up/b", "no/a"])
SHAPED = st.tuples(
    st.one_of(st.permutations(["message", "topic", "payload", "qos"]), st.permutations(["topic", "payload", "qos"])),
    st.lists(st.tuples(st.integers(70_000, 70_050), TOPICS, st.binary(min_size=2, max_size=2), st.integers(0, 2))),
)


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(SHAPED, max_size=4), st.sampled_from([3, 1000]))
def test_requests_of_one_shape_have_the_same_effect(runs: list[Any], waiting: int) -> None:
    worlds = [World(fast, Abilities(), waiting=waiting) for fast in (False, True)]
    for order, requests in runs:
        made = [dict(zip(("message", "topic", "payload", "qos"), request, strict=True)) for request in requests]
        for world in worlds:
            world.requests([body(**{key: one[key] for key in order}) for one in made])
            world.acknowledge(0, 2, 0)
    slow, fast = worlds
    assert (fast.sent, fast.answers, len(fast.open)) == (slow.sent, slow.answers, len(slow.open))


def test_plain_requests_do_take_the_fast_way() -> None:
    """Else the test above would compare one way with itself."""
    world = World(True, Abilities())
    world.fast.core.on_request = None  # type: ignore[union-attr,assignment,method-assign]
    world.requests([body(message=i, topic="up/a", payload=b"x", qos=i % 2) for i in range(50)])
    assert len(world.sent) == 50
    assert len(world.answers) == 1 + 25
    world.requests([body(topic="up/a", payload=b"x", qos=0) for _ in range(50)])
    world.requests([body(topic="up/a", payload=b"x") for _ in range(50)])
    assert len(world.sent) == 150
    assert len(world.answers) == 1 + 25
    assert world.core.counts.requests == 1 + 150


@given(st.lists(st.sampled_from(["asked", "answered", "quiet"]), min_size=3, max_size=20))
def test_requests_of_one_size_with_and_without_an_answer_keep_their_order(kinds: list[str]) -> None:
    worlds = [World(fast, Abilities()) for fast in (False, True)]
    bodies = []
    for number, kind in enumerate(kinds):
        keys: dict[str, Any] = {} if kind == "quiet" else {"message": number, "qos": int(kind == "asked")}
        spare = 60 - len(body(topic="up/a", payload=b"", **keys))
        bodies.append(body(topic="up/a", payload=bytes((number,)) * spare, **keys))
    assert len(set(map(len, bodies))) == 1
    for world in worlds:
        world.requests(bodies)
    slow, fast = worlds
    assert [payload[0] for _, payload, _, _ in fast.sent] == list(range(len(kinds)))
    assert (fast.sent, fast.answers, len(fast.open)) == (slow.sent, slow.answers, len(slow.open))


@pytest.mark.parametrize("verb", ["publish", "subscribe", "nothing"])
def test_requests_of_a_session_that_is_not_there(verb: str) -> None:
    worlds = [World(fast, Abilities()) for fast in (False, True)]
    for world in worlds:
        world.requests([body(message=1, topic="up/a", payload=b"")], "c/s9", verb)
    assert worlds[0].answers == worlds[1].answers


def test_a_session_that_has_ended_gets_no_answer_and_nothing_is_kept_of_it() -> None:
    world = World(True, Abilities())
    world.requests([body(message=1, topic="up/a", payload=b"", qos=1)] * 1 + [body(message=2, topic="up/a", payload=b"", qos=1)])
    world.requests([b""], verb="disconnect")
    before = len(world.answers)
    world.acknowledge(0, 2, 0)
    assert len(world.answers) == before


# Publications


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["down/a", "down/b/c", "elsewhere"]),
            st.integers(0, 1),
            st.lists(st.binary(min_size=2, max_size=2), min_size=1, max_size=5),
            st.lists(st.integers(1, 3), max_size=2, unique=True),
        ),
        max_size=6,
    ),
    st.lists(st.tuples(st.sampled_from(SESSIONS), st.sampled_from(["down/#", "down/a", "down/+/c"]), st.integers(0, 2)), max_size=5),
    st.sampled_from([0, (1 << 32) - 4, 1 << 40]),
)
def test_publications_reach_the_same_sessions_in_runs_and_one_by_one(runs: list[Any], subscriptions: list[Any], before: int) -> None:
    worlds = [World(fast, Abilities()) for fast in (False, True)]
    pids = itertools.count(1)
    numbered = [(topic, qos, payloads, identifiers, [next(pids) for _ in payloads]) for topic, qos, payloads, identifiers in runs]
    for world in worlds:
        world.core.on_request("metabroker/request/d/connect", body(client="d", remote=REMOTE), 0.0)
        world.core.sessions["c/s1"].number = before  # behind a restart they count on from a high number
        asked = iter(subscriptions)
        for topic, qos, payloads, identifiers, ids in numbered:
            for session, filter_, wanted in itertools.islice(asked, 1):  # subscriptions change between the runs
                topic_ = f"metabroker/request/{session}/subscribe"
                world.core.on_request(topic_, body(message=1, topics=[filter_], qos=wanted), 0.0)
            acks = b"".join(encode(Puback(pid), 4) for pid in ids) if qos else b""
            run = IncomingRun(topic, qos, payloads, tuple(identifiers), acks, 1)
            if world.fast is not None:
                world.fast.on_messages(world.number, run)
            else:
                for publish in run.singles():
                    world.core.on_message(world.number, publish, 1)
            world.look()
    slow, fast = worlds
    assert fast.heard == slow.heard
    assert fast.acknowledged == slow.acknowledged


@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 1000))
def test_a_message_is_acknowledged_when_all_its_sessions_have_it(recipients: int, count: int, seed: int) -> None:
    acks = b"".join(encode(Puback(pid), 4) for pid in range(1, count + 1))
    run = PendingRun(DeliverMany(1, acks, 1, []))
    run.recipients = recipients
    chance = random.Random(seed)
    left = dict.fromkeys(range(count), recipients)
    found = b""
    places = [0] * recipients
    while left and any(place < count for place in places):
        who = chance.choice([i for i, place in enumerate(places) if place < count])
        many = chance.randint(1, count - places[who])
        told = run.settled(places[who], many)
        for index in range(places[who], places[who] + many):
            left[index] -= 1
        places[who] += many
        assert told == b"".join(acks[4 * i : 4 * i + 4] for i in range(places[who] - many, places[who]) if not left[i])
        found += told
    assert sorted(found[i : i + 4] for i in range(0, len(found), 4)) == [acks[i : i + 4] for i in range(0, len(acks), 4)]


# The wire


def connected(version: int, maximum: int = 65_535) -> ClientMachine:
    made = ClientMachine(Login("m", version))
    made.begin(0.0)
    made.take()
    properties = {Property.RECEIVE_MAXIMUM: maximum} if version == 5 else {}
    [up] = made.receive(encode(Connack(properties=properties), version), 0.0)
    assert isinstance(up, Up)
    return made


def places(events: list[Any]) -> Iterator[tuple[int, int]]:
    """(number of the message, reason): alone its token is its number and one; in a burst the token is that of the first."""
    for event in events:
        if isinstance(event, BatchSettled):
            yield from ((event.token - 1 + event.start + i, event.reason) for i in range(event.many))
        else:
            assert isinstance(event, Published)
            yield event.token - 1, event.reason


@settings(max_examples=examples(100), deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([4, 5]), st.sampled_from([1, 2, 7, 65_535]))
def test_bursts_leave_as_the_same_bytes_as_single_messages(chance: random.Random, version: int, maximum: int) -> None:
    one, many = connected(version, maximum), connected(version, maximum)
    heads = {qos: PublishHeader("t/é", qos, False, version) for qos in (0, 1)}
    number = 0
    told: tuple[list[Any], list[Any]] = ([], [])
    flying: list[int] = []

    def look() -> None:
        written = one.take()
        assert written == many.take()
        for first, packet in Framer().feed(written):
            read = decode(first, packet, version)
            if isinstance(read, Publish) and read.qos and read.packet_id not in flying:
                flying.append(read.packet_id)

    for _ in range(20):
        match chance.choice(["publish", "publish", "acknowledge", "acknowledge", "lose"]):
            case "publish":
                qos, count = chance.randint(0, 1), chance.randint(1, 9)
                payloads = [chance.randbytes(chance.choice([0, 2, 200])) for _ in range(count)]
                for place, payload in enumerate(payloads):
                    one.publish(Publish("t/é", payload, qos), number + place + 1, 0.0)
                many.publish_batch([(heads[qos], payload) for payload in payloads], qos, number + 1, 0.0)
                number += count
            case "acknowledge" if flying:
                start = chance.choice([0, 0, chance.randrange(len(flying))])
                taken, flying[start : start + 5] = flying[start : start + 5], []
                reason = chance.choice([0, 0, 0x10, 0x87]) if version == 5 else 0
                data = b"".join(encode(Puback(pid, reason), version) for pid in taken)
                cut = chance.randint(0, len(data))
                for wire, events in zip((one, many), told, strict=True):
                    events += wire.receive(data[:cut], 0.0) + wire.receive(data[cut:], 0.0)
            case "lose":
                present = chance.random() < 0.7 and version == 5
                for wire in (one, many):
                    wire.lost()
                    wire.begin(1.0)
                    wire.take()
                    properties = {Property.RECEIVE_MAXIMUM: maximum} if version == 5 else {}
                    wire.receive(encode(Connack(session_present=present, properties=properties), version), 1.0)
        look()
        assert list(places(told[0])) == list(places(told[1]))
        assert one.waiting == many.waiting
    while flying:
        pid = flying.pop(0)
        for wire in (one, many):
            wire.receive(encode(Puback(pid), version), 0.0)
        look()
    assert (many.waiting, many.bytes) == (0, 0)


PACKETS = st.lists(
    st.one_of(
        st.builds(
            lambda topic, payloads, qos, retain, dup, identifiers, expiry: [
                Publish(
                    topic,
                    payload,
                    qos,
                    retain,
                    dup and qos > 0,
                    0,
                    {
                        **({Property.SUBSCRIPTION_IDENTIFIER: list(identifiers)} if identifiers else {}),
                        **({Property.MESSAGE_EXPIRY_INTERVAL: 5} if expiry else {}),
                    },
                )
                for payload in payloads
            ],
            st.sampled_from(["t", "t/é", "x" * 130]),
            st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=8) | st.lists(st.binary(max_size=200), min_size=1, max_size=2),
            st.integers(0, 2),
            st.sampled_from([False, False, True]),
            st.sampled_from([False, False, True]),
            st.sampled_from([(), (), (5,), (6,), (5, 300)]),
            st.sampled_from([False, False, True]),
        ),
        st.just([Suback(9, [0])]),
    ),
    max_size=8,
)


@settings(max_examples=examples(150), deadline=None)
@given(PACKETS, st.sampled_from([4, 5]), st.integers(1, 400), st.integers(0, 50))
def test_what_comes_in_runs_is_what_was_sent(groups: list[list[Any]], version: int, chunk: int, seed: int) -> None:
    ids = itertools.count(1)
    sent = []
    for packet in itertools.chain(*groups):
        if isinstance(packet, Publish):
            packet.packet_id = next(ids) if packet.qos else 0
            packet.properties = packet.properties if version == 5 else {}
            sent.append(packet)
    data = b"".join(encode(packet, version) for packet in itertools.chain(*groups))
    made = connected(version)
    events: list[Any] = []
    chance = random.Random(seed)
    while data:
        size = chance.randint(1, chunk)
        events += made.receive(data[:size], 0.0)
        data = data[size:]
    found = []
    for event in events:
        if isinstance(event, IncomingRun):
            found += event.singles()
            made.take()
            made.acknowledge_run(event.acks, event.epoch, 0.0)
            assert made.take() == b"".join(encode(Puback(one.packet_id), 4) for one in event.singles() if one.qos)
            assert event.acks[: 4 * len(event.payloads)] == event.acks
        elif isinstance(event, Message):
            found.append(event.publish)
    assert found == sent


@pytest.mark.parametrize("qos", [0, 1])
def test_messages_of_one_size_with_other_identifiers_are_no_run(qos: int) -> None:
    packets = [
        Publish("t", b"x", qos, packet_id=qos * number, properties={Property.SUBSCRIPTION_IDENTIFIER: [number]}) for number in (5, 6)
    ]
    events = connected(5).receive(b"".join(encode(packet, 5) for packet in packets), 0.0)
    assert [event.identifiers for event in events if isinstance(event, IncomingRun)] == [(5,), (6,)]
