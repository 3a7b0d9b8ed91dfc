"""Wills (3.1.2.5, 3.1.3.2). Delayed wills: sessions/test_keep_alive_and_expiry.py."""

from __future__ import annotations

import pytest
from conformance import wire
from conformance.lab import Client, Lab, fresh
from conformance.statements import states


def watcher_of(lab: Lab, version: int, topic: str) -> Client:
    client = lab.client(version)
    client.subscribe(topic)
    return client


@states(mqtt311="3.1.2-8 3.1.2-10 3.1.2-16", mqtt5="3.1.2-7 3.1.2-8 3.1.2-10 3.1.2-14")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_published_when_the_connection_breaks(lab: Lab, version: int, qos: int) -> None:
    topic = fresh()
    watcher = watcher_of(lab, version, topic)
    client = lab.kept(version, will=wire.Will(topic, b"gone", qos))
    client.hang_up()
    watcher.message(topic, b"gone", qos=qos, retain=False)
    # it is gone: the session that had it does not publish it again
    again = lab.kept(version, client.client_id)
    again.hang_up()
    assert lab.retained(topic) == []
    watcher.nothing()


@states(mqtt311="3.1.2-10 3.14.4-3", mqtt5="3.1.2-8 3.1.2-10 3.14.4-3")
def test_disconnect_throws_the_will_away(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = watcher_of(lab, version, topic)
    client = lab.kept(version, will=wire.Will(topic))
    client.leave()
    if version == 5:
        lab.kept(client_id=client.client_id, will=wire.Will(topic)).leave(0)
    lab.kept(version, client.client_id).hang_up()
    watcher.nothing()


@states(mqtt5="3.1.2-8 3.14.4-3")
def test_disconnect_with_0x04_publishes_the_will(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = watcher_of(lab, version, topic)
    lab.client(will=wire.Will(topic)).leave(0x04)
    watcher.message(topic)


@states(mqtt5="3.1.2-8")
@pytest.mark.parametrize("reason", [0x80, 0x81, 0x82, 0x83, 0x93, 0x99])
def test_disconnect_with_an_error_publishes_the_will(lab: Lab, version: int, reason: int) -> None:
    topic = fresh()
    watcher = watcher_of(lab, version, topic)
    lab.client(will=wire.Will(topic)).leave(reason)
    watcher.message(topic)


@states(mqtt311="3.1.2-8 4.8.0-1", mqtt5="3.1.2-8 4.13.1-1")
def test_a_will_is_published_when_the_server_ends_the_connection(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = watcher_of(lab, version, topic)
    client = lab.client(version, will=wire.Will(topic))
    client.send(wire.publish("no/#/topic", version=version))
    client.rest()
    watcher.message(topic)


@states(mqtt311="3.1.2-8 3.1.4-2", mqtt5="3.1.2-8 3.1.4-3")
def test_a_will_is_published_at_a_takeover(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = watcher_of(lab, version, topic)
    client = lab.client(version, will=wire.Will(topic))
    lab.client(version, client.client_id)
    watcher.message(topic)


@states(mqtt311="3.1.2-12", mqtt5="3.1.2-8")
def test_without_a_will_nothing_is_published(lab: Lab, version: int) -> None:
    watcher = lab.client(version)
    watcher.send(wire.subscribe(1, ("#", 0), version=version), wire.PINGREQ)
    while (one := watcher.receive()) is not None and one.kind != "PINGRESP":  # what others have retained
        assert one.kind in ("SUBACK", "PUBLISH")
    client = lab.client(version)
    client.hang_up()
    watcher.nothing()


@states(mqtt311="3.1.2-17 3.1.2-7", mqtt5="3.1.2-15")
def test_a_retained_will_is_retained(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = watcher_of(lab, version, topic)
    client = lab.client(version, will=wire.Will(topic, b"gone", 1, retain=True))
    client.hang_up()
    watcher.message(topic, b"gone", qos=1, retain=False)
    assert [(one.payload, one.retain) for one in lab.retained(topic)] == [(b"gone", True)]
    lab.client(version).publish(topic, b"", retain=True)


@states(mqtt311="3.1.2-16 3.3.1-12", mqtt5="3.1.2-14 3.3.1-8")
def test_a_will_that_is_not_retained_is_not(lab: Lab, version: int) -> None:
    topic = fresh()
    lab.client(version).publish(topic, b"before", retain=True)
    client = lab.client(version, will=wire.Will(topic, b"gone"))
    client.hang_up()
    assert [one.payload for one in lab.retained(topic)] == [b"before"]
    lab.client(version).publish(topic, b"", retain=True)


@states(mqtt5="3.1.3-10 3.3.2-17 3.3.2-18 3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-20")
def test_the_properties_of_a_will_are_those_of_its_message(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = watcher_of(lab, version, topic)
    given = {
        "payload_format": 1,
        "content_type": "text/plain",
        "response_topic": "a/b",
        "correlation_data": b"\0\1",
        "user": [("b", "1"), ("a", "2"), ("b", "1"), ("", "")],
    }
    client = lab.client(will=wire.Will(topic, b"gone", properties=given | {"will_delay": 0}))
    client.hang_up()
    assert watcher.message(topic, b"gone").properties == given


@states(mqtt5="3.1.2-8 3.1.2-10")
def test_a_session_that_ends_publishes_its_delayed_will(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = watcher_of(lab, version, topic)
    # the session ends with the connection, long before the delay
    lab.client(will=wire.Will(topic, b"1", properties={"will_delay": 3000})).hang_up()
    watcher.message(topic, b"1")
    # a clean start ends it
    client = lab.kept(will=wire.Will(topic, b"2", properties={"will_delay": 3000}))
    client.hang_up()
    watcher.nothing()
    lab.client(client_id=client.client_id, clean=True)
    watcher.message(topic, b"2")
    watcher.nothing()


@states(mqtt5="3.1.3-9 3.1.2-8")
def test_a_connection_before_the_delay_is_over_keeps_the_will_back(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = watcher_of(lab, version, topic)
    client = lab.kept(will=wire.Will(topic, properties={"will_delay": 3000}))
    client.hang_up()
    again = lab.kept(client_id=client.client_id)
    assert again.connack.session_present
    again.leave(0, session_expiry=0)  # the session ends, without the will that it had
    watcher.nothing()
    assert not lab.client(client_id=client.client_id, clean=False).connack.session_present


@states(mqtt5="3.1.3-9 3.1.4-3")
def test_a_takeover_before_the_delay_is_over_keeps_the_will_back(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = watcher_of(lab, version, topic)
    client = lab.kept(will=wire.Will(topic, b"first", properties={"will_delay": 3000}))
    again = lab.kept(client_id=client.client_id, will=wire.Will(topic, b"second"))
    client.rest()
    again.hang_up()
    watcher.message(topic, b"second")
    watcher.nothing()


@states(mqtt5="3.1.2-8 3.14.4-3")
def test_a_clean_disconnect_after_a_break_leaves_no_will(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = watcher_of(lab, version, topic)
    client = lab.kept(will=wire.Will(topic, properties={"will_delay": 3000}))
    client.leave(0)
    lab.client(client_id=client.client_id, clean=True)
    watcher.nothing()


@states(mqtt5="3.1.4-1 4.13.1-1")
def test_the_payload_format_of_a_will_is_kept_to(lab: Lab, version: int) -> None:
    """A server may check it (3.1.3.2.3). This one does; another may let the client in."""
    topic = fresh()
    client = lab.dial()
    client.send(wire.connect(fresh(), will=wire.Will(topic, b"\xff", properties={"payload_format": 1})))
    answer = client.expect("CONNACK")
    assert answer.reason in (0, 0x99)
    if answer.reason:
        assert client.receive() is None
