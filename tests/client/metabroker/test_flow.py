"""Messages of QoS 0 through a metabroker: the client's machine and the metabroker's core, and a community broker that holds and drops."""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.base.metabroker import Code
from mqmesh.client.core.transport import Incoming, Outcome, Publication
from mqmesh.client.metabroker.actions import Acknowledge, Complete, Connected, Notified, Publish, Subscribe
from mqmesh.client.metabroker.bodies import RemoteLogin
from mqmesh.client.metabroker.flow_control import AHEAD, BYTES, EVERY, LARGE
from mqmesh.client.metabroker.remote_session import RemoteSession
from mqmesh.metabroker.core.actions import Open, Respond, Send
from mqmesh.metabroker.core.core import Core
from mqmesh.metabroker.policy import parse
from mqmesh.metabroker.protocol.events import Abilities
from support.examples import examples

REMOTE = "mqtt://far:1883"


class World:
    """What the client says waits in `held` until the community broker passes it on."""

    def __init__(self, quiet: bool = True) -> None:
        names = itertools.count(1)
        rule = {"clients": ["*"], "remotes": ["mqtt://far:*"], "publish": ["up/#"]}
        self.core = Core(parse({"allow": [rule]}), lambda: f"s{next(names)}")
        self.quiet = quiet
        self.client = RemoteSession("c", RemoteLogin(REMOTE), 0)
        self.now = 0.0
        self.held: deque[Publish] = deque()
        self.got: list[bytes] = []
        self.outcomes: list[Outcome] = []
        self.told: list[str] = []
        self.up = False
        self.client.connected(False, 0.0)
        self.run()
        assert self.up

    def run(self) -> None:
        """Until nothing moves."""
        self.look()
        while self.held:
            self.pass_on()

    def look(self) -> None:
        while actions := self.client.take_actions():
            for action in actions:
                match action:
                    case Publish():
                        self.held.append(action)
                        if action.done is not None:
                            action.done(Outcome())
                        self.client.request_published(action.session, Outcome(), self.now)
                    case Subscribe(filter_, _):
                        self.client.subscribed(filter_, Outcome(), self.now)
                    case Complete(done, outcome):
                        done(outcome)
                    case Notified(_, word):
                        self.told.append(word)
                    case Connected():
                        self.up = True
                    case Acknowledge():
                        raise AssertionError("answers come at QoS 0")

    def pass_on(self, drop: bool = False) -> None:
        """The first of what is held."""
        say = self.held.popleft()
        if drop and not say.qos:
            return
        self.core.on_request(say.topic, say.body, self.now)
        self.answer()

    def answer(self) -> None:
        """What the metabroker wants done."""
        for action in self.core.take():
            match action:
                case Open(number):
                    self.core.on_up(number, False, Abilities())
                    self.answer()
                case Send(_, token, publish):
                    self.got.append(publish.payload)
                    if token:
                        self.core.publishing.on_published(token, 0)
                        self.answer()
                case Respond(topic, body, _):
                    if topic.endswith("connack") and not self.quiet:
                        body = msgpack.packb({key: value for key, value in msgpack.unpackb(body).items() if key != "quiet"})
                    self.client.received(Incoming(topic, body, 0, False, Any), self.now)  # type: ignore[arg-type]
        self.look()

    def publish(self, payload: bytes, topic: str = "up/a", qos: int = 0) -> None:
        self.client.publish(Publication(topic, payload, qos), self.outcomes.append, self.now)
        self.look()

    def wait(self, seconds: float) -> None:
        """Time goes by; the client and the metabroker look at the clock."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            self.client.tick(self.now)
            self.core.on_timer(self.now)
            self.answer()


def without_answer(says: list[Publish] | deque[Publish]) -> list[Publish]:
    return [say for say in says if say.topic.endswith("/publish") and "message" not in msgpack.unpackb(say.body)]


def test_a_sender_that_nobody_answers_stops() -> None:
    world = World()
    world.publish(b"first")
    world.run()
    for number in range(10 * EVERY):
        world.publish(b"%d" % number)
    assert len(without_answer(world.held)) == AHEAD * EVERY
    assert len(world.held) == AHEAD * EVERY + AHEAD
    world.run()
    assert world.got == [b"first", *(b"%d" % number for number in range(10 * EVERY))]
    assert len(world.outcomes) == 1 + 10 * EVERY
    assert not any(outcome.failed for outcome in world.outcomes)


def test_bytes_that_nobody_has_confirmed_are_bounded() -> None:
    world = World()
    world.publish(b"first")
    world.run()
    for _ in range(100):
        world.publish(bytes(LARGE))
    assert sum(len(say.body) for say in without_answer(world.held)) <= AHEAD * (BYTES + 1000)
    assert len(world.held) < 20
    world.publish(bytes(LARGE + 1))
    world.run()
    assert len(world.got) == 102


def test_the_first_to_each_topic_asks_and_hears_what_the_policy_says() -> None:
    world = World()
    for _ in range(2):
        world.publish(b"x", "closed")
        world.run()
    assert [outcome.word for outcome in world.outcomes] == ["refused_by_policy"] * 2
    assert world.told == []


def test_refusals_that_nobody_waits_for_are_told() -> None:
    world = World()
    world.publish(b"first")
    world.run()
    number = max(world.core.remotes)
    world.core.on_congested(number, True)
    for _ in range(3):
        world.publish(b"x")
        world.run()
    assert world.told == ["too_many_requests"]
    assert [outcome.word for outcome in world.outcomes] == ["", "", "too_many_requests", "too_many_requests"], "from now on it asks"
    world.core.on_congested(number, False)
    world.publish(b"y")
    world.run()
    assert world.got == [b"first", b"y"]


def test_with_a_metabroker_that_answers_everything_everything_asks() -> None:
    world = World(quiet=False)
    for number in range(3 * EVERY):
        world.publish(b"%d" % number)
        assert not without_answer(world.held)
        world.run()
    assert len(world.got) == 3 * EVERY


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([0.0, 0.02, 0.5]))
def test_what_arrives_is_in_order_and_a_lost_question_stops_nobody_for_ever(seed: int, loss: float) -> None:
    chance = random.Random(seed)
    world = World()
    sent = 0
    for _ in range(chance.randint(1, 900)):
        world.publish(b"%d" % sent)
        sent += 1
        assert len(without_answer(world.held)) <= AHEAD * EVERY
        while world.held and chance.random() < 0.5:
            world.pass_on(drop=chance.random() < loss)
    for _ in range(40):
        while world.held:
            world.pass_on(drop=False)
        world.wait(12.0)
    assert len(world.outcomes) == sent
    assert all(outcome.word == "no_answer" for outcome in world.outcomes if outcome.failed)
    got = [int(payload) for payload in world.got]
    assert got == sorted(set(got)), "at most once, and nothing passes by what went before it"
    if not loss:
        assert got == list(range(sent))
    world.core.on_failed(max(world.core.remotes), Code.REMOTE_UNREACHABLE, "gone")
    world.answer()
    world.publish(b"late")
    assert world.outcomes[-1].failed


@pytest.mark.parametrize("qos", [0, 1])
def test_leaving_sends_everything_first(qos: int) -> None:
    world = World()
    world.publish(b"first")
    world.run()
    for number in range(5 * EVERY):
        world.publish(b"%d" % number, qos=qos)
    world.client.close(True, world.now)
    world.run()
    assert len(world.got) == 1 + 5 * EVERY
    assert len(world.outcomes) == 1 + 5 * EVERY


@pytest.mark.parametrize("back", ["before it listens", "later"])
def test_a_new_session_at_a_shared_remote_that_is_away_is_not_up(back: str) -> None:
    """The connack says so. What changes before the client has subscribed, the answer to its probe says."""
    world = World()
    world.core.on_request("metabroker/request/other/connect", msgpack.packb({"client": "other", "remote": REMOTE}), 0.0)
    world.core.on_request(f"metabroker/request/{world.client.session}/disconnect", b"", 0.0)
    world.core.on_failed(number := max(world.core.remotes), Code.REMOTE_UNREACHABLE, "gone")
    world.core.take()
    world.up = False
    world.wait(11.0)  # it asks whether the metabroker knows it
    while not world.client.session.endswith("s3"):
        world.pass_on()
    if back == "later":
        world.run()
        assert not world.up
    world.core.on_up(number, False, Abilities())
    if back != "later":
        world.core.take()  # the status does not reach it
    world.answer()
    world.run()
    assert world.up
