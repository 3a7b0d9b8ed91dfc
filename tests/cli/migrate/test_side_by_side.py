"""Files of Mosquitto's of different kinds: migrated and started, and the same clients get the same messages from both brokers."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Certificates
from support.paho_client import Paho
from support.services import require

from .played import Place, Seen, client, migrate, mosquitto, ours, prepared, taken, trusting

pytestmark = pytest.mark.process

PROBE = "news/probe"
USERS = {"alice": "wonderland", "bob": "builder"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Passwords and certificates, which both brokers get."""
    folder = tmp_path_factory.mktemp("source")
    made = Certificates(folder)
    made.broker("broker")
    for name in ("alice", "bob", "mallory"):
        made.client(name)
    made.revoked("mallory")
    for number, (name, password) in enumerate(USERS.items()):
        kind = ["-H", "sha512"] if number else []
        subprocess.run([require("mosquitto_passwd"), *kind, *["-c"][number:], "-b", str(folder / "passwd"), name, password], check=True)
    (folder / "psk").write_text("alice:0011223344\n")
    return folder


def side_by_side(play: Callable[[Place], Any], tmp_path: Path, source: Path, *names: str, status: int = 0) -> tuple[Any, dict[str, Any]]:
    """What is seen at both, and the report of the migration."""
    its, here = (prepared(names[0], tmp_path / folder, source) for folder in ("its", "ours"))
    with mosquitto(its, *names):
        expected = play(its)
    result = migrate(here, *names)
    assert result.exit_code == status, result.output
    report = json.loads(result.stdout)
    (made,) = (here.folder / "out").iterdir()
    with ours(here, made.name):
        found = play(here)
    assert found == expected
    assert (here.folder / "passwd").read_bytes() == (source / "passwd").read_bytes()
    return expected, report


def reasons(report: dict[str, Any], kind: str) -> list[str]:
    return [one["option"] for one in report["remarks"] if one["kind"] == kind]


def everybody(one: Paho, *topics: str) -> list[Seen]:
    """Publish to topics, QoS 1, some of them retained; then what has come back."""
    for number, topic in enumerate(topics):
        one.publish(topic, b"%d" % number, 1, retain=number % 2 == 1)
    return taken(one)


def test_the_smallest(tmp_path: Path, source: Path) -> None:
    def play(place: Place) -> Any:
        with client(place.ports[0], "a") as one, client(place.ports[0], "b", version=5) as other:
            one.subscribe("a/#", 1)
            other.subscribe("+/b", 2)
            first = [everybody(one, "a/b", "a/c", "c"), taken(other)]
        with client(place.ports[0], "late") as late:
            late.subscribe("#", 0)
            return [*first, taken(late)]

    expected, report = side_by_side(play, tmp_path, source, "anonymous.conf")
    assert [len(one) for one in expected] == [2, 1, 1]
    assert report["remarks"] == []


def test_a_file_of_old_times(tmp_path: Path, source: Path) -> None:
    def play(place: Place) -> Any:
        found = []
        for name in ("secure-1", "other"):
            with client(place.ports[0], name) as one:
                found.append(one.reason == 0)
                if one.reason == 0:
                    one.subscribe("#", 1)
                    found.append(everybody(one, "a", "b"))
        return found

    expected, report = side_by_side(play, tmp_path, source, "old_style.conf")
    assert expected[0]
    assert not expected[2]
    assert reasons(report, "note") == ["log_type", "log_dest"]


@pytest.mark.parametrize("name", ["users.conf", "include.conf"])
def test_users(name: str, tmp_path: Path, source: Path) -> None:
    def play(place: Place) -> Any:
        found: list[Any] = []
        for user, password in [*USERS.items(), ("alice", "builder"), ("carol", "x"), (None, None)]:
            with client(place.ports[0], "c", user, password) as one:
                found.append(one.reason == 0)
                if one.reason == 0:
                    one.subscribe("#", 2)
                    found.append(everybody(one, "a", "b/c"))
        return found

    expected, report = side_by_side(play, tmp_path, source, name)
    assert [one for one in expected if isinstance(one, bool)] == [True, True, False, False, False]
    assert report["remarks"] == []


def test_patterns(tmp_path: Path, source: Path) -> None:
    topics = [
        "plant/in",
        "plant/secret",
        "people/alice/public",
        "people/bob/public",
        "people/bob/locked",
        "clients/b/inbox",
        "people/bob/x",
    ]

    def play(place: Place) -> Any:
        with client(place.ports[0], "a", "alice", "wonderland") as alice, client(place.ports[0], "b", "bob", "builder") as bob:
            for one in (alice, bob):
                for filter_ in ("plant/#", "people/#", "clients/#"):
                    one.subscribe(filter_, 1)
            return [everybody(one, *topics) for one in (alice, bob)], taken(alice)

    expected, report = side_by_side(play, tmp_path, source, "patterns.conf")
    assert {one.topic for one in expected[0][0]} == {"plant/in", "people/alice/public"}
    assert {one.topic for one in expected[0][1]} == {"people/bob/public", "people/bob/x"}
    assert {one.topic for one in expected[1]} == {"plant/in", "people/bob/public"}
    assert [one["text"] for one in report["remarks"]] == ["bridges need no permission to say that they are there"]


def test_guests_who_read(tmp_path: Path, source: Path) -> None:
    def play(place: Place) -> Any:
        with client(place.ports[0], "a", "alice", "wonderland") as alice, client(place.ports[0], "g") as guest:
            alice.subscribe("#", 1)
            guest.subscribe("#", 1)
            everybody(guest, "board/1")
            return everybody(alice, "board/2", "board/drafts", "elsewhere"), taken(guest)

    expected, _ = side_by_side(play, tmp_path, source, "guests.conf")
    assert [[one.topic for one in seen] for seen in expected] == [["board/2", "board/drafts"], ["board/2"]]


def test_certificates(tmp_path: Path, source: Path) -> None:
    def play(place: Place) -> Any:
        found: list[Any] = []
        with (
            client(place.ports[0], "a", context=trusting(place, "alice")) as alice,
            client(place.ports[0], "b", context=trusting(place, "bob")) as bob,
        ):
            for one in (alice, bob):
                one.subscribe("machines/#", 1)
            found = [everybody(one, "machines/alice/1", "machines/bob/1") for one in (alice, bob)] + [taken(alice)]
        for name in (None, "mallory"):
            refused = Paho(place.ports[0], 4, "m", context=trusting(place, name))
            refused.client.connect_timeout = 5
            with contextlib.suppress(OSError):
                refused.client.connect("127.0.0.1", place.ports[0], 30)
                refused.client.loop_start()
                refused.disconnects.get(timeout=90)
            found.append(refused.reason)
            refused.client.loop_stop()
        return found

    expected, _ = side_by_side(play, tmp_path, source, "tls.conf")
    assert [[one.topic for one in seen] for seen in expected[:3]] == [["machines/alice/1"], ["machines/bob/1"], []]
    assert expected[3:] == [None, None]


def test_several_listeners(tmp_path: Path, source: Path) -> None:
    def play(place: Place) -> Any:
        with (
            client(place.ports[0], "tcp") as tcp,
            client(place.ports[1], "web", path="/mqtt") as web,
            client(place.ports[2], "tls", context=trusting(place)) as tls,
        ):
            for one in (tcp, web, tls):
                one.subscribe("a/#", 1)
            sent = [everybody(one, f"a/{number}") for number, one in enumerate((tcp, web, tls))]
            return sent, [taken(one) for one in (tcp, web, tls)], (place.folder / "UNIX.sock").is_socket()

    expected, report = side_by_side(play, tmp_path, source, "listeners.conf")
    assert expected[2]
    assert reasons(report, "lost") == []
    assert reasons(report, "note") == ["max_connections", "protocol"]


def test_a_listener_with_shared_keys_is_left_out_and_not_opened(tmp_path: Path, source: Path) -> None:
    def play(place: Place) -> Any:
        with client(place.ports[0], "a") as one:
            one.subscribe("#", 1)
            return everybody(one, "a", "b")

    _, report = side_by_side(play, tmp_path, source, "psk.conf", status=1)
    assert reasons(report, "lost") == ["psk_hint", "psk_file"]
    assert all("pre-shared keys" in one["text"] for one in report["remarks"])
    assert "127.0.0.1:" in (text := (tmp_path / "ours" / "out" / "psk.toml").read_text())
    assert sum(line.count("mqtt://") for line in text.splitlines() if line.startswith("listen")) == 1


def test_sessions_and_retained_messages_outlive_a_restart(tmp_path: Path, source: Path) -> None:
    its, here = (prepared("persistence.conf", tmp_path / name, source) for name in ("its", "ours"))
    assert migrate(here, "persistence.conf").exit_code == 0

    def before(place: Place) -> None:
        with client(place.ports[0], "lasting", persistent=True) as lasting:
            lasting.subscribe("a/#", 1)
        with client(place.ports[0], "p") as one:
            for number in range(5):
                one.publish("a/b", b"%d" % number, 1)
            one.publish("a/kept", b"kept", 1, retain=True)

    def after(place: Place) -> Any:
        with client(place.ports[0], "lasting", persistent=True) as lasting, client(place.ports[0], "late") as late:
            late.subscribe("#", 1)
            return lasting.session_present, [lasting.next().payload for _ in range(6)], taken(late)

    seen = []
    for place, start in ((its, mosquitto), (here, ours)):
        for play in (before, after):
            with start(place, "persistence.conf" if start is mosquitto else "persistence.toml"):  # type: ignore[operator]
                found = play(place)  # type: ignore[func-returns-value]
        seen.append(found)
    assert seen[0] == seen[1]
    assert seen[0][0]


def test_limits(tmp_path: Path, source: Path) -> None:
    def play(place: Place) -> Any:
        with client(place.ports[0], "", version=5) as nobody:
            found: list[Any] = [nobody.reason == 0]
        with client(place.ports[0], "a", version=5) as one, client(place.ports[0], "large") as large:
            one.subscribe("#", 1)
            properties = one.connack.json()
            found += [properties.get("TopicAliasMaximum"), properties.get("MaximumPacketSize"), everybody(one, "a", "b")]
            large.client.publish("a", b"x" * 3000, 1)
            large.disconnects.get(timeout=90)
            return [*found, taken(one)]

    expected, report = side_by_side(play, tmp_path, source, "limits.conf")
    assert not expected[0]
    assert expected[1:3] == [3, 2000]
    assert reasons(report, "note") == ["memory_limit"]


def until_joined(one: Paho, other: Paho) -> None:
    """Publish at one broker until it comes at the other: a bridge is up some time after its broker."""
    while True:
        one.publish(PROBE, b"", 1)
        with contextlib.suppress(queue.Empty):
            while other.messages.get(timeout=0.2).topic != PROBE:
                pass
            return


SENT_AT_PLANT = ["measured/1", "orders/1", "news/1", "abroad/x", "private"]
SENT_AT_HUB = ["plants/porto/orders/2", "plants/porto/measured/2", "orders/2", "news/2", "exports/2", "elsewhere"]


def across_bridges(place: Place) -> list[list[str]]:
    """What clients at the hub and at the plant get of each other."""
    with client(place.ports[0], "h") as hub, client(place.ports[1], "p") as plant:
        hub.subscribe("#", 1)
        plant.subscribe("#", 1)
        until_joined(hub, plant)
        hub.publish("news/there", b"kept", 1, retain=True)
        plant.publish("news/here", b"kept", 1, retain=True)
        came: list[list[str]] = [[], []]
        for one, topics, last in ((plant, SENT_AT_PLANT, "news/end-of-plant"), (hub, SENT_AT_HUB, "news/end-of-hub")):
            for topic in topics:
                one.publish(topic, b"x", 1)
            one.publish(last, b"", 1)
            for number, other in enumerate((hub, plant)):
                while (message := other.next()).topic != last:
                    came[number].append(message.topic)
        return [sorted(topic for topic in topics if topic != PROBE) for topics in came]


AT_HUB = sorted([*SENT_AT_HUB, "news/there", "news/here", "plants/porto/measured/1", "news/1"])
AT_PLANT = sorted([*SENT_AT_PLANT, "news/there", "news/here", "orders/2", "news/2", "abroad/2"])


def test_bridges_of_two_hosts(tmp_path: Path, source: Path) -> None:
    expected, _ = side_by_side(across_bridges, tmp_path, source, "hub.conf", "plant.conf")
    assert expected == [AT_HUB, AT_PLANT]


def test_a_bridge_to_a_mosquitto_that_stays(tmp_path: Path, source: Path) -> None:
    here = prepared("plant.conf", tmp_path / "here", source)
    assert migrate(here, "plant.conf").exit_code == 0
    with mosquitto(here, "hub.conf"), ours(here, "plant.toml"):
        assert across_bridges(here) == [AT_HUB, AT_PLANT]
