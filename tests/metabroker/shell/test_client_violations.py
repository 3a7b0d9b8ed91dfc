"""Hostile clients beside honest ones that share a remote with them: refused with a code, logged, and nobody else notices."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from mqmesh.base.metabroker import Code
from support.brokers import RunningBroker, running_broker
from support.remotes import POLICY, Member, running_metabroker
from support.services import PATIENCE, wait_until

pytestmark = pytest.mark.service
HEX = "0123456789abcdef" * 2


class Site:
    """A community broker of ours, a metabroker, a remote Mosquitto."""

    def __init__(self, community: RunningBroker, remote: RunningBroker, log: Path) -> None:
        self.community, self.remote, self.log = community, remote, log

    def said(self, text: str) -> int:
        """How often the metabroker's log says something."""
        return self.log.read_text().count(text)


@pytest.fixture(scope="module", params=["mosquitto", "mqmesh"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    for name in ("here", "there"):
        (folder / name).mkdir()
    with (
        running_broker(folder / "here", "mqmesh") as here,
        running_broker(folder / "there", request.param) as there,
        running_metabroker(folder, here.port, "[limits]\nbody = 100000\nsessions = 30\nwaiting = 50\n" + POLICY) as log,
    ):
        yield Site(here, there, log)


class Honest:
    """A client that publishes to itself through the remote, one message after the other, until it is told to stop."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.member = Member(site.community.port, f"honest-{random.getrandbits(32)}")
        assert self.member.connect(site.remote.url)["code"] == Code.OK
        self.topic = f"honest/{self.member.name}"
        assert self.member.ask("subscribe", message="s", topics=[self.topic], qos=1)["code"] == Code.OK
        self.lost = f"event=remote-down remote={site.remote.url} "
        self.count = 0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Honest:
        self.downs = self.site.said(self.lost)
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.count += 1
                self.member.send("publish", message=self.count, topic=self.topic, payload=str(self.count), qos=1)
                got = dict(self.member.next() for _ in range(2))
                assert got["puback"] == {"message": self.count, "code": 0}
                assert (got["publish"]["id"], got["publish"]["payload"]) == (self.count, str(self.count).encode())
        except BaseException as error:
            self.error = error

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        before = self.count
        if kind is None:
            wait_until(lambda: self.count > before + 2 or self.error is not None, PATIENCE, "more honest traffic")
        self._stop.set()
        self._thread.join()
        if kind is None:
            if self.error is not None:
                raise self.error
            assert self.site.said(self.lost) == self.downs, "the connection that they share held"
            assert self.member.ask("disconnect") == {"code": 0}
        self.member.close()


def deep(levels: int) -> bytes:
    return b"\x91" * levels + b"\x01"


BODIES = [
    b"",
    b"\xc1",
    b"\xff" * 50,
    b"\x82\xa6client",  # it ends early
    b"\xdf\xff\xff\xff\xff",  # a map of four thousand million pairs
    b"\xdd\xff\xff\xff\xff\x01",
    b"\xc6\xff\xff\xff\xff",
    deep(90_000),
    b"\x81\xa7message" + deep(2000),
    msgpack.packb([1, 2]),
    msgpack.packb({1: 2}),
    msgpack.packb({"message": msgpack.ExtType(5, b"x"), "topic": "t"}),
    msgpack.packb({"message": msgpack.Timestamp(1, 2), "topic": "t"}),
    b"\x81\xa7message\xc7\x00\x05",  # an extension without a byte
    b"\x81\xa7message\xa2\xff\xfe",  # text that is not UTF-8
    b"\x81\xa7message\xa3\xed\xa0\x80",  # half of a surrogate pair
    *[msgpack.packb({"message": value, "topic": "t"}) for value in (None, True, -1, 1 << 63, 1.5, "x" * 2000, b"x", [1], {"a": 1})],
]


def test_bodies_that_are_none(site: Site) -> None:
    attacker = Member(site.community.port, "attacker")
    with Honest(site):
        assert attacker.connect(site.remote.url)["code"] == Code.OK
        before = site.said("event=request-refused")
        for verb in ("publish", "subscribe", "unsubscribe"):
            for body in BODIES:
                attacker.raw(verb, body)
                answer = attacker.next()[1]
                assert answer["code"] == Code.MALFORMED, (verb, body[:40])
        for body in BODIES[:16]:
            attacker.paho.publish(f"metabroker/request/{attacker.name}/connect", body, 1)
        attacker.raw("publish", msgpack.packb({"message": 1, "topic": "t", "payload": bytes(200_000)}))
        assert attacker.next()[1]["code"] == Code.TOO_LARGE
        for verb in ("bogus", "connack", "", "puback"):
            attacker.raw(verb, b"\x80")
        assert attacker.ask("publish", message=2, topic="still", qos=1)["code"] == Code.OK
        assert before + 4 <= site.said("event=request-refused") < before + len(BODIES), "one line a minute for each verb and code"
        assert 1 <= site.said("event=connect-refused client='attacker'") < 16
        attacker.ask("disconnect")
    attacker.close()


POISON: list[dict[str, Any]] = [
    {"topic": "a\x01b"},
    {"topic": "a\x7fb"},
    {"topic": "a\x9fb"},
    {"topic": "a\ufffe"},
    {"topic": "a\ufdd0"},
    {"topic": "a/#"},
    {"topic": ""},
    {"topic": "a/" * 250},
    {"topic": "x" * 65_536},
    {"payload": b"\xff", "properties": {"format": 1}},
    {"properties": {"format": 2}},
    {"properties": {"expiry": 1 << 32}},
    {"properties": {"content_type": "a\x01"}},
    {"properties": {"content_type": "a\0"}},
    {"properties": {"response_topic": "a/#"}},
    {"properties": {"response_topic": "a\x02"}},
    {"properties": {"response_topic": "a\ufffe"}},
    {"properties": {"correlation": bytes(65_536)}},
    {"properties": {"user": [["a", "b\x03"]]}},
    {"properties": {"user": [["a\ufdef", "b"]]}},
    {"properties": {"subscription": 1}},
    {"qos": 3},
    {"retain": 1},
    {"topics": ["a\x01"]},
    {"topics": ["a\ufffe/#"]},
    {"topics": ["a#"]},
    {"topics": [""]},
    {"topics": ["a/" * 250]},
    {"topics": ["ok", 5]},
]


def test_nothing_goes_to_the_remote_for_which_it_would_hang_up_on_all(site: Site) -> None:
    """A broker may close the connection for them (MQTT-1.5.4), and at QoS 1 they would be sent again, and again."""
    attacker = Member(site.community.port, "poisoner")
    with Honest(site):
        assert attacker.connect(site.remote.url)["code"] == Code.OK
        for number, wrong in enumerate(POISON):
            request = {"message": number, "topic": "poison", "payload": b"x", "qos": 1} | wrong
            answer = attacker.ask("subscribe" if "topics" in wrong else "publish", **request)
            assert answer["code"] == Code.MALFORMED, (answer, wrong)
        assert attacker.ask("publish", message="after", topic="still", qos=1)["code"] == Code.OK
        attacker.ask("disconnect")
    attacker.close()


def test_sessions_that_are_not_theirs(site: Site) -> None:
    """Unknown ones, another client's, and one that is not connected yet; answers and requests that are forged."""
    attacker = Member(site.community.port, "thief")
    with Honest(site) as honest:
        attacker.session = f"thief/{HEX}"
        attacker.paho.subscribe(f"metabroker/response/thief/{HEX}/#", 1)
        for verb, answer in (("publish", "puback"), ("subscribe", "suback"), ("unsubscribe", "unsuback"), ("disconnect", "discack")):
            attacker.send(verb, message=1, topic="t", topics=["t"])
            got, body = attacker.next()
            assert (got, body["code"]) == (answer, Code.UNKNOWN_SESSION)
        session = honest.member.session
        assert attacker.paho.subscribe(f"metabroker/response/{session}/#", 1) == 0x87
        assert attacker.paho.subscribe("metabroker/response/+/publish", 1) == 0x87
        assert attacker.paho.subscribe("#", 1) == 1
        for place in (*(f"{session}/{verb}" for verb in ("publish", "subscribe", "disconnect")), f"{honest.member.name}/connect"):
            body = msgpack.packb({"message": "x", "topic": honest.topic, "topics": ["#"], "payload": b"forged"})
            assert attacker.paho.publish(f"metabroker/request/{place}", body, 1) == 0x87
        for name, verb in ((session, "publish"), (session, "puback"), (honest.member.name, "connack")):
            forged = msgpack.packb({"id": 1, "message": 1, "code": 0, "topic": honest.topic, "payload": b"forged", "session": HEX})
            for qos in (0, 1, 2):
                assert (
                    attacker.paho.publish(f"metabroker/response/{name}/{verb}", forged, qos) == (0, 0x87, 0x92)[qos]
                )  # paho goes on to PUBREL at QoS 2
        # in the other's name: it goes to the sender, and counts for nobody
        attacker.paho.subscribe("metabroker/response/thief/connack", 1)
        body = msgpack.packb({"client": honest.member.name, "remote": site.remote.url})
        attacker.paho.publish("metabroker/request/connect", body, 1, UserProperty=[("mqmesh-client", honest.member.name)])
        got, answer = attacker.next()
        assert (got, answer["code"]) == ("connack", Code.REFUSED_BY_POLICY)
        attacker.paho.publish("end", msgpack.packb(0), 1)
        assert attacker.next() == ("end", 0), "the wildcard brought nothing that was meant for others"
    assert site.said("code=UNKNOWN_SESSION") >= 4
    assert site.said("sender='thief'") == 1
    said = site.community.log.read_text()
    assert said.count("event=subscribe-refused client=thief") == 2
    assert "event=publish-refused client=thief" in said
    attacker.close()


def test_a_flood_of_connects(site: Site) -> None:
    """Hundreds of connect requests, for remotes that do not answer too: bounded, each answered, and who was there goes on."""
    attackers = [Member(site.community.port, f"flood{number}") for number in range(6)]
    with Honest(site):
        for attacker in attackers:
            attacker.paho.subscribe(f"metabroker/response/{attacker.name}/connack", 1)
            for number in range(60):
                remote = site.remote.url if number % 2 else f"mqtt://127.0.0.1:{1 + number}"
                body = {"client": attacker.name, "remote": remote, "username": f"u{number}", "password": "p"}
                attacker.paho.client.publish(f"metabroker/request/{attacker.name}/connect", msgpack.packb(body), 1)
        codes: list[int] = []
        sessions = []
        for attacker in attackers:
            for _ in range(60):
                body = attacker.next()[1]
                codes.append(body["code"])
                if body["code"] == 0:
                    sessions.append((attacker, body["session"]))
        assert set(codes) <= {Code.OK, Code.REMOTE_UNREACHABLE, Code.TOO_MANY_SESSIONS}
        assert len(sessions) <= 29
        assert codes.count(Code.TOO_MANY_SESSIONS) >= 200
        for attacker, session in sessions:
            attacker.paho.publish(f"metabroker/request/{session}/disconnect", b"", 1)
    again = Member(site.community.port, "afterwards")
    wait_until(lambda: again.connect(site.remote.url)["code"] == Code.OK, PATIENCE, "room for a session")
    again.ask("disconnect")
    for attacker in (*attackers, again):
        attacker.close()


def test_a_flood_of_requests_that_want_no_answer_and_are_all_wrong(site: Site) -> None:
    """Each is counted; their client is told once a second, and who shares the remote goes on."""
    attacker = Member(site.community.port, "quiet-flood")
    wrong: list[dict[str, Any]] = [{"topic": topic} for topic in ("a\x01", "a/#", "a\0", "")] + [{}, {"topic": "t", "qos": 2}]
    wrong += [{key: value for key, value in poison.items() if key != "topics"} | {"topic": "a\x01"} for poison in POISON]
    wrong = [one for one in wrong if len(msgpack.packb(one)) < 1000]  # of so little the broker drops nothing, however slow the metabroker
    with Honest(site):
        assert attacker.connect(site.remote.url)["code"] == Code.OK
        began, sent = time.monotonic(), 0
        topic = f"metabroker/request/{attacker.session}/publish"
        for number in range(3000):
            attacker.paho.client.publish(topic, msgpack.packb(wrong[number % len(wrong)]), 0)
            sent += 1
        answers = []
        while not answers or answers[-1]["refused"] < sent:
            answers.append(attacker.next()[1])
        took = time.monotonic() - began
        assert {answer["code"] for answer in answers} == {Code.MALFORMED}
        assert not any("message" in answer for answer in answers)
        assert len(answers) <= took + 2, "one a second"
        assert attacker.ask("publish", message=1, topic="still", qos=1)["code"] == Code.OK
        attacker.ask("disconnect")
    attacker.close()
