"""Receipts for publishers: three brokers in the test's loop, porto in the middle; lyon and turin confirm when the test lets them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.config import BrokerConfig, Limits, MeshSettings, PeerSettings
from mqmesh.broker.mesh.receipts import Asked, Ledger
from mqmesh.broker.server import Broker
from mqmesh.mesh.custody.watches import Watch
from mqmesh.mqtt.packets import Connack, Connect, Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Client, Site, until

KEY = "a key of sixteen bytes"
WISH = {Property.USER_PROPERTY: [("mqmesh-ack", "receipts")]}


class Member(Site):
    """One broker of the mesh, which confirms deliveries when `hold` is False."""

    def __init__(self, name: str, number: int, peers: list[PeerSettings], data: Path | None = None, **mesh: Any) -> None:
        super().__init__()
        settings = MeshSettings("m", KEY, peers=peers, **{"start_wait": 0.0, **mesh})
        listen = ["mqtt://127.0.0.1:0"]
        self.broker = Broker(BrokerConfig(name, number, listen, data, settings, Limits(sys_interval=0)))
        self.hold = False
        self.held: list[int] = []

    async def __aenter__(self) -> Member:
        await self.broker.start()
        self.node = self.broker.site.mesh.node
        self._delivered = self.node.delivered
        self.node.delivered = self._delivery  # type: ignore[method-assign]
        return self

    def _delivery(self, token: int, now: float) -> None:
        if self.hold:
            self.held.append(token)
        else:
            self._delivered(token, now)

    def release(self) -> None:
        """Commit what was held."""
        held, self.held = self.held, []
        for token in held:
            self._delivered(token, self.broker.context.loop.time())
        self.broker.context.flush()


class Mesh:
    """porto, lyon, turin; everybody at lyon and turin wants a/#. mesh: settings of porto."""

    def __init__(self, data: Path | None = None, **mesh: Any) -> None:
        self._mesh = mesh
        self._data = data

    async def __aenter__(self) -> Mesh:
        self.porto = await Member("porto", 1, [], self._data, **self._mesh).__aenter__()
        peer = PeerSettings(self.porto.broker.addresses[0])
        self.lyon = await Member("lyon", 2, [peer]).__aenter__()
        self.turin = await Member("turin", 3, [peer]).__aenter__()
        for site in (self.lyon, self.turin):
            await (await site.client("s")).subscribe("a/#", qos=1)
        await until(lambda: self.porto.node.interested("a/x") == 12 and self.porto.node.reachable(2) and self.porto.node.reachable(3))
        return self

    async def __aexit__(self, *what: Any) -> None:
        for site in (self.turin, self.lyon, self.porto):
            await site.__aexit__(*what)

    async def publisher(self, name: str = "p", **more: Any) -> Client:
        return await self.porto.client(name, user_property=[("mqmesh-ack", "receipts")], **more)


def users(packet: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in packet.properties.get(Property.USER_PROPERTY, []):
        found.setdefault(name, []).append(value)
    return found


async def test_connack_says_what_is_granted() -> None:
    async with Mesh() as mesh:
        client = await mesh.publisher()
        assert users(client.connack) == {"mqmesh-ack": ["receipts"]}
        client = await mesh.porto.client("q", user_property=[("mqmesh-ack", "custody")])
        assert users(client.connack) == {"mqmesh-ack": ["custody"]}
        client = await mesh.porto.client("r", user_property=[("mqmesh-ack", "whatever")])
        assert users(client.connack) == {}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("how", ["connect", "publish"])
async def test_the_acknowledgement_follows_the_last_receipt(qos: int, how: str) -> None:
    async with Mesh() as mesh:
        client = await (mesh.publisher() if how == "connect" else mesh.porto.client("p"))
        kind = Puback if qos == 1 else Pubrec
        mesh.lyon.hold = mesh.turin.hold = True
        client.send(Publish("a/x", b"1", qos, packet_id=7, properties=WISH if how == "publish" else {}))
        await until(lambda: mesh.lyon.held and mesh.turin.held)
        await client.nothing()
        mesh.lyon.release()
        await until(lambda: mesh.porto.node._origin.custody.entries[next(iter(mesh.porto.node._origin.custody.entries))].open == 8)
        await client.nothing()
        mesh.turin.release()
        answer = await client.expect(kind, packet_id=7, reason=0)
        epoch = mesh.porto.node.identity.epoch
        assert users(answer) == {"mqmesh-id": [f"1:{epoch}:1"], "mqmesh-received": ["lyon", "turin"]}
        assert Property.REASON_STRING not in answer.properties
        if qos == 2:
            client.send(Pubrel(7))
            await client.expect(Pubcomp, packet_id=7, reason=0)


async def test_who_does_not_ask_is_answered_at_once() -> None:
    async with Mesh() as mesh:
        mesh.lyon.hold = True
        client = await mesh.porto.client("p")
        assert await client.publish("a/x", b"1", 1) == 0
        assert client._next_id == 1
        assert mesh.porto.broker.site.mesh.receipts.status() == {"waiting": 0, "late": 0, "remembered": 0}


async def test_each_message_of_a_run_says_its_own_identifier() -> None:
    async with Mesh() as mesh:
        client = await mesh.publisher()
        client.send(*[Publish("a/x", b"%d" % n, 1, packet_id=n + 1) for n in range(5)])
        answers = [await client.expect(Puback, packet_id=n + 1) for n in range(5)]
        epoch = mesh.porto.node.identity.epoch
        assert [users(answer)["mqmesh-id"] for answer in answers] == [[f"1:{epoch}:{n + 1}"] for n in range(5)]


async def test_messages_of_many_topics_wait_too() -> None:
    async with Mesh() as mesh:
        client = await mesh.publisher()
        for base in (0, 9):  # the second time their routes are known
            mesh.lyon.hold = True
            client.send(*[Publish(f"a/{n % 3}", b"%d" % n * n, 1, packet_id=base + n + 1) for n in range(9)])
            await until(lambda: mesh.lyon.held)
            await client.nothing()
            mesh.lyon.hold = False
            mesh.lyon.release()
            for n in range(9):
                answer = await client.expect(Puback, packet_id=base + n + 1)
                assert users(answer)["mqmesh-received"] == ["lyon", "turin"]


async def test_acknowledgements_of_one_qos_keep_their_order_and_others_do_not_wait() -> None:
    async with Mesh() as mesh:
        mesh.lyon.hold = True
        client = await mesh.porto.client("p")
        client.send(Publish("a/x", b"1", 1, packet_id=1, properties=WISH))
        client.send(Publish("nobody", b"2", 1, packet_id=2), Publish("a/x", b"3", 1, packet_id=3))
        client.send(Publish("nobody", b"4", 2, packet_id=4))
        await client.expect(Pubrec, packet_id=4)
        client.send(Pubrel(4))
        await client.expect(Pubcomp, packet_id=4)
        await client.subscribe("b")
        await client.nothing()
        assert mesh.porto.broker.site.mesh.receipts.status()["waiting"] == 3
        mesh.lyon.release()
        for number, reason in ((1, 0), (2, Reason.NO_MATCHING_SUBSCRIBERS), (3, 0)):
            await client.expect(Puback, packet_id=number, reason=reason)


async def test_nobody_out_of_reach_holds_it_back() -> None:
    async with Mesh() as mesh:
        mesh.turin.hold = True
        client = await mesh.publisher()
        client.send(Publish("a/x", b"1", 1, packet_id=1))
        await until(lambda: mesh.turin.held)
        mesh.porto.broker.site.mesh.by_number[3].transport.abort()
        answer = await client.expect(Puback, packet_id=1, reason=0)
        assert users(answer)["mqmesh-received"] == ["lyon"]
        assert users(answer)["mqmesh-awaited"] == ["turin"]
        assert answer.properties[Property.REASON_STRING] == "in custody here; still awaited: turin"


async def test_after_some_time_it_goes_all_the_same() -> None:
    async with Mesh(receipts_wait=0.1) as mesh:
        mesh.turin.hold = True
        client = await mesh.publisher()
        client.send(Publish("a/x", b"1", 1, packet_id=1), Publish("a/x", b"2", 2, packet_id=2))
        for kind, number in ((Puback, 1), (Pubrec, 2)):
            answer = await client.expect(kind, packet_id=number, reason=0)
            assert users(answer)["mqmesh-awaited"] == ["turin"]
        assert mesh.porto.broker.site.mesh.receipts.status() == {"waiting": 0, "late": 2, "remembered": 2}


@pytest.mark.parametrize("settings", [{"ack": "receipts"}, {"receipt_topics": ["b", "a/+"]}])
async def test_the_configuration_asks_for_all(settings: dict[str, Any]) -> None:
    async with Mesh(**settings) as mesh:
        mesh.lyon.hold = True
        clients = [await mesh.porto.client("4", 4), await mesh.porto.client("5", 5)]
        for client in clients:
            client.send(Publish("a/x", b"1", 1, packet_id=1))
            client.send(Publish("a/x", b"1", 1, packet_id=2, properties={}))
        await until(lambda: mesh.lyon.held and mesh.porto.node.custody()[0] == 4)
        for client in clients:
            await client.nothing()
        free = await mesh.porto.client("free", user_property=[("mqmesh-ack", "custody")])
        assert await free.publish("a/x", b"1", 1) == 0
        mesh.lyon.hold = False
        mesh.lyon.release()
        for client in clients:
            first = await client.expect(Puback, packet_id=1, reason=0)
            assert bool(first.properties) == (client.version == 5)
            await client.expect(Puback, packet_id=2, reason=0)


async def test_a_client_that_wants_no_problem_information_gets_no_properties() -> None:
    async with Mesh() as mesh:
        client = await mesh.publisher(request_problem_information=0)
        client.send(Publish("a/x", b"1", 1, packet_id=1))
        assert (await client.expect(Puback, packet_id=1)).properties == {}
        client = await mesh.publisher("small", maximum_packet_size=60)
        client.send(Publish("a/x", b"1", 1, packet_id=1))
        assert (await client.expect(Puback, packet_id=1)).properties == {}


async def test_qos_2_that_is_repeated_on_a_new_connection_waits_there() -> None:
    async with Mesh() as mesh:
        mesh.lyon.hold = True
        client = await mesh.publisher(expiry=100)
        client.send(Publish("a/x", b"1", 2, packet_id=1))
        await until(lambda: mesh.lyon.held)
        await client.cut()
        await mesh.porto.gone("p")
        client = await mesh.publisher(clean=False, expiry=100)
        client.send(Publish("a/x", b"1", 2, packet_id=1, dup=True), Publish("a/x", b"2", 2, packet_id=2))
        await client.nothing()
        mesh.lyon.hold = False
        await until(lambda: len(mesh.turin.held) == 0)
        mesh.lyon.release()
        epoch = mesh.porto.node.identity.epoch
        for number in (1, 2):
            answer = await client.expect(Pubrec, packet_id=number)
            assert users(answer)["mqmesh-id"] == [f"1:{epoch}:{number}"]
        assert mesh.porto.node.custody() == (0, 0)


async def test_a_publisher_that_goes_is_forgotten() -> None:
    async with Mesh() as mesh:
        mesh.lyon.hold = True
        client = await mesh.publisher()
        client.send(Publish("a/x", b"1", 1, packet_id=1))
        await until(lambda: mesh.lyon.held)
        await client.cut()
        await mesh.porto.gone("p")
        mesh.lyon.release()
        await until(lambda: mesh.porto.node.custody() == (0, 0))


async def test_the_receive_maximum_counts_what_waits() -> None:
    async with Mesh() as mesh:
        mesh.porto.broker.config.limits.receive_maximum = 3
        mesh.lyon.hold = True
        client = await mesh.publisher()
        for number in (1, 2, 3):
            client.send(Publish("a/x", b"1", 1, packet_id=number))
            await client.nothing()
        client.send(Publish("a/x", b"1", 1, packet_id=4))
        await client.closed(Reason.RECEIVE_MAXIMUM_EXCEEDED)


async def test_with_a_store_it_waits_for_the_commit_too(tmp_path: Path) -> None:
    async with Mesh(tmp_path) as mesh:
        client = await mesh.publisher(expiry=100)
        for qos, kind in ((1, Puback), (2, Pubrec)):
            mesh.lyon.hold = True
            client.send(Publish("a/x", b"1", qos, packet_id=qos))
            await until(lambda: mesh.lyon.held)
            await client.nothing()
            mesh.lyon.release()
            assert users(await client.expect(kind, packet_id=qos))["mqmesh-received"] == ["lyon", "turin"]


async def test_a_full_queue_here_refuses_in_its_place() -> None:
    async with Mesh() as mesh:
        mesh.porto.broker.config.limits.session_queue_messages = 1
        local = await mesh.porto.client("local", expiry=100)
        await local.subscribe("a/#", qos=1)
        await local.cut()
        await mesh.porto.gone("local")
        mesh.lyon.hold = True
        client = await mesh.publisher()
        client.send(*[Publish("a/x", b"1", 1, packet_id=n) for n in (1, 2)])
        await until(lambda: mesh.lyon.held)
        await client.nothing()
        mesh.lyon.release()
        await client.expect(Puback, packet_id=1, reason=0)
        await client.expect(Puback, packet_id=2, reason=Reason.QUOTA_EXCEEDED)


# ---- who has it?


async def ask(client: Client, what: str, answer: str = "who/has") -> dict[str, Any]:
    properties = {Property.RESPONSE_TOPIC: answer, Property.CORRELATION_DATA: b"c1"} if client.version == 5 else {}
    client.send(Publish("$mqmesh/receipts", what.encode(), properties=properties))
    found = await client.expect(Publish)
    if client.version == 5:
        assert found.properties[Property.CORRELATION_DATA] == b"c1"
        assert found.properties[Property.CONTENT_TYPE] == "application/json"
    client.send(Puback(found.packet_id))
    return json.loads(found.payload)


async def test_a_publisher_can_ask_who_has_a_message() -> None:
    async with Mesh() as mesh:
        client = await mesh.publisher()
        await client.subscribe("who/has", qos=1)
        mesh.turin.hold = True
        client.send(Publish("a/x", b"1", 1, packet_id=5))
        await until(
            lambda: mesh.turin.held and mesh.porto.node.standing(mesh.porto.broker.site.mesh.receipts.ledger._runs[0].watch, 0).received
        )
        epoch = mesh.porto.node.identity.epoch
        open_ = await ask(client, f"1:{epoch}:1")
        assert (open_["state"], open_["topic"], open_["received"]) == ("open", "a/x", [{"number": 2, "name": "lyon"}])
        assert open_["awaited"] == [{"number": 3, "name": "turin", "reachable": True}]
        assert open_ == {**await ask(client, "packet:5"), "id": f"1:{epoch}:1"}
        mesh.turin.release()
        await client.expect(Puback, packet_id=5)
        done = await ask(client, f"1:{epoch}:1")
        assert (done["state"], done["awaited"], [one["name"] for one in done["received"]]) == ("done", [], ["lyon", "turin"])
        assert (await ask(client, f"1:{epoch}:2"))["state"] == "unknown"
        assert (await ask(client, "packet:6"))["state"] == "unknown"
        assert await ask(client, "2:5:7") == {
            "id": "2:5:7",
            "state": "elsewhere",
            "text": "it was published at broker 2 (lyon): ask there",
        }
        assert (await ask(client, "what?"))["state"] == "error"
        other = await mesh.porto.client("other")
        await other.subscribe("who/has", "a/#", qos=1)
        assert (await ask(other, f"1:{epoch}:1"))["state"] == "unknown"
        await client.nothing()  # it did not get the other's answer


async def test_mqtt_3_asks_by_packet_identifier() -> None:
    async with Mesh(ack="receipts") as mesh:
        client = await mesh.porto.client("old", 4)
        await client.subscribe("$mqmesh/receipts/answer", qos=1)
        client.send(Publish("a/x", b"1", 2, packet_id=5))
        await client.expect(Pubrec, packet_id=5)
        answer = await ask(client, "packet:5")
        assert (answer["state"], [one["name"] for one in answer["received"]]) == ("done", ["lyon", "turin"])


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_an_answer_that_nobody_takes_is_none(qos: int) -> None:
    async with Mesh() as mesh:
        watcher = await mesh.porto.client("w")
        await watcher.subscribe("#", "$mqmesh/#", qos=1)
        client = await mesh.publisher()
        properties = {Property.RESPONSE_TOPIC: "who/has"}
        reason = await client.publish("$mqmesh/receipts", b"packet:1", qos, properties=properties)
        assert reason == (Reason.NO_MATCHING_SUBSCRIBERS if qos else 0)
        assert await client.publish("$mqmesh/receipts/answer", b"mine", 1) == Reason.NOT_AUTHORIZED
        await watcher.nothing()


# ---- the ledger


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 8), st.integers(1, 20)), max_size=40), st.integers(1, 50))
def test_the_ledger_is_bounded_and_knows_the_latest(runs: list[tuple[str, int, int]], room: int) -> None:
    ledger = Ledger(room)
    published: list[tuple[str, int, int]] = []  # client, packet identifier, sequence
    sequence = 1
    for client, first, count in runs:
        watch = Watch(9, sequence, count, 0)
        ledger.add(Asked(client, 1, b"t", range(first, first + count), watch))
        published += [(client, first + n, sequence + n) for n in range(count)]
        sequence += count
        assert ledger.messages <= max(room, count)
    kept = {number for _, _, number in published[len(published) - ledger.messages :]}
    for client, packet, number in published:
        found = ledger.by_position(client, 9, number)
        assert (found is not None) == (number in kept)
        assert found is None or found[0].watch.first + found[1] == number
        assert ledger.by_position("x", 9, number) is None
        assert ledger.by_position(client, 8, number) is None
        latest = max(n for c, p, n in published if (c, p) == (client, packet))
        found = ledger.by_packet(client, packet)
        assert (found is not None) == (latest in kept)
        assert found is None or found[0].watch.first + found[1] == latest
    assert ledger.by_position("a", 9, sequence) is None


# ---- a start without knowledge


async def test_clients_wait_for_the_first_link_and_no_longer_than_they_may() -> None:
    async with Member("porto", 1, []) as porto:
        await (await porto.client("s")).subscribe("a", qos=1)
        peer = PeerSettings(porto.broker.addresses[0])
        async with Member("lyon", 2, [peer], start_wait=60.0) as lyon:
            client = await lyon.dial()
            client.send(Connect("p", 5), Publish("a", b"1", 1, packet_id=1))
            await client.expect(Connack, reason=0)
            assert (await client.expect(Puback, packet_id=1)).reason == 0
            await until(lambda: porto.broker.site.mesh.node.counters.delivered == 1)
        nowhere = PeerSettings("mqtt://127.0.0.1:9")
        async with Member("turin", 3, [nowhere], start_wait=0.1) as turin:
            client = await turin.client("p")
            assert await client.publish("a", b"1", 1) == Reason.NO_MATCHING_SUBSCRIBERS


async def test_who_waits_for_the_start_may_go_or_be_refused() -> None:
    async with Member("turin", 3, [PeerSettings("mqtt://127.0.0.1:9")], start_wait=60.0) as turin:
        gone, refused, stays = await turin.dial(), await turin.dial(), await turin.dial(4)
        gone.send(Connect("gone", 5))
        refused.send(Connect("refused", 5, properties={Property.AUTHENTICATION_METHOD: "other"}))
        stays.send(Connect("stays", 4))
        mesh = turin.broker.site.mesh
        await until(lambda: len(mesh._early) == 3)
        await gone.cut()
        mesh._serve()
        await refused.expect(Connack, reason=Reason.BAD_AUTHENTICATION_METHOD)
        await stays.expect(Connack, reason=0)
        await until(lambda: [session.client_id for session in turin.broker.site.sessions] == ["stays"])


async def test_a_broker_that_remembers_does_not_wait(tmp_path: Path) -> None:
    async with Member("porto", 1, []) as porto:
        await (await porto.client("s")).subscribe("a", qos=1)
        peer = PeerSettings(porto.broker.addresses[0])
        async with Member("lyon", 2, [peer], tmp_path, start_wait=60.0) as lyon:
            await lyon.client("first")
            await until(lambda: lyon.node.interested("a") == 2)
            await until(lambda: not lyon.node._core.journal.others.changed)
            assert await lyon.broker.site.persistence.settle(5)
    async with Member("lyon", 2, [PeerSettings("mqtt://127.0.0.1:9")], tmp_path, start_wait=60.0) as lyon:
        client = await lyon.client("p", expiry=100)
        assert await client.publish("a", b"1", 1) == 0
        assert lyon.node.custody()[0] == 1
        assert SimpleNamespace(**lyon.broker.site.mesh.status()).custody["messages"] == 1
