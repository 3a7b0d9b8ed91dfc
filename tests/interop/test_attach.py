"""Mosquitto attached to a broker of ours: what crosses, what is retained, and that nothing comes back."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import MQTTMessage
from support.brokers import RunningBroker, running_broker
from support.mosquittos import Mosquitto
from support.paho_client import Paho
from support.remotes import running_amqtt

VERSIONS = ["5", "3.1.1"]


@contextlib.contextmanager
def attached(folder: Path, address: str, lines: str = "") -> Iterator[RunningBroker]:
    """A broker of ours with one `[[attach]]`, once messages cross."""
    table = f'[[attach]]\nname = "plant"\naddress = "{address}"\n{lines}\n'
    with running_broker(folder, "mqmesh", queues=table) as broker:
        up(broker)
        yield broker


def up(broker: RunningBroker, state: str = "up") -> None:
    """Return once the attached broker's state is this."""
    with Paho(broker.port) as watch:
        watch.subscribe("$SYS/broker/attach/plant/state", 0)
        while watch.next().payload != state.encode():
            pass


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_of_all_qos_cross_both_ways_once(tmp_path: Path, version: str) -> None:
    with (
        Mosquitto(tmp_path) as its_broker,
        attached(tmp_path, its_broker.url, f'version = "{version}"') as our_broker,
        Paho(our_broker.port) as ours,
        Paho(its_broker.port) as its,
    ):
        for client in (ours, its):
            client.subscribe("a/#", 2)
        sent = [(topic, b"%d" % number, number % 3) for number in range(30) for topic in ("a/ours", "a/its")]
        for number in range(30):
            ours.publish("a/ours", b"%d" % number, number % 3)
            its.publish("a/its", b"%d" % number, number % 3)
        for client in (ours, its):
            assert Counter(_seen(client.next()) for _ in sent) == Counter(sent)
        for client in (ours, its):  # an echo would stand before the other one's last message
            client.publish("a/last", b"", 2)
        for client in (ours, its):
            assert [client.next().topic for _ in range(2)] == ["a/last"] * 2
            client.nothing_until(f"own/{client.port}")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_retained_and_its_deletion_cross_both_ways(tmp_path: Path, version: str) -> None:
    with Mosquitto(tmp_path) as its_broker, Paho(its_broker.port) as its:
        its.publish("r/before", b"theirs", 1, retain=True)
        with attached(tmp_path, its_broker.url, f'version = "{version}"') as our_broker, Paho(our_broker.port) as ours:
            ours.subscribe("r/#", 1, retainAsPublished=True)
            assert _kept(ours.next()) == ("r/before", b"theirs", True)
            its.subscribe("r/#", 1)
            its.next()
            ours.publish("r/ours", b"1", 1, retain=True)
            its.publish("r/its", b"2", 1, retain=True)
            ours.publish("r/before", b"", 1, retain=True)
            for client in (ours, its):
                assert {client.next().topic for _ in range(3)} == {"r/ours", "r/its", "r/before"}
            its.publish("r/ours", b"", 1, retain=True)
            for client in (ours, its):
                assert client.next().topic == "r/ours"
            for port in (our_broker.port, its_broker.port):
                with Paho(port) as later:
                    later.subscribe("r/#", 1)
                    assert _kept(later.next()) == ("r/its", b"2", True)
                    later.nothing_until(f"own/{port}")


def test_wills_cross_both_ways(tmp_path: Path) -> None:
    with (
        Mosquitto(tmp_path) as its_broker,
        attached(tmp_path, its_broker.url) as our_broker,
        Paho(our_broker.port) as ours,
        Paho(its_broker.port) as its,
    ):
        for port, watch in ((our_broker.port, its), (its_broker.port, ours)):
            watch.subscribe("w", 1)
            dying = Paho(port, will={"topic": "w", "payload": b"gone", "qos": 1})
            dying.open()
            dying.vanish()
            assert watch.next().payload == b"gone"
            watch.unsubscribe("w")


def test_names_are_mapped_and_what_the_policy_forbids_stays(tmp_path: Path) -> None:
    lines = 'in = ["plant/s/#"]\nout = ["plant/c/#"]\nmap = [{ here = "plant/", there = "" }]'
    with (
        Mosquitto(tmp_path) as its_broker,
        attached(tmp_path, its_broker.url, lines) as our_broker,
        Paho(our_broker.port) as ours,
        Paho(its_broker.port) as its,
    ):
        ours.subscribe("#", 1)
        its.subscribe("#", 1)
        its.publish("x/1", b"stays", 1)
        its.publish("s/1", b"in", 1)
        ours.publish("s/2", b"stays", 1)
        ours.publish("plant/c/1", b"out", 1)
        assert [its.next().topic for _ in range(3)] == ["x/1", "s/1", "c/1"]
        assert {ours.next().topic for _ in range(3)} == {"plant/s/1", "s/2", "plant/c/1"}
        for client in (ours, its):
            client.nothing_until(f"own/{client.port}")


def _seen(message: MQTTMessage) -> tuple[str, bytes, int]:
    return message.topic, message.payload, message.qos


def _kept(message: MQTTMessage) -> tuple[str, bytes, bool]:
    return message.topic, message.payload, message.retain


def test_a_broker_that_knows_no_bridges_gets_topics_that_do_not_overlap(tmp_path: Path) -> None:
    lines = 'version = "3.1.1"\nin = ["up/#"]\nout = ["down/#"]'
    with (
        running_amqtt(tmp_path) as port,
        attached(tmp_path, f"mqtt://127.0.0.1:{port}", lines) as our_broker,
        Paho(our_broker.port) as ours,
        Paho(port, 4) as its,
    ):
        for client in (ours, its):
            client.subscribe("#", 2)
        for qos in range(3):
            its.publish("up/1", b"%d" % qos, qos)
            ours.publish("down/1", b"%d" % qos, qos)
        expected = Counter((topic, b"%d" % qos) for topic in ("up/1", "down/1") for qos in range(3))
        for client in (ours, its):
            assert Counter(_seen(client.next())[:2] for _ in range(6)) == expected  # amqtt gives messages the QoS of the subscription
            client.nothing_until(f"own/{client.port}")


def test_a_broker_that_knows_no_bridges_would_send_everything_back(tmp_path: Path) -> None:
    with running_amqtt(tmp_path) as port:
        table = f'[[attach]]\nname = "plant"\naddress = "mqtt://127.0.0.1:{port}"\nversion = "3.1.1"\n'
        with running_broker(tmp_path, "mqmesh", queues=table) as broker, Paho(broker.port) as watch:
            watch.subscribe("$SYS/broker/attach/plant/trouble", 0)
            while b"would send back what we publish: # and # overlap there; give other in and out" not in watch.next().payload:
                pass


@pytest.mark.parametrize("version", VERSIONS)
def test_control_characters_do_not_cut_a_broker_off_that_does_not_take_them(tmp_path: Path, version: str) -> None:
    """Any client may choose a topic, a property or a filter. Mosquitto closes the connection over them."""
    with (
        Mosquitto(tmp_path) as its_broker,
        attached(tmp_path, its_broker.url, f'version = "{version}"\nin_wanted = ["raw/#"]') as our_broker,
        Paho(our_broker.port) as ours,
        Paho(its_broker.port) as its,
    ):
        its.subscribe("#", 1)
        ours.subscribe("raw/\x01/+", 1)
        ours.publish("out/\x7f", b"stays", 1)
        strange: dict[str, Any]
        for strange in ({"UserProperty": ("a", "b\u0085")}, {"ContentType": "\ufffe"}, {"ResponseTopic": "r\x02"}):
            ours.publish("out/1", b"stays" if version == "5" else b"crosses", 1, **strange)
        ours.publish("out/2", b"last", 1)
        expected = [("out/1", b"crosses")] * (0 if version == "5" else 3) + [("out/2", b"last")]
        assert [(one.topic, one.payload) for one in (its.next() for _ in expected)] == expected
        with Paho(our_broker.port) as watch:
            watch.subscribe("$SYS/broker/attach/plant/faults", 0)
            assert watch.next().payload == b"0"


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_come_in_on_demand(tmp_path: Path, version: str) -> None:
    lines = f'version = "{version}"\nin = ["s/#"]\nin_wanted = ["raw/#"]'
    with (
        Mosquitto(tmp_path) as its_broker,
        attached(tmp_path, its_broker.url, lines) as our_broker,
        Paho(our_broker.port) as ours,
        Paho(its_broker.port) as its,
    ):
        its.publish("raw/1", b"for nobody", 1)
        ours.subscribe("s/#", 1)
        ours.subscribe("raw/+/x", 1)
        its.publish("s/1", b"", 1)
        assert ours.next().topic == "s/1", "what always comes in"
        number = 0
        while ours.messages.empty():  # Mosquitto has not heard of it yet
            its.publish("raw/1/x", b"%d" % number, 1)
            number += 1
        first = int(ours.next().payload)
        for more in range(number, number + 20):
            its.publish("raw/1/x", b"%d" % more, 1)
            its.publish("raw/1/y", b"for nobody", 1)
        assert [int(ours.next().payload) for _ in range(first + 1, number + 20)] == list(range(first + 1, number + 20))
        its.publish("s/1", b"last", 1)
        assert ours.next().payload == b"last"
