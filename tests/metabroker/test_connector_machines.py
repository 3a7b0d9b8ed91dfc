"""The machines of connectors without a server: mappings that lose nothing, codecs beside others', and whatever bytes may come."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.metabroker.address import parse_address
from mqmesh.metabroker.connectors.amqp import codec as amqp_codec
from mqmesh.metabroker.connectors.amqp import machine as amqp
from mqmesh.metabroker.connectors.amqp import mapping as amqp_mapping
from mqmesh.metabroker.connectors.nats import codec as nats_codec
from mqmesh.metabroker.connectors.nats import jetstream
from mqmesh.metabroker.connectors.nats import machine as nats
from mqmesh.metabroker.connectors.nats import mapping as nats_mapping
from mqmesh.metabroker.events import Message, Published, Refused, Subscribed, Trouble, Up
from mqmesh.mqtt.errors import MqttError, PeerError
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.topics import check_filter, check_topic, matches
from pamqp import base, commands, frame, header

LEVEL = st.text(st.sampled_from("ab.*>$/+#% \tü"), max_size=4)
TOPICS = st.lists(LEVEL, min_size=1, max_size=4).map("/".join)
FILTERS = st.lists(LEVEL | st.sampled_from(["+", "#"]), min_size=1, max_size=4).map("/".join)
LONG = amqp_codec.LARGEST_FRAME


def is_topic(text: str) -> bool:
    try:
        check_topic(text.encode())
    except MqttError:
        return False
    return True


def is_filter(text: str) -> bool:
    try:
        check_filter(text)
    except MqttError:
        return False
    return True


@given(TOPICS.filter(is_topic))
def test_a_topic_comes_back_or_is_refused(topic: str) -> None:
    """No topic becomes another one, in either protocol."""
    try:
        assert amqp_mapping.topic_of(amqp_mapping.routing_key(topic)) == topic
    except amqp_mapping.Unmappable:
        assert "." in topic or "*" in topic
    try:
        assert nats_mapping.topic_of(nats_mapping.subject_of(topic).encode()) == topic
    except nats_mapping.Unmappable:
        assert any(mark in topic for mark in " \t*>$")


def amqp_matches(pattern: list[str], words: list[str]) -> bool:
    """A topic exchange's rule, as the specification states it."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(amqp_matches(pattern[1:], words[start:]) for start in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and amqp_matches(pattern[1:], words[1:])


@given(FILTERS.filter(is_filter), TOPICS.filter(is_topic))
def test_a_filter_means_the_same_there(filter_: str, topic: str) -> None:
    """What matches in MQTT matches there, and the other way, but for `$` in the first level, which the core leaves out."""
    expected = matches(filter_, topic)
    hidden = topic.startswith("$") and filter_[0] in "+#"
    try:
        key, bound = amqp_mapping.routing_key(topic).decode(), amqp_mapping.binding_key(filter_).decode()
        assert amqp_matches(bound.split("."), key.split(".")) == expected or hidden
    except amqp_mapping.Unmappable:
        pass
    try:
        subject, subjects = nats_mapping.subject_of(topic), nats_mapping.subjects_of(filter_)
        assert sum(jetstream.covers(one, subject) for one in subjects) == int(expected)
    except nats_mapping.Unmappable:
        pass


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        Property.PAYLOAD_FORMAT_INDICATOR: st.sampled_from([0, 1]),
        Property.MESSAGE_EXPIRY_INTERVAL: st.integers(0, 4_000_000),
        Property.CONTENT_TYPE: TEXT,
        Property.RESPONSE_TOPIC: st.sampled_from(["r", "r/s", "/r//"]),
        Property.CORRELATION_DATA: st.binary(max_size=300),
        Property.USER_PROPERTY: st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4),
    },
)


def in_order(properties: dict[int, Any]) -> dict[int, Any]:
    """With user properties in order of first appearance: a table has each name once."""
    pairs = properties.get(Property.USER_PROPERTY)
    if pairs is None:
        return properties
    names = list(dict.fromkeys(name for name, _ in pairs))
    return properties | {Property.USER_PROPERTY: [pair for name in names for pair in pairs if pair[0] == name]}


@given(PROPERTIES, st.binary(max_size=50), st.sampled_from([0, 1]))
def test_properties_come_back_or_are_refused(properties: dict[int, Any], payload: bytes, qos: int) -> None:
    publish = Publish("a/b", payload, qos, properties=properties)
    if amqp_mapping.check(publish, LONG) is None:
        encoded = amqp_codec.encode_properties(amqp_mapping.to_amqp(publish, "mqmesh-1"))
        back = amqp_mapping.from_amqp("a/b", payload, encoded, False)
        assert (back.qos, back.payload, back.properties) == (qos, payload, in_order(properties))
    if nats_mapping.check(publish, 0) is None:
        pairs = nats_mapping.to_nats(publish)
        response = properties.get(Property.RESPONSE_TOPIC)
        reply = nats_mapping.subject_of(response).encode() if response else b""
        status, read = nats_codec.read_headers(nats_codec.headers(pairs))
        assert nats_mapping.from_nats("a/b", payload, status, read, reply).properties == properties


@pytest.mark.parametrize("text", ["v\r\nNats-Rollup: all", "\n", "\x7f", " v", "v\t"])
def test_a_header_of_nats_stays_one(text: str) -> None:
    """The metabroker refuses control characters before; the mapping does as well."""
    for properties in ({Property.USER_PROPERTY: [("k", text)]}, {Property.CONTENT_TYPE: text}, {Property.USER_PROPERTY: [(text, "v")]}):
        assert nats_mapping.check(Publish("t", b"", 1, properties=properties), 0) is not None
    assert nats_mapping.check(Publish(f"t/{text}", b"", 1), 0) is not None


def marshalled(one: Any, channel: int = 1) -> bytes:
    return frame.marshal(one, channel)


def test_frames_are_those_of_another_library() -> None:
    """pamqp reads what we write, and we read what it writes."""
    ours = amqp_codec.method(3, amqp_codec.PUBLISH, 0, "amq.topic", "a.b", 1)
    _, channel, read = frame.unmarshal(ours)
    assert (channel, read.exchange, read.routing_key, read.mandatory) == (3, "amq.topic", "a.b", True)
    values = {"user": b"1", "x": [b"a", b"b"], "n": 7}
    table = [(name.encode(), value) for name, value in values.items()]
    body = bytes(LONG * 2)
    data = amqp_codec.content(3, {"headers": table, "delivery_mode": 2, "message_id": "m", "expiration": "5"}, body, LONG)
    pieces = []
    while data:
        used, _, one = frame.unmarshal(data)
        pieces.append(one)
        data = data[used:]
    assert isinstance(pieces[0], header.ContentHeader)
    assert pieces[0].properties.headers == {"user": "1", "x": ["a", "b"], "n": 7}
    assert (pieces[0].properties.message_id, pieces[0].body_size) == ("m", len(body))
    assert b"".join(one.value for one in pieces[1:]) == body

    theirs = commands.Basic.Properties(headers={"t": True, "f": 1.5, "d": {"deep": 1}, "l": [1, "x"], "none": None}, content_type="c")
    encoded = header.ContentHeader(0, 3, theirs).marshal()
    size, rest = amqp_codec.read_header(encoded)
    found = amqp_codec.properties(rest)
    assert (size, found["content_type"]) == (3, b"c")
    assert dict(found["headers"]) == {b"t": True, b"f": 1.5, b"d": None, b"l": [1, b"x"], b"none": None}  # type: ignore[arg-type]


class AmqpServer:
    """What RabbitMQ would say, made by pamqp."""

    def __init__(self) -> None:
        self.machine = amqp.Machine(amqp.Login("metabroker-1"))
        self.machine.begin(0.0)

    def say(self, *frames: tuple[int, Any]) -> list[Any]:
        return self.machine.receive(b"".join(marshalled(one, channel) for channel, one in frames), 0.0)

    def heard(self) -> list[tuple[int, base.Frame]]:
        data, found = self.machine.take(), []
        while data:
            used, channel, one = frame.unmarshal(data)
            found.append((channel, one))
            data = data[used:]
        return found

    def up(self) -> list[Any]:
        mechanisms = commands.Connection.Start(server_properties={}, mechanisms="AMQPLAIN PLAIN", locales="en_US")
        self.say((0, mechanisms), (0, commands.Connection.Tune(0, 4096, 0)), (0, commands.Connection.OpenOk()))
        opened = [(channel, commands.Channel.OpenOk()) for channel in (1, 3, 4)]
        events = self.say(*opened, (1, commands.Exchange.DeclareOk()), (3, commands.Confirm.SelectOk()))
        self.heard()
        return events


def test_a_message_that_the_server_hates_is_found() -> None:
    """The channel is closed without a word about which message it was: they are sent again one at a time."""
    server = AmqpServer()
    assert isinstance(server.up()[-1], Up)
    for number in range(4):
        server.machine.publish(Publish(f"t/{number}", b"x", 1), number + 1, 0.0)
    assert len([one for _, one in server.heard() if isinstance(one, commands.Basic.Publish)]) == 4
    refusal = (3, commands.Channel.Close(403, "ACCESS_REFUSED", 60, 40))
    ready = ((3, commands.Channel.OpenOk()), (3, commands.Confirm.SelectOk()))
    assert [type(event) for event in server.say((3, commands.Basic.Ack(1)), refusal)] == [Published, Trouble]
    server.say(*ready)
    keys = []
    for answers in ([(3, commands.Basic.Ack(1))], [refusal, *ready], [(3, commands.Basic.Ack(1))]):
        [key] = [one.routing_key for _, one in server.heard() if isinstance(one, commands.Basic.Publish)]
        keys.append((key, [event for event in server.say(*answers) if isinstance(event, Published)]))
    assert keys == [("t.1", [Published(2, 0)]), ("t.2", [Published(3, 0x87)]), ("t.3", [Published(4, 0)])]
    assert server.machine.bytes == 0


def test_what_is_not_confirmed_is_sent_again() -> None:
    server = AmqpServer()
    server.up()
    for number in range(3):
        server.machine.publish(Publish("t", str(number).encode(), 1), number + 1, 0.0)
    server.say((3, commands.Basic.Ack(1)))
    first = [one.properties.message_id for _, one in server.heard() if isinstance(one, header.ContentHeader)]
    server.machine.lost()
    server.machine.begin(1.0)
    mechanisms = commands.Connection.Start(server_properties={}, mechanisms="PLAIN", locales="en_US")
    server.say((0, mechanisms), (0, commands.Connection.Tune(0, 4096, 0)), (0, commands.Connection.OpenOk()))
    server.say((1, commands.Exchange.DeclareOk()), (3, commands.Confirm.SelectOk()), (4, commands.Channel.OpenOk()))
    again = [one.properties.message_id for _, one in server.heard() if isinstance(one, header.ContentHeader)]
    assert again == first[1:]
    assert server.say((3, commands.Basic.Ack(2, multiple=True))) == [Published(2, 0), Published(3, 0)]


def test_a_poisoned_message_ends_nothing() -> None:
    """Properties that cannot be read: the message comes without them."""
    server = AmqpServer()
    server.up()
    server.machine.subscribe("#", 1, 0, 9, 0.0)
    queue = [(2, commands.Channel.OpenOk()), (2, commands.Queue.DeclareOk("q", 0, 0)), (2, commands.Basic.QosOk())]
    assert server.say(*queue, (2, commands.Basic.ConsumeOk("c")), (1, commands.Queue.BindOk())) == [Subscribed(9, 1)]
    deliver = marshalled(commands.Basic.Deliver("c", 5, False, "amq.topic", "a.b"), 2)
    for properties in (b"", b"\x20\x00\xff\xff\xff\xff", b"\xff\xff", b"\x20\x00\x00\x00\x00\x03\x01a?"):
        head = amqp_codec.frame(amqp_codec.HEADER, 2, struct.pack(">HHQ", 60, 0, 1) + properties.ljust(2, b"\0"))
        [message] = server.machine.receive(deliver + head + amqp_codec.frame(amqp_codec.BODY, 2, b"x"), 0.0)
        assert isinstance(message, Message)
        assert (message.publish.topic, message.publish.payload, message.publish.packet_id) == ("a/b", b"x", 5)
        assert message.publish.properties == {}


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_amqp_takes_any_bytes(chunks: list[bytes]) -> None:
    server = AmqpServer()
    server.up()
    try:
        for chunk in chunks:
            server.machine.receive(amqp_codec.frame(1 + len(chunk) % 3, len(chunk) % 5, chunk), 0.0)
            server.machine.receive(chunk, 0.0)
    except PeerError:
        pass


INFO = b'INFO {"headers":true,"max_payload":1000,"jetstream":true}\r\n'


def nats_up() -> nats.Machine:
    machine = nats.Machine(nats.Login("metabroker-1"), "x")
    machine.begin(0.0)
    machine.receive(INFO + b"PONG\r\n", 0.0)
    machine.take()
    streams = b'{"total":1,"offset":0,"streams":[{"config":{"name":"S","subjects":["s.>"]}}]}'
    events = machine.receive(b"MSG _INBOX.metabroker-1-x.r1 1 %d\r\n%s\r\n" % (len(streams), streams), 0.0)
    assert isinstance(events[0], Up)
    machine.take()
    return machine


def test_a_stream_is_asked_again() -> None:
    """No acknowledgement, or nobody there to give one: the same message goes again, under the same identifier."""
    machine = nats_up()
    machine.publish(Publish("s/1", b"x", 1), 7, 0.0)
    sent = machine.take()
    assert b"Nats-Msg-Id: mqmesh-metabroker-1-x-1\r\n" in sent
    nobody = b"HMSG _INBOX.metabroker-1-x.p1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    assert machine.receive(nobody, 0.0) == []
    assert b"STREAM.LIST" in machine.take()
    empty = b'{"total":0,"offset":0,"streams":[]}'
    machine.receive(b"MSG _INBOX.metabroker-1-x.r2 1 %d\r\n%s\r\n" % (len(empty), empty), 0.0)
    assert machine.take() == b"PUB s.1 1\r\nx\r\nPING\r\n"
    assert machine.receive(b"PONG\r\n", 0.0) == [Published(7, 0)]
    assert machine.bytes == 0


def test_nats_is_read_byte_by_byte() -> None:
    machine = nats_up()
    machine.subscribe("a/+", 0, 3, 9, 0.0)
    assert machine.take() == b"SUB a.* 2\r\nPING\r\n"
    events = []
    for byte in b"PONG\r\nHMSG a.b 2 r.1 18 20\r\nNATS/1.0\r\nk: v\r\n\r\nhi\r\nMSG a.c 2 0\r\n\r\n":
        events += machine.receive(bytes((byte,)), 0.0)
    assert events[0] == Subscribed(9, 0)
    first, second = (event.publish for event in events[1:])
    assert (first.topic, second.topic, second.payload) == ("a/b", "a/c", b"")
    assert first.properties[Property.USER_PROPERTY] == [("k", "v")]
    assert first.properties[Property.SUBSCRIPTION_IDENTIFIER] == [3]


@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([b"MSG a 2 3\r\n", b"HMSG a 2 5 9\r\n", b"-ERR 'x'\r\n", b"INFO []\r\n"]), max_size=6)
)
def test_nats_takes_any_bytes(chunks: list[bytes]) -> None:
    machine = nats_up()
    try:
        for chunk in chunks:
            machine.receive(chunk, 0.0)
    except PeerError:
        pass


@pytest.mark.parametrize(
    ("text", "credentials"),
    [("Authorization Violation", True), ("Maximum Connections Exceeded", False), ("User Authentication Revoked", True)],
)
def test_why_nats_refuses(text: str, credentials: bool) -> None:
    machine = nats.Machine(nats.Login("n"), "x")
    machine.begin(0.0)
    [refused] = machine.receive(INFO + f"-ERR '{text}'\r\n".encode(), 0.0)
    assert refused == Refused(credentials, text)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("amqp://h", "amqp://h:5672"),
        ("amqp://h/", "amqp://h:5672"),
        ("amqp://h/%2F", "amqp://h:5672"),
        ("amqps://h:1/a%2Fb", "amqps://h:1/a%2Fb"),
        ("nats://[::1]", "nats://[::1]:4222"),
        ("tls://h/", "tls://h:4222"),
    ],
)
def test_addresses(text: str, right: str) -> None:
    address = parse_address(text)
    assert str(address) == right
    assert parse_address(right) == address
