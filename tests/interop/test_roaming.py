"""Third-party clients that roam: their sessions, queues and wills come along, and their old connections are told."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet.process import Fleet
from support.examples import how_many
from support.paho_client import Paho
from support.services import PATIENCE, require, wait_until

pytestmark = pytest.mark.slow
SETTLE = 90.0
NAMES = ("porto", "lyon", "turin", "graz", "gdansk")
TAKEN_OVER = 0x8E


@pytest.fixture(scope="module", params=["kept", "in memory"])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    topology = ring(NAMES)
    # a link that a busy machine gives up parts the mesh: a session elsewhere cannot be asked for then, nor ended
    topology.mesh = replace(topology.mesh, clients="roam", silence=60.0, roam_wait=60.0)
    topology.tables["limits"] = {"connect_timeout": PATIENCE}
    with _Fleet(topology, tmp_path_factory.mktemp("fleet")) as running:
        running.kept = request.param == "kept"
        running.wait_settled(SETTLE)
        yield running


class _Fleet(Fleet):
    kept = True

    def configuration(self, name: str):  # type: ignore[no-untyped-def]
        config = super().configuration(name)
        return config if self.kept else replace(config, store=replace(config.store, kind="memory"))


def port(fleet: Fleet, name: str) -> int:
    return fleet.members[name].address.port


def bodies(client: Paho, count: int) -> list[bytes]:
    return [client.next().payload for _ in range(count)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
def test_paho_goes_around(fleet: Fleet, name: str, version: int, qos: int) -> None:
    with Paho(port(fleet, "porto"), version, name, persistent=True) as client:
        assert not client.session_present
        client.subscribe(f"{name}/#", qos)
    fleet.wait_settled(SETTLE)
    expected = []
    for place, site in enumerate(("lyon", "graz", "porto", "turin", "gdansk", "graz")[: how_many("MQMESH_PLACES", 6)]):
        for number, home in enumerate(NAMES):
            with Paho(port(fleet, home), 5) as publisher:
                for i in range(20):
                    body = b"%d from %d: %02d" % (place, number, i)
                    publisher.publish(f"{name}/{number}", body, qos)
                    expected.append(body)
        with Paho(port(fleet, site), version, name, persistent=True) as client:
            assert client.session_present
            got = bodies(client, len(NAMES) * 20)
            assert sorted(got) == sorted(expected)
            for number in range(len(NAMES)):
                mine = [body for body in got if b" from %d:" % number in body]
                assert mine == sorted(mine)
            client.nothing_until(f"marker/{name}/{place}")
            client.unsubscribe(f"marker/{name}/{place}")
        expected.clear()


def test_the_old_connection_is_told(fleet: Fleet, name: str) -> None:
    with Paho(port(fleet, "porto"), 5, name, persistent=True) as old:
        old.subscribe(f"{name}/#", 1)
        fleet.wait_settled(SETTLE)
        with Paho(port(fleet, "turin"), 5, name, persistent=True) as new:
            assert new.session_present
            assert old.disconnects.get(timeout=PATIENCE) == (True, TAKEN_OVER)
            with Paho(port(fleet, "graz"), 5) as publisher:
                publisher.publish(f"{name}/x", b"hello", 1)
            assert new.next().payload == b"hello"


def filters(fleet: Fleet, site: str) -> int:
    """How many filters a site has, as it says itself."""
    members = (fleet.members[site].status or {"members": ()})["members"]
    return next((int(one["filters"]) for one in members if one["name"] == site), -1)


def test_a_clean_start_discards_the_session_elsewhere(fleet: Fleet, name: str) -> None:
    fleet.wait_settled(SETTLE)
    before = filters(fleet, "porto")
    with Paho(port(fleet, "porto"), 5, name, persistent=True) as client:
        client.subscribe(f"{name}/#", 1)
    wait_until(lambda: filters(fleet, "porto") == before + 1, SETTLE, "subscription at porto")
    with Paho(port(fleet, "graz"), 5) as publisher:
        publisher.publish(f"{name}/x", b"for nobody", 1)
    with Paho(port(fleet, "turin"), 5, name) as client:
        assert not client.session_present
        client.nothing_until(f"marker/{name}")
    wait_until(lambda: filters(fleet, "porto") == before, SETTLE, "end of the session at porto")  # a clean start does not wait for it
    with Paho(port(fleet, "lyon"), 5, name, persistent=True) as client:
        assert not client.session_present
        client.nothing_until(f"marker/{name}")


def test_a_will_goes_out_at_takeover_or_not_at_all(fleet: Fleet, name: str) -> None:
    with Paho(port(fleet, "gdansk"), 5) as watcher:
        watcher.subscribe(f"will/{name}/#", 1)
        fleet.wait_settled(SETTLE)
        at_once = Paho(port(fleet, "porto"), 5, f"{name}-1", persistent=True, will={"topic": f"will/{name}/1", "payload": "gone", "qos": 1})
        with at_once, Paho(port(fleet, "turin"), 5, f"{name}-1", persistent=True):
            assert watcher.next().topic == f"will/{name}/1"
            assert at_once.disconnects.get(timeout=PATIENCE) == (True, TAKEN_OVER)


def test_what_was_sent_and_not_acknowledged_is_sent_again_with_its_identifier(fleet: Fleet, name: str) -> None:
    first = Paho(port(fleet, "porto"), 5, name, persistent=True)
    first.client.manual_ack_set(True)
    with first:
        first.subscribe(f"{name}/#", 1)
        fleet.wait_settled(SETTLE)
        with Paho(port(fleet, "graz"), 5) as publisher:
            for i in range(5):
                publisher.publish(f"{name}/x", b"%d" % i, 1)
        seen = [first.next() for _ in range(5)]
        assert not any(message.dup for message in seen)
        with Paho(port(fleet, "lyon"), 5, name, persistent=True) as second:
            again = [second.next() for _ in range(5)]
            assert [(m.mid, m.payload) for m in again] == [(m.mid, m.payload) for m in seen]
            assert all(message.dup for message in again)
            second.nothing_until(f"marker/{name}")


def test_retained_messages_and_options_of_subscriptions(fleet: Fleet, name: str) -> None:
    with Paho(port(fleet, "porto"), 5, name, persistent=True) as client:
        client.subscribe(f"{name}/own", 2, identifier=77, noLocal=True)
    with Paho(port(fleet, "gdansk"), 5, name, persistent=True) as client:
        client.publish(f"{name}/own", b"mine", 1)
        client.nothing_until(f"marker/{name}")
        with Paho(port(fleet, "lyon"), 5) as other:
            other.publish(f"{name}/own", b"other's", 2)
        message = client.next()
        assert (message.payload, message.qos) == (b"other's", 2)
        assert message.properties.SubscriptionIdentifier == [77]


def test_mosquitto_sub(fleet: Fleet, name: str, tmp_path: Path) -> None:
    """The same identifier at one site after the other; each reads what was published while it was away, in order and once."""
    sub = require("mosquitto_sub")

    def run(site: str, count: int) -> list[str]:
        where = ["-h", "127.0.0.1", "-p", str(port(fleet, site)), "-i", name, "-c", "-t", f"{name}/#", "-q", "2"]
        done = subprocess.run([sub, *where, "-C", str(count), "-W", "90"], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first = ["-h", "127.0.0.1", "-p", str(port(fleet, "porto")), "-i", name, "-c", "-t", f"{name}/#", "-q", "2", "-E"]
    assert subprocess.run([sub, *first], capture_output=True, timeout=PATIENCE).returncode == 0
    fleet.wait_settled(SETTLE)
    for site in ("turin", "gdansk", "lyon"):
        with Paho(port(fleet, "graz"), 5) as publisher:
            for i in range(30):
                publisher.publish(f"{name}/x", f"{site}{i}", 2)
        assert run(site, 30) == [f"{site}{i}" for i in range(30)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_member_of_a_shared_subscription_goes_around(fleet: Fleet, name: str, qos: int) -> None:
    """Alone in its group it gets each message once, wherever it is and was."""
    with Paho(port(fleet, "porto"), 5, name, persistent=True) as client:
        client.subscribe(f"$share/g/{name}/#", qos)
    fleet.wait_settled(SETTLE)
    for site in ("lyon", "graz", "porto", "turin"):
        expected = [f"{site}{i}".encode() for i in range(30)]
        with Paho(port(fleet, "gdansk"), 5) as publisher:
            for body in expected:
                publisher.publish(f"{name}/x", body, qos)
        with Paho(port(fleet, site), 5, name, persistent=True) as client:
            assert client.session_present
            assert sorted(bodies(client, 30)) == sorted(expected)
            client.nothing_until(f"marker/{name}/{site}")
            client.unsubscribe(f"marker/{name}/{site}")
