"""CONNECT: its form, and what a server does with one that is not good (3.1)."""

from __future__ import annotations

import contextlib

import pytest
from conformance import wire
from conformance.lab import Client, Lab, fresh
from conformance.statements import states

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82


def turned_away(client: Client, *reasons: int) -> None:
    """The connection ends. A 3.1.1 client is told nothing (3.1.4-1); in MQTT 5 a CONNACK with one of these reasons may come first."""
    found = client.rest()
    if client.version != 5:
        assert found == []
    elif found:
        assert [one.kind for one in found] == ["CONNACK"]
        assert found[0].reason in (*reasons, MALFORMED, PROTOCOL_ERROR, 0x80)


@states(mqtt311="3.1.0-1 3.2.0-1 4.8.0-1", mqtt5="3.1.0-1 3.2.0-1 3.14.0-1 4.13.1-1")
def test_the_first_packet_is_connect(lab: Lab, version: int) -> None:
    topic = fresh()
    for first in (
        wire.PINGREQ,
        wire.publish(topic, b"x", retain=True, version=version),
        wire.subscribe(1, ("#", 0), version=version),
        wire.disconnect(),
        wire.acknowledge("PUBACK", 1),
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        client = lab.dial(version)
        client.send(first, wire.connect(fresh(), version))
        assert client.rest() == []
    assert lab.retained(topic) == []


@states(mqtt311="3.1.0-2", mqtt5="3.1.0-2 3.2.0-2")
def test_a_second_connect_ends_the_connection(lab: Lab, version: int) -> None:
    client = lab.client(version)
    client.send(wire.connect(client.client_id, version))
    client.refused(PROTOCOL_ERROR)
    client = lab.dial(version)
    client.send(wire.connect(fresh(), version), wire.connect(fresh(), version))
    assert client.expect("CONNACK").reason == 0
    client.refused(PROTOCOL_ERROR)


@states(mqtt311="3.1.2-1", mqtt5="3.1.2-1")
@pytest.mark.parametrize("name", ["mqtt", "MQTTX", "MQT", "HTTP", "", b"MQTT\0"])
def test_another_protocol_name_is_not_served(lab: Lab, version: int, name: str | bytes) -> None:
    client = lab.dial(version)
    client.send(wire.connect(fresh(), version, name=name), wire.PINGREQ)
    found = client.rest()
    assert [one.kind for one in found] in ([], ["CONNACK"])
    assert all(one.reason in ((0x84, MALFORMED, PROTOCOL_ERROR) if version == 5 else (1,)) for one in found)


@states(mqtt311="3.1.2-2 3.2.2-4 3.2.2-5")
def test_an_older_protocol_level_is_answered_with_return_code_1(lab: Lab, version: int) -> None:
    for level in (0, 1, 2):
        client = lab.dial(version)
        client.send(wire.connect(fresh(), version, level=level))
        client.expect("CONNACK", reason=1, session_present=False)
        assert client.receive() is None


@states(mqtt5="3.1.2-2 3.2.2-7")
def test_a_protocol_version_of_the_future_is_answered_with_0x84(lab: Lab, version: int) -> None:
    for level in (6, 7, 127):
        client = lab.dial()
        data = wire.connect(fresh(), level=level)
        client.send(data)
        client.version = 5
        raw = client.socket.recv(100)
        # 0x84 in the form of MQTT 5, or return code 1 in that of 3.1.1, or nothing
        assert raw in (b"", b"\x20\x02\0\x01", b"\x20\x02\0\x84") or raw[:1] + raw[2:4] == b"\x20\0\x84"
        while raw:
            raw = client.socket.recv(100)


@states(mqtt311="3.1.2-3 3.1.4-1", mqtt5="3.1.2-3 3.1.4-1")
def test_the_reserved_connect_flag(lab: Lab, version: int) -> None:
    client = lab.dial(version)
    client.send(wire.connect(fresh(), version, flags=3))
    turned_away(client)


FLAGS = {
    "Will QoS without Will Flag": 0x0A,
    "Will Retain without Will Flag": 0x22,
    "Will QoS 3 without Will Flag": 0x1A,
}


@states(mqtt311="3.1.2-11 3.1.2-13 3.1.2-15 3.1.4-1 3.2.2-6", mqtt5="3.1.2-11 3.1.2-13 3.1.4-1")
@pytest.mark.parametrize("flags", FLAGS.values(), ids=list(FLAGS))
def test_will_flags_without_a_will(lab: Lab, version: int, flags: int) -> None:
    client = lab.dial(version)
    client.send(wire.connect(fresh(), version, flags=flags))
    turned_away(client)


@states(mqtt311="3.1.2-14 3.1.4-1", mqtt5="3.1.2-12 3.1.4-1")
def test_will_qos_3(lab: Lab, version: int) -> None:
    client = lab.dial(version)
    client.send(wire.connect(fresh(), version, flags=0x1E, will=wire.Will("w")))
    turned_away(client, 0x9B)


@states(mqtt311="3.1.2-9 3.1.2-19 3.1.2-21 3.1.3-3 3.1.4-1", mqtt5="3.1.2-9 3.1.2-17 3.1.2-19 3.1.3-3 3.1.4-1")
def test_fields_that_the_flags_promise_are_there(lab: Lab, version: int) -> None:
    packet = wire.connect(fresh(), version)
    for flags in (0x06, 0x82, 0xC2):  # will, user name, user name and password
        client = lab.dial(version)
        client.send(wire.connect(fresh(), version, flags=flags))
        turned_away(client)
    # no client identifier at all
    client = lab.dial(version)
    client.send(bytes((0x10, 10 + (version == 5))) + packet[2 : 12 + (version == 5)])
    turned_away(client, 0x85)


@states(mqtt311="3.1.2-18 3.1.2-20 3.1.2-11 3.1.4-1", mqtt5="3.1.2-16 3.1.2-18 3.1.4-1")
def test_fields_that_the_flags_do_not_promise_are_not_there(lab: Lab, version: int) -> None:
    for given in ({"user": "u"}, {"user": "u", "password": b"p"}, {"will": wire.Will("w")}):
        client = lab.dial(version)
        client.send(wire.connect(fresh(), version, flags=2, **given))  # type: ignore[arg-type]
        turned_away(client)


@states(mqtt311="3.1.2-22 3.1.4-1")
def test_no_password_without_a_user_name(lab: Lab, version: int) -> None:
    client = lab.dial(version)
    client.send(wire.connect(fresh(), version, password=b"secret"))
    turned_away(client)


@states(mqtt5="3.1.4-5")
def test_a_password_without_a_user_name_is_allowed_in_mqtt_5(lab: Lab, version: int) -> None:
    client = lab.dial()
    client.send(wire.connect(fresh(), password=b"token"))
    # whether it is the right one is for the server to say
    assert client.expect("CONNACK").reason in (0, 0x86, 0x87)


@states(mqtt311="3.1.4-1 3.1.2-1", mqtt5="3.1.4-1")
def test_a_connect_that_ends_early_or_late(lab: Lab, version: int) -> None:
    whole = wire.connect(fresh(), version, will=wire.Will("w"), user="u", password=b"p")
    body = whole[2:]
    for length in (0, 1, 3, 6, 7, 9, len(body) - 1):
        client = lab.dial(version)
        client.send(wire.packet(0x10, body[:length]))
        turned_away(client, 0x84, 0x85)
    client = lab.dial(version)
    client.send(wire.packet(0x10, body, b"more"))
    turned_away(client)


@states(mqtt311="3.1.3-1 3.1.2-8", mqtt5="3.1.3-1 3.1.2-7 3.1.2-8")
def test_the_fields_of_the_payload_come_in_their_order(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client(version)
    watcher.subscribe(topic)
    client = lab.client(version, will=wire.Will(topic, b"the will", 1), user="user", password=b"password")
    client.hang_up()
    watcher.message(topic, b"the will", qos=1)


@states(mqtt311="3.1.3-5", mqtt5="3.1.3-5")
def test_identifiers_of_1_to_23_letters_and_digits(lab: Lab, version: int) -> None:
    characters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for client_id in ("a", "Z", "0", characters[:23], characters[23:46], characters[46:] + "01234"):
        lab.client(version, client_id).leave()


@states(mqtt311="3.1.3-6 3.1.3-7", mqtt5="3.1.3-6 3.2.2-16")
def test_clients_without_an_identifier_are_told_apart(lab: Lab, version: int) -> None:
    topic = fresh()
    clients = [lab.client(version, "") for _ in range(3)]
    for client in clients:
        client.subscribe(topic)
    lab.client(version).publish(topic, b"all")
    for client in clients:
        client.message(topic, b"all")
    if version == 5:
        names = {client.connack.properties["assigned_client_id"] for client in clients}
        assert len(names) == 3
        assert "" not in names


@states(mqtt5="3.1.3-6 3.1.3-7")
def test_the_identifier_that_was_assigned_is_the_client_s_own(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(client_id="", clean=False, session_expiry=60)
    name = client.connack.properties["assigned_client_id"]
    client.subscribe(topic)
    client.hang_up()
    again = lab.client(client_id=name, clean=False)
    assert again.connack.session_present
    assert "assigned_client_id" not in again.connack.properties


@states(mqtt311="3.1.3-8 3.1.3-9 3.1.3-7 3.2.2-4 3.2.2-5")
def test_no_identifier_and_no_clean_session(lab: Lab, version: int) -> None:
    client = lab.client(version, "", reason=2, clean=False)
    assert not client.connack.session_present
    assert client.receive() is None


@states(mqtt5="3.1.3-8 3.1.4-2 3.2.2-6")
def test_an_identifier_that_is_not_valid(lab: Lab, version: int) -> None:
    for client_id in (b"\xff\xfe", b"a\0"):
        client = lab.dial()
        client.send(wire.connect(client_id))
        turned_away(client, 0x85)


@states(mqtt311="3.1.4-2 3.1.3-2", mqtt5="3.1.4-3 3.1.3-2 3.14.4-1 3.14.4-2 3.14.2-1 3.14.2-2 4.13.2-1")
def test_the_identifier_of_a_connected_client_is_taken_over(lab: Lab, version: int) -> None:
    topic = fresh()
    first = lab.client(version)
    first.subscribe(topic)
    second = lab.client(version, first.client_id)
    last = first.rest()
    assert [one.kind for one in last] == (["DISCONNECT"] if version == 5 else [])
    if version == 5:
        assert last[0].reason == 0x8E
        assert "session_expiry" not in last[0].properties
    lab.client(version).publish(topic, b"x")
    second.nothing()  # its session is a new one


@states(mqtt311="3.1.4-2", mqtt5="3.1.4-3")
def test_a_takeover_by_a_client_of_the_other_version(lab: Lab, version: int) -> None:
    first = lab.client(version)
    second = lab.client(9 - version, first.client_id)
    assert [one.reason for one in first.rest()] == ([0x8E] if version == 5 else [])
    second.nothing()


@states(mqtt311="3.1.4-2 3.1.2-4 3.2.2-2", mqtt5="3.1.4-3 3.1.2-5 3.2.2-3")
def test_a_takeover_that_resumes(lab: Lab, version: int) -> None:
    topic = fresh()
    first = lab.kept(version)
    first.subscribe((topic, 1))
    second = lab.kept(version, first.client_id)
    assert second.connack.session_present
    first.rest()
    lab.client(version).publish(topic, b"x")
    second.message(topic, b"x")


@states(mqtt311="3.1.4-5", mqtt5="3.1.4-6")
def test_behind_a_refused_connect_nothing_is_processed(lab: Lab, version: int) -> None:
    topic = fresh()
    if version == 5:
        bad = wire.connect(fresh(), authentication_method="none such")
    else:
        bad = wire.connect("", version, clean=False)
    client = lab.dial(version)
    client.send(bad, wire.publish(topic, b"x", 1, 1, retain=True, version=version), wire.PINGREQ)
    assert client.expect("CONNACK").reason != 0
    assert client.rest() == []
    assert lab.retained(topic) == []


@states(mqtt311="3.1.4-4 3.2.0-1 3.1.4-3", mqtt5="3.1.4-5 3.2.0-1 3.2.2-8 3.1.4-4")
def test_connack_comes_before_everything_else(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept(version)
    client.subscribe((topic, 1))
    client.leave()
    lab.client(version).publish(topic, b"waiting")
    again = lab.dial(version)
    again.send(wire.connect(client.client_id, version, clean=False), wire.PINGREQ, wire.subscribe(1, (topic, 1), version=version))
    again.expect("CONNACK", reason=0, session_present=True)
    assert sorted(again.receive().kind for _ in range(3)) == ["PINGRESP", "PUBLISH", "SUBACK"]


@states(mqtt311="4.8.0-1", mqtt5="4.13.1-1")
def test_a_huge_remaining_length_before_connect_takes_no_memory(lab: Lab, version: int) -> None:
    """It is refused at its header, or its bytes are waited for without a place for all of them: others are served at once."""
    clients = [lab.dial(version) for _ in range(50)]
    for client in clients:
        client.send(b"\x10\xff\xff\xff\x7f" + wire.connect(fresh(), version)[2:])
    lab.client(version).nothing()
    for client in clients:
        client.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionError):
            assert client.socket.recv(100)[:1] in (b"", b"\x20")
