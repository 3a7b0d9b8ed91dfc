"""PINGREQ and DISCONNECT (3.12, 3.14)."""

from __future__ import annotations

from conformance import wire
from conformance.lab import Lab, fresh
from conformance.statements import states

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82


@states(mqtt311="3.12.4-1", mqtt5="3.12.4-1")
def test_pingreq_is_answered(lab: Lab, version: int) -> None:
    client = lab.client(version)
    client.send(wire.PINGREQ * 50)
    for _ in range(50):
        client.expect("PINGRESP", size=2)


@states(mqtt311="4.8.0-1", mqtt5="4.13.1-1")
def test_a_pingreq_with_a_body(lab: Lab, version: int) -> None:
    client = lab.client(version)
    client.send(b"\xc0\x01x")
    client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt311="3.14.1-1 4.8.0-1", mqtt5="3.14.1-1 4.13.1-1")
def test_reserved_flags_of_disconnect(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client(version)
    watcher.subscribe(topic)
    for flags in (1, 2, 4, 8):
        client = lab.client(version, will=wire.Will(topic, b"%d" % flags))
        client.send(bytes((0xE0 | flags, 0)))
        client.refused(MALFORMED)
        watcher.message(topic, b"%d" % flags)  # it was no DISCONNECT


@states(mqtt311="3.14.1-1 4.8.0-1", mqtt5="3.14.1-1 4.13.1-1")
def test_a_disconnect_that_is_malformed(lab: Lab, version: int) -> None:
    for body in (b"\0\0x", b"\0\5") if version == 5 else (b"\0", b"\0\0"):
        client = lab.client(version)
        client.send(wire.packet(0xE0, body))
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt5="3.14.2-1 4.13.1-1")
def test_a_disconnect_with_a_reason_that_it_cannot_have(lab: Lab, version: int) -> None:
    for reason in (0x01, 0x18, 0x7F, 0x92, 0xFF):
        client = lab.client()
        client.send(wire.disconnect(reason))
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt5="3.14.2-1")
def test_the_forms_of_disconnect(lab: Lab, version: int) -> None:
    for packet in (
        wire.disconnect(),
        wire.disconnect(0),
        wire.packet(0xE0, b"\0\0"),
        wire.disconnect(0, reason_string="bye", user=[("a", "b"), ("a", "b")]),
        wire.disconnect(0x80),
    ):
        client = lab.client()
        client.send(packet)
        assert client.rest() == []


@states(mqtt311="3.14.4-2", mqtt5="3.14.4-1")
def test_nothing_is_processed_behind_a_disconnect(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(version)
    client.send(wire.disconnect(), wire.publish(topic, b"x", retain=True, version=version), wire.PINGREQ)
    assert client.rest() == []
    assert lab.retained(topic) == []


@states(mqtt311="3.14.4-3", mqtt5="3.14.4-3 3.14.4-2")
def test_the_server_closes_after_disconnect(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client(version)
    watcher.subscribe(topic)
    client = lab.client(version, will=wire.Will(topic))
    client.send(wire.disconnect())
    assert client.rest() == []  # the client waits for the end without closing itself
    watcher.nothing()


@states(mqtt311="4.8.0-1 4.8.0-2", mqtt5="4.13.1-1 4.13.2-1")
def test_what_came_before_an_error_counts(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client(version)
    watcher.subscribe(topic)
    client = lab.client(version)
    client.send(wire.publish(topic, b"good", version=version), wire.packet(0x30, b"\0"), wire.publish(topic, b"late", version=version))
    client.refused(MALFORMED, PROTOCOL_ERROR)
    watcher.message(topic, b"good")
    watcher.nothing()


@states(mqtt311="4.8.0-1", mqtt5="4.13.2-1")
def test_an_error_on_one_connection_is_nobody_else_s(lab: Lab, version: int) -> None:
    topic = fresh()
    others = [lab.client(one) for one in (4, 5)]
    for other in others:
        other.subscribe(topic)
    bad = lab.client(version)
    bad.send(b"\xff" * 6)
    bad.refused(MALFORMED, PROTOCOL_ERROR)
    lab.client().publish(topic, b"x")
    for other in others:
        other.message(topic, b"x")
