"""CONNACK: what the server says about the session and itself (3.2)."""

from __future__ import annotations

from conformance import wire
from conformance.lab import Lab, fresh
from conformance.statements import states


@states(mqtt311="3.2.2-1 3.1.2-6 3.1.4-3", mqtt5="3.2.2-2 3.1.2-4 3.1.4-4")
def test_clean_start_has_no_session_present(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept(version)
    client.subscribe(topic)
    client.leave()
    lab.client(version).publish(topic, b"x")
    again = lab.client(version, client.client_id)
    assert not again.connack.session_present
    again.nothing()  # neither what waited nor what is published now
    lab.client(version).publish(topic, b"x")
    again.nothing()


@states(mqtt311="3.2.2-2 3.2.2-3 3.1.2-4", mqtt5="3.2.2-3 3.1.2-5 3.1.2-6 3.2.2-1")
def test_session_present_says_whether_there_is_a_session(lab: Lab, version: int) -> None:
    client = lab.kept(version)
    assert not client.connack.session_present
    client.leave()
    again = lab.kept(version, client.client_id)
    assert again.connack.session_present
    again.hang_up()
    assert lab.kept(version, client.client_id).connack.session_present


@states(mqtt311="3.2.2-3 3.1.2-6", mqtt5="3.2.2-3 3.1.2-6")
def test_a_clean_session_leaves_nothing_behind(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(version)  # MQTT 5: no session expiry either
    client.subscribe(topic)
    client.leave()
    lab.client(version).publish(topic, b"x")
    again = lab.kept(version, client.client_id)
    assert not again.connack.session_present
    again.nothing()


@states(mqtt311="3.2.2-4", mqtt5="3.2.2-6 3.2.2-7")
def test_a_refusal_has_no_session_present(lab: Lab, version: int) -> None:
    client = lab.kept(version)
    client.leave()
    refused = lab.dial(version)
    if version == 5:
        refused.send(wire.connect(client.client_id, clean=False, authentication_method="none such"))
    else:
        refused.send(wire.connect(client.client_id, version, clean=False, level=1))
    answer = refused.expect("CONNACK", session_present=False)
    assert answer.reason != 0
    assert refused.receive() is None
    assert lab.kept(version, client.client_id).connack.session_present  # and nothing has happened to the session


@states(mqtt311="3.2.2-5", mqtt5="3.2.2-7 4.13.2-1")
def test_the_connection_ends_after_a_refusal(lab: Lab, version: int) -> None:
    client = lab.dial(version)
    client.send(wire.connect(fresh(), authentication_method="none such") if version == 5 else wire.connect("", 4, clean=False))
    assert client.expect("CONNACK").reason != 0
    client.send(wire.PINGREQ)
    assert client.rest() == []


@states(mqtt5="3.2.2-9 3.2.2-10 3.2.2-12")
def test_every_qos_is_served_or_announced(lab: Lab, version: int) -> None:
    client = lab.client()
    most = client.connack.properties.get("maximum_qos", 2)
    assert client.subscribe(("a", 0), ("b", 1), ("c", 2)) in ([0, 1, 2], [0, min(1, most), most])
    for qos in range(3):
        other = lab.dial()
        other.send(wire.connect(fresh(), will=wire.Will("w", qos=qos)))
        answer = other.expect("CONNACK")
        assert (answer.reason == 0) == (qos <= most)
        if answer.reason:
            assert other.receive() is None


@states(mqtt5="3.2.2-13")
def test_a_retained_will_is_served_or_refused(lab: Lab, version: int) -> None:
    available = lab.client().connack.properties.get("retain_available", 1)
    topic = fresh()
    client = lab.dial()
    client.send(wire.connect(fresh(), will=wire.Will(topic, b"kept", retain=True)))
    answer = client.expect("CONNACK")
    assert (answer.reason == 0) == bool(available)
    if answer.reason:
        assert client.receive() is None
    else:
        client.hang_up()
        assert [one.payload for one in lab.retained(topic)] == [b"kept"]
        lab.client().publish(topic, b"", retain=True)


@states(mqtt5="3.2.2-19 3.2.2-20 3.1.2-24")
def test_connack_is_not_made_too_large_by_words(lab: Lab, version: int) -> None:
    for most in (5, 6, 12, 20):
        client = lab.dial()
        client.send(wire.connect(fresh(), authentication_method="none such", maximum_packet_size=most))
        for one in client.rest():
            assert one.kind == "CONNACK"
            assert one.size <= most


@states(mqtt5="3.14.0-1 3.1.2-24 3.2.0-1")
def test_a_client_for_which_connack_is_too_large(lab: Lab, version: int) -> None:
    """It gets one that fits, perhaps with less in it, or none; without one there is no DISCONNECT either, which would fit."""
    for most in range(1, 30):
        client = lab.dial()
        client.send(wire.connect("", maximum_packet_size=most), wire.disconnect())
        found = client.rest()
        assert [one.kind for one in found] in ([], ["CONNACK"])
        assert all(one.size <= most for one in found)


@states(mqtt5="3.2.2-20 3.2.2-19 3.1.4-5")
def test_what_connack_need_not_say_is_left_out_first(lab: Lab, version: int) -> None:
    """A client whose CONNACK is too large only because of what it asked for in addition is let in without that."""
    client_id = fresh("c")
    plain = lab.client(client_id=client_id).connack.size
    client = lab.client(client_id=client_id, maximum_packet_size=plain, request_response=1)
    assert client.connack.size <= plain
    client.nothing()


@states(mqtt5="3.1.2-28")
def test_response_information_only_on_request(lab: Lab, version: int) -> None:
    assert "response_information" not in lab.client().connack.properties
    assert "response_information" not in lab.client(request_response=0).connack.properties
    lab.client(request_response=1)  # the strict reader says whether what comes is well-formed


@states(mqtt5="3.2.0-2 3.2.2-1 3.2.2-8")
def test_what_a_narrow_broker_announces_is_well_formed(narrow: Lab, version: int) -> None:
    client = narrow.client(keep_alive=0, session_expiry=0xFFFFFFFF)
    found = client.connack.properties
    assert found.get("receive_maximum", 65535) >= 1
    assert found.get("maximum_packet_size", 1) >= 1
    client.nothing()
