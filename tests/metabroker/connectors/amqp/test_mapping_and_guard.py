"""The AMQP connector without a server: mappings that lose nothing, and the guard before the library, whatever bytes may come."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.settings import ConfigError
from mqmesh.metabroker.connectors.amqp import guard as guards
from mqmesh.metabroker.connectors.amqp import mapping
from mqmesh.metabroker.connectors.amqp.connector import Login, url_of
from mqmesh.metabroker.connectors.amqp.guard import LARGEST_FRAME, LARGEST_INCOMING, Guard, values_in
from mqmesh.metabroker.policy import parse
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.topics import matches
from pamqp import body, commands, encode, frame, header, heartbeat
from support.connector_values import FILTERS, PROPERTIES, TOPICS, is_filter, is_topic
from yarl import URL


@given(TOPICS.filter(is_topic))
def test_a_topic_comes_back_or_is_refused(topic: str) -> None:
    """No topic becomes another one."""
    try:
        assert mapping.topic_of(mapping.routing_key(topic)) == topic
    except mapping.Unmappable:
        assert "." in topic or "*" in topic


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
    hidden = topic.startswith("$") and filter_[0] in "+#"
    try:
        key, bound = mapping.routing_key(topic), mapping.binding_key(filter_)
        assert amqp_matches(bound.split("."), key.split(".")) == matches(filter_, topic) or hidden
    except mapping.Unmappable:
        pass


def in_order(properties: dict[int, Any]) -> dict[int, Any]:
    """With user properties by name: a table has each name once, and the library sorts them. Named ones come last."""
    pairs = properties.get(Property.USER_PROPERTY)
    if pairs is None:
        return properties
    names = sorted({name for name, _ in pairs})
    return properties | {Property.USER_PROPERTY: [pair for name in names for pair in pairs if pair[0] == name]}


@given(PROPERTIES, st.binary(max_size=50), st.sampled_from([0, 1]))
def test_properties_come_back_or_are_refused(properties: dict[int, Any], payload: bytes, qos: int) -> None:
    publish = Publish("a/b", payload, qos, properties=properties)
    if mapping.check(publish, LARGEST_FRAME) is None:
        encoded = header.ContentHeader(0, len(payload), mapping.to_amqp(publish, "mqmesh-1")).marshal()
        read = header.ContentHeader()
        read.unmarshal(encoded)
        back = mapping.from_amqp("a/b", payload, read.properties, False)
        assert (back.qos, back.payload, back.properties) == (qos, payload, in_order(properties))


def test_values_of_every_type() -> None:
    """What other programs put into headers: texts, numbers, truth values and times come, the rest is left out."""
    headers = {
        "text": "ü",
        "yes": True,
        "byte": -7,
        "long": 1 << 40,
        "float": 0.5,
        "decimal": Decimal("1.25"),
        "time": datetime(2020, 1, 1, tzinfo=UTC),
        "list": ["a", 1, ["nested"], {"t": 1}, None],
        "table": {"deep": 1},
        "binary": bytearray(b"\xff"),
        "nothing": None,
        "x-mqtt-publish-qos": 2,
    }
    sent = commands.Basic.Properties(headers=headers, timestamp=datetime.now(UTC), expiration="later", delivery_mode=2, priority=3)
    read = header.ContentHeader()
    read.unmarshal(header.ContentHeader(0, 0, sent).marshal())
    publish = mapping.from_amqp("t", b"", read.properties, True)
    assert (publish.qos, publish.dup) == (1, True)
    assert sorted(publish.properties[Property.USER_PROPERTY]) == [
        ("byte", "-7"),
        ("decimal", "1.25"),
        ("float", "0.5"),
        ("list", "1"),
        ("list", "a"),
        ("long", str(1 << 40)),
        ("text", "ü"),
        ("time", "1577836800"),
        ("yes", "true"),
    ]
    assert len(publish.properties) == 1


@pytest.mark.parametrize("vhost", ["/", "a", "a/b", "a%b", "ü x", "a?b#c", "%", "a//b", "+"])
def test_names_reach_the_library_as_they_are(vhost: str) -> None:
    login = Login("n", "u@:/%2F", "p%40 ü+".encode(), vhost)
    url = URL(url_of(login))
    assert (url.user, url.password, url.path[1:]) == (login.username, "p%40 ü+", vhost)


@pytest.mark.parametrize(
    "login",
    [
        Login("n", vhost="a%2Fb"),  # the library would go to a/b
        Login("n", vhost=".."),
        Login("n", vhost="a/../b"),
        Login("n", vhost="v" * 128),
        Login("n", "user"),  # it would say that the password is `guest`
        Login("n", "user", b""),
        Login("n", "", b"x"),
        Login("n", "user", b"\xff"),
    ],
)
def test_what_the_library_would_change_is_refused(login: Login) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        url_of(login)


@pytest.mark.parametrize("exchange", ["", "a*b", "x" * 128, 7, "ü", "a\n"])
def test_an_exchange_has_a_name_that_the_library_takes(exchange: object) -> None:
    rule = {"clients": ["*"], "remotes": ["amqp://h:1"], "exchange": exchange}
    with pytest.raises(ConfigError, match="exchange"):
        parse({"allow": [rule]})
    assert parse({"allow": [rule | {"exchange": "a b-_.:@#,/+Z9"}]}).rules[0].exchange == "a b-_.:@#,/+Z9"


# The guard


def head(properties: bytes, size: int = 1, channel: int = 2) -> bytes:
    return guards._frame(guards.HEADER, channel, struct.pack(">HHQ", 60, 0, size) + properties)


def table(data: bytes) -> bytes:
    return b"\x20\x00" + struct.pack(">I", len(data)) + data


def nested(depth: int) -> bytes:
    data = b""
    for _ in range(depth):
        data = b"\x00F" + struct.pack(">I", len(data)) + data
    return data


def deliver(key: str = "a.b", tag: int = 5, channel: int = 2) -> bytes:
    return frame.marshal(commands.Basic.Deliver("c", tag, False, "amq.topic", key), channel)


def content(data: bytes, channel: int = 2) -> bytes:
    return frame.marshal(body.ContentBody(data), channel)


def through(*chunks: bytes, act: Callable[[Guard], None] = lambda _: None) -> tuple[list[tuple[int, Any]], Guard]:
    """What the library reads of these bytes, frame by frame, until they end."""

    async def read() -> tuple[list[tuple[int, Any]], Guard]:
        guard = Guard(lambda _: None)
        act(guard)
        for chunk in chunks:
            guard.feed_data(chunk)
        guard.feed_eof()
        found = []
        while not guard.at_eof():
            start = await guard.readexactly(1) + await guard.readexactly(6)
            data = start + await guard.readexactly(int.from_bytes(start[3:], "big") + 1)
            _, channel, one = frame.unmarshal(data)
            found.append((channel, one))
        return found, guard

    return asyncio.run(read())


GOOD = b"\x20\x00" + encode.field_table({"k": "v", "l": [1, {"x": None}], "n": 7})


def test_what_is_well_goes_through() -> None:
    """Whole and byte by byte."""
    data = deliver() + head(GOOD, 3) + content(b"abc") + heartbeat.Heartbeat().marshal() + deliver("c", 6) + head(b"\0\0", 0)
    expected = []
    rest = data
    while rest:
        used, channel, one = frame.unmarshal(rest)
        expected.append((channel, one))
        rest = rest[used:]
    for chunks in ([data], [bytes((byte,)) for byte in data]):
        found, _ = through(*chunks)
        assert [frame.marshal(one, channel) for channel, one in found] == [frame.marshal(one, channel) for channel, one in expected]


POISON = {
    "flags go on": b"\xff\xff",
    "cut off": b"\x20\x00\xff\xff\xff\xff",
    "unknown type": table(b"\x01a?"),
    "a name that is no text": table(b"\x01\xffV"),
    "no text": b"\x04\x00\x01\xff",  # correlation-id
    "a time that is none": table(b"\x01aT" + b"\xff" * 8),
    "deep": table(nested(800)),
    "very deep": table(nested(20_000)),
    "many": table(b"\x01kV" * 40_000),
    "a long list": table(b"\x01kA" + struct.pack(">I", 130_000) + b"V" * 130_000),
}


@pytest.mark.parametrize("properties", POISON.values(), ids=POISON)
def test_a_poisoned_message_comes_without_its_properties(properties: bytes) -> None:
    found, _ = through(deliver() + head(properties) + content(b"x") + deliver("c") + head(GOOD, 0))
    assert [type(one).__name__ for _, one in found] == ["Deliver", "ContentHeader", "ContentBody", "Deliver", "ContentHeader"]
    assert found[1][1].properties == commands.Basic.Properties()
    assert found[1][1].body_size == 1
    assert found[4][1].properties.headers["n"] == 7


def test_a_key_that_is_no_text_is_no_topic() -> None:
    data = deliver("xyz").replace(b"xyz", b"x\xffz")
    found, _ = through(data + head(GOOD, 0))
    assert (found[0][1].delivery_tag, found[0][1].routing_key) == (5, "")


def test_a_message_that_is_too_large_comes_without_its_body() -> None:
    size = LARGEST_INCOMING + 5
    piece = content(bytes(100_000))
    many, left = divmod(size, 100_000)
    chunks = [deliver(tag=9) + head(GOOD, size), *[piece] * many, content(bytes(left)), deliver("next") + head(GOOD, 1) + content(b"y")]
    found, guard = through(*chunks)
    assert [type(one).__name__ for _, one in found] == ["Deliver", "ContentHeader", "Deliver", "ContentHeader", "ContentBody"]
    assert found[1][1].body_size == 0
    assert guard.too_large == {9: size}
    returned, guard = through(head(GOOD, size, 3))  # one of ours, on another channel
    assert returned[0][1].properties.headers["n"] == 7
    assert guard.too_large == {}


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"AMQP\x00\x01\x00\x00",
        struct.pack(">BHI", guards.BODY, 1, LARGEST_FRAME),
        struct.pack(">BHI", guards.METHOD, 1, 4) + b"\0\x3c\0\x3cX",
        guards._frame(guards.HEADER, 1, b"short"),
        guards._frame(guards.METHOD, 1, guards.DELIVER + b"\x03ab"),
    ],
)
def test_what_is_not_amqp_ends_the_connection(data: bytes) -> None:
    with pytest.raises(ConnectionError, match=r"server|frame|header|method"):
        through(data)


def test_frames_stay_below_what_is_agreed() -> None:
    """A server that offers larger ones is answered with ours."""
    for offered in (0, 1 << 30, 4096):
        found, _ = through(frame.marshal(commands.Connection.Tune(2047, offered, 60), 0))
        assert found[0][1].frame_max == min(offered or LARGEST_FRAME, LARGEST_FRAME)


def test_the_gate_keeps_messages_back_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile the library hears heartbeats."""
    monkeypatch.setattr(guards, "BEAT", 0.001)

    async def read() -> None:
        guard = Guard(lambda _: None)
        guard.pause(True)
        ack = frame.marshal(commands.Basic.Ack(1), 3)
        guard.feed_data(ack + deliver() + head(GOOD, 0) + ack)
        assert await guard.readexactly(len(ack)) == ack
        beat = heartbeat.Heartbeat().marshal()
        for _ in range(5):
            assert await guard.readexactly(len(beat)) == beat
        guard.pause(False)
        rest = deliver() + head(GOOD, 0) + ack
        assert await guard.readexactly(len(rest)) == rest

    asyncio.run(read())


def test_a_channel_that_the_server_closes_is_given_up_at_once() -> None:
    """The answer goes before all that the library still writes there, which is left out until it opens the channel anew."""

    async def read() -> None:
        guard = Guard(lambda _: None)
        answered: list[bytes] = []
        guard.answer = answered.append
        publish = frame.marshal(commands.Basic.Publish(0, "amq.topic", "a"), 3)
        assert guard.passes(publish)
        close = frame.marshal(commands.Channel.Close(403, "ACCESS_REFUSED", 60, 40), 3)
        guard.feed_data(close)
        assert await guard.readexactly(len(close)) == close
        assert answered == [frame.marshal(commands.Channel.CloseOk(), 3)]
        assert not guard.passes(publish)
        assert not guard.passes(frame.marshal(commands.Channel.CloseOk(), 3))
        assert guard.passes(frame.marshal(commands.Basic.Publish(0, "amq.topic", "a"), 4))
        assert guard.passes(frame.marshal(commands.Channel.Open(), 3))
        assert guard.passes(publish)

    asyncio.run(read())


def test_what_the_server_says_of_itself_is_heard() -> None:
    said: list[str | None] = []

    async def read() -> Guard:
        guard = Guard(said.append)
        frames = commands.Connection.Blocked("low on memory"), commands.Connection.Unblocked(), commands.Connection.Close(320, "bye", 0, 0)
        for one in frames:
            data = frame.marshal(one, 0)
            guard.feed_data(data)
            assert await guard.readexactly(len(data)) == data
        return guard

    assert asyncio.run(read()).closed == (320, "bye")
    assert said == ["low on memory", None]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=5) | st.floats(width=32),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def counted(value: Any) -> int:
    """Values in a table or list."""
    inner = value.values() if isinstance(value, dict) else value
    return sum(1 + (counted(one) if isinstance(one, dict | list) else 0) for one in inner)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5), st.text(max_size=5))
def test_values_are_counted_as_the_library_reads_them(headers: dict[str, Any], content_type: str) -> None:
    properties = commands.Basic.Properties(headers=headers, content_type=content_type, content_encoding="x", message_id="m")
    assert values_in(header.ContentHeader(0, 1, properties).marshal()) == counted(headers)


@given(st.lists(st.binary(max_size=60), max_size=5), st.sampled_from([guards.METHOD, guards.HEADER, guards.BODY, guards.HEARTBEAT, 0]))
def test_the_guard_takes_any_bytes(chunks: list[bytes], kind: int) -> None:
    frames = b"".join(guards._frame(kind, 1 + len(chunk) % 3, chunk) for chunk in chunks)

    async def read(data: bytes) -> None:
        guard = Guard(lambda _: None)
        guard.feed_data(data)
        guard.feed_eof()
        try:
            while not guard.at_eof():
                await guard.readexactly(1)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass

    asyncio.run(read(frames))
    asyncio.run(read(b"".join(chunks)))
