"""Enhanced authentication (3.15, 4.12): the broker offers no method to clients, and says so as the standard demands."""

from __future__ import annotations

from conformance import wire
from conformance.lab import Lab, fresh
from conformance.statements import states

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82


@states(mqtt5="4.12.0-1 4.12.0-4 3.1.4-2 3.2.2-7 4.13.2-1")
def test_a_method_that_is_not_served_is_refused(lab: Lab, version: int) -> None:
    for given in ({}, {"authentication_data": b"x"}):
        client = lab.dial()
        client.send(wire.connect(fresh(), authentication_method="SCRAM-SHA-1", **given))
        answer = client.receive()
        assert answer is None or (answer.kind == "CONNACK" and answer.reason in (0x8C, 0x87))
        assert client.receive() is None


@states(mqtt5="4.12.0-2 4.12.0-5 3.15.2-1 3.15.2-2 3.15.2-3")
def test_no_auth_is_asked_for_and_none_follows(lab: Lab, version: int) -> None:
    """Whatever is offered, the answer is one CONNACK that does not let in: no AUTH, and no method in its place."""
    for method in ("SCRAM-SHA-256", "GS2-KRB5", "", "x" * 300):
        client = lab.dial()
        client.send(
            wire.connect(fresh(), authentication_method=method, maximum_packet_size=500),
            wire.auth(0x18, authentication_method=method, authentication_data=b"proof"),
        )
        for one in client.rest():
            assert one.kind == "CONNACK"
            assert one.reason in (0x8C, 0x87, PROTOCOL_ERROR, MALFORMED)
            assert "authentication_method" not in one.properties


@states(mqtt5="4.12.0-6")
def test_without_a_method_there_is_none_in_connack(lab: Lab, version: int) -> None:
    client = lab.client(user="somebody", password=b"secret")
    assert not {"authentication_method", "authentication_data"} & set(client.connack.properties)
    client.nothing()


@states(mqtt5="4.12.0-7 4.12.1-1 4.12.1-2 3.15.2-1 4.13.1-1")
def test_auth_without_a_method_in_connect_is_a_protocol_error(lab: Lab, version: int) -> None:
    for packet in (
        wire.auth(0x19, authentication_method="SCRAM-SHA-1"),
        wire.auth(0x18, authentication_method="SCRAM-SHA-1", authentication_data=b"x"),
        wire.auth(0, authentication_method="SCRAM-SHA-1"),
        wire.auth(None),
        wire.auth(0x19),
        wire.auth(0x01, authentication_method="SCRAM-SHA-1"),
    ):
        client = lab.client()
        client.send(packet)
        client.refused(PROTOCOL_ERROR, MALFORMED, 0x8C)


@states(mqtt5="3.15.1-1 4.13.1-1")
def test_reserved_flags_of_auth(lab: Lab, version: int) -> None:
    for flags in (1, 2, 4, 8):
        client = lab.client()
        client.send(bytes((0xF0 | flags,)) + wire.auth(0x19, authentication_method="x")[1:])
        client.refused(MALFORMED, PROTOCOL_ERROR)


@states(mqtt5="3.1.2-30")
def test_packets_before_connack_of_a_client_with_a_method(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.dial()
    client.send(wire.connect(fresh(), authentication_method="x"), wire.publish(topic, b"x", retain=True), wire.PINGREQ)
    assert [one.kind for one in client.rest()] in ([], ["CONNACK"])
    assert lab.retained(topic) == []
