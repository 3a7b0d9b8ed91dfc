"""The example with two companies on real brokers: what clients of one see of the other, and what the operator may change."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mqmesh.cli.fleet.process import Fleet
from mqmesh.mesh.topology.topology import Topology, load
from support.paho_client import Paho
from support.services import PATIENCE, free_port, wait_until

pytestmark = pytest.mark.slow
FILE = Path(__file__).parents[2] / "topologies" / "two-companies.toml"
SETTLE = 90.0


def at_free_ports(topology: Topology) -> Topology:
    """The same with listeners where nobody else listens. A link that a busy machine gives up would lose messages of QoS 0."""
    topology.mesh = replace(topology.mesh, silence=60.0)
    topology.brokers[:] = [replace(broker, listen=(f"mqtt://127.0.0.1:{free_port()}",)) for broker in topology.brokers]
    return topology


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(at_free_ports(load(FILE)), tmp_path_factory.mktemp("fleet")) as running:
        running.wait_settled(SETTLE)
        yield running


def client(fleet: Fleet, name: str) -> Paho:
    return Paho(fleet.members[name].address.port)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_orders_go_out_and_confirmations_come_in(fleet: Fleet, qos: int) -> None:
    with client(fleet, "porto") as acme, client(fleet, "linz") as bolt, client(fleet, "lyon") as at_home:
        acme.subscribe("partners/bolt/#", qos)
        bolt.subscribe("suppliers/#", qos)
        at_home.subscribe("orders/#", qos)
        fleet.wait_settled(SETTLE)
        for number in range(100):
            acme.publish(f"orders/{number % 3}", str(number), qos)
        for subscriber, prefix in ((bolt, "suppliers/acme/orders"), (at_home, "orders")):
            got = [subscriber.next() for _ in range(100)]
            assert [int(message.payload) for message in got] == list(range(100))
            assert [message.topic for message in got] == [f"{prefix}/{number % 3}" for number in range(100)]
            assert {message.qos for message in got} == {qos}
        bolt.publish("confirm/7", b"yes", qos)
        answer = acme.next()
        assert (answer.topic, answer.payload) == ("partners/bolt/confirm/7", b"yes")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_nothing_else_crosses(fleet: Fleet, qos: int) -> None:
    with client(fleet, "linz") as inside, client(fleet, "bolt-gate") as gate, client(fleet, "porto") as acme, client(fleet, "lyon") as lyon:
        for one in (inside, gate, lyon):
            one.subscribe("#", qos)
        fleet.wait_settled(SETTLE)
        for topic in ("orders/internal/price", "plans", "acme/orders/1", "suppliers/acme/orders/1", "confirm/1", "bolt/confirm/1"):
            acme.publish(topic, topic, qos, retain=qos == 1)
            assert lyon.next().topic == topic
        acme.publish("orders/last", b"last", qos)
        for one in (inside, gate):
            message = one.next()
            assert (message.topic, message.payload) == ("suppliers/acme/orders/last", b"last")
        with client(fleet, "linz") as later:
            later.subscribe("#", 1)
            later.nothing_until("marker")
        for topic in ("orders/internal/price", "plans", "acme/orders/1", "suppliers/acme/orders/1", "confirm/1", "bolt/confirm/1"):
            acme.publish(topic, b"", 1, retain=True)
    for name in ("acme-gate", "bolt-gate"):
        assert fleet.members[name].status["counters"]["dropped_policy"] == 0  # nobody even tried


def test_a_retained_order_has_its_name_at_each_side(fleet: Fleet) -> None:
    with client(fleet, "porto") as acme, client(fleet, "linz") as watcher:
        watcher.subscribe("suppliers/#", 1)
        fleet.wait_settled(SETTLE)
        acme.publish("orders/kept", b"kept", 1, retain=True)
        assert watcher.next().topic == "suppliers/acme/orders/kept"
        for name, topic in (("lyon", "orders/kept"), ("graz", "suppliers/acme/orders/kept")):
            with client(fleet, name) as later:
                later.subscribe("#", 1)
                message = later.next()
                assert (message.topic, message.payload, message.retain) == (topic, b"kept", True)
        acme.publish("orders/kept", b"", 1, retain=True)
        assert watcher.next().payload == b""
        with client(fleet, "graz") as later:
            later.subscribe("#", 1)
            later.nothing_until("marker")


def test_sighup_takes_over_a_policy_and_a_mistake_changes_nothing(fleet: Fleet) -> None:
    member = fleet.members["acme-gate"]
    file = fleet.folder / "acme-gate.toml"
    before = file.read_text()
    assert '"orders/internal/#"' in before
    with client(fleet, "porto") as acme, client(fleet, "linz") as bolt:
        bolt.subscribe("suppliers/#", 1)
        fleet.wait_settled(SETTLE)
        try:
            file.write_text(before.replace('out_except = ["orders/internal/#"]', 'out_except = "orders"'))
            _reload(fleet, "event=reload-failed")
            assert "out_except" in fleet.log("acme-gate").read_text()
            file.write_text(before.replace('out_except = ["orders/internal/#"]', 'out_except = ["orders/secret/#"]'))
            assert member.pid is not None
            _reload(fleet, "event=reloaded")
            fleet.wait_settled(SETTLE)
            for topic in ("orders/secret/1", "orders/internal/1"):
                acme.publish(topic, topic, 1)
            assert bolt.next().topic == "suppliers/acme/orders/internal/1"
        finally:
            file.write_text(before)
            _reload(fleet, "event=reloaded")
            fleet.wait_settled(SETTLE)


def _reload(fleet: Fleet, word: str) -> None:
    """Send SIGHUP and wait until the gate has said what came of it."""
    log = fleet.log("acme-gate")
    known = log.read_text().count(word)
    pid = fleet.members["acme-gate"].pid
    assert pid is not None
    os.kill(pid, signal.SIGHUP)
    wait_until(lambda: log.read_text().count(word) > known, PATIENCE, word)
