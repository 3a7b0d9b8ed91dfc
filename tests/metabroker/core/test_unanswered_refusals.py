"""Requests to publish without an identifier: published at most once and never answered, but what is refused is counted and told."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from mqmesh.base.metabroker import Code
from mqmesh.metabroker.core.actions import Respond, Send
from mqmesh.metabroker.core.unanswered import STRANGERS
from mqmesh.metabroker.protocol.events import Abilities
from support.brokers import RunningBroker, running_broker
from support.paho_client import Paho
from support.remotes import POLICY, Kept, Member, running_metabroker
from support.services import PATIENCE, require

from .test_core import World


def sent(actions: list[Any]) -> list[tuple[int, bytes]]:
    return [(action.token, action.publish.payload) for action in actions if isinstance(action, Send)]


def told(actions: list[Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(one.topic.split("/", 2)[2], msgpack.unpackb(one.body)) for one in actions if isinstance(one, Respond)]


def test_it_is_published_and_not_answered() -> None:
    world = World()
    world.session()
    for number in (1, 2):
        actions = world.request("c/s1/publish", topic="up/a", payload=b"x")
        assert sent(actions) == [(0, b"x")], "the same body twice is published twice"
        assert told(actions) == []
        assert world.core.counts.published == number
    assert not world.core.sessions["c/s1"].done


def test_it_needs_no_room_among_requests_that_wait() -> None:
    world = World(waiting=1)
    world.session()
    assert len(sent(world.request("c/s1/publish", message=1, topic="up/a", payload=b"1", qos=1))) == 1
    assert told(world.request("c/s1/publish", message=2, topic="up/a", payload=b"2"))[0][1]["code"] == Code.TOO_MANY_REQUESTS
    assert sent(world.request("c/s1/publish", topic="up/a", payload=b"3")) == [(0, b"3")]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"topic": "up/a", "qos": 1}, Code.MALFORMED),
        ({"topic": "up/a", "qos": 2}, Code.MALFORMED),
        ({"topic": "up/#"}, Code.MALFORMED),
        ({}, Code.MALFORMED),
        ({"topic": "elsewhere"}, Code.REFUSED_BY_POLICY),
        ({"topic": "up/a", "payload": bytes(500)}, Code.TOO_LARGE),
        ({"topic": "up/a", "retain": True}, Code.REMOTE_REFUSED),
    ],
)
def test_what_is_refused_is_told_once_a_second(body: dict[str, Any], code: Code) -> None:
    world = World()
    number = world.session()
    world.up(number, abilities=Abilities(largest=400, retain=False))
    world.actions()
    [(topic, first)] = told(world.request("c/s1/publish", **body))
    assert (topic, first["code"], first["refused"], "message" in first) == ("c/s1/puback", code, 1, False)
    assert first["reason"]
    world.now = 0.9
    for _ in range(5):
        assert world.request("c/s1/publish", **body) == []
    world.core.on_timer(1.0)
    [(topic, second)] = told(world.actions())
    assert (topic, second["code"], second["refused"]) == ("c/s1/puback", code, 6)
    world.now = 2.5
    world.core.on_timer(2.5)
    assert world.actions() == []
    assert told(world.request("c/s1/publish", **body))[0][1]["refused"] == 7
    assert world.core.counts.not_published == 7
    assert world.core.counts.refused == {code: 7}


def test_a_remote_that_is_away_or_slow_takes_none() -> None:
    world = World()
    number = world.session()
    world.core.on_congested(number, True)
    assert told(world.request("c/s1/publish", topic="up/a"))[0][1]["code"] == Code.TOO_MANY_REQUESTS
    world.core.on_congested(number, False)
    world.core.on_failed(number, Code.REMOTE_UNREACHABLE, "gone")
    world.actions()
    world.now = 5.0
    [(_, body)] = told(world.request("c/s1/publish", topic="up/a"))
    assert (body["code"], body["reason"], body["refused"]) == (Code.REMOTE_UNREACHABLE, "gone", 2)


def test_refusals_of_a_session_that_has_ended_are_told_to_nobody() -> None:
    world = World()
    world.session()
    for _ in range(3):
        world.request("c/s1/publish", topic="elsewhere")
    world.request("c/s1/disconnect")
    world.core.on_timer(9.0)
    assert world.actions() == []


def test_who_has_no_session_is_told_once_a_second() -> None:
    world = World()
    flood = [told(world.request("nobody/publish", topic="up/a")) for _ in range(50)]
    [[(topic, body)]] = [one for one in flood if one]
    assert (topic, body["code"]) == ("nobody/puback", Code.UNKNOWN_SESSION)
    world.core.on_timer(1.5)
    [(topic, body)] = told(world.actions())
    assert (topic, body["code"]) == ("nobody/puback", Code.UNKNOWN_SESSION)
    assert "49" in body["reason"]
    world.core.on_timer(3.0)
    assert world.actions() == []
    assert world.core.counts.refused == {Code.UNKNOWN_SESSION: 50}
    for _ in range(3):  # those that want an answer get one each
        assert told(world.request("nobody/publish", message=1, topic="up/a"))[0][1]["code"] == Code.UNKNOWN_SESSION


def test_names_of_no_sessions_are_remembered_within_bounds() -> None:
    world = World()
    answered = sum(len(told(world.request(f"n{number}/publish", topic="up/a"))) for number in range(2 * STRANGERS))
    assert answered == STRANGERS
    world.core.on_timer(1.5)
    world.now = 1.5
    assert told(world.request("late/publish", topic="up/a"))


# Processes


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("remote"), "mosquitto") as running:
        yield running


@pytest.fixture(scope="module", params=["mqmesh", "mosquitto"])
def community(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("community")
    policy = POLICY.replace('publish = ["#"]', 'publish = ["up/#"]')
    with running_broker(folder, request.param) as running, running_metabroker(folder, running.port, policy):
        yield running.port


@pytest.mark.service
def test_mosquitto_pub_publishes_lines_at_qos_0(community: int, remote: RunningBroker) -> None:
    member = Member(community, "quiet-lines", 4)
    assert member.connect(remote.url)["quiet"] is True
    with Paho(remote.port) as far:
        far.subscribe("up/#", 1)
        topic = f"metabroker/request/{member.session}/publish"
        bodies = [msgpack.packb({"topic": "up/line", "payload": f"{number:04}"}) for number in range(1000)]
        member.close()
        words = [require("mosquitto_pub"), "-i", member.name, "-p", str(community), "-t", topic, "-l"]
        subprocess.run(words, input=b"".join(body + b"\n" for body in bodies), check=True, timeout=PATIENCE)
        got = [far.next() for _ in bodies]
        assert [message.payload for message in got] == [f"{number:04}".encode() for number in range(1000)]
        assert {message.qos for message in got} == {0}


@pytest.mark.service
def test_qos_0_and_1_answered_or_not_arrive_in_the_order_of_the_requests(community: int, remote: RunningBroker) -> None:
    member = Member(community, "quiet-mixed")
    assert member.connect(remote.url)["code"] == Code.OK
    topic = f"metabroker/request/{member.session}/publish"
    with Paho(remote.port) as far:
        far.subscribe("up/#", 0)  # else the remote lets QoS 0 pass by
        asked = []
        for number in range(900):
            keys: dict[str, Any] = {"topic": f"up/{number % 3}", "payload": str(number).encode()}
            if number % 7 == 3:
                asked.append(number)
                keys |= {"message": number, "qos": number % 2}
            if number == 450:
                keys["topic"] = "down"  # refused
            member.paho.client.publish(topic, msgpack.packb(keys), 0)
        got = [int(far.next().payload) for _ in range(899)]
    assert got == [number for number in range(900) if number != 450]
    answers = [member.next() for _ in range(len(asked) + 1)]
    assert sorted(body["message"] for _, body in answers if "message" in body) == asked
    [refused] = [body for _, body in answers if "message" not in body]
    assert (refused["code"], refused["refused"]) == (Code.REFUSED_BY_POLICY, 1)
    assert member.ask("disconnect") == {"code": 0}
    member.close()


@pytest.mark.service
def test_a_session_that_nobody_knows(community: int) -> None:
    member = Member(community, "quiet-stranger")
    member.paho.subscribe(f"metabroker/response/{member.name}/{'0' * 32}/#", 1)
    for _ in range(500):
        member.paho.client.publish(f"metabroker/request/{member.name}/{'0' * 32}/publish", msgpack.packb({"topic": "up/x"}), 0)
    verb, body = member.next()
    assert (verb, body["code"]) == ("puback", Code.UNKNOWN_SESSION)
    member.close()


@pytest.mark.service
def test_a_remote_that_stands_still_fills_no_memory_and_takes_more_when_it_goes_on(tmp_path: Path) -> None:
    """Nothing comes from a remote that is sent nothing but QoS 0: that it goes on is seen by what it takes."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    with (
        running_broker(tmp_path / "here", "mqmesh") as here,
        running_broker(tmp_path / "there", "mosquitto") as there,
        running_metabroker(tmp_path, here.port, "[limits]\nbuffer = 100000\n" + POLICY),
        Paho(there.port) as far,
    ):
        member = Member(here.port, "quiet-flood")
        member.connect(there.url)
        far.subscribe("up/#", 0)
        there.process.send_signal(signal.SIGSTOP)
        payload, refused, published = bytes(20_000), 0, 0
        try:
            while not refused:
                for _ in range(20):
                    member.send("publish", topic="up/x", payload=published.to_bytes(4, "big") + payload)
                    published += 1
                assert published < 5000, "it is refused before so much waits"
                member.send("subscribe", message=published, topics=[])  # its answer comes when the metabroker has seen all of them
                while (said := member.next())[0] != "suback":
                    assert (said[0], said[1]["code"]) == ("puback", Code.TOO_MANY_REQUESTS)
                    refused = said[1]["refused"]
        finally:
            there.process.send_signal(signal.SIGCONT)
        got = [int.from_bytes(far.next().payload[:4], "big")]
        while True:  # the remote takes what has waited, and then what comes
            member.send("publish", topic="up/end", payload=b"")
            with contextlib.suppress(queue.Empty):  # that one may be refused still
                message = far.messages.get(timeout=1)
                if message.topic == "up/end":
                    break
                got.append(int.from_bytes(message.payload[:4], "big"))
        assert got == list(range(len(got))), "what was taken before the buffer was full, in order"
        member.close()


@pytest.mark.service
def test_in_a_durable_session_nothing_is_kept_for_it(tmp_path: Path, remote: RunningBroker) -> None:
    (tmp_path / "here").mkdir()
    with running_broker(tmp_path / "here", "mqmesh") as here, Paho(remote.port) as far:
        metabroker = Kept(tmp_path, here.port)
        try:
            far.subscribe("up/#", 0)
            member = Member(here.port, "quiet-durable")
            assert member.connect(remote.url, durable=True)["quiet"] is True
            for number in range(60):
                keys = {"message": number, "qos": 1} if number % 20 == 0 else {}
                member.send("publish", topic="up/x", payload=str(number).encode(), **keys)
            assert [int(far.next().payload) for _ in range(60)] == list(range(60))
            assert sorted(member.next()[1]["message"] for _ in range(3)) == [0, 20, 40]
            assert member.ask("disconnect", clean=True)["code"] == 0
            member.close()
        finally:
            metabroker.stop()
