"""The core alone: requests and remotes' words in, actions out; and the wire against our own codec."""

from __future__ import annotations

import itertools
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.metabroker import IDENTITY, Code
from mqmesh.base.settings import ConfigError
from mqmesh.metabroker.core.actions import Close, Deliver, Open, Resolve, Respond, Send, Subscribe, Unsubscribe
from mqmesh.metabroker.core.core import ANSWERS, AT_ONCE, TOLD, Core
from mqmesh.metabroker.core.remote import Credentials
from mqmesh.metabroker.mqtt.client import ClientMachine
from mqmesh.metabroker.mqtt.login import Login
from mqmesh.metabroker.policy import Policy, parse
from mqmesh.metabroker.protocol.events import Abilities, Message, Published, Up
from mqmesh.metabroker.protocol.messages import IncomingRun
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.topics import covers, matches

REMOTE = "mqtt://far:1883"


def policy(**limits: int) -> Policy:
    rule = {"clients": ["*"], "remotes": ["mqtt://far:*", "weather"], "publish": ["up/#"], "subscribe": ["down/#"]}
    return parse({"limits": limits, "allow": [rule]})


class World:
    """A core and what it wanted."""

    def __init__(self, **limits: int) -> None:
        names = itertools.count(1)
        self.core = Core(policy(**limits), lambda: f"s{next(names)}")
        self.now = 0.0

    def request(self, where: str, /, **body: Any) -> list[Any]:
        return self.raw(f"{body['client']}/connect" if where == "connect" else where, msgpack.packb(body))

    def raw(self, topic: str, body: bytes) -> list[Any]:
        self.core.on_request(f"metabroker/request/{topic}", body, self.now)
        return self.actions()

    def actions(self) -> list[Any]:
        return [action for action in self.core.take() if type(action).__name__ != "LogLine"]

    def answers(self) -> list[tuple[str, dict[str, Any]]]:
        return [(one.topic.removeprefix("metabroker/response/"), msgpack.unpackb(one.body)) for one in self.actions()]

    def up(self, number: int, present: bool = False, abilities: Abilities | None = None) -> None:
        self.core.on_up(number, present, abilities or Abilities())

    def session(self, client: str = "c", **keys: Any) -> int:
        """A connected session of `client`; the remote's number."""
        actions = self.request("connect", client=client, remote=REMOTE, **keys)
        for action in actions:
            if isinstance(action, Open):
                self.up(action.remote)
        self.actions()
        return max(self.core.remotes)

    def subscribed(self, number: int, session: str, filter_: str, qos: int = 1) -> Subscribe:
        [ask] = self.request(f"{session}/subscribe", message=0, topics=[filter_], qos=qos)
        self.core.subscriptions.on_subscribed(number, ask.token, qos)
        self.actions()
        return ask

    def deliver(self, number: int, topic: str, retain: bool = False, identifiers: tuple[int, ...] = ()) -> list[str]:
        """Who gets a message."""
        properties = {Property.SUBSCRIPTION_IDENTIFIER: list(identifiers)} if identifiers else {}
        self.core.on_message(number, Publish(topic, b"x", 1, retain, packet_id=1, properties=properties), 1)
        [action] = self.actions()
        assert isinstance(action, Deliver)
        return [one.topic.removeprefix("metabroker/response/").rpartition("/")[0] for one in action.responses]


def code(answer: Any) -> int:
    return int(msgpack.unpackb(answer.body)["code"])


def test_connack_waits_for_the_remote_and_is_answered_once() -> None:
    world = World()
    [opened] = world.request("connect", client="c", remote="mqtt://far", username="u", password="p")
    assert isinstance(opened, Open)
    assert (opened.addresses, opened.username, opened.password) == ([REMOTE], "u", b"p")
    assert code(world.request("c/s1/publish", message=1, topic="up/a")[0]) == Code.UNKNOWN_SESSION
    world.up(opened.remote)
    assert world.answers() == [
        ("c/connack", {"code": 0, "session": "c/s1", "body": 1_032_192, "requests": 1000, "quiet": True, "status": 0})
    ]
    world.core.on_failed(opened.remote, Code.REMOTE_UNREACHABLE, "gone")
    assert [topic for topic, _ in world.answers()] == ["c/s1/status"]


def test_who_joins_a_shared_remote_that_is_away_hears_it_in_the_connack() -> None:
    """No status could reach it before it has subscribed; an empty request says what has changed since."""
    world = World()
    number = world.session("a")
    world.core.on_failed(number, Code.REMOTE_REFUSED, "not now")
    world.actions()
    [answer] = world.request("connect", client="b", remote=REMOTE)
    connack = msgpack.unpackb(answer.body)
    assert (connack["code"], connack["status"], connack["reason"]) == (Code.OK, Code.REMOTE_REFUSED, "not now")
    world.up(number)
    world.actions()
    [answer] = world.request("b/s2/subscribe", message=1, topics=[])
    assert msgpack.unpackb(answer.body) == {"message": 1, "code": 0, "codes": [], "status": 0}


@pytest.mark.parametrize("why", [Code.REMOTE_UNREACHABLE, Code.REMOTE_REFUSED_CREDENTIALS, Code.REMOTE_REFUSED])
def test_a_first_connection_that_fails(why: Code) -> None:
    world = World()
    [opened] = world.request("connect", client="c", remote=REMOTE)
    world.core.on_failed(opened.remote, why, "so")
    closed, answer = world.actions()
    assert closed == Close(opened.remote)
    assert (answer.topic, code(answer)) == ("metabroker/response/c/connack", why)
    assert not world.core.sessions
    assert not world.core.remotes


def test_services_policy_and_bounds() -> None:
    world = World(sessions_per_client=1)
    [resolve] = world.request("connect", client="c", remote="weather")
    assert isinstance(resolve, Resolve)
    assert code(world.request("connect", client="c", remote="weather")[0]) == Code.TOO_MANY_SESSIONS
    world.core.on_resolved(resolve.remote, [], "", 0.0)
    assert [code(one) for one in world.actions() if isinstance(one, Respond)] == [Code.NO_SUCH_SERVICE]
    assert code(world.request("connect", client="c", remote="other")[0]) == Code.REFUSED_BY_POLICY
    assert code(world.request("connect", client="c", remote="mqtt://u:p@far")[0]) == Code.MALFORMED
    assert world.request("connect", client="a/b/c", remote=REMOTE) == []  # there is nowhere to answer


def test_a_request_in_another_clients_name() -> None:
    """The community broker says who sent it: the other hears nothing, whatever else is wrong, and nothing counts for it."""
    world = World(sessions_per_client=1)

    def ask(sender: str, **keys: Any) -> list[Any]:
        body = msgpack.packb({"client": "victim", "remote": REMOTE, **keys})
        world.core.on_request("metabroker/request/connect", body, 0.0, {Property.USER_PROPERTY: [("x", "y"), (IDENTITY, sender)]})
        return world.actions()

    for keys in ({}, {"remote": 1}, {"remote": "mqtt://elsewhere"}):
        [answer] = ask("thief", **keys)
        assert (answer.topic, code(answer)) == ("metabroker/response/thief/connack", Code.REFUSED_BY_POLICY)
    assert ask("a/b/c") == []  # there is nowhere to answer
    assert not world.core.sessions
    [opened] = ask("victim")
    assert isinstance(opened, Open)


def test_equal_credentials_share_and_others_do_not() -> None:
    world = World()
    first = world.session("a", username="u", password="p")
    assert world.session("b", username="u", password="p") == first
    assert world.session("c", username="u", password="q") != first
    assert [type(one) for one in world.request("a/s1/disconnect")] == [Respond]
    assert [type(one) for one in world.request("b/s2/disconnect")] == [Close, Respond]


def test_puback_follows_the_remotes_and_repeats_are_not_published() -> None:
    world = World()
    world.session()
    [send] = world.request("c/s1/publish", message="m", topic="up/a", payload=b"x", qos=1)
    assert isinstance(send, Send)
    assert world.request("c/s1/publish", message="m", topic="up/a", payload=b"x", qos=1) == []
    world.core.publishing.on_published(send.token, 0)
    assert world.answers() == [("c/s1/puback", {"message": "m", "code": 0})]
    [again] = world.request("c/s1/publish", message="m", topic="up/a", payload=b"x", qos=1)
    assert code(again) == 0
    for other in ({"payload": b"y"}, {"topic": "up/b"}, {"qos": 0}, {"retain": True}, {"properties": {"format": 0}}):
        [refused] = world.request("c/s1/publish", **({"message": "m", "topic": "up/a", "payload": b"x", "qos": 1} | other))
        assert code(refused) == Code.MALFORMED, "another request with an identifier that was used"
    [refused] = world.request("c/s1/publish", message="n", topic="elsewhere", qos=1)
    assert code(refused) == Code.REFUSED_BY_POLICY


def test_a_client_that_vanished_leaves_no_sessions_and_others_stay() -> None:
    """Its will, or its broker, says so. Ten lives of a program that crashes used its sessions up for a day."""
    world = World(sessions_per_client=2)
    for _ in range(5):
        world.session("c")
        world.session("c", username="u")
        assert len(world.core.sessions) == 2
        assert world.request("c/disconnect") == []
    world.session("cc")
    going_on = next(iter(world.core.sessions))
    world.now = 5.0
    world.request(f"{going_on}/subscribe", message=1, topics=[])
    world.core.on_timer(11.0)
    assert [one.client for one in world.core.sessions.values()] == ["c", "cc"]


def test_programs_of_one_client_are_clients_of_their_own_under_its_name() -> None:
    """The policy and the bounds go by the name that access rules know."""
    world = World(sessions_per_client=2)
    for program in ("one", "two"):
        world.session(f"c/{program}")
    assert list(world.core.sessions) == ["c/one/s1", "c/two/s2"]
    [answer] = world.request("connect", client="c/three", remote=REMOTE)
    assert (answer.topic, code(answer)) == ("metabroker/response/c/three/connack", Code.TOO_MANY_SESSIONS)
    assert world.request("c/one/disconnect") == []
    world.core.on_timer(11.0)
    assert list(world.core.sessions) == ["c/two/s2"]
    world.actions()
    assert world.request("c/disconnect") == []
    world.now = 12.0
    world.core.on_timer(30.0)
    assert not world.core.sessions


def test_refusals_say_which_request_they_answer() -> None:
    world = World(body=1000)
    world.session()
    for where, body, why in (
        ("c/none/publish", {"topic": "up/a", "qos": 1, "message": "m"}, Code.UNKNOWN_SESSION),
        ("c/none/subscribe", {"message": 7}, Code.UNKNOWN_SESSION),
        ("c/none/unsubscribe", {"message": [7]}, Code.UNKNOWN_SESSION),
        ("c/s1/publish", {"payload": bytes(2000), "message": "m"}, Code.TOO_LARGE),
        ("c/s1/subscribe", {"topics": ["x" * 2000]}, Code.TOO_LARGE),
    ):
        [answer] = world.request(where, **body)
        read = msgpack.unpackb(answer.body)
        asked = body.get("message")
        assert (read["code"], read.get("message")) == (why, asked if isinstance(asked, str | int) else None)


def test_waiting_requests_have_a_bound() -> None:
    world = World(waiting=2)
    world.session()
    for number in range(2):
        assert isinstance(world.request("c/s1/publish", message=number, topic="up/a", qos=1)[0], Send)
    assert code(world.request("c/s1/publish", message=2, topic="up/a", qos=1)[0]) == Code.TOO_MANY_REQUESTS


def test_what_would_make_the_remote_hang_up_is_refused() -> None:
    """The connection is not one client's alone."""
    world = World()
    number = world.session()
    world.up(number, True, Abilities(largest=100, qos=1, retain=False))
    world.actions()
    for code_, keys in (
        (Code.TOO_LARGE, {"payload": b"x" * 100}),
        (Code.TOO_LARGE, {"properties": {"correlation": b"x" * 100}}),
        (Code.REMOTE_REFUSED, {"qos": 2}),
        (Code.REMOTE_REFUSED, {"retain": True}),
    ):
        [answer] = world.request("c/s1/publish", message=1, topic="up/a", **keys)
        assert code(answer) == code_
    assert isinstance(world.request("c/s1/publish", message=1, topic="up/a", qos=1, payload=b"x" * 50)[0], Send)


def test_a_thousand_sessions_share_one_connection_and_each_has_its_own() -> None:
    world = World(sessions_per_client=1000)
    [opened] = world.request("connect", client="c", remote=REMOTE)
    world.up(opened.remote)
    world.actions()
    for number in range(2, 1001):
        assert [type(one) for one in world.request("connect", client="c", remote=REMOTE)] == [Respond]
        world.subscribed(opened.remote, f"c/s{number}", f"down/{number}/+")
    assert code(world.request("connect", client="c", remote=REMOTE)[0]) == Code.TOO_MANY_SESSIONS
    assert all(world.deliver(opened.remote, f"down/{number}/x") == [f"c/s{number}"] for number in range(2, 1001))
    ended = [type(one) for number in range(1, 1001) for one in world.request(f"c/s{number}/disconnect")]
    assert (ended.count(Close), ended.count(Unsubscribe)) == (1, 998)  # the last one leaves with the connection
    assert not world.core.sessions


def test_subscriptions_are_counted() -> None:
    world = World()
    number = world.session("a")
    world.session("b")
    world.subscribed(number, "a/s1", "down/#")
    world.subscribed(number, "b/s2", "down/#")
    assert sorted(world.deliver(number, "down/x")) == ["a/s1", "b/s2"]
    assert [type(one) for one in world.request("a/s1/unsubscribe", message=1, topics=["down/#"])] == [Respond]
    assert world.deliver(number, "down/x") == ["b/s2"]
    assert world.request("b/s2/unsubscribe", message=1, topics=["down/#"])[0] == Unsubscribe(number, "down/#")
    assert code(world.request("a/s1/subscribe", message=1, topics=["#"])[0]) == Code.REFUSED_BY_POLICY


def test_what_is_retained_goes_to_who_asked() -> None:
    world = World()
    number = world.session("a")
    world.session("b")
    first = world.subscribed(number, "a/s1", "down/#")
    second = world.subscribed(number, "b/s2", "down/#")
    assert world.deliver(number, "down/x", True, (second.identifier,)) == ["b/s2"]
    assert world.deliver(number, "down/x", True, (first.identifier,)) == ["a/s1"]
    assert sorted(world.deliver(number, "down/x", False, (first.identifier,))) == ["a/s1", "b/s2"]


def test_one_copy_of_several_reaches_a_session() -> None:
    world = World()
    number = world.session("a")
    world.session("b")
    wide = world.subscribed(number, "a/s1", "down/#")
    narrow = world.subscribed(number, "a/s1", "down/x")
    world.subscribed(number, "b/s2", "down/x")
    assert world.deliver(number, "down/x", False, (wide.identifier,)) == ["a/s1"]
    assert world.deliver(number, "down/x", False, (narrow.identifier,)) == ["b/s2"]
    assert sorted(world.deliver(number, "down/x", False, (narrow.identifier, wide.identifier))) == ["a/s1", "b/s2"]


@pytest.mark.parametrize("present", [False, True])
def test_after_a_lost_connection_what_is_missing_is_asked_anew(present: bool) -> None:
    world = World()
    number = world.session()
    world.subscribed(number, "c/s1", "down/a")
    [pending] = world.request("c/s1/subscribe", message=2, topics=["down/b"], qos=1)
    world.core.on_failed(number, Code.REMOTE_UNREACHABLE, "lost")
    world.actions()
    world.up(number, present)
    asks = [one for one in world.actions() if isinstance(one, Subscribe)]
    assert sorted(one.filter for one in asks) == (["down/b"] if present else ["down/a", "down/b"])
    world.core.subscriptions.on_subscribed(number, pending.token, 1)  # an answer to what is no longer asked
    assert world.answers() == []
    for ask in asks:
        world.core.subscriptions.on_subscribed(number, ask.token, 1)
    assert world.answers() == [("c/s1/suback", {"message": 2, "code": 0, "codes": [1]})]


def test_a_refused_subscription_is_nobodys() -> None:
    world = World()
    number = world.session()
    [ask] = world.request("c/s1/subscribe", message=1, topics=["down/a"], qos=1)
    world.core.subscriptions.on_subscribed(number, ask.token, 0x87)
    [(topic, body)] = world.answers()
    assert (topic, body["code"], body["codes"]) == ("c/s1/suback", Code.REMOTE_REFUSED, [0x87])
    assert world.deliver(number, "down/a") == []
    assert not world.core.remotes[number].held


def test_time_ends_sessions_and_connect_requests() -> None:
    world = World(idle=10, connect=3)
    world.request("connect", client="late", remote=REMOTE)
    world.core.on_timer(4.0)
    assert [code(one) for one in world.actions() if isinstance(one, Respond)] == [Code.REMOTE_UNREACHABLE]
    world.now = 5.0
    world.session()
    world.core.on_timer(14.0)
    assert len(world.core.sessions) == 1
    world.core.on_timer(16.0)
    assert [code(one) for one in world.actions() if isinstance(one, Respond)] == [Code.SESSION_ENDED]
    assert not world.core.sessions


def test_a_client_may_ask_for_less_time_than_the_policy_allows() -> None:
    world = World(idle=100)
    world.session("a", expiry=10)
    world.session("b", expiry=1000)
    world.session("c")
    for world.now in (8.0, 16.0):
        world.request("a/s1/subscribe", message=1, topics=[])  # asks for nothing, and shows that the client is there
    world.core.on_timer(25.0)
    assert list(world.core.sessions) == ["a/s1", "b/s2", "c/s3"]
    world.core.on_timer(27.0)
    assert list(world.core.sessions) == ["b/s2", "c/s3"]
    world.core.on_timer(99.0)
    assert list(world.core.sessions) == ["b/s2", "c/s3"]
    world.core.on_timer(101.0)
    assert not world.core.sessions


@given(st.sampled_from(["connect", "a/connect", *(f"a/s1/{verb}" for verb in ANSWERS), "a/s1/what", "", "a/b/c"]), st.binary(max_size=40))
def test_no_bytes_disturb_the_others(topic: str, body: bytes) -> None:
    world = World()
    number = world.session("a")
    world.session("b")
    world.subscribed(number, "b/s2", "down/#")
    world.raw(topic, body)
    assert world.deliver(number, "down/x") == ["b/s2"]
    assert isinstance(world.request("b/s2/publish", message=1, topic="up/a", qos=1)[-1], Send)


values = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5) | st.binary(max_size=5), st.lists, max_leaves=5)
keys = st.sampled_from(["client", "remote", "username", "password", "message", "topic", "topics", "payload", "qos", "retain", "properties"])


@given(st.sampled_from(["connect", "a/connect", *(f"a/s1/{verb}" for verb in ANSWERS)]), st.dictionaries(keys, values))
def test_no_map_raises(topic: str, body: dict[str, Any]) -> None:
    world = World()
    world.session("a")
    world.raw(topic, msgpack.packb(body))


levels = st.lists(st.sampled_from(["a", "b", "+", ""]), min_size=1, max_size=3).map("/".join)
filters = st.one_of(levels, levels.map(lambda one: one + "/#"), st.just("#")).filter(bool)
topics = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=4).map("/".join).filter(bool)


@given(filters, filters, topics)
def test_covers_promises_matches(wide: str, narrow: str, topic: str) -> None:
    if covers(wide, narrow) and matches(narrow, topic):
        assert matches(wide, topic)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({}, "allow"),
        ({"alow": []}, "alow"),
        ({"allow": [{"clients": ["*"]}]}, "allow[1].remotes"),
        ({"allow": [{"clients": ["*"], "remotes": ["*"], "publish": ["a/#/b"]}]}, "allow[1].publish"),
        ({"allow": [{"clients": ["*"], "remotes": ["*"], "version": 5}]}, "allow[1].version"),
        ({"allow": [{"clients": ["*"], "remotes": ["*"], "ca": "/none"}]}, "allow[1].ca"),
        ({"allow": [{"clients": ["*"], "remotes": ["*"], "username": ""}]}, "allow[1].username"),
        ({"allow": [{"clients": ["*"], "remotes": ["*"], "password_file": "p"}]}, "allow[1].password_file"),
        ({"allow": [{"clients": ["*"], "remotes": ["*"], "username": "u", "password_file": "/none"}]}, "allow[1].password_file"),
        ({"allow": [{"clients": ["*"], "remotes": ["*"], "password": "p"}]}, "allow[1].password"),
        ({"allow": [{"clients": ["*"], "remotes": ["*"], "credentials_file": "/none"}]}, "allow[1].credentials_file"),
        ({"allow": [{"clients": ["*"], "remotes": ["*"], "credentials_file": __file__}]}, "allow[1].credentials_file"),
        ({"allow": [{"clients": ["*"], "remotes": ["*"], "credentials_file": __file__, "username": "u"}]}, "allow[1].credentials_file"),
        ({"allow": [{"clients": ["*"], "remotes": ["*"], "credentials": "SU"}]}, "allow[1].credentials"),
        ({"allow": [{"clients": ["*"], "remotes": ["*"]}, {"client": ["*"]}]}, "allow[2].client"),
        ({"limits": {"sessions": 0}, "allow": []}, "limits.sessions"),
        ({"limits": {"session": 1}, "allow": []}, "limits.session"),
    ],
)
def test_mistakes_in_the_policy_are_named(table: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(table)
    assert caught.value.key == key


def test_a_misspelled_key_of_the_policy_is_guessed() -> None:
    with pytest.raises(ConfigError, match=r'unknown key; did you mean "clients"\?$'):
        parse({"allow": [{"client": ["*"]}]})


# The wire


def wire(version: int = 5, **connack: Any) -> ClientMachine:
    made = ClientMachine(Login("c", version))
    made.begin(0.0)
    made.receive(encode(Connack(properties=connack.get("properties", {})), version), 0.0)
    made.take()
    return made


def test_the_wire_acknowledges_when_its_owner_does() -> None:
    made = wire()
    [message] = made.receive(encode(Publish("t", b"x", 1, packet_id=7), 5), 0.0)
    assert isinstance(message, IncomingRun)
    assert made.take() == b""
    made.acknowledge_run(message.acks, message.epoch, 0.0)
    assert made.take() == encode(Puback(7), 5)
    [message] = made.receive(encode(Publish("t", b"x", 1, retain=True, packet_id=9), 5), 0.0)
    assert isinstance(message, Message)
    assert made.take() == b""
    made.acknowledge(9, message.epoch, 0.0)
    assert made.take() == encode(Puback(9), 5)
    [message] = made.receive(encode(Publish("t", b"x", 2, packet_id=8), 5), 0.0)
    assert made.receive(encode(Publish("t", b"x", 2, dup=True, packet_id=8), 5), 0.0) == []
    made.acknowledge(8, message.epoch, 0.0)
    assert made.take() == encode(Pubrec(8), 5)
    made.receive(encode(Pubrel(8), 5), 0.0)
    assert made.take() == encode(Pubcomp(8), 5)


def test_the_wire_sends_again_what_was_in_flight() -> None:
    made = wire(properties={Property.RECEIVE_MAXIMUM: 2})
    for token, qos in ((1, 1), (2, 2), (3, 1)):
        made.publish(Publish("t", bytes([token]), qos), token, 0.0)
    made.receive(encode(Pubrec(2), 5), 0.0)
    made.lost()
    made.begin(1.0)
    made.take()
    assert made.receive(encode(Connack(session_present=True), 5), 1.0) == [Up(True, Abilities())]
    again = encode(Publish("t", b"\1", 1, dup=True, packet_id=1), 5) + encode(Pubrel(2), 5) + encode(Publish("t", b"\3", 1, packet_id=3), 5)
    assert made.take() == again
    assert made.receive(encode(Pubcomp(2), 5) + encode(Puback(1), 5) + encode(Puback(3), 5), 1.0) == [
        Published(2, 0),
        Published(1, 0),
        Published(3, 0),
    ]
    assert (made.waiting, made.bytes) == (0, 0)


@pytest.mark.parametrize("present", [True, False])
def test_the_wire_takes_a_message_of_qos_2_once_over_two_connections(present: bool) -> None:
    made = wire()
    [message] = made.receive(encode(Publish("t", b"x", 2, packet_id=8), 5), 0.0)
    made.lost()
    made.begin(1.0)
    made.receive(encode(Connack(session_present=present), 5), 1.0)
    made.take()
    again = made.receive(encode(Publish("t", b"x", 2, dup=True, packet_id=8), 5), 1.0)
    assert len(again) == (0 if present else 1)  # without a session it is another message
    assert made.take() == (encode(Pubrec(8), 5) if present else b"")
    made.acknowledge(8, message.epoch, 1.0)  # of the connection that is gone
    assert made.take() == b""


def test_very_many_sessions_that_are_due_at_once_end_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a login of its own. The remote of one that ends is found without a look at the others."""
    count = 2 * AT_ONCE + 10
    world = World(idle=60, sessions=1000)
    for number in range(count):
        world.session(f"c{number}", username=f"u{number}", password="x")
    compared = 0
    hashed, equal = Credentials.__hash__, Credentials.__eq__

    def counted(plain: Any) -> Any:
        def call(*args: Any) -> Any:
            nonlocal compared
            compared += 1
            return plain(*args)

        return call

    monkeypatch.setattr(Credentials, "__hash__", counted(hashed))
    monkeypatch.setattr(Credentials, "__eq__", counted(equal))
    left = []
    while world.core.sessions:
        world.core.on_timer(61.0)
        left.append(len(world.core.sessions))
    assert left == [AT_ONCE + 10, 10, 0]
    assert not world.core.remotes
    assert compared < 10 * count


def test_a_session_that_comes_shares_the_remote_that_is_left_of_two_with_one_login() -> None:
    world = World()
    first = world.session("a")
    credentials = world.core.remotes[first].credentials
    second = world.core.add_remote(credentials, "")
    assert world.session("b") == second.number  # the highest number
    assert [len(remote.sessions) for remote in world.core.remotes.values()] == [2, 0]
    world.core._leave(world.core.remotes[first])
    world.session("c")
    assert len(second.sessions) == 1


def test_the_sessions_of_one_remote_are_told_in_portions_how_it_is() -> None:
    """Each once, and how it is by then: some of the remote that is back before they knew that it was lost."""
    world, count = World(sessions=1000), 3 * TOLD + 5
    for number in range(count):
        remote = world.session(f"c{number}")

    def told(calls: int) -> list[tuple[str, int]]:
        found = []
        for _ in range(calls):
            assert world.core.tell_some() == (len(world.core.untold) > 0)
            said = world.answers()
            assert len(said) <= TOLD
            found += [(name.partition("/")[0], body["code"]) for name, body in said]
        return found

    world.core.on_failed(remote, Code.REMOTE_UNREACHABLE, "gone")
    assert not world.answers()
    first = told(1)
    assert {code for _, code in first} == {Code.REMOTE_UNREACHABLE}
    assert len(dict(first)) == TOLD
    gone = next(iter(world.core.untold))
    world.request(f"{gone}/disconnect")
    world.up(remote)
    world.actions()
    back = told(4)
    assert {code for _, code in back} == {Code.OK}
    assert sorted(name for name, _ in back) == sorted(f"c{number}" for number in range(count) if f"c{number}" != gone.partition("/")[0])
    assert not world.core.untold
