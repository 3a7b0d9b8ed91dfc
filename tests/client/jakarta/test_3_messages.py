"""Jakarta Messaging 3.1, chapter 3: headers, properties and bodies of messages that cross. The number in a test's name is the section's."""

from __future__ import annotations

import time
from typing import Any

import pytest
from mqmesh.client import (
    BytesMessage,
    Context,
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
from support.jms_client import PATIENCE, texts


def crossed(context: Context, name: str, message: Message, **options: Any) -> Any:
    """The message as a consumer gets it."""
    with context.create_consumer(Topic(name)) as consumer:
        context.session.create_producer(Topic(name)).send(message, **options)
        found = consumer.receive(PATIENCE)
    assert found is not None
    return found


def filled(context: Context) -> Message:
    """A text message whose headers and properties are set."""
    message = context.create_text_message("body")
    message.correlation_id, message.jms_type, message.reply_to = "corr", "kind", Topic("answers")
    message.set_int_property("n", 1)
    return message


def test_3_4_1_the_destination_is_where_it_was_sent(context: Context, name: str) -> None:
    consumer = context.create_consumer(Topic(f"{name}/+"))
    context.create_producer().send(Topic(f"{name}/b"), "a")
    message = consumer.receive(PATIENCE)
    assert message is not None
    assert message.destination == Topic(f"{name}/b")


@pytest.mark.parametrize("mode", list(DeliveryMode))
def test_3_4_2_the_delivery_mode_is_that_of_the_send(context: Context, name: str, mode: DeliveryMode) -> None:
    message = context.create_text_message()
    message.delivery_mode = DeliveryMode(3 - mode)
    assert crossed(context, name, message, delivery_mode=mode).delivery_mode == mode == message.delivery_mode


def test_3_4_3_each_send_has_a_message_identifier_of_its_own(context: Context, name: str) -> None:
    message, found = context.create_text_message(), set()
    for _ in range(3):
        got = crossed(context, name, message)
        assert got.message_id == message.message_id
        found.add(got.message_id)
    assert len(found) == 3
    assert all(one.startswith("ID:") for one in found)


def test_3_4_4_the_timestamp_is_the_time_of_the_send(context: Context, name: str) -> None:
    before = time.time_ns() // 1_000_000
    message = context.create_text_message()
    message.timestamp = 7
    assert before <= crossed(context, name, message).timestamp <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("identifier", ["text", "ID:1:2", b"\xff\x00bytes", None])
def test_3_4_5_the_correlation_identifier_is_text_or_bytes(context: Context, name: str, identifier: str | bytes | None) -> None:
    message = context.create_text_message()
    message.correlation_id = identifier
    assert crossed(context, name, message).correlation_id == identifier


def test_3_4_6_an_answer_goes_where_reply_to_says(context: Context, name: str) -> None:
    answers = context.create_temporary_topic()
    consumer = context.create_consumer(answers)
    message = context.create_text_message()
    message.reply_to = answers
    context.create_producer().send(crossed(context, name, message).reply_to, "answer")
    assert texts(consumer, 1) == ["answer"]


def test_3_4_7_the_first_delivery_is_not_redelivered(context: Context, name: str) -> None:
    message = context.create_text_message()
    message.redelivered = True
    assert crossed(context, name, message).redelivered is False


@pytest.mark.parametrize("kind", ["order", "", None])
def test_3_4_8_the_type_crosses(context: Context, name: str, kind: str | None) -> None:
    message = context.create_text_message()
    message.jms_type = kind
    assert crossed(context, name, message).jms_type == kind


def test_3_4_9_the_expiration_is_the_send_and_its_time_to_live(context: Context, name: str) -> None:
    message = context.create_text_message()
    message.expiration = 5
    assert crossed(context, name, message).expiration == 0
    found = crossed(context, name, message, time_to_live=60_000)
    assert found.expiration == found.timestamp + 60_000 == message.expiration


def test_3_4_10_the_priority_is_4_unless_said(context: Context, name: str) -> None:
    message = context.create_text_message()
    message.priority = 9
    assert crossed(context, name, message).priority == 4
    assert crossed(context, name, message, priority=0).priority == 0


def test_3_4_11_what_the_send_sets_and_what_the_application_sets(context: Context, name: str) -> None:
    message = filled(context)
    found = crossed(context, name, message)
    for header in ("destination", "delivery_mode", "message_id", "timestamp", "expiration", "priority", "delivery_time"):
        assert getattr(found, header) == getattr(message, header), header
    assert (found.correlation_id, found.jms_type, found.reply_to) == ("corr", "kind", Topic("answers"))


def test_3_4_13_the_delivery_time_is_the_send_and_its_delay(context: Context, name: str) -> None:
    found = crossed(context, name, context.create_text_message())
    assert found.delivery_time == found.timestamp


@pytest.mark.parametrize("wrong", ["", "1a", "a b", "a.b", "NULL", "like", "JMSfoo", "JMSXother"])
def test_3_5_1_what_is_no_name_of_a_property(context: Context, wrong: str) -> None:
    with pytest.raises(JMSError):
        context.create_message().set_int_property(wrong, 1)


def test_3_5_2_values_and_their_kinds_cross(context: Context, name: str) -> None:
    message = context.create_message()
    kinds = {
        "boolean": True,
        "byte": -128,
        "short": 32767,
        "int": -(1 << 31),
        "long": 1 << 62,
        "float": 0.5,
        "double": 1e300,
        "string": "é",
    }
    for kind, value in kinds.items():
        message.properties.set(kind, value, kind)
    found = crossed(context, name, message).properties
    assert {one: found[one] for one in kinds} == kinds
    assert all(found.kind(kind) == kind for kind in kinds)


def test_3_5_3_properties_of_a_sent_message_may_be_changed(context: Context, name: str) -> None:
    message = filled(context)
    crossed(context, name, message)
    message.set_int_property("n", 2)
    assert crossed(context, name, message).get_int_property("n") == 2


def test_3_5_5_an_object_property_has_the_kind_of_its_value(context: Context) -> None:
    message = context.create_message()
    for value, kind in ((True, "boolean"), (1, "int"), (1 << 40, "long"), (0.5, "double"), ("a", "string")):
        message.set_object_property("p", value)
        assert (message.get_object_property("p"), message.properties.kind("p")) == (value, kind)
    with pytest.raises(MessageFormatError):
        message.set_object_property("p", [1])  # type: ignore[arg-type]


def test_3_5_6_names_of_properties_without_the_headers(context: Context, name: str) -> None:
    assert sorted(crossed(context, name, filled(context)).property_names()) == ["JMSXDeliveryCount", "n"]


def test_3_5_7_clearing_the_properties_leaves_headers_and_body(context: Context, name: str) -> None:
    found = crossed(context, name, filled(context))
    found.clear_properties()
    assert (found.property_names(), found.text, found.correlation_id) == ([], "body", "corr")
    found.set_int_property("m", 2)


def test_3_5_8_a_property_that_is_not_there_reads_as_null(context: Context) -> None:
    message = context.create_message()
    assert (message.get_string_property("p"), message.get_object_property("p"), message.get_boolean_property("p")) == (None, None, False)
    assert message.property_exists("p") is False
    for read in (message.get_int_property, message.get_double_property):
        with pytest.raises(MessageFormatError):
            read("p")


def test_3_5_9_groups_are_properties_of_the_application(context: Context, name: str) -> None:
    message = context.create_message()
    message.set_string_property("JMSXGroupID", "g")
    message.set_int_property("JMSXGroupSeq", 3)
    found = crossed(context, name, message)
    assert (found.get_string_property("JMSXGroupID"), found.get_int_property("JMSXGroupSeq")) == ("g", 3)


def test_3_8_1_a_message_that_is_not_selected_is_not_delivered(context: Context, name: str) -> None:
    consumer = context.create_consumer(Topic(name), "n = 2 AND JMSType = 'kind'")
    for number in (1, 2, 3):
        message = filled(context)
        message.set_int_property("n", number)
        context.create_producer().send(Topic(name), message)
    context.create_producer().send(Topic(name), context.create_message())
    found = consumer.receive(PATIENCE)
    assert found is not None
    assert found.get_int_property("n") == 2
    assert consumer.receive(0.05) is None


@pytest.mark.parametrize(
    ("selector", "fits"),
    [("p IS NULL", True), ("p = 1", False), ("NOT (p = 1)", False), ("p = 1 OR n = 1", True), ("p <> 1", False), ("n IS NOT NULL", True)],
)
def test_3_8_1_2_null_is_unknown(context: Context, name: str, selector: str, fits: bool) -> None:
    consumer, every = context.create_consumer(Topic(name), selector), context.create_consumer(Topic(name))
    context.create_producer().set_property("n", 1).send(Topic(name), "a")
    assert texts(every, 1) == ["a"]
    assert (consumer.receive_no_wait() is not None) == fits


def test_3_10_the_properties_of_a_received_message_are_read_only(context: Context, name: str) -> None:
    found = crossed(context, name, filled(context))
    with pytest.raises(MessageNotWriteableError):
        found.set_int_property("n", 2)
    with pytest.raises(MessageNotWriteableError):
        found.text = "other"
    found.correlation_id = "headers may be changed"


def test_3_10_what_an_application_changes_is_its_own(context: Context, name: str) -> None:
    one, two = context.create_consumer(Topic(name)), context.create_consumer(Topic(name))
    context.create_producer().send(Topic(name), {"a": 1})
    first, second = one.receive(PATIENCE), two.receive(PATIENCE)
    assert isinstance(first, MapMessage)
    assert isinstance(second, MapMessage)
    first.clear_body()
    first["a"] = 2
    assert second["a"] == 1


def test_3_11_1_clearing_the_body_makes_it_writable_and_leaves_properties(context: Context, name: str) -> None:
    found = crossed(context, name, filled(context))
    found.clear_body()
    assert (found.text, found.get_int_property("n")) == (None, 1)
    found.text = "new"
    for message in (BytesMessage(b"a"), MapMessage({"a": 1}), StreamMessage(1), ObjectMessage(1)):
        cleared = crossed(context, name, message)
        cleared.clear_body()
        assert not cleared.body


def test_3_11_2_each_kind_of_received_body_is_read_only(context: Context, name: str) -> None:
    writes: list[tuple[Message, Any]] = [
        (TextMessage("a"), lambda message: setattr(message, "text", "b")),
        (BytesMessage(b"a"), lambda message: message.write_int(1)),
        (MapMessage({"a": 1}), lambda message: message.set("a", 2)),
        (StreamMessage(1), lambda message: message.write(2)),
        (ObjectMessage([1]), lambda message: setattr(message, "object", 2)),
    ]
    for message, write in writes:
        found = crossed(context, name, message)
        assert type(found) is type(message)
        with pytest.raises(MessageNotWriteableError):
            write(found)


def test_3_11_2_what_is_written_is_read_after_reset(context: Context) -> None:
    stream, data = context.create_stream_message(), context.create_bytes_message()
    stream.write(1)
    data.write_int(1)
    for message in (stream, data):
        with pytest.raises(MessageNotReadableError):
            message.read("int")
        message.reset()
        assert message.read("int") == 1
        with pytest.raises(MessageEOFError):
            message.read("int")
        with pytest.raises(MessageNotWriteableError):
            message.write("int", 1) if isinstance(message, BytesMessage) else message.write(1)


def test_3_11_3_maps_convert_as_properties_do(context: Context, name: str) -> None:
    message = context.create_map_message()
    message.set("int", 7, "int")
    message.set("text", "12")
    message.set("bytes", b"\x00\xff")
    message.set("char", "x", "char")
    found = crossed(context, name, message)
    assert (found.read("int", "long"), found.read("int", "string"), found.read("text", "double")) == (7, "7", 12.0)
    assert (found.read("bytes", "bytes"), found.read("char", "string"), found["char"]) == (b"\x00\xff", "x", "x")
    for name_, kind in (("int", "short"), ("int", "boolean"), ("bytes", "string"), ("char", "int")):
        with pytest.raises(MessageFormatError):
            found.read(name_, kind)
    assert (found.read("no", "string"), found.item_exists("no"), found.item_exists("int")) == (None, False, True)


def test_3_11_3_an_object_is_a_copy(context: Context, name: str) -> None:
    value = {"list": [1, 2, {"deep": None}], "bytes": b"\x00"}
    message = context.create_object_message(value)
    value["list"] = []
    found = crossed(context, name, message)
    found.object["list"].append(3)
    assert found.object == {"list": [1, 2, {"deep": None}], "bytes": b"\x00"}


def test_3_12_a_message_that_was_received_may_be_sent_on(context: Context, name: str) -> None:
    found = crossed(context, name, filled(context))
    again = crossed(context, f"{name}/2", found)
    assert (again.text, again.get_int_property("n"), again.correlation_id) == ("body", 1, "corr")
    assert again.message_id == found.message_id
    assert again.destination == Topic(f"{name}/2")


def test_3_7_get_body_of_each_kind(context: Context, name: str) -> None:
    for message, wanted, wrong in (
        (TextMessage("a"), str, bytes),
        (BytesMessage(b"a"), bytes, str),
        (MapMessage({"a": 1}), dict, str),
        (ObjectMessage([1]), list, dict),
    ):
        found = crossed(context, name, message)
        assert found.is_body_assignable_to(wanted)
        assert found.get_body(wanted) == message.body
        assert not found.is_body_assignable_to(wrong)
        with pytest.raises(MessageFormatError):
            found.get_body(wrong)
    assert crossed(context, name, Message()).get_body(str) is None
