"""What waits for time to pass: keep-alive, expiry of messages and sessions, delayed wills.

All of it waits at once: the first test that runs starts every story of this module in a thread of its own, and each test takes the end of
its own story. The intervals are a few seconds, the least that the protocol can say; nothing fails because it took longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conformance import wire
from conformance.conftest import outside, start, stop
from conformance.lab import Lab, fresh
from conformance.statements import states

Story = Callable[[Lab, int], None]
STORIES: list[tuple[Story, int]] = []


def tell(story: Story, *versions: int) -> Story:
    """Have a story begin with the others."""
    STORIES.extend((story, version) for version in versions)
    return story


class Told:
    """The stories under way."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.pool = ThreadPoolExecutor(len(STORIES))
        self.labs = [Lab(address) for _ in STORIES]
        self.ends: dict[tuple[str, int], Future[Any]] = {
            (story.__name__, version): self.pool.submit(story, lab, version)
            for (story, version), lab in zip(STORIES, self.labs, strict=True)
        }

    def end(self, story: Story, version: int) -> None:
        self.ends[story.__name__, version].result()


@pytest.fixture(scope="module")
def told(address: tuple[str, int]) -> Iterator[Told]:
    found = Told(address)
    yield found
    for lab in found.labs:
        lab.close()
    found.pool.shutdown()


# Keep-alive


def silence(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client(version)
    watcher.subscribe(topic)
    begin = time.monotonic()
    client = lab.client(version, keep_alive=1, will=wire.Will(topic))
    client.refused(0x8D)
    assert time.monotonic() - begin > 1.4
    watcher.message(topic)  # as if the network had failed


def packets_before_it_is_over(lab: Lab, version: int) -> None:
    keep_alive = 2
    while True:
        client = lab.client(version, keep_alive=keep_alive)
        silent = lab.client(version, keep_alive=keep_alive)
        begin = last = time.monotonic()
        longest = 0.0
        kinds = {"PINGRESP"}
        while last - begin < 2 * keep_alive and kinds == {"PINGRESP"}:
            time.sleep(0.05)
            client.send(wire.PINGREQ)
            now = time.monotonic()
            answer = client.receive()
            kinds.add(answer.kind if answer else "")
            last, longest = now, max(longest, time.monotonic() - last)
        if longest < keep_alive:
            break
        keep_alive *= 2  # this machine is too slow for that
    assert kinds == {"PINGRESP"}
    silent.refused(0x8D)


def no_keep_alive(lab: Lab, version: int) -> None:
    client = lab.client(version, keep_alive=0)
    silent = lab.client(version, keep_alive=1)
    silent.refused(0x8D)
    client.nothing()


tell(silence, 4, 5)
tell(packets_before_it_is_over, 4, 5)
tell(no_keep_alive, 4, 5)


@states(mqtt311="3.1.2-24 3.1.2-8", mqtt5="3.1.2-22 3.2.2-22 3.1.2-8 3.14.2-1")
def test_a_silent_client_is_cut_off(told: Told, version: int) -> None:
    told.end(silence, version)


@states(mqtt311="3.1.2-24", mqtt5="3.1.2-22 3.2.2-22")
def test_a_client_that_pings_is_not_cut_off(told: Told, version: int) -> None:
    told.end(packets_before_it_is_over, version)


@states(mqtt311="3.1.2-24", mqtt5="3.1.2-22 3.2.2-22")
def test_keep_alive_0_means_for_ever(told: Told, version: int) -> None:
    told.end(no_keep_alive, version)


# Messages


def a_message_expires(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept()
    client.subscribe((topic, 2))
    client.leave()
    writer = lab.client()
    for qos in (1, 2):
        writer.publish(topic, b"short", qos, message_expiry=1)
    writer.publish(topic, b"kept", 1, message_expiry=1, retain=True)
    writer.publish(topic, b"long", 1, message_expiry=1000)
    time.sleep(2.5)
    again = lab.kept(client_id=client.client_id)
    again.message(topic, b"long")
    again.nothing()
    assert lab.retained(topic) == []


def expiry_is_counted_down(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.kept()
    client.subscribe((topic, 1))
    client.leave()
    writer = lab.client()
    begin = time.monotonic()
    writer.publish(topic, b"x", 1, message_expiry=1000, retain=True)
    time.sleep(2.2)
    found = lab.kept(client_id=client.client_id).message(topic).properties["message_expiry"]
    retained = lab.retained(topic)[0].properties["message_expiry"]
    waited = time.monotonic() - begin
    for left in (found, retained):
        assert 1000 - waited - 1 <= left <= 998
    writer.publish(topic, b"", retain=True)


def a_message_that_was_sent_does_not_expire(lab: Lab, version: int) -> None:
    expiry = 2
    while True:
        topic = fresh()
        client = lab.kept()
        client.subscribe((topic, 2))
        begin = time.monotonic()
        lab.client().publish(topic, b"x", 2, message_expiry=expiry)
        client.send(wire.PINGREQ)
        found = client.receive()
        if found is not None and found.kind == "PUBLISH":
            break
        assert time.monotonic() - begin >= expiry, found
        expiry *= 2  # this machine is too slow for that: it was over before it was sent
    assert found.payload == b"x"
    client.expect("PINGRESP")
    client.hang_up()
    time.sleep(expiry + 1.2)
    again = lab.kept(client_id=client.client_id)
    again.expect("PUBLISH", packet_id=found.packet_id, payload=b"x", dup=True)
    again.send(wire.acknowledge("PUBREC", found.packet_id))
    again.expect("PUBREL", packet_id=found.packet_id)
    again.send(wire.acknowledge("PUBCOMP", found.packet_id))
    again.nothing()


def the_handshake_goes_on_after_expiry(lab: Lab, version: int) -> None:
    topic = fresh()
    away = lab.kept()
    away.subscribe((topic, 2))
    away.leave()
    writer = lab.client()
    writer.send(wire.publish(topic, b"x", 2, 5, message_expiry=1))
    writer.expect("PUBREC", packet_id=5)
    time.sleep(2.2)
    writer.send(wire.publish(topic, b"x", 2, 5, dup=True, message_expiry=1))
    writer.expect("PUBREC", packet_id=5)
    writer.send(wire.acknowledge("PUBREL", 5))
    writer.expect("PUBCOMP", packet_id=5, reason=0)
    lab.kept(client_id=away.client_id).nothing()


tell(a_message_expires, 5)
tell(expiry_is_counted_down, 5)
tell(a_message_that_was_sent_does_not_expire, 5)
tell(the_handshake_goes_on_after_expiry, 5)


@states(mqtt5="3.3.2-5")
def test_a_message_whose_expiry_is_over_is_deleted(told: Told, version: int) -> None:
    told.end(a_message_expires, version)


@states(mqtt5="3.3.2-6")
def test_expiry_is_counted_down_in_queues_and_for_retained_messages(told: Told, version: int) -> None:
    told.end(expiry_is_counted_down, version)


@states(mqtt5="4.3.3-7")
def test_a_publish_that_was_sent_does_not_expire(told: Told, version: int) -> None:
    told.end(a_message_that_was_sent_does_not_expire, version)


@states(mqtt5="4.3.3-13")
def test_the_qos_2_handshake_goes_on_when_the_message_has_expired(told: Told, version: int) -> None:
    told.end(the_handshake_goes_on_after_expiry, version)


# Sessions


def a_session_expires(lab: Lab, version: int) -> None:
    client = lab.client(clean=False, session_expiry=1)
    client.subscribe(fresh())
    client.leave()
    changed = lab.kept()
    changed.leave(0, session_expiry=1)
    stays = lab.kept()
    stays.leave()
    time.sleep(2.5)
    assert not lab.client(client_id=client.client_id, clean=False).connack.session_present
    assert not lab.client(client_id=changed.client_id, clean=False).connack.session_present
    assert lab.client(client_id=stays.client_id, clean=False).connack.session_present


def a_session_does_not_expire_under_a_connection(lab: Lab, version: int) -> None:
    topic = fresh()
    client = lab.client(clean=False, session_expiry=1)
    client.subscribe((topic, 2))
    lab.client().publish(topic, b"x", 2)
    found = client.message(topic, finish=False)
    time.sleep(2.5)
    client.send(wire.acknowledge("PUBREC", found.packet_id))
    client.expect("PUBREL", packet_id=found.packet_id, reason=0)
    lab.client().publish(topic, b"y", 1)
    client.message(topic, b"y")


tell(a_session_expires, 5)
tell(a_session_does_not_expire_under_a_connection, 5)


@states(mqtt5="4.1.0-2 3.1.2-23")
def test_a_session_ends_when_its_expiry_is_over(told: Told, version: int) -> None:
    told.end(a_session_expires, version)


@states(mqtt5="4.1.0-1")
def test_a_session_does_not_end_while_its_connection_is_open(told: Told, version: int) -> None:
    told.end(a_session_does_not_expire_under_a_connection, version)


# Wills


def a_will_is_delayed(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client()
    watcher.subscribe((topic, 2))
    client = lab.kept(will=wire.Will(topic, b"late", 1, properties={"will_delay": 2, "message_expiry": 1000}))
    begin = time.monotonic()
    client.hang_up()
    found = watcher.message(topic, b"late", qos=1)
    assert time.monotonic() - begin > 1.9
    assert found.properties["message_expiry"] >= 999  # counted from when it is published
    assert lab.kept(client_id=client.client_id).connack.session_present


def a_will_that_is_retained_expires(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client()
    watcher.subscribe(topic)
    lab.client(will=wire.Will(topic, b"short", retain=True, properties={"message_expiry": 1})).hang_up()
    watcher.message(topic, b"short")
    lab.client(will=wire.Will(f"{topic}/long", b"long", retain=True, properties={"message_expiry": 500})).hang_up()
    time.sleep(2.5)
    assert lab.retained(topic) == []
    assert [one.properties["message_expiry"] <= 498 for one in lab.retained(f"{topic}/long")] == [True]
    lab.client().publish(f"{topic}/long", b"", retain=True)


def a_session_ends_before_the_will_is_due(lab: Lab, version: int) -> None:
    topic = fresh()
    watcher = lab.client()
    watcher.subscribe(topic)
    client = lab.client(clean=False, session_expiry=1, will=wire.Will(topic, properties={"will_delay": 2000}))
    client.hang_up()
    watcher.message(topic)


def a_client_that_is_back_in_time_has_no_will(lab: Lab, version: int) -> None:
    delay = 2
    while True:
        topic = fresh()
        watcher = lab.client()
        watcher.subscribe(topic)
        client = lab.kept(will=wire.Will(topic, properties={"will_delay": delay}))
        begin = time.monotonic()
        client.hang_up()
        again = lab.kept(client_id=client.client_id)
        if time.monotonic() - begin < delay:
            break
        delay *= 2  # this machine is too slow for that
    time.sleep(delay + 0.7)
    watcher.nothing()
    again.hang_up()
    watcher.nothing()


tell(a_will_is_delayed, 5)
tell(a_will_that_is_retained_expires, 5)
tell(a_session_ends_before_the_will_is_due, 5)
tell(a_client_that_is_back_in_time_has_no_will, 5)


@states(mqtt5="3.1.2-8 3.3.2-6")
def test_a_will_waits_for_its_delay(told: Told, version: int) -> None:
    told.end(a_will_is_delayed, version)


@states(mqtt5="3.3.2-5 3.3.2-6 3.1.2-15")
def test_the_expiry_of_a_retained_will_is_counted_down(told: Told, version: int) -> None:
    told.end(a_will_that_is_retained_expires, version)


@states(mqtt5="3.1.2-8 4.1.0-2")
def test_the_end_of_the_session_is_the_end_of_the_delay(told: Told, version: int) -> None:
    told.end(a_session_ends_before_the_will_is_due, version)


@states(mqtt5="3.1.3-9 3.1.2-8")
def test_no_will_of_a_client_that_is_back_in_time(told: Told, version: int) -> None:
    told.end(a_client_that_is_back_in_time_has_no_will, version)


# Server Keep Alive: a broker of its own


@states(mqtt5="3.1.2-22 3.2.2-22")
def test_a_server_keep_alive_is_what_counts(tmp_path: Path, version: int) -> None:
    found = outside()
    process = None
    if found is None:
        process, found = start(tmp_path, "[limits]\nkeep_alive_maximum = 1\n")
    lab = Lab(found)
    try:
        for asked in (0, 60):
            client = lab.client(keep_alive=asked)
            granted = client.connack.properties.get("server_keep_alive")
            assert process is None or granted == 1
            if granted is not None and granted <= 2:
                client.refused(0x8D)
        shorter = lab.client(keep_alive=1)
        assert shorter.connack.properties.get("server_keep_alive", 1) == 1
    finally:
        lab.close()
        if process is not None:
            stop(process, tmp_path)
