"""Whatever clients send to the metabroker: it ends in an answer with a code, or a line in the log, and touches nobody else."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.base.metabroker import IDENTITY, Code
from mqmesh.metabroker.core.actions import Close, Deliver, LogLine, Open, Resolve, Respond, Send, Subscribe, Unsubscribe
from mqmesh.metabroker.core.core import Core
from mqmesh.metabroker.policy import parse
from mqmesh.metabroker.protocol.events import Abilities
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.topics import check_filter, check_topic
from support.examples import examples

REMOTE, OTHER = "mqtt://far:1883", "mqtt://far:1884"
RULE = {"clients": ["*"], "remotes": ["mqtt://far:*", "weather"], "publish": ["#"], "subscribe": ["#"]}
LIMITS = {"sessions": 12, "sessions_per_client": 4, "subscriptions": 5, "waiting": 6, "body": 2000}
KEYS = [
    "client",
    "remote",
    "username",
    "password",
    "message",
    "topic",
    "topics",
    "payload",
    "qos",
    "retain",
    "properties",
    "durable",
    "id",
    "x",
]
NAMES = ["format", "expiry", "user", "correlation", "response_topic", "x"]
VERBS = ["publish", "subscribe", "unsubscribe", "disconnect", "resume", "ack", "connack", "x", ""]
WORST = [
    b"\x81\xa7message" + b"\x91" * 1900,
    b"\xdf\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\x81\xa7message\xd4\xff\0",
    b"\xdd\x7f\xff\xff\xff",
]

keys = st.text(max_size=3) | st.integers(0, 9)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.text(max_size=12), st.binary(max_size=12)
)
extensions = st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=4))
values = st.recursive(
    st.one_of(scalars, extensions),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3),
)
right = st.fixed_dictionaries(
    {},
    optional={
        "client": st.sampled_from(["evil", "honest", "a/b", "+"]),
        "remote": st.sampled_from([REMOTE, OTHER, "weather", "mqtt://x", "http://far"]),
        "username": st.sampled_from(["u", None]),
        "message": st.integers(0, 9) | st.text(max_size=3),
        "topic": st.sampled_from(["in/a", "up", "#", "", "\0", "$share/g/x"]),
        "topics": st.lists(st.sampled_from(["in/#", "in/a", "#", "+/a", "a#", "$share/g/a", ""]), max_size=6),
        "payload": st.binary(max_size=20),
        "qos": st.integers(0, 3),
        "properties": st.dictionaries(
            st.sampled_from(["format", "expiry", "user", "correlation", "response_topic", "x"]), scalars, max_size=3
        ),
        "durable": st.booleans(),
        "id": st.integers(-1, 3),
    },
)
odd = st.dictionaries(st.sampled_from(KEYS), values, max_size=2)
maps = st.builds(lambda good, wrong: good | wrong, right, odd | st.just({}))
connects = st.fixed_dictionaries(
    {"client": st.sampled_from(["evil", "evil", "honest", "a/b"]), "remote": st.sampled_from([REMOTE, OTHER, "weather", "mqtt://x"])},
    optional={"username": st.sampled_from(["h", "u"]), "password": scalars, "durable": st.booleans()},
)
requests = st.builds(lambda message, rest: {"message": message, "topic": "in/a"} | rest, st.integers(0, 20), maps)
bodies = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda body, cut: msgpack.packb(body, strict_types=False)[:cut], maps, st.integers(0, 40)),
    maps.map(msgpack.packb),
    values.map(msgpack.packb),
    st.integers(1, 1500).map(lambda levels: b"\x81\xa7message" + b"\x91" * levels + b"\0"),
    st.integers(1, 1500).map(lambda levels: b"\x81\xa1a" * levels + b"\0"),
    st.just(b"\x80" + bytes(3000)),
)
topics = st.builds("{}/{}".format, st.sampled_from(["@0", "@0", "@1", "unknown", "", "0" * 32, "x" * 3000]), st.sampled_from(VERBS))
texts = st.text(st.characters(exclude_characters="+#\0", codec="utf-8"), max_size=12)
senders = st.sampled_from(["evil", "evil", "evil", "a/b", "other"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), connects.map(msgpack.packb), senders),
        st.tuples(st.just("connect"), bodies, senders),
        st.tuples(topics, requests.map(msgpack.packb), senders),
        st.tuples(topics, bodies, senders),
        st.tuples(texts, bodies, senders),
    ),
    min_size=5,
    max_size=25,
)


class World:
    """A core with an honest client, and what remotes would do."""

    def __init__(self) -> None:
        names = itertools.count(1)
        self.core = Core(parse({"limits": LIMITS, "allow": [RULE]}), lambda: f"{next(names):032x}")
        self.now = 0.0
        self.theirs: list[str] = []  # sessions of those who attack
        self.answers: list[tuple[str, dict[str, Any]]] = []
        self.tell("connect", msgpack.packb({"client": "honest", "remote": REMOTE, "username": "h"}), "honest")
        self.mine = self.answers[0][1]["session"]
        self.tell(f"{self.mine}/subscribe", msgpack.packb({"message": 1, "topics": ["in/#"], "qos": 1}), "honest")
        self.tell(f"{self.mine}/publish", msgpack.packb({"message": 2, "topic": "up", "qos": 0}), "honest")
        assert [body["code"] for _, body in self.answers] == [0, 0, 0]
        self.session = self.core.sessions[self.mine]
        self.answers.clear()
        self.tell("connect", msgpack.packb({"client": "evil", "remote": REMOTE, "username": "h"}), "evil")  # a sharer
        self.theirs.append(self.answers[0][1]["session"])

    def tell(self, topic: str, body: bytes, sender: str) -> None:
        """A request, and all that follows from it."""
        self.core.on_request(f"metabroker/request/{topic}", body, self.now, {Property.USER_PROPERTY: [(IDENTITY, sender)]})
        while actions := self.core.take():
            for action in actions:
                self.carry_out(action)

    def carry_out(self, action: Any) -> None:
        core = self.core
        match action:
            case Open(number):
                core.on_up(number, False, Abilities())
            case Resolve(number, _):
                core.on_resolved(number, [], "there is no such service", self.now)
            case Subscribe(number, token, filter_, qos, _):
                check_filter(filter_)
                core.subscriptions.on_subscribed(number, token, qos)
            case Send(_, token, publish):
                check_topic(publish.topic.encode())
                if token:
                    core.publishing.on_published(token, 0)
            case Respond(topic, body, _):
                check_topic(topic.encode())
                self.answers.append((topic.removeprefix("metabroker/response/"), msgpack.unpackb(body)))
            case LogLine(_, text):
                assert "\n" not in text, "one line"
                assert "password" not in text.lower() or "error=" in text
            case _:
                assert isinstance(action, Close | Unsubscribe), action

    def snapshot(self) -> Any:
        one = self.session
        return copy.deepcopy((one.id, one.client, one.filters, one.done, one.open, one.number))


@settings(max_examples=examples(150))
@given(steps)
def test_whatever_clients_send(attack: list[tuple[str, bytes, str]]) -> None:
    world = World()
    before = world.snapshot()
    for topic, body, sender in attack:
        for place, name in enumerate(world.theirs[:3]):
            topic = topic.replace(f"@{place}", name)
        world.answers.clear()
        world.tell(topic, body, sender)
        for where, answer in world.answers:
            to, _, verb = where.rpartition("/")
            assert answer["code"] in set(Code)
            assert isinstance(answer.get("reason", ""), str)
            assert to not in ("honest", world.mine), "nobody else hears of it"
            if verb == "connack":
                assert to == sender
                if answer["code"] == 0:
                    world.theirs.append(answer["session"])
        assert len(world.answers) <= 2, "an answer, and a status of the new session"
        assert len(world.core.sessions) <= LIMITS["sessions"]
        assert len(world.core.remotes) <= LIMITS["sessions"]
    assert world.snapshot() == before
    world.core.on_message(world.session.remote.number, Publish("in/a", b"x", 1, packet_id=1), 1)
    told = [one for action in world.core.take() if isinstance(action, Deliver) for one in action.responses if world.mine in one.topic]
    assert [msgpack.unpackb(one.body)["id"] for one in told] == [1]


def test_the_worst_ones_by_name() -> None:
    """Each is answered once, as malformed, by a session that goes on."""
    for body in WORST:
        world = World()
        world.tell("connect", msgpack.packb({"client": "evil", "remote": REMOTE}), "evil")
        (_, connack), *_ = world.answers
        for verb in ("publish", "subscribe", "unsubscribe"):
            world.answers.clear()
            world.tell(f"{connack['session']}/{verb}", body, "evil")
            assert [answer["code"] for _, answer in world.answers] == [Code.MALFORMED]
