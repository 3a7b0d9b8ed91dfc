"""The first packet, and what client and broker grant each other in it."""

from __future__ import annotations

from unittest import mock

import pytest
from mqmesh.broker.auth.service import Outcome
from mqmesh.broker.client.connection import Connection
from mqmesh.broker.config import Limits
from mqmesh.broker.ledger import LOGINS
from mqmesh.broker.roaming.arrival import Arrival
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Site
from support.models.broker_wire import Wire, started


@pytest.mark.parametrize(
    "first",
    [
        encode(Pingreq(), 4),
        encode(Publish("t", b"x"), 4),
        encode(Publish("t", b"x", 1, packet_id=1), 5),
        encode(Subscribe(1, [Subscription("#")]), 4),
        encode(Puback(1), 4),
        encode(Connack(), 4),
        b"GET / HTTP/1.1\r\n",
        b"\x11\x00",
        b"\x00\x00",
    ],
)
async def test_the_first_packet_has_to_be_connect(first):
    async with Site() as site:
        client = await site.dial()
        client.send(first)
        await client.closed()
        assert bytes(client.raw) == b""
        assert len(site.broker.site.sessions) == 0


@pytest.mark.parametrize("version", [4, 5])
async def test_packets_may_follow_connect_at_once(version):
    async with Site() as site:
        client = await site.dial(version)
        client.send(Connect("c", version), Subscribe(1, [Subscription("t", 1)]), Publish("t", b"x", 1, packet_id=1), Pingreq())
        await client.expect(Connack)
        await client.expect(Suback)
        await client.expect(Publish)
        await client.expect(Puback)
        await client.expect(Pingresp)


@pytest.mark.parametrize("version", [4, 5])
async def test_a_second_connect_is_an_error(version):
    async with Site() as site:
        client = await site.client("c", version)
        client.send(Connect("c", version))
        await client.closed(Reason.PROTOCOL_ERROR if version == 5 else None)
        client = await site.client("c", version)
        client.send(b"\x10\x0c\x00\x04MQTT\x07\x02\x00\x00\x00\x00")
        await client.closed(Reason.PROTOCOL_ERROR if version == 5 else None)


@pytest.mark.parametrize(
    ("name", "level", "answer"),
    [
        (b"MQTT", 0, b"\x20\x02\x00\x01"),
        (b"MQTT", 3, b"\x20\x02\x00\x01"),
        (b"MQIsdp", 4, b"\x20\x02\x00\x01"),
        (b"MQTT", 6, b"\x84"),
        (b"MQTT", 133, b"\x84"),
        (b"HTTP", 4, b""),
        (b"MQTTX", 5, b""),
    ],
)
async def test_unknown_protocols(name, level, answer):
    async with Site() as site:
        client = await site.dial()
        body = len(name).to_bytes(2, "big") + name + bytes((level, 2, 0, 0)) + b"\x00\x01c"
        client.version = 4 if answer.startswith(b"\x20") else 5
        client.send(bytes((0x10, len(body))) + body)
        if answer == b"\x84":
            await client.expect(Connack, reason=Reason.UNSUPPORTED_PROTOCOL_VERSION)
        elif answer:
            await client.expect(Connack, reason=1)
        await client.closed()
        assert bytes(client.raw).startswith(answer[:1] if answer != b"\x84" else b"\x20")


async def test_mqtt_3_1():
    async with Site() as site:
        client = await site.dial(4)
        client.send(Connect("old", 4, mqisdp=True))
        await client.expect(Connack, reason=0)
        await client.subscribe("t", qos=1)
        await client.publish("u", b"x")
        refused = await site.dial(4)
        refused.send(Connect("", 4, mqisdp=True))
        await refused.expect(Connack, reason=2)
        await refused.closed()


async def test_a_malformed_connect_is_answered_where_there_is_an_answer():
    async with Site() as site:
        for version, reason in ((5, Reason.MALFORMED_PACKET), (4, None)):
            client = await site.dial(version)
            client.send(bytes((0x10, 12)) + b"\x00\x04MQTT" + bytes((version, 0x03, 0, 0, 0, 0)))  # the reserved flag is set
            if reason:
                await client.expect(Connack, reason=reason)
            await client.closed()


async def test_strangers_cannot_make_the_broker_remember_much():
    async with Site() as site:
        client = await site.dial()
        client.send(b"\x10\xff\xff\xff\x7f")
        await client.closed()
        client = await site.dial()
        client.send(b"\x10\xf0\xff\x1f" + bytes(400_000))  # nearly 524,288 bytes may be a CONNECT
        await site.until(lambda: sum(connection.unread for connection in site.broker.site.connections) >= 400_000)
        client.send(bytes(600_000))
        await client.closed()


async def test_silence_instead_of_connect():
    async with Site(connect_timeout=10) as site:
        silent, slow = await site.dial(), await site.dial()
        slow.send(b"\x10")
        quick = await site.client("quick")
        await site.later(9)
        assert not silent.lost
        await site.later(2)
        await silent.closed()
        await slow.closed()
        await quick.nothing()


@pytest.mark.parametrize("version", [4, 5])
async def test_silence_longer_than_the_keep_alive(version):
    async with Site() as site:
        will = Will("will", b"gone")
        client = await site.client("c", version, keep_alive=10, will=will)
        patient = await site.client("patient", version, keep_alive=0)
        await patient.subscribe("will")
        for _ in range(3):
            await site.later(14)
            await client.nothing()
        await site.later(16)
        await client.closed(Reason.KEEP_ALIVE_TIMEOUT if version == 5 else None)
        await patient.expect(Publish, payload=b"gone")


async def test_the_server_limits_the_keep_alive():
    async with Site(keep_alive_maximum=30) as site:
        for asked, said in ((0, 30), (31, 30), (30, None), (7, None)):
            client = await site.client(f"c{asked}", keep_alive=asked)
            assert client.connack.properties.get(Property.SERVER_KEEP_ALIVE) == said
        old = await site.client("old", 4)
        await site.later(46)
        await client.closed(Reason.KEEP_ALIVE_TIMEOUT)
        await old.nothing()  # MQTT 3.1.1 cannot be told, so what it asked for holds


async def test_grants():
    async with Site() as site:
        assert (await site.client("c")).connack.properties == {Property.TOPIC_ALIAS_MAXIMUM: 64, Property.MAXIMUM_PACKET_SIZE: 2**20}
        assert (await site.client("d", 4)).connack.properties == {}
    async with Site(receive_maximum=10, max_packet_size=1000, topic_alias_maximum=0) as site:
        granted = (await site.client("c")).connack.properties
        assert granted == {Property.RECEIVE_MAXIMUM: 10, Property.MAXIMUM_PACKET_SIZE: 1000}


async def test_a_mebibyte_is_taken_by_default_and_up_to_the_largest_packet_of_mqtt_where_it_is_set():
    """A server that names no Maximum Packet Size has no other limit than the protocol's (MQTT 5: 3.2.2.3.6)."""
    for length, refused in ((b"\xfc\xff\x3f", False), (b"\xfd\xff\x3f", True)):  # 1,048,576 bytes with its fixed header, and one more
        for version in (4, 5):
            client = Wire(await started(), version).connect("c")
            client.give(b"\x30" + length + b"\0\1t\0")
            assert client.transport.closed == refused
    claim = b"\x30\xff\xff\xff\x7f\0\1t\0"  # a PUBLISH of 268,435,455 bytes behind its fixed header begins
    for most, refused in ((268_435_460, False), (268_435_459, True)):
        client = Wire(await started(max_packet_size=most), 5).connect("c")
        client.give(claim)
        assert client.transport.closed == refused
    assert Limits().max_packet_size == 2**20
    async with Site(max_packet_size=268_435_460) as site:
        assert Property.MAXIMUM_PACKET_SIZE not in (await site.client("c")).connack.properties
    async with Site(max_packet_size=268_435_459) as site:
        assert (await site.client("c")).connack.properties[Property.MAXIMUM_PACKET_SIZE] == 268_435_459


async def test_request_and_response_information():
    async with Site() as site:
        assert Property.RESPONSE_INFORMATION not in (await site.client("c")).connack.properties
        client = await site.client("c", request_response_information=1)
        assert client.connack.properties[Property.RESPONSE_INFORMATION] == "response/c"


async def test_authentication_methods_are_not_offered():
    async with Site() as site:
        for method in ("SCRAM-SHA-256", "mqmesh-1"):
            client = await site.dial()
            client.send(Connect("c", properties={Property.AUTHENTICATION_METHOD: method}))
            refused = await client.expect(Connack, reason=Reason.BAD_AUTHENTICATION_METHOD)
            assert Property.REASON_STRING in refused.properties
            await client.closed()
        client = await site.client("c")
        client.send(Auth(Reason.REAUTHENTICATE, {Property.AUTHENTICATION_METHOD: "x"}))
        await client.closed(Reason.PROTOCOL_ERROR)


@pytest.mark.parametrize("packet", [Connack(), Suback(1, [0]), Pingresp()])
async def test_packets_that_only_a_server_sends(packet):
    async with Site() as site:
        client = await site.client("c")
        client.send(packet)
        await client.closed(Reason.PROTOCOL_ERROR)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x36\x05\x00\x01t\x00\x01", Reason.MALFORMED_PACKET),  # QoS 3
        (b"\x38\x04\x00\x01t\x00", Reason.MALFORMED_PACKET),  # DUP at QoS 0
        (b"\x30\x04\x00\x09t\x00", Reason.MALFORMED_PACKET),  # the topic is longer than the packet
        (b"\x30\x01\x00", Reason.MALFORMED_PACKET),
        (b"\x30\x00", Reason.MALFORMED_PACKET),
        (b"\x30\x03\x00\x01t", Reason.MALFORMED_PACKET),  # no Property Length
        (b"\x30\x03\x00\x00\x00", Reason.PROTOCOL_ERROR),  # no topic
        (b"\x30\x04\x00\x01+\x00", Reason.MALFORMED_PACKET),
        (b"\x30\x05\x00\x02a\x00\x00", Reason.MALFORMED_PACKET),  # U+0000
        (b"\x30\x05\x00\x02\xff\xfe\x00", Reason.MALFORMED_PACKET),
        (b"\x32\x06\x00\x01t\x00\x00\x00", Reason.MALFORMED_PACKET),  # identifier 0
        (b"\x32\x04\x00\x01t\x00", Reason.MALFORMED_PACKET),  # half an identifier
        (b"\x30\x06\x00\x01t\x02\x0b\x07", Reason.PROTOCOL_ERROR),  # a subscription identifier
        (b"\x30\x07\x00\x01t\x03\x23\x00\x00", Reason.TOPIC_ALIAS_INVALID),
        (b"\x30\x06\x00\x01t\x02\x01\x02", Reason.PROTOCOL_ERROR),  # Payload Format Indicator 2
        (b"\x30\x05\x00\x01t\x05\x01", Reason.MALFORMED_PACKET),  # properties longer than the packet
        (b"\x30\x80\x00", Reason.MALFORMED_PACKET),
        (b"\x30\xff\xff\xff\xff\x01", Reason.MALFORMED_PACKET),
        (b"\x40\x02\x00\x00", Reason.MALFORMED_PACKET),
        (b"\x41\x02\x00\x01", Reason.MALFORMED_PACKET),
        (b"\x60\x02\x00\x01", Reason.MALFORMED_PACKET),
        (b"\x40\x01\x00", Reason.MALFORMED_PACKET),
        (b"\x80\x07\x00\x01\x00\x00\x01t\x00", Reason.MALFORMED_PACKET),
        (b"\x82\x03\x00\x01\x00", Reason.PROTOCOL_ERROR),
        (b"\x82\x07\x00\x01\x00\x00\x01t\x03", Reason.PROTOCOL_ERROR),
        (b"\x82\x08\x00\x01\x00\x00\x02a#\x00", Reason.MALFORMED_PACKET),
        (b"\xc1\x00", Reason.MALFORMED_PACKET),
        (b"\xc0\x01\x00", Reason.MALFORMED_PACKET),
        (b"\x00\x00", Reason.MALFORMED_PACKET),
    ],
)
async def test_malformed_packets(data, reason):
    async with Site() as site:
        other = await site.client("other")
        await other.subscribe("fine")
        client = await site.client("c")
        client.send(Publish("fine", b"before"), data, Publish("fine", b"after"))
        await client.closed(reason)
        await other.expect(Publish, payload=b"before")
        await other.nothing()
        assert site.broker.context.counters.errors == 1


async def test_a_stranger_gets_memory_for_half_a_mebibyte_at_most():
    """A first packet that says that it is huge is refused at its header, and one within the bound is not given memory before it comes."""
    for version in (4, 5):
        broker = await started()
        for length in (b"\xff\xff\xff\x7f", b"\x80\x80\x20"):  # 256 MiB, 512 KiB and its header
            huge = Wire(broker, version)
            huge.give(b"\x10" + length + b"\0\4MQTT")
            assert huge.transport.closed
            assert huge.take() == b""
        large = Wire(broker, version)
        large.give(b"\x10\xf0\xff\x1f\0\4MQTT")
        assert not large.transport.closed
        assert large.connection.unread < 100
        for client in (huge, large):
            client.connection.connection_lost(None)
        assert not broker.site.sessions


async def test_maximum_packet_size_of_the_broker():
    async with Site(max_packet_size=200) as site:
        client = await site.client("c")
        size = len(encode(Publish("t", b""), 5))
        await client.publish("t", bytes(200 - size - 1))
        client.send(Publish("t", bytes(200 - size)))
        await client.closed(Reason.PACKET_TOO_LARGE)
        old = await site.client("c", 4)
        old.send(b"\x30\xff\xff\xff\x7f")
        await old.closed()


@pytest.mark.parametrize("granted", [0, 1, 2])
async def test_maximum_packet_size_of_the_client(granted):
    async with Site() as site:
        size = len(encode(Publish("t", bytes(50), granted, packet_id=min(granted, 1)), 5))
        client = await site.client("c", maximum_packet_size=size, receive_maximum=1)
        await client.subscribe("t", qos=granted)
        publisher = await site.client("p")
        for payload in (bytes(51), bytes(50), bytes(51), bytes(10)):
            await publisher.publish("t", payload, 2)
        assert [len(message.payload) for message in await client.messages(2)] == [50, 10]
        await client.nothing()
        assert site.broker.context.counters.dropped == 2
        assert site.broker.site.sessions.get("c").outbound.in_flight == 0


async def test_reason_strings_make_way_for_the_maximum_packet_size():
    async with Site() as site:
        roomy, tight = [await site.client(name, maximum_packet_size=size) for name, size in (("a", 500), ("b", 10))]
        for client in (roomy, tight):
            client.send(b"\x00\x00")
        assert Property.REASON_STRING in (await roomy.receive()).properties
        assert (await tight.receive()).properties == {}


async def test_a_maximum_packet_size_that_lets_no_connack_through():
    async with Site() as site:
        client = await site.dial()
        client.send(Connect("c", properties={Property.MAXIMUM_PACKET_SIZE: 2}))
        await client.closed()
        assert site.broker.site.sessions.get("c") is None


async def test_request_problem_information():
    async with Site() as site:
        for wanted in (0, 1):
            client = await site.client(f"c{wanted}", request_problem_information=wanted)
            client.send(Publish("$SYS/x", b"", 1, packet_id=1), Publish("$SYS/x", b"", 2, packet_id=2))
            for kind, packet_id in ((Puback, 1), (Pubrec, 2)):
                answer = await client.expect(kind, packet_id=packet_id, reason=Reason.NOT_AUTHORIZED)
                assert (Property.REASON_STRING in answer.properties) == bool(wanted)


@pytest.mark.parametrize("qos", [1, 2])
async def test_receive_maximum_of_the_broker(qos):
    async with Site(receive_maximum=3) as site:
        client = await site.client("c")
        for _ in range(3):
            client.send(*[Publish("t", b"", qos, packet_id=n + 1) for n in range(3)])
            for n in range(3):
                await client.expect(Puback if qos == 1 else Pubrec, packet_id=n + 1)
            if qos == 2:
                client.send(*[Pubrel(n + 1) for n in range(3)])
                for _n in range(3):
                    await client.receive()
        client.send(*[Publish("t", b"%d" % (n // 2), qos, packet_id=n + 1) for n in range(4)])
        while isinstance(packet := await client.receive(), (Puback, Pubrec)):
            pass
        assert packet == Disconnect(Reason.RECEIVE_MAXIMUM_EXCEEDED, packet.properties)
        await client.closed()
        old = await site.client("old", 4)  # MQTT 3.1.1 knows no such limit
        old.send(*[Publish("t", b"", qos, packet_id=n + 1) for n in range(10)])
        for n in range(10):
            await old.expect(Puback if qos == 1 else Pubrec, packet_id=n + 1)


async def test_receive_maximum_counts_unreleased_messages_over_time():
    async with Site(receive_maximum=2) as site:
        client = await site.client("c")
        for n in (1, 2):
            client.send(Publish("t", b"", 2, packet_id=n))
            await client.expect(Pubrec)
        client.send(Publish("t", b"", 1, packet_id=3))
        await client.closed(Reason.RECEIVE_MAXIMUM_EXCEEDED)


async def test_the_will_is_checked():
    async with Site() as site:
        client = await site.dial()
        client.send(Connect("c", will=Will("t", b"\xff", properties={Property.PAYLOAD_FORMAT_INDICATOR: 1})))
        await client.expect(Connack, reason=Reason.PAYLOAD_FORMAT_INVALID)
        await client.closed()


@pytest.mark.any_loop
async def test_a_unix_socket(tmp_path):
    async with Site(f"unix://{tmp_path}/broker.sock") as site:
        client = await site.client("c")
        await client.subscribe("t")
        await client.publish("u", b"x")
    assert not (tmp_path / "broker.sock").exists()


@pytest.mark.any_loop
async def test_stopping_says_goodbye():
    site = Site()
    async with site:
        new, old = await site.client("new", will=Will("w", b"")), await site.client("old", 4)
        watcher = await site.client("watcher")
        await watcher.subscribe("w")
    await new.closed(Reason.SERVER_SHUTTING_DOWN)
    await watcher.closed(Reason.SERVER_SHUTTING_DOWN)
    await old.closed()
    assert not site.broker.site.connections


async def test_a_connect_is_charged_as_long_as_it_waits_for_whatever_reason():
    """For its password, for the mesh, in the line of those that look for their sessions, then for its own, which is elsewhere."""
    broker = await started()
    wire, site, ledger = Wire(broker, 5), broker.site, broker.context.ledger
    answers = []
    packet = Connect("c" * 100, properties={Property.USER_PROPERTY: [("a", "b" * 5000)]})
    with mock.patch.object(site.guard, "ask", side_effect=lambda connection, connect, go: answers.append(go)):
        wire.send(packet)
    size = ledger.held[LOGINS]
    assert size > 5000

    def park(connection: Connection, *_: object) -> Arrival:
        connection.held = True
        return Arrival.WAITS

    site.mesh = mock.Mock(starting=True, fenced="", keep_waiting=park)
    answers[0](Outcome())
    assert ledger.held[LOGINS] == size
    site.roaming = mock.Mock(arrive=mock.Mock(side_effect=park), stand=mock.Mock(side_effect=park), crowded=True)
    wire.connection.admit(packet)
    assert ledger.held[LOGINS] == size
    site.roaming.stand.call_args.args[1]()
    assert ledger.held[LOGINS] == size
    go = site.roaming.arrive.call_args.args[3]
    site.mesh = site.roaming = None
    go()
    assert wire.connection.session is not None
    assert ledger.held[LOGINS] == 0


@pytest.mark.parametrize("mqisdp", [False, True])
async def test_a_bridge_gets_nothing_back_and_retained_messages_as_published(mqisdp):
    async with Site() as site:
        bridge, other = await site.dial(), await site.client("other")
        bridge.version = 4
        bridge.send(Connect("b", 4, mqisdp=mqisdp, bridge=True))
        await bridge.expect(Connack, reason=0)
        await bridge.subscribe("a/#", qos=1)
        await bridge.publish("a/1", b"own", 0)
        await other.publish("a/2", b"kept", 1, retain=True)
        await bridge.expect(Publish, topic="a/2", retain=True)
