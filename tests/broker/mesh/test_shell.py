"""What the broker promises to the mesh's shell: hand-over of connections, holding a publisher, releasing it."""

from __future__ import annotations

from typing import Any

import pytest
from mqmesh.broker.ledger import RECEIVED, ROUTES, Ledger
from mqmesh.broker.mesh.incoming import Incoming
from mqmesh.broker.ports import AWAY
from mqmesh.broker.routing.publication import WITHHELD_BYTES, Publication
from mqmesh.mqtt.batch.parts import PartsBatch
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connack, Connect, Pingreq, Pingresp, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscription, Will
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Site
from support.models.broker_wire import Wire, started


def held(ledger: Ledger) -> int:
    """Bytes that are held for somebody, not what is remembered of topics."""
    return ledger.total - ledger.held[ROUTES]


class FakeMesh:
    """Notes what it is told. room: how many runs of QoS 1 and 2 it still takes; None for any number."""

    starting = False
    fenced = ""

    def __init__(self) -> None:
        self.node = self
        self.links: dict[int, Any] = {}
        self.accepted: list[Any] = []
        self.adopted: list[tuple[Any, bytes]] = []
        self.held: list[Any] = []
        self.published: list[tuple[bytes, int, list[bytes]]] = []
        self.filters: list[tuple[str, str | None, int]] = []
        self.room: int | None = None
        self.away = False  # there is no room because a site is away
        self.answer = 0
        self.far: int | None = None  # the brokers that want messages of several topics
        self.packets: list[int] = []  # how many messages came in each batch that was no run
        self.packets_room: int | None = None  # 0: for no such batch of QoS 1 and 2
        self.unread = 0

    def set_kept_offset(self, offset: float) -> None:
        """It keeps nothing."""

    def accept(self, connection: Any, connect: Connect) -> None:
        self.accepted.append(connect)

    def adopt(self, connection: Any, rest: bytes) -> None:
        self.adopted.append((connection, rest))

    def hold(self, connection: Any) -> None:
        self.held.append(connection)

    def custody_in_memory(self) -> tuple[int, int, int]:
        return 0, 0, 0

    def custody(self) -> tuple[int, int]:
        return 0, 0

    def publish(self, to: Any, run: Any, hold: bool = False, payer: Any = None) -> int | None:
        if not run.uniform:
            if run.qos and self.packets_room is not None:
                return None
            self.packets.append(run.count)
            self.published += [(topic, run.qos, [payload]) for topic, payload in run.messages()]
            return 0
        if run.qos and self.room is not None:
            if not self.room:
                return AWAY if self.away else None
            self.room -= 1
        if not self.answer:
            self.published.append((run.topic, run.qos, run.payloads))
        return self.answer

    def route(self, topic: bytes) -> object:
        return object() if topic.startswith(b"far/") else None

    def mask(self, route: object) -> int | None:
        return self.far

    def subscribe(self, topic_filter: str, group: str | None, weight: int) -> None:
        self.filters.append((topic_filter, group, weight))

    def unsubscribe(self, topic_filter: str, group: str | None) -> None:
        self.filters.append((topic_filter, group, 0))

    def drain(self) -> None:
        pass

    def stop(self) -> None:
        pass


async def in_mesh(**limits: Any) -> tuple[Any, FakeMesh]:
    broker = await started(**limits)
    mesh = broker.site.mesh = broker.site.router.mesh = FakeMesh()
    return broker, mesh


@pytest.mark.parametrize("cut", [0, 5, None])
async def test_a_link_is_handed_over_with_the_rest_of_its_bytes(cut):
    broker, mesh = await in_mesh()
    wire = Wire(broker, 5)
    connect = encode(Connect("link", properties={Property.AUTHENTICATION_METHOD: "mqmesh-1"}), 5)
    rest = b"whatever the link says"
    if cut is None:
        wire.give(connect + rest)
    else:
        wire.give(connect[:cut])
        assert not mesh.accepted
        wire.give(connect[cut:] + rest)
    assert [packet.client_id for packet in mesh.accepted] == ["link"]
    assert mesh.adopted == [(wire.connection, rest)]
    assert wire.connection not in broker.site.connections
    assert wire.take() == b""
    assert len(broker.site.sessions) == 0


async def test_first_and_last_subscriptions_are_told():
    broker, mesh = await in_mesh()
    one = Wire(broker, 5).connect("one", Subscription("a/#"), Subscription("$share/g/b"))
    two = Wire(broker, 5).connect("two", Subscription("a/#"), Subscription("$share/g/b"))
    assert mesh.filters == [("a/#", None, 1), ("b", "g", 16), ("b", "g", 32)]
    mesh.filters.clear()
    one.connection.connection_lost(None)
    assert mesh.filters == [("b", "g", 16)]
    two.connection.connection_lost(None)
    assert mesh.filters == [("b", "g", 16), ("a/#", None, 0), ("b", "g", 0)]


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_runs_go_into_the_mesh_once(qos):
    broker, mesh = await in_mesh()
    subscriber = Wire(broker, 4).connect("s", Subscription("#", 2))
    publisher = Wire(broker, 4).connect("p")
    publisher.send(
        *[Publish("far/x", b"%d" % n, qos, packet_id=n + 1 if qos else 0) for n in range(3)],
        Publish("near", b"n", qos, packet_id=9 if qos else 0),
    )
    assert mesh.published == [(b"far/x", qos, [b"0", b"1", b"2"])]
    assert len(subscriber.packets()) == 4
    if qos == 2:  # repeated ones do not
        publisher.send(*[Publish("far/x", b"%d" % n, 2, packet_id=n + 1, dup=True) for n in range(4)])
        assert mesh.published[1:] == [(b"far/x", 2, [b"3"])]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_of_many_topics_go_into_the_mesh_once(qos, version):
    broker, mesh = await in_mesh()
    mesh.far = 6
    subscriber = Wire(broker, 4).connect("s", Subscription("#", 2))
    publisher = Wire(broker, version).connect("p")
    packets = [Publish(f"far/{n % 3}", b"%d" % n * n, qos, packet_id=n + 1 if qos else 0) for n in range(9)]
    publisher.send(*packets[:3])  # their routes are not known yet
    publisher.send(*packets[3:], Publish("near", b"n", qos, packet_id=99 if qos else 0))
    assert mesh.published == [(packet.topic.encode(), qos, [packet.payload]) for packet in packets]
    assert mesh.packets
    assert [packet.payload for packet in subscriber.packets()] == [*[packet.payload for packet in packets], b"n"]
    if qos:
        assert [(answer.packet_id, answer.reason) for answer in publisher.packets()] == [
            *[(n + 1, 0) for n in range(9)],
            (99, 0),
        ]


@pytest.mark.parametrize("qos", [1, 2])
async def test_of_packets_that_find_no_room_what_fits_is_taken(qos):
    broker, mesh = await in_mesh()
    mesh.far = 6
    publisher = Wire(broker, 5).connect("p")
    packets = [Publish(f"far/{n % 3}", b"%d" % n * n, qos, packet_id=n + 1) for n in range(9)]
    publisher.send(*packets[:3])
    publisher.take()
    mesh.room, mesh.packets_room = 2, 0
    publisher.send(*packets[3:])
    assert mesh.held == [publisher.connection]
    assert [answer.packet_id for answer in publisher.packets()] == [4, 5]
    mesh.room = mesh.packets_room = None
    publisher.connection.release()
    assert [answer.packet_id for answer in publisher.packets()] == [6, 7, 8, 9]
    assert mesh.published == [(packet.topic.encode(), qos, [packet.payload]) for packet in packets]


async def test_with_properties_each_message_goes_into_the_mesh_by_itself():
    broker, mesh = await in_mesh()
    mesh.far = 6
    publisher = Wire(broker, 5).connect("p")
    packets = [Publish(f"far/{n % 3}", b"%d" % n, 0, properties={Property.CORRELATION_DATA: b"c"} if n % 2 else {}) for n in range(9)]
    publisher.send(*packets[:3])
    publisher.send(*packets[3:])
    assert mesh.published == [(packet.topic.encode(), 0, [packet.payload]) for packet in packets]
    assert all(count == 1 for count in mesh.packets)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_parts_from_the_mesh_go_to_everyone_who_wants_it(qos):
    broker, _ = await in_mesh()
    wires = {
        "all": Wire(broker, 4).connect("all", Subscription("#", 2)),
        "some": Wire(broker, 5).connect("some", Subscription("a/+", 1)),
        "identified": Wire(broker, 5).connect("identified", Subscription("b", 2), identifier=7),
        "shared": Wire(broker, 4).connect("shared", Subscription("$share/g/c", 2)),  # the origin picks
    }
    incoming = Incoming.__new__(Incoming)
    incoming.shell = broker.site
    topics = [b"a/1", b"a/2", b"b", b"b", b"c", b"far/x", b"a/1", b"b", b"a/2"]
    run = PartsBatch([len(topic).to_bytes(2, "big") + topic for topic in topics], [b"%d" % n * n for n in range(9)], qos, 0.0)
    for _ in range(2):  # routes are not known, then they are
        incoming._deliver_parts(run, 2, Publication())
        broker.context.flush()
        got = {name: wire.packets() for name, wire in wires.items()}
        for name, most, wanted in (("all", 2, topics), ("some", 1, [b"a/1", b"a/2"]), ("identified", 2, [b"b"]), ("shared", 2, [])):
            expected = [(topic.decode(), payload, min(qos, most)) for topic, payload in run.messages() if topic in wanted]
            assert [(packet.topic, packet.payload, packet.qos) for packet in got[name]] == expected
        assert all(packet.properties == {Property.SUBSCRIPTION_IDENTIFIER: [7]} for packet in got["identified"])


async def test_retained_messages_go_into_the_mesh_though_nobody_wants_them():
    broker, mesh = await in_mesh()
    publisher = Wire(broker, 4).connect("p")
    publisher.send(Publish("near", b"n", 0, True), Publish("near", b"n", 1, True, packet_id=1))
    assert [qos for _, qos, _ in mesh.published] == [0, 1]


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_publisher_is_held_while_the_mesh_has_no_room(qos):
    broker, mesh = await in_mesh()
    subscriber = Wire(broker, 5).connect("s", Subscription("#", 2))
    publisher = Wire(broker, 5).connect("p")
    if qos == 2:
        publisher.send(Publish("near", b"", 2, packet_id=2))
        publisher.take()
        subscriber.take()
    mesh.room = 0
    packets = [Publish("far/x", b"%d" % n, qos, packet_id=n + 1) for n in range(3)]
    publisher.send(Publish("near", b"before"), *packets, Publish("near", b"behind"), Pingreq())
    assert mesh.held == [publisher.connection]
    assert publisher.transport.reading
    assert [packet.payload for packet in subscriber.packets()] == [b"before", b"behind"]  # other topics pass
    assert publisher.packets() == [Pingresp()]
    publisher.send(Publish("far/x", b"later", qos, packet_id=9), Pingreq())  # behind what is withheld of its topic
    assert publisher.packets() == [Pingresp()]
    publisher.connection.release()
    assert mesh.held == [publisher.connection] * 2  # still no room
    assert publisher.packets() == []
    mesh.room = 2
    publisher.connection.release()
    assert publisher.transport.reading
    fresh = [b"0", b"1", b"2"] if qos == 1 else [b"0", b"2"]
    assert [packet.payload for packet in subscriber.packets()] == [*fresh, b"later"]
    assert mesh.published == [(b"far/x", qos, fresh), (b"far/x", qos, [b"later"])]
    answers = publisher.packets()
    assert [type(answer) for answer in answers] == [Puback if qos == 1 else Pubrec] * 4
    assert all(answer.reason == 0 for answer in answers)


async def test_what_is_withheld_is_charged_with_its_properties_until_it_is_published_or_the_client_goes():
    broker, mesh = await in_mesh()
    publisher = Wire(broker, 5).connect("p")
    ledger = broker.context.ledger
    before, mesh.room = held(ledger), 0
    large = {Property.CORRELATION_DATA: bytes(60_000)}
    publisher.send(*[Publish("far/x", b"x", 1, packet_id=number, properties=large) for number in range(1, 11)])
    assert ledger.held[RECEIVED] >= 600_000
    assert ledger.held[RECEIVED] == publisher.connection.withheld.bytes
    publisher.connection.release()  # no room
    assert ledger.held[RECEIVED] == publisher.connection.withheld.bytes
    publisher.send(*[Publish("far/x", b"x", 1, packet_id=number, properties=large) for number in range(11, 31)])
    assert publisher.connection.withheld.bytes <= WITHHELD_BYTES
    assert not publisher.transport.reading
    assert ledger.held[RECEIVED] >= 30 * 60_000
    mesh.room = None
    publisher.connection.release()
    assert [answer.packet_id for answer in publisher.packets()] == list(range(1, 31))
    assert held(ledger) == before
    mesh.room = 0
    publisher.send(Publish("far/x", bytes(100_000), 1, packet_id=1))
    assert ledger.held[RECEIVED] >= 100_000
    publisher.connection.close()
    assert ledger.held[RECEIVED] == 0
    publisher.connection.connection_lost(None)
    assert held(ledger) == 0


@pytest.mark.parametrize("away", [False, True])
async def test_a_holder_with_all_that_it_may_have_unfinished_withholds_no_more(away):
    broker, mesh = await in_mesh()
    publisher = Wire(broker, 4).connect("p")
    mesh.room, mesh.away = 0, away
    other = broker.context.ledger.account("unix")
    other.charge(RECEIVED, broker.context.ledger.limit // 2 + 1)
    publisher.send(Publish("far/x", b"x", 1, packet_id=1))
    assert publisher.connection.withheld is None
    assert publisher.connection.closing is away
    assert not publisher.transport.reading or away


async def test_room_that_comes_while_a_publisher_waits_for_its_turn_is_not_forgotten():
    broker, mesh = await in_mesh()
    publisher = Wire(broker, 5).connect("p")
    mesh.room = 0
    publisher.send(Publish("far/x", b"1", 1, packet_id=1))
    publisher.connection.wait_for_turn()
    mesh.room = None
    publisher.connection.release()
    assert publisher.packets() == []
    assert not publisher.connection.turn()
    assert [answer.packet_id for answer in publisher.packets()] == [1]
    assert publisher.connection.withheld is None
    assert publisher.transport.reading


async def test_a_session_whose_stream_ended_before_its_turn_is_given_back_when_there_is_room():
    """The turn ends in a hold: the connection closes when it is let go, though its socket is gone."""
    broker, mesh = await in_mesh()
    publisher = Wire(broker, 5).connect("p")
    mesh.room, half = 0, bytes(600_000)
    publisher.send(Publish("far/x", half, 1, packet_id=1))
    publisher.connection.wait_for_turn()
    publisher.connection.data_received(encode(Publish("far/x", half, 1, packet_id=2), 5))  # more than may be withheld
    assert publisher.connection.eof_received()
    publisher.connection.connection_lost(None)
    assert not publisher.connection.turn()
    assert publisher.connection.held
    assert not publisher.connection.closing
    mesh.room = None
    publisher.connection.release()
    assert [payloads for _, _, payloads in mesh.published] == [[half], [half]]
    assert publisher.connection.closing
    assert len(broker.site.sessions) == 0
    assert held(broker.context.ledger) == 0


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_publisher_that_has_been_held_too_long_is_refused(qos, version):
    broker, mesh = await in_mesh()
    subscriber = Wire(broker, 5).connect("s", Subscription("#", 2))
    publisher = Wire(broker, version).connect("p")
    mesh.room = 0
    publisher.send(*[Publish("far/x", b"%d" % n, qos, packet_id=n + 1) for n in range(3)], Publish("near", b"behind", qos, packet_id=9))
    publisher.connection.release(refuse=True)
    answers = publisher.packets()
    reason = Reason.QUOTA_EXCEEDED if version == 5 else 0
    assert [(answer.packet_id, answer.reason) for answer in answers] == [(9, 0), (1, reason), (2, reason), (3, reason)]
    assert [packet.payload for packet in subscriber.packets()] == [b"behind"]
    assert broker.context.counters.dropped == 3
    assert publisher.transport.reading
    if qos == 2 and version == 4:  # the handshake goes on
        publisher.send(Pubrel(1))
        assert publisher.packets() == [Pubcomp(1)]


async def test_what_cannot_travel_is_refused_here_too():
    broker, mesh = await in_mesh()
    subscriber = Wire(broker, 5).connect("s", Subscription("#", 2))
    publisher = Wire(broker, 5).connect("p")
    mesh.answer = Reason.IMPLEMENTATION_SPECIFIC_ERROR
    publisher.send(*[Publish("far/x", b"%d" % n, 1, packet_id=n + 1) for n in range(2)])
    assert [answer.reason for answer in publisher.packets()] == [0x83, 0x83]
    assert subscriber.packets() == []


async def test_a_held_publisher_may_go():
    broker, mesh = await in_mesh()
    publisher = Wire(broker, 5).connect("p")
    mesh.room = 0
    publisher.send(Publish("far/x", b"", 1, packet_id=1))
    publisher.connection.connection_lost(None)
    mesh.room = None
    publisher.connection.release()
    assert mesh.published == []
    assert len(broker.site.sessions) == 0


async def test_a_will_that_finds_no_room_is_published_when_there_is_some():
    async with Site() as site:
        watcher = await site.client("watcher")
        await watcher.subscribe("far/#", qos=1)
        mesh = site.broker.site.mesh = FakeMesh()
        site.broker.site.router.mesh = mesh
        site.broker.site.router.filters_changed(None)
        mesh.room = 0
        await (await site.client("c", will=Will("far/will", b"gone", 1))).cut()
        await site.gone("c")
        await watcher.nothing()
        mesh.room = 1
        await site.later(1)
        await watcher.expect(Publish, payload=b"gone")
        assert mesh.published == [(b"far/will", 1, [b"gone"])]
        site.broker.site.mesh = site.broker.site.router.mesh = None


async def test_without_a_mesh_links_are_refused():
    broker = await started()
    wire = Wire(broker, 5)
    wire.send(Connect("link", properties={Property.AUTHENTICATION_METHOD: "mqmesh-1"}))
    (answer,) = wire.packets()
    assert isinstance(answer, Connack)
    assert (answer.reason, answer.properties[Property.REASON_STRING]) == (Reason.BAD_AUTHENTICATION_METHOD, "this broker is in no mesh")


async def test_what_waits_for_a_site_that_is_away_is_refused_or_withheld_up_to_a_bound():
    """MQTT 5 is told at once. MQTT 3.1.1 gets no PUBACK; it is read on, and closed when too much waits."""
    broker, mesh = await in_mesh()
    told, untold = Wire(broker, 5).connect("five"), Wire(broker, 4).connect("four")
    mesh.room, mesh.away = 0, True
    told.send(Publish("far/x", b"1", 1, packet_id=1))
    assert [(answer.packet_id, answer.reason) for answer in told.packets()] == [(1, Reason.QUOTA_EXCEEDED)]
    for number in range(1, 1001):
        untold.send(Publish("far/x", b"%d" % number, 1, packet_id=number))
    untold.send(Publish("near", b"", 1, packet_id=2000), Pingreq())
    assert [type(answer) for answer in untold.packets()] == [Puback, Pingresp]
    assert not untold.connection.closing
    mesh.room, mesh.away = 400, False
    untold.connection.release()
    assert [answer.packet_id for answer in untold.packets()] == list(range(1, 401))
    mesh.away = True
    for number in range(1001, 1401):
        untold.send(Publish("far/x", b"%d" % number, 1, packet_id=number))
    assert not untold.connection.closing
    untold.send(Publish("far/x", b"", 1, packet_id=1401))
    assert untold.connection.closing
    assert [payloads for _, _, payloads in mesh.published] == [[b"%d" % number] for number in range(1, 401)]
