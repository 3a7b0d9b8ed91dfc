"""Durable sessions of the core: what they keep over absences of the client, the remote and the metabroker."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from mqmesh.base.metabroker import Code
from mqmesh.metabroker.core.core import Core
from mqmesh.metabroker.peers.members import written
from mqmesh.metabroker.policy import parse
from support.examples import examples
from support.models.durable_world import URL, Client, DurableWorld


def started(**limits: int) -> tuple[DurableWorld, object]:
    world = DurableWorld(**limits)
    client = world.client("c")
    client.ask("subscribe", topics=["down/#"], qos=1, durable=True)
    world.commit()
    return world, client


def texts(numbers: range) -> list[bytes]:
    return [str(number).encode() for number in numbers]


def test_what_comes_while_the_client_is_away_waits_for_it() -> None:
    world, client = started()
    client.there = False
    for payload in texts(range(5)):
        world.publish("down/x", payload)
        world.commit()
    assert client.got == []
    assert not world.far.open  # the remote has nothing left to do
    world.settle()
    assert client.got == texts(range(5))
    assert not list(world.store.deliveries())


def test_nothing_is_sent_or_acknowledged_before_it_is_kept() -> None:
    world, client = started()
    world.publish("down/x", b"0")
    assert client.got == []
    assert world.far.open
    world.commit()
    assert client.got == [b"0"]
    assert not world.far.open


def test_a_session_outlives_the_metabroker_without_its_client() -> None:
    world, client = started()
    world.crash()
    assert client.answers[-1][1]["code"] == Code.RESUMED
    world.publish("down/x", b"0")
    world.commit()
    assert client.got == [b"0"]
    assert client.last == 1
    world.crash()
    world.publish("down/x", b"1")
    world.commit()
    world.read()
    world.settle()
    assert client.got == [b"0", b"1"]


def test_the_time_that_a_passing_session_asked_for_outlives_the_metabroker() -> None:
    world = DurableWorld(idle=1000)
    client = world.client("c", durable=False, expiry=50)
    world.commit()
    world.crash()
    world.now += 49
    world.core.on_timer(world.now)
    assert client.session in world.core.sessions
    world.now += 2
    world.core.on_timer(world.now)
    assert client.session not in world.core.sessions


def test_at_most_a_window_is_sent_and_not_acknowledged() -> None:
    world, client = started(window=3)
    for payload in texts(range(10)):
        world.publish("down/x", payload)
        world.commit()
    assert client.got == texts(range(3))
    client.acknowledge()
    world.commit()
    world.read()
    assert client.got == texts(range(6))
    world.settle()
    assert client.got == texts(range(10))


def test_what_finds_no_room_is_dropped_counted_and_told() -> None:
    world, client = started(stored=3)
    for payload in texts(range(5)):
        world.publish("down/x", payload)
        world.commit()
    told = [body for verb, body in client.answers if verb == "status"]
    assert [(body["code"], body["dropped"]) for body in told] == [(Code.MESSAGES_DROPPED, 1)]
    assert not world.far.open
    client.acknowledge()
    world.publish("down/x", b"5")
    world.settle()
    assert client.got == [b"0", b"1", b"2", b"5"]
    assert [body["dropped"] for verb, body in client.answers if verb == "resack"] == [2]


def test_a_client_finds_its_session_by_its_name_and_credentials() -> None:
    world, client = started()
    session = client.session
    client.connect()
    world.commit()
    bounds = {"body": 1_032_192, "requests": 1000, "quiet": True, "status": 0}
    assert client.answers[-1][1] == {"code": 0, "session": session, "present": True, **bounds}
    client.connect(clean=True)
    world.commit()
    world.commit()
    assert client.answers[-1][1] == {"code": 0, "session": client.session, "present": False, **bounds}
    assert list(world.core.sessions) == [client.session] != [session]
    client.connect(username="other")
    assert len(world.core.sessions) == 2


@pytest.mark.parametrize("newer", [False, True])
def test_a_session_ends_when_another_metabroker_has_a_newer_one(newer: bool) -> None:
    """It was begun while the two did not hear each other. newer: the other one's is."""
    world, client = started()
    roster = world.core.roster
    note = roster.me.sessions[client.session]
    items = {"where": "there", "site": "", "reaches": [], "counted": [], "moved": [], "count": 1, "active": True}
    theirs = {"sessions": [("x", "c", note.key, True)], "at": {"x": note.at + (1 if newer else -1)}}
    roster.hear("metabroker/peer/00000005", written("state", epoch=0, **items, **theirs), world.now)
    world.core.on_peers(world.now)
    world.commit()
    assert list(world.core.sessions) == ([] if newer else [client.session])
    assert bool(world.far.filters) is not newer
    assert [body["code"] for verb, body in client.answers if verb == "status"] == [Code.SESSION_ENDED] * newer


def test_disconnect_keeps_what_is_subscribed_and_clean_ends_it() -> None:
    world, client = started()
    world.request(f"{client.session}/disconnect", {})
    world.commit()
    assert client.answers[-1] == ("discack", {"code": 0, "present": True})
    world.publish("down/x", b"0")
    world.commit()
    assert client.got == []
    world.settle()
    assert client.got == [b"0"]
    world.request(f"{client.session}/disconnect", {"clean": True})
    world.commit()
    assert client.answers[-1] == ("discack", {"code": 0})
    assert not world.core.sessions
    assert not world.far.filters
    assert not any(list(world.store.values(table)) for table in ("remote", "session", "filter", "asked", "acked", "request"))


def test_a_durable_session_ends_in_its_time_and_leaves_the_remote_clean() -> None:
    world, client = started(durable=1000)
    world.part()
    world.now += 999.0
    world.core.on_timer(world.now)
    assert world.core.sessions
    world.crash()
    assert world.core.sessions
    world.part()
    world.now += 3.0
    world.core.on_timer(world.now)
    world.carry_out()
    assert client.answers[-1][1]["code"] == Code.SESSION_ENDED
    assert not world.core.sessions
    world.commit()
    assert world.far.filters
    world.meet()  # only now can it be told
    assert not world.far.filters
    assert not world.core.remotes


def test_what_a_remote_keeps_is_given_up_for_sure() -> None:
    """A binding of a queue stays whatever happens to the connection: the metabroker dies after it has asked, and asks again."""
    world = DurableWorld()
    world.keeps = True
    client = world.client("c")
    client.ask("subscribe", topics=["down/a", "down/b"], qos=1, durable=True)
    world.commit()
    client.ask("unsubscribe", topics=["down/a"])
    world.commit()
    assert world.drops == ["down/a"]
    for _ in range(2):
        world.crash()
        world.commit()
        assert world.drops == ["down/a"]
    assert world.far.filters == {"down/a", "down/b"}
    world.drop()
    world.commit()
    assert world.far.filters == {"down/b"}
    world.crash()
    world.commit()
    assert world.drops == []


def test_what_a_remote_keeps_is_wanted_again() -> None:
    """The answer to what was given up before comes late, and another unsubscribing counts."""
    world = DurableWorld()
    world.keeps = True
    client = world.client("c")
    for verb in ("subscribe", "unsubscribe", "subscribe"):
        client.ask(verb, topics=["down/a"], qos=1, **({"durable": True} if verb == "subscribe" else {}))
        world.commit()
    world.core.subscriptions.on_dropped(world.number, "down/a")  # of the unsubscribing; the remote knows it by the second subscribing
    world.drops.clear()
    world.commit()
    client.ask("unsubscribe", topics=["down/a"])
    world.commit()
    world.crash()
    assert world.drops == ["down/a"]


def test_a_repeated_request_is_known_after_a_crash() -> None:
    world, client = started()
    message = client.ask("publish", topic="up/x", payload=b"once", qos=1)
    body = client.unanswered[message]
    world.answer()
    world.commit()
    assert not client.unanswered
    world.crash()
    client.unanswered[message] = body
    client.repeat(message)
    assert not client.unanswered
    assert world.far.got == [b"once"]


def test_a_request_under_way_goes_on_after_a_crash() -> None:
    world, client = started()
    world.part()
    world.far.alive = False
    for number in range(3):
        client.ask("publish", topic="up/x", payload=str(number).encode(), qos=1)
    world.commit()
    assert not world.inbox
    world.crash()
    world.settle()
    assert world.far.got == texts(range(3))
    assert not client.unanswered
    assert not list(world.store.deliveries())


def test_a_request_that_is_not_kept_stays_with_the_community() -> None:
    world, client = started()
    client.ask("publish", topic="up/x", payload=b"0", qos=1)
    assert len(world.inbox) == 1
    world.crash()  # and the community gives it again
    world.answer()
    world.commit()
    assert not world.inbox
    assert not client.unanswered


def test_a_resume_that_is_not_answered_stays_with_the_community() -> None:
    world, client = started()
    client.there = False
    for payload in texts(range(3)):
        world.publish("down/x", payload)
        world.commit()
    client.back()
    assert client.got == []
    assert len(world.inbox) == 1
    world.crash()
    world.commit()
    world.read()
    assert client.got == texts(range(3))
    world.commit()
    assert not world.inbox


def test_a_message_that_expires_while_it_waits_leaves_a_gap_that_is_told() -> None:
    from mqmesh.mqtt.packets import Publish
    from mqmesh.mqtt.properties import Property

    world, client = started()
    client.there = False
    for number, expiry in ((0, None), (1, 5), (2, 5000)):
        properties = {} if expiry is None else {Property.MESSAGE_EXPIRY_INTERVAL: expiry}
        world.core.on_message(world.number, Publish("down/x", str(number).encode(), 1, packet_id=9, properties=properties), 1)
        world.carry_out()
        world.commit()
    world.now += 100.0
    world.settle()
    assert client.got == [b"0", b"2"]
    [late] = [body for verb, body in client.answers if verb == "publish" and body["payload"] == b"2"]
    assert (late["after"], late["properties"]) == (1, {"expiry": 4900})


def test_what_is_not_acknowledged_is_sent_again() -> None:
    world, client = started()
    client.there = False
    world.publish("down/x", b"0")
    world.commit()
    client.there = True  # it does not know that it was away
    world.now += 40.0
    world.core.on_timer(world.now)
    world.carry_out()
    world.commit()
    world.read()
    assert client.got == [b"0"]


def test_the_policy_of_now_decides() -> None:
    world, client = started()
    narrow = {"clients": ["*"], "remotes": ["mqtt://far:*"], "subscribe": ["down/y"]}
    world.policy = parse({"allow": [narrow]})
    world.crash()
    assert not world.core.sessions[client.session].filters
    world.policy = parse({"allow": [narrow | {"clients": ["other"]}]})
    world.crash()
    assert client.answers[-1][1]["code"] == Code.SESSION_ENDED
    assert not world.core.sessions


def test_a_service_that_cannot_be_found_after_a_restart_is_looked_for_again() -> None:
    """And what was under way waits for its address."""
    world = DurableWorld()
    world.policy = parse({"allow": [{"clients": ["*"], "remotes": ["weather"], "publish": ["#"]}]})
    world.begin()
    client = world.clients["c"] = Client(world, "c")
    client.connect(remote="weather")
    world.services = [URL]
    world.resolve()
    world.commit()
    world.commit()
    world.far.alive = False
    world.part()
    client.ask("publish", topic="x", payload=b"1", qos=1)
    world.commit()
    world.services = []
    world.crash()
    world.resolve()
    client.ask("publish", topic="x", payload=b"2", qos=1)
    assert not world.wanted
    world.now += 11.0
    world.core.on_timer(world.now)
    world.services = [URL]
    world.carry_out()
    world.resolve()
    assert world.wanted
    world.settle()
    assert world.far.got == [b"1", b"2"]
    assert not client.unanswered


def test_what_waits_for_the_address_of_a_service_is_bounded_in_bytes_too() -> None:
    """A thousand requests of a mebibyte each are a gibibyte: `buffer` counts for them as for those that wait for a connection."""
    world = DurableWorld()
    allow = [{"clients": ["*"], "remotes": ["weather"], "publish": ["#"]}]
    world.policy = parse({"limits": {"buffer": 10_000}, "allow": allow})
    world.begin()
    client = world.clients["c"] = Client(world, "c")
    client.connect(remote="weather")
    world.services = [URL]
    world.resolve()
    world.commit()
    world.commit()
    world.services = []
    world.crash()
    world.resolve()
    for number in range(5):
        client.ask("publish", topic="x", payload=b"%d" % number * 4000, qos=1)
    world.commit()
    refused = [body["message"] for _, body in client.answers if body["code"] == Code.TOO_MANY_REQUESTS]
    assert len(refused) == 2
    world.now += 11.0
    world.core.on_timer(world.now)
    world.services = [URL]
    world.carry_out()
    world.resolve()
    world.settle()
    assert [one[:1] for one in world.far.got] == [b"0", b"1", b"2"]


def test_durable_needs_a_folder() -> None:
    import msgpack

    world = DurableWorld()
    core = Core(world.policy, lambda: "s")
    core.on_request("metabroker/request/c/connect", msgpack.packb({"client": "c", "remote": URL, "durable": True}), 0.0)
    assert msgpack.unpackb(core.take()[-1].body)["code"] == Code.NOT_SUPPORTED


@pytest.mark.parametrize("number", [-1, 2, "x", True])
def test_an_acknowledgement_of_what_was_never_sent(number: object) -> None:
    world, client = started()
    world.publish("down/x", b"0")
    world.commit()
    world.request(f"{client.session}/ack", {"id": number})
    assert client.answers[-1][0] == "status"
    assert client.answers[-1][1]["code"] == Code.MALFORMED


@pytest.mark.parametrize("verb", ["ack", "resume"])
def test_who_stood_still_does_not_refuse_what_the_new_owner_has_sent(verb: str) -> None:
    world, client = started()
    world.core.ours = lambda: False
    before = list(client.answers)
    world.request(f"{client.session}/{verb}", {"id": 7, "message": 1})
    world.commit()
    assert client.answers == before
    world.core.ours = lambda: True
    world.request(f"{client.session}/{verb}", {"id": 7, "message": 1})
    assert client.answers[-1][1]["code"] == Code.MALFORMED


class Lives(RuleBasedStateMachine):
    """Two clients, a remote and a metabroker that come and go as chance has it; nothing is lost, and only what may be doubled is."""

    def __init__(self) -> None:
        super().__init__()
        self.world = DurableWorld(window=3)
        self.published: list[bytes] = []
        self.requested: list[bytes] = []
        self.doubtful = False  # an acknowledgement may have got lost, so that QoS 1 repeats

    @initialize()
    def clients(self) -> None:
        for name in ("a", "b"):
            client = self.world.client(name)
            client.ask("subscribe", topics=["down/#"], qos=1)
            self.world.commit()

    @rule()
    def commit(self) -> None:
        self.world.commit()

    @rule()
    def read(self) -> None:
        self.world.read()

    @rule()
    def answer(self) -> None:
        self.world.answer()

    @rule()
    def crash(self) -> None:
        self.doubtful = True
        self.world.crash()

    @rule()
    def remote_goes(self) -> None:
        self.doubtful = True
        self.world.far.alive = False
        self.world.part()

    @rule()
    def remote_comes(self) -> None:
        self.world.far.alive = True
        self.world.meet()

    @rule()
    @precondition(lambda self: self.world.far.alive)
    def publish(self) -> None:
        payload = b"p%d" % len(self.published)
        self.published.append(payload)
        self.world.publish("down/x", payload)

    @rule(name=st.sampled_from("ab"))
    def request(self, name: str) -> None:
        payload = b"r%d" % len(self.requested)
        self.requested.append(payload)
        self.world.clients[name].ask("publish", topic="up/x", payload=payload, qos=1)

    @rule(name=st.sampled_from("ab"))
    def repeat(self, name: str) -> None:
        client = self.world.clients[name]
        for message in list(client.unanswered):
            client.repeat(message)

    @rule(name=st.sampled_from("ab"))
    def acknowledge(self, name: str) -> None:
        self.world.clients[name].acknowledge()

    @rule(name=st.sampled_from("ab"))
    def client_goes(self, name: str) -> None:
        self.world.clients[name].there = False

    @rule(name=st.sampled_from("ab"))
    def client_comes(self, name: str) -> None:
        self.world.clients[name].back()

    @rule(name=st.sampled_from("ab"))
    def client_connects_anew(self, name: str) -> None:
        self.world.clients[name].there = True
        self.world.clients[name].connect()

    def teardown(self) -> None:
        world = self.world
        if not world.clients:
            return
        world.settle()
        for client in world.clients.values():
            assert list(dict.fromkeys(client.got)) == self.published  # nothing lost, and in order
            assert not client.unanswered
            if not self.doubtful:
                assert client.got == self.published
        assert sorted(set(world.far.got)) == sorted(self.requested)
        if not self.doubtful:
            assert sorted(world.far.got) == sorted(self.requested)
        assert not world.far.open
        assert not list(world.store.deliveries())


Lives.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase
