"""A single message to or from the metabroker inside a broker has the same effect on the direct lane as on the general one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.broker.auth.metabroker_secret import MetabrokerSettings
from mqmesh.broker.config import BrokerConfig, Limits
from mqmesh.broker.server import Broker
from mqmesh.metabroker.mqtt import connection as connections
from mqmesh.metabroker.mqtt.login import Login
from mqmesh.metabroker.policy import parse
from mqmesh.metabroker.shell import direct
from mqmesh.metabroker.shell import server as servers
from mqmesh.metabroker.shell.embedded import IN_PROCESS, EmbeddedCommunity
from mqmesh.metabroker.shell.resolver import Chain
from mqmesh.metabroker.shell.server import Server
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Pingreq, Pingresp, Puback, Publish, Subscribe, Subscription, Unsubscribe
from support.examples import examples
from support.models.broker_wire import Wire, run, started

REMOTE = "mqtt://127.0.0.1:1"
CLIENTS = {"one": 4, "two": 5}
POLICY = {
    "limits": {"body": 400},
    "allow": [{"clients": ["*"], "remotes": [REMOTE], "publish": ["up/#"], "subscribe": ["down/#"]}],
}
SIZES = (0, 1, 20, 21, 64, 200, 320, 500)  # of payloads: bodies on both sides of the limit, frames around 128 bytes
TOPICS = ("up/a", "up/b", "other")


class World:
    """Two brokers, the metabroker inside the first one, and clients. version: how the metabroker speaks to the second one, the remote."""

    def __init__(self, here: Broker, far: Broker, server: Server, version: int) -> None:
        self.here, self.far, self.server = here, far, server
        self.clients = {name: Wire(here, level).connect(name) for name, level in CLIENTS.items()}
        self.listener = Wire(far, 5).connect("listener", Subscription("up/#", 1))
        self.source = Wire(far, version).connect("source")
        self.sessions: dict[str, str] = {}
        self.said: dict[str, list[Any]] = {name: [] for name in ("listener", *CLIENTS)}
        self.numbers = itertools.count(70_000)

    async def turns(self) -> None:
        """Whatever is under way arrives; what is to be acknowledged is."""
        for _ in range(3):
            for _ in range(6):
                await asyncio.sleep(0)
            self.look()

    def look(self) -> None:
        """Note what came."""
        for name, client in [*self.clients.items(), ("listener", self.listener)]:
            for packet in client.packets():
                self.said[name].append(packet)
                if isinstance(packet, Publish) and packet.qos:
                    client.send(Puback(packet.packet_id))

    def frame(self, client: str, verb: str, body: bytes, qos: int = 0, session: str = "") -> bytes:
        place = client if verb == "connect" else session or self.sessions[client]
        topic = f"metabroker/request/{place}/{verb}"
        return encode(Publish(topic, body, qos, packet_id=9 if qos else 0), CLIENTS[client])

    async def begin(self) -> None:
        """Each client has a session that is subscribed."""
        for name, client in self.clients.items():
            client.send(subscribe(f"metabroker/response/{name}/connack"))
            client.give(self.frame(name, "connect", msgpack.packb({"client": name, "remote": REMOTE})))
            await self.turns()
            answer = next(one for one in self.said[name] if isinstance(one, Publish))
            self.sessions[name] = msgpack.unpackb(answer.payload)["session"]
            client.send(subscribe(f"metabroker/response/{self.sessions[name]}/#"))
            client.give(self.frame(name, "subscribe", msgpack.packb({"message": 1, "topics": ["down/#"], "qos": 1})))
            await self.turns()

    def outcome(self) -> list[Any]:
        """What everybody got, and what was counted."""
        assert not self.server.failed.done()
        counted = [
            (one.bytes_received, one.bytes_sent, one.publish_bytes_received, one.publish_bytes_sent, one.dropped, one.denied_messages)
            for one in (self.here.context.counters,)
        ]
        each = [(one.connection.received, one.connection.sent, one.connection.dropped) for one in self.clients.values()]
        inside = self.here.site.within
        assert inside is not None
        core = self.server.core
        sessions = [(one.number, one.unpublished, one.open, list(one.done)) for one in core.sessions.values()]
        return [self.said, counted, each, (inside.received, inside.sent), core.counts, sessions]


def subscribe(topic_filter: str) -> Subscribe:
    return Subscribe(1, [Subscription(topic_filter, 1)])


@contextlib.asynccontextmanager
async def world(version: int = 5, policy: dict[str, Any] = POLICY, limits: Mapping[str, Any] = {}) -> AsyncIterator[World]:
    """A world in which sessions have names that can be told before. limits: of the first broker, that differ."""
    config = BrokerConfig(listen=[], limits=replace(Limits(), sys_interval=0, **limits), metabroker=MetabrokerSettings())
    here, far = Broker(config), await started(max_packet_size=2_000_000)
    here.context.turns.clock = lambda: 0.0  # nothing waits for a turn: a busy machine must change nothing
    await here.start()
    names = itertools.count(1)

    async def dial(self: Any, line: Any, address: Any, context: Any) -> None:
        far.join(line, lambda error: pytest.fail(repr(error)))

    rules = {**policy, "allow": [{**policy["allow"][0], "version": "5" if version == 5 else "3.1.1"}]}
    with (
        mock.patch.object(connections.Connection, "_dial", dial),
        mock.patch.object(connections.Connection, "reads_pause", False),
        mock.patch.object(servers.secrets, "randbits", return_value=1),
        mock.patch.object(servers.secrets, "token_bytes", side_effect=lambda size: next(names).to_bytes(size, "big")),
    ):
        server = await Server.open(
            EmbeddedCommunity(IN_PROCESS, Login("metabroker", keep_alive=0), broker=here), parse(rules), Chain(), lambda: None
        )
        task = asyncio.create_task(server.run())
        try:
            for _ in range(20):
                await asyncio.sleep(0)
            made = World(here, far, server, version)
            await made.begin()
            yield made
        finally:
            task.cancel()
            await asyncio.wait((task,))


REQUESTS = st.tuples(
    st.just("request"),
    st.sampled_from(list(CLIENTS)),
    st.fixed_dictionaries(
        {"topic": st.sampled_from([*TOPICS, "up/a", "up/a"]), "payload": st.sampled_from(SIZES)},
        optional={"message": st.integers(0, 3), "qos": st.integers(0, 2), "retain": st.booleans(), "properties": st.just({})},
    ),
    st.sampled_from([0, 0, 0, 1]),
)
QUIET = st.tuples(
    st.just("request"),
    st.sampled_from(list(CLIENTS)),
    st.fixed_dictionaries({"topic": st.sampled_from(TOPICS[:2]), "payload": st.sampled_from(SIZES)}),
    st.just(0),
)
COMING = st.tuples(
    st.just("coming"),
    st.sampled_from(["down/a", "down/b/c", "elsewhere"]),
    st.sampled_from(SIZES),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.booleans(),
)
OTHERS = st.one_of(
    st.tuples(st.just("stranger"), st.sampled_from(list(CLIENTS))),
    st.tuples(st.just("odd"), st.sampled_from(list(CLIENTS)), st.binary(max_size=70)),
    st.tuples(st.just("unsubscribe"), st.sampled_from(list(CLIENTS))),
    st.tuples(st.just("subscribe"), st.sampled_from(list(CLIENTS))),
    st.tuples(st.just("listens not"), st.sampled_from(list(CLIENTS))),
    st.tuples(st.just("congested"), st.booleans()),
    st.tuples(st.just("slow"), st.sampled_from(list(CLIENTS)), st.booleans()),
    st.tuples(st.just("disconnect"), st.sampled_from(list(CLIENTS))),
)
STEPS = st.lists(st.tuples(st.one_of(QUIET, QUIET, COMING, COMING, REQUESTS, OTHERS), st.sampled_from([0, 1, 1, 1])), max_size=25)


def carry_out(made: World, step: tuple[Any, ...], held: dict[str, bytes]) -> None:
    """One step. held: bytes of clients that come with their next ones."""
    kind, name, *rest = step
    if kind in ("request", "odd"):
        if kind == "request":
            asked = {**rest[0], "payload": bytes(rest[0]["payload"])}
            frame = made.frame(name, "publish", msgpack.packb(asked), rest[1])
        else:
            frame = made.frame(name, "publish", rest[0])
        held[name] = held.get(name, b"") + frame
    elif kind == "coming":
        size, qos, retain = rest
        packet = Publish(name, bytes(size), qos, retain, packet_id=next(made.numbers) % 60_000 if qos else 0)
        held["source"] = held.get("source", b"") + encode(packet, made.source.version)
    elif kind == "stranger":
        other = "two" if name == "one" else "one"
        body = msgpack.packb({"topic": "up/a", "payload": b"stolen"})
        made.clients[name].give(made.frame(name, "publish", body, session=made.sessions[other]))
    elif kind in ("subscribe", "unsubscribe"):
        made.clients[name].give(made.frame(name, kind, msgpack.packb({"message": 5, "topics": ["down/#"], "qos": 1})))
    elif kind == "listens not":
        made.clients[name].send(Unsubscribe(3, [f"metabroker/response/{made.sessions[name]}/#"]))
    elif kind == "congested":
        for number in made.server.core.remotes:
            made.server.core.on_congested(number, name)
    elif kind == "slow":
        made.clients[name].connection.congested = rest[0]
    else:
        made.clients[name].give(made.frame(name, "disconnect", msgpack.packb({})))


async def play(version: int, steps: list[Any]) -> list[Any]:
    """What comes of steps; a number behind each: whether what comes next is not in one piece with it, and everything arrives first."""
    async with world(version) as made:
        held: dict[str, bytes] = {}
        for step, alone in [*steps, (("congested", False), 1)]:
            carry_out(made, step, held)
            if alone:
                for name, data in held.items():
                    (made.source if name == "source" else made.clients[name]).give(data)
                held.clear()
                await made.turns()
        return made.outcome()


@settings(max_examples=examples(80), deadline=None)
@given(st.sampled_from([4, 5]), STEPS)
def test_same_effect_as_the_general_way(version: int, steps: list[Any]) -> None:
    short = run(play(version, steps))
    with mock.patch.object(direct.Singles, "receiver", return_value=None), mock.patch.object(direct.Singles, "message", return_value=False):
        general = run(play(version, steps))
    assert short == general


def quiet(topic: str = "up/a", size: int = 20, client: str = "one") -> tuple[Any, int]:
    """A single request that wants no answer."""
    return ("request", client, {"topic": topic, "payload": size}, 0), 1


def coming(topic: str = "down/a", size: int = 20) -> tuple[Any, int]:
    """A single publication of the remote."""
    return ("coming", topic, size, 0, False), 1


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """How many messages the short way has taken."""
    taken: Counter[str] = Counter()
    take, message = direct.SessionRequests.take, direct.Singles.message

    def one(self: Any, *arguments: Any) -> bool:
        done = take(self, *arguments)
        taken["requests"] += done
        return done

    def other(self: Any, *arguments: Any) -> bool:
        done = message(self, *arguments)
        taken["publications"] += done
        return done

    with mock.patch.object(direct.SessionRequests, "take", one), mock.patch.object(direct.Singles, "message", other):
        yield taken


@pytest.mark.parametrize("version", [4, 5])
def test_it_is_used(version: int) -> None:
    """Else the comparison would say nothing. The first message of a topic goes the general way, which judges it."""
    with counted() as taken:
        run(play(version, [quiet(), quiet(), quiet(size=64), quiet(), quiet("up/b"), quiet("up/b")]))
        assert taken["requests"] == 3
        run(play(version, [coming(), coming(), coming(size=200), coming("down/b"), coming("down/b")]))
        assert taken["publications"] == 3


def test_what_is_not_allowed_never_takes_it() -> None:
    steps = [quiet("other"), quiet("other"), quiet(), quiet(), (("stranger", "two"), 1), (("stranger", "two"), 1)]
    with counted() as taken:
        said, counters, *_ = run(play(5, steps))
    assert taken["requests"] == 1
    assert [packet.payload for packet in said["listener"]] == [bytes(20)] * 2
    assert counters[0][-1] == 2  # messages of strangers that were refused


def test_what_waits_is_not_overtaken() -> None:
    """While the remote has not taken what was written, a single request follows it on the general way, where it is counted and bounded."""

    async def main() -> list[bytes]:
        async with world() as made:
            for number in range(6):
                body = msgpack.packb({"topic": "up/a", "payload": bytes([number])})
                made.clients["one"].give(made.frame("one", "publish", body))
                if number == 1:
                    await made.turns()  # from here on nothing is handed over until the end
            [number] = made.server.remotes
            assert made.server.remotes[number].backlog > 0
            await made.turns()
            return [packet.payload for packet in made.said["listener"]]

    with counted() as taken:
        assert run(main()) == [bytes([number]) for number in range(6)]
    assert taken["requests"] == 1


def test_a_fault_ends_the_metabroker_and_not_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("of the test")

    async def main(step: tuple[Any, ...]) -> None:
        async with world() as made:
            held: dict[str, bytes] = {}
            for _ in range(4):  # a request's shape is known from the third one on
                carry_out(made, step, held)
                for name, data in held.items():
                    (made.source if name == "source" else made.clients[name]).give(data)
                held.clear()
                await made.turns()
            assert isinstance(made.server.failed.exception(), RuntimeError)
            made.clients["two"].send(Pingreq())
            made.look()
            assert isinstance(made.said["two"][-1], Pingresp)

    monkeypatch.setattr(direct.BodyShape, "read", fail)
    run(main(quiet()[0]))
    monkeypatch.undo()
    monkeypatch.setattr(direct, "publication_body", fail)
    run(main(coming()[0]))


def test_who_joins_anew_does_not_get_what_was_for_the_one_before() -> None:
    """Short ways lead to one metabroker, and end with its connection."""

    async def main() -> None:
        async with world() as made:
            for _ in range(2):
                made.clients["one"].give(made.frame("one", "publish", msgpack.packb({"topic": "up/a", "payload": b"x"})))
                await made.turns()
            assert made.here.site.router.receivers
            made.here.join(asyncio.Protocol(), lambda _: None, mock.Mock())
            assert not made.here.site.router.receivers

    run(main())


def test_every_size_counts_the_same() -> None:
    """Also where a frame's length needs a byte more in one version than in the other."""
    steps = [step for size in range(50) for step in (quiet(size=size), quiet(size=size, client="two"), coming(size=size))]
    short = run(play(4, steps))
    with mock.patch.object(direct.Singles, "receiver", return_value=None), mock.patch.object(direct.Singles, "message", return_value=False):
        assert run(play(4, steps)) == short


def test_it_is_not_bound_by_the_packets_that_clients_may_send() -> None:
    """What a remote sends reaches the client, in the direct lane and the general way. What a client sends is bound."""

    async def main() -> None:
        async with world(limits={"max_packet_size": 200}) as made:
            assert made.server.community.machine.fits(Publish("t", bytes(1_000_000)))
            sizes = (10, 300, 300, 20_000, 1_500_000)
            for size in sizes:
                made.source.give(encode(Publish("down/a", bytes(size)), 5))
                await made.turns()
            got = [msgpack.unpackb(one.payload) for one in made.said["one"] if isinstance(one, Publish) and one.topic.endswith("/publish")]
            assert [len(one["payload"]) for one in got] == list(sizes)
            made.clients["one"].give(made.frame("one", "publish", msgpack.packb({"topic": "up/a", "payload": bytes(200)})))
            assert made.clients["one"].transport.closed

    run(main())
