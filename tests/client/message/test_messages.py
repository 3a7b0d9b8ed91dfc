"""Messages, Jakarta Messaging 3.1 chapter 3: conversions, the kinds of body, and the way over the wire and back."""

from __future__ import annotations

import struct
from collections.abc import MutableMapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.client import (
    BytesMessage,
    DeliveryMode,
    JMSError,
    MapMessage,
    Message,
    MessageEOFError,
    MessageFormatError,
    MessageNotReadableError,
    MessageNotWriteableError,
    ObjectMessage,
    StreamMessage,
    TextMessage,
    Topic,
)
from mqmesh.client.core.transport import Incoming, Properties
from mqmesh.client.message.values import NUMBERS
from mqmesh.client.message.wire import decode, encode

KINDS = ("boolean", "byte", "short", "int", "long", "float", "double", "string")
ALLOWED = {  # table 3-4: set as, readable as
    "boolean": {"boolean", "string"},
    "byte": {"byte", "short", "int", "long", "string"},
    "short": {"short", "int", "long", "string"},
    "int": {"int", "long", "string"},
    "long": {"long", "string"},
    "float": {"float", "double", "string"},
    "double": {"double", "string"},
    "string": set(KINDS),
}
SAMPLES = {"boolean": True, "byte": 7, "short": 300, "int": 70000, "long": 1 << 40, "float": 0.5, "double": 0.1}
REALS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = {
    "boolean": st.booleans(),
    **{kind: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for kind, bits in (("byte", 8), ("short", 16), ("int", 32), ("long", 64))},
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": REALS,
    "string": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
}
TYPED = st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), VALUES[kind]))


def over_the_wire(message: Message, qos: int = 1) -> Message:
    message.destination = message.destination or Topic("a/b")
    publication = encode(message, qos, message.timestamp)
    return decode(Incoming(publication.topic, publication.payload, qos, False, publication.properties))


@pytest.mark.parametrize("stored", KINDS)
@pytest.mark.parametrize("wanted", KINDS)
def test_3_5_4_properties_convert_as_the_table_says(stored: str, wanted: str) -> None:
    message = Message()
    value: Any = SAMPLES.get(stored, "true" if wanted == "boolean" else "12")
    getattr(message, f"set_{stored}_property")("p", value)
    read = getattr(message, f"get_{wanted}_property")
    if wanted not in ALLOWED[stored]:
        with pytest.raises(MessageFormatError):
            read("p")
    elif wanted == "string" and stored == "boolean":
        assert read("p") == "true"
    elif wanted == "string":
        assert read("p") == str(value)
    elif stored == "string":
        assert read("p") == (True if wanted == "boolean" else 12)
    else:
        assert read("p") == value


def test_3_5_4_what_is_not_there_reads_as_nothing_or_is_an_error() -> None:
    message = Message()
    assert message.get_string_property("p") is None
    assert message.get_boolean_property("p") is False
    assert message.get_object_property("p") is None
    for kind in NUMBERS:
        with pytest.raises(MessageFormatError):
            getattr(message, f"get_{kind}_property")("p")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("byte", 128),
        ("short", -32769),
        ("int", 1 << 31),
        ("long", 1 << 63),
        ("float", 1e39),
        ("int", 1.0),
        ("int", True),
        ("string", 3),
        ("boolean", 1),
    ],
)
def test_values_outside_their_kind_are_refused(kind: str, value: Any) -> None:
    with pytest.raises(MessageFormatError):
        getattr(Message(), f"set_{kind}_property")("p", value)


@pytest.mark.parametrize("name", ["", "1a", "a-b", "NULL", "like", "JMSPriority", "JMSAny", "JMSXDeliveryCount", "a b"])
def test_3_5_1_names_of_properties(name: str) -> None:
    with pytest.raises(JMSError):
        Message().set_int_property(name, 1)


@given(
    st.dictionaries(
        st.from_regex(r"[a-zA-Z_$][a-zA-Z0-9_$]{0,8}", fullmatch=True).filter(
            lambda n: (
                n.upper() not in ("NOT", "AND", "OR", "IN", "IS", "LIKE", "NULL", "TRUE", "FALSE", "ESCAPE", "BETWEEN")
                and not n.startswith("JMS")
            )
        ),
        TYPED,
        max_size=6,
    )
)
def test_3_5_properties_cross_with_their_kinds(properties: dict[str, tuple[str, Any]]) -> None:
    message = Message()
    for name, (kind, value) in properties.items():
        message.properties.set(name, value, kind)
    message.set_string_property("nothing", None)
    assert over_the_wire(message).properties.typed == {**properties, "nothing": ("string", None)}


def test_properties_are_a_mapping_of_names_to_values() -> None:
    message = Message()
    message.properties.update(n=3, unit="mm")
    message.set_short_property("short", 7)
    assert dict(message.properties) == {"n": 3, "unit": "mm", "short": 7} == message.properties
    assert list(message.properties.keys()) == message.property_names() == ["n", "unit", "short"]
    assert list(message.properties.values()) == [3, "mm", 7]
    assert ("unit", "mm") in message.properties.items()
    assert (message.properties.get("unit"), message.properties.get("none"), message.properties.get("none", 1)) == ("mm", None, 1)
    assert (message.properties.kind("n"), message.properties.kind("short")) == ("int", "short")
    assert message.properties.pop("unit") == "mm"
    with pytest.raises(KeyError):
        message.properties["unit"]
    received = over_the_wire(message)
    received.freeze()
    assert received.properties == message.properties
    for write in (lambda: received.properties.pop("n"), received.properties.clear, lambda: received.properties.update(n=4)):
        with pytest.raises(MessageNotWriteableError):
            write()
    received.clear_properties()
    received.properties["n"] = 4
    assert repr(received.properties) == "{'n': 4}"


def test_3_4_headers_cross() -> None:
    message = TextMessage("text")
    message.destination, message.message_id, message.timestamp = Topic("a/b"), "ID:1", 1000
    message.delivery_mode, message.priority, message.jms_type = DeliveryMode.NON_PERSISTENT, 9, "car"
    message.expiration, message.delivery_time = 3500, 2000
    message.correlation_id, message.reply_to = "corr", Topic("reply/to")
    publication = encode(message, 0, 1000)
    assert publication.properties.expiry == 3  # 2.5 s, rounded up
    assert publication.properties.text is True
    found = over_the_wire(message)
    for header in (
        "message_id",
        "timestamp",
        "delivery_mode",
        "priority",
        "jms_type",
        "expiration",
        "delivery_time",
        "correlation_id",
        "reply_to",
        "destination",
    ):
        assert getattr(found, header) == getattr(message, header), header
    message.correlation_id = b"bytes that are text"
    assert over_the_wire(message).correlation_id == b"bytes that are text"


OBJECTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | REALS | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
    OBJECTS,
    st.lists(TYPED),
    st.dictionaries(st.text(min_size=1, max_size=3), TYPED),
)
def test_3_11_bodies_cross(text: str, data: bytes, value: Any, row: list[tuple[str, Any]], named: dict[str, tuple[str, Any]]) -> None:
    assert over_the_wire(TextMessage(text)).body == text
    assert over_the_wire(BytesMessage(data)).body == data
    assert over_the_wire(ObjectMessage(value)).body == value
    assert over_the_wire(ObjectMessage(value, "json")).body == value
    stream, mapped = StreamMessage(), MapMessage()
    for kind, each in row:
        stream.write(each, kind)
    for name, (kind, each) in named.items():
        mapped.set(name, each, kind)
    found = over_the_wire(stream)
    assert isinstance(found, StreamMessage)
    assert [(kind, found.read(kind)) for kind, _ in row] == row
    found = over_the_wire(mapped)
    assert isinstance(found, MapMessage)
    assert {name: (kind, found.read(name, kind)) for name, (kind, _) in named.items()} == named


def test_3_11_no_text_is_not_an_empty_text() -> None:
    assert over_the_wire(TextMessage()).body is None
    assert over_the_wire(TextMessage("")).body == ""
    assert type(over_the_wire(Message())) is Message


def test_3_11_3_a_value_that_does_not_convert_stays_the_next() -> None:
    message = StreamMessage("twelve", 5)
    with pytest.raises(MessageNotReadableError):
        message.read()
    message.reset()
    with pytest.raises(MessageFormatError):
        message.read("int")
    assert message.read() == "twelve"
    assert message.read("string") == "5"
    with pytest.raises(MessageEOFError):
        message.read()


def test_3_11_bytes_are_written_and_read_in_network_order() -> None:
    message = BytesMessage()
    message.write_boolean(True)
    message.write_short(-2)
    message.write_int(1 << 30)
    message.write_long(-(1 << 40))
    message.write_double(0.1)
    message.write_utf("träume")
    message.write_bytes(b"rest")
    assert message.body[:3] == struct.pack(">?h", True, -2)
    found = over_the_wire(message)
    assert isinstance(found, BytesMessage)
    assert (found.read_boolean(), found.read_short(), found.read_int(), found.read_long(), found.read_double(), found.read_utf()) == (
        True,
        -2,
        1 << 30,
        -(1 << 40),
        0.1,
        "träume",
    )
    assert found.read_bytes() == b"rest"
    with pytest.raises(MessageEOFError):
        found.read_byte()
    with pytest.raises(MessageFormatError):
        BytesMessage().write_byte(128)


def test_3_10_received_messages_can_only_be_read() -> None:
    found = over_the_wire(TextMessage("text"))
    assert isinstance(found, TextMessage)
    with pytest.raises(MessageNotWriteableError):
        found.text = "other"
    with pytest.raises(MessageNotWriteableError):
        found.set_int_property("p", 1)
    found.clear_body()
    found.clear_properties()
    found.text = "other"
    found.set_int_property("p", 1)
    assert (found.text, found.get_int_property("p")) == ("other", 1)


def test_3_11_get_body_takes_the_type() -> None:
    assert TextMessage("text").get_body(str) == "text"
    assert not TextMessage("text").is_body_assignable_to(bytes)
    with pytest.raises(MessageFormatError):
        TextMessage("text").get_body(bytes)


def test_objects_that_have_no_form_are_refused() -> None:
    for value in (object(), {1, 2}, float("nan")):
        with pytest.raises(MessageFormatError):
            ObjectMessage(value, "json")
    with pytest.raises(MessageFormatError):
        ObjectMessage(object())


@given(
    st.binary(max_size=30),
    st.sampled_from(["text", "map", "stream", "object", "none", "other", "bytes", None]),
    st.text(max_size=20),
    st.text(max_size=5),
)
def test_what_any_publisher_sends_becomes_a_message(payload: bytes, kind: str | None, types: str, number: str) -> None:
    """A body that is not what its header says is bytes; nothing raises."""
    user = [("JMSTypes", types), ("JMSPriority", number), ("JMSExpiration", number), ("a", "1"), ("a", "2")] + (
        [("JMSBody", kind)] if kind else []
    )
    found = decode(Incoming("a/b", payload, 0, False, Properties(user=tuple(user))))
    assert found.body_read_only
    assert 0 <= found.priority <= 9
    assert "a" in found.properties


def test_a_map_message_is_a_mapping() -> None:
    message = MapMessage({"n": 3, "s": "text"})
    assert isinstance(message, MutableMapping)
    assert dict(message) == {"n": 3, "s": "text"}
    assert (message.get("n"), message.get("m"), message.get("m", 7), message.read("n", "string")) == (3, None, 7, "3")
    message.update(m=4)
    assert (message.pop("n"), message.setdefault("s", "other"), list(message.items())) == (3, "text", [("s", "text"), ("m", 4)])
    message.freeze()
    for write in (message.clear, lambda: message.pop("s"), lambda: message.update(a=1), lambda: message.__delitem__("s")):
        with pytest.raises(MessageNotWriteableError):
            write()
    assert MapMessage(), "an empty message is a message"
    assert MapMessage() != MapMessage(), "messages are equal to themselves only"
    assert len({message, MapMessage(message)}) == 2
