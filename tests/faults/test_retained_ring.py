"""Retained messages in a ring of five processes: one is cut off or killed while others change them; then all answer alike, and only what
differs has travelled. `make nightly` does it with five times as many topics."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.examples import FACTOR
from support.paho_client import Paho
from support.scenes import RING, Scene, mesh
from support.services import require, wait_until

pytestmark = pytest.mark.slow

TOPICS = 10_000 if FACTOR > 1 else 2_000
COMPARE = 2.0  # seconds between two comparisons
PATIENCE = 90.0
CHANGED = 10
FEW_BYTES = 20_000 + 20 * TOPICS  # all records would be more than 100 for each topic


def scene_in(folder: Path) -> Scene:
    topology = mesh(RING)
    return Scene(replace(topology, mesh=replace(topology.mesh, retained_compare=COMPARE)), folder)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scene, dict[str, bytes]]]:
    """A ring that has many retained messages, and what they are."""
    with scene_in(tmp_path_factory.mktemp("retained")) as scene:
        kept = {f"r/{n}": b"first %d" % n for n in range(TOPICS)}
        with Paho(port(scene, "a")) as client:
            sent = [client.client.publish(topic, payload, 1, True) for topic, payload in kept.items()]
            for one in sent:
                one.wait_for_publish(PATIENCE)
        wait_equal(scene, len(kept))
        yield scene, kept


def port(scene: Scene, site: str) -> int:
    return scene.address(site)[1]


def retained(scene: Scene) -> dict[str, tuple[str, int]]:
    """Site -> digest and number of messages."""
    return {site: (status["retained"]["digest"], status["retained"]["messages"]) for site, status in scene.statuses().items()}


def wait_equal(scene: Scene, messages: int) -> None:
    """All five have the same."""

    def equal() -> bool:
        found = retained(scene)
        return len(found) == 5 and len(set(found.values())) == 1 and next(iter(found.values()))[1] == messages

    try:
        wait_until(equal, PATIENCE, "equal digests")
    except AssertionError as error:
        raise AssertionError(f"{error}: {retained(scene)}, {messages} messages are due") from None


def wait_away(scene: Scene, site: str) -> None:
    """The others know that a site is out of reach."""
    number = scene.fleet.members[site].number

    def away() -> bool:
        others = [status for name, status in scene.statuses().items() if name != site]
        return len(others) == 4 and not any(one["live"] for status in others for one in status["members"] if one["number"] == number)

    wait_until(away, PATIENCE, f"mesh without {site}")


def change(scene: Scene, site: str, kept: dict[str, bytes], start: int, word: bytes) -> list[str]:
    """Ten topics: five get another message, three none, two are new; with all QoS. The topics."""
    topics = [f"r/{n}" for n in range(start, start + CHANGED)]
    with Paho(port(scene, site)) as client:
        for index, topic in enumerate(topics):
            name = f"{topic}/new" if index >= 8 else topic
            payload = b"" if 5 <= index < 8 else b"%s %d" % (word, index)
            client.publish(name, payload, index % 3, True)
            kept[name] = payload
            topics[index] = name
            if not payload:
                del kept[name]
    return topics


def ask_paho(scene: Scene, site: str, count: int, topic_filter: str = "r/#") -> dict[str, bytes]:
    """What a new subscriber gets, each message with RETAIN and once."""
    found = {}
    with Paho(port(scene, site)) as client:
        client.subscribe(topic_filter, 1)
        for _ in range(count):
            message = client.next()
            assert message.retain
            assert message.topic not in found
            found[message.topic] = message.payload
        client.nothing_until(f"marker/{site}")
    return found


def ask_mosquitto(scene: Scene, site: str, count: int) -> dict[str, bytes]:
    command = [
        require("mosquitto_sub"),
        "-p",
        str(port(scene, site)),
        "-t",
        "r/#",
        "-q",
        "1",
        "-C",
        str(count),
        "-W",
        "90",
        "-F",
        "%r %t %p",
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    lines = [line.split(b" ", 2) for line in done.stdout.splitlines()]
    assert {line[0] for line in lines} == {b"1"}
    return {topic.decode(): payload for _, topic, payload in lines}


def assert_alike(scene: Scene, kept: dict[str, bytes]) -> None:
    wait_equal(scene, len(kept))
    for site in scene.sites:
        assert ask_paho(scene, site, len(kept)) == kept, site
    assert ask_mosquitto(scene, "c", len(kept)) == kept


def moved(scene: Scene) -> dict[str, int]:
    counters = scene.counters()
    return {name: counters.get(name, 0) for name in ("retained_sent", "retained_received", "retained_bytes")}


def assert_only_the_difference(before: dict[str, int], after: dict[str, int], changed: int) -> None:
    """Two neighbours may bring the same record to the site that comes back."""
    difference = {name: after[name] - before[name] for name in before}
    print(difference)
    assert 0 < difference["retained_sent"] <= 4 * changed, difference
    assert difference["retained_bytes"] < FEW_BYTES, difference


def test_a_site_is_cut_off(full: tuple[Scene, dict[str, bytes]]) -> None:
    scene, kept = full
    before = moved(scene)
    with Paho(port(scene, "c")) as watcher:
        watcher.subscribe("r/+/new", 1)
        watcher.subscribe("r/100", 1)
        assert watcher.next().payload == b"first 100"
        cut = scene.cut(("b", "c"), ("c", "d"))
        cut.begin()
        wait_away(scene, "c")
        change(scene, "a", kept, 100, b"from a")
        change(scene, "c", kept, 200, b"from c")
        own = [watcher.next() for _ in range(2)]
        assert {message.payload for message in own} == {b"from c 8", b"from c 9"}
        cut.end()
        wait_equal(scene, len(kept))
        told = sorted((message.topic, message.payload, message.retain) for message in [watcher.next() for _ in range(3)])
        assert told == [("r/100", b"from a 0", False), ("r/108/new", b"from a 8", False), ("r/109/new", b"from a 9", False)]
        watcher.nothing_until("marker/watcher")
    assert_alike(scene, kept)
    assert_only_the_difference(before, moved(scene), 2 * CHANGED)


def test_a_broker_is_killed(full: tuple[Scene, dict[str, bytes]]) -> None:
    scene, kept = full
    change(scene, "c", kept, 300, b"before the kill")  # the last answer has come: it is on the disk
    scene.fleet.kill("c")
    change(scene, "e", kept, 400, b"meanwhile")
    change(scene, "a", kept, 300, b"over what c said")
    scene.fleet.restart("c")
    wait_equal(scene, len(kept))
    counters = scene.statuses()["c"]["counters"]  # they begin with the process
    assert_alike(scene, kept)
    assert 0 < counters["retained_received"] <= 4 * CHANGED, counters
    assert counters["retained_bytes"] < FEW_BYTES, counters


def test_all_are_killed_at_once(full: tuple[Scene, dict[str, bytes]]) -> None:
    scene, kept = full
    change(scene, "b", kept, 500, b"last words")
    for site in scene.sites:
        scene.fleet.kill(site)
    for site in scene.sites:
        scene.fleet.restart(site)
    assert_alike(scene, kept)


def test_a_site_loses_its_disk(full: tuple[Scene, dict[str, bytes]]) -> None:
    scene, kept = full
    kill = scene.kill("d", wipe=True)
    kill.begin()
    change(scene, "a", kept, 600, b"without d")
    kill.end()
    assert_alike(scene, kept)
    assert not scene.fleet.take_exits()


def test_killed_in_the_middle_of_writing(tmp_path: Path) -> None:
    """What was acknowledged is there at all sites, or something later; and all have the same."""
    with scene_in(tmp_path) as scene:
        rounds, topics = 20, [f"k/{n}" for n in range(100)]
        client = Paho(port(scene, "a")).open()
        watcher = Paho(port(scene, "d")).open()
        watcher.subscribe("k/#", 1)
        scene.settle()
        half, answers, pid = threading.Event(), itertools.count(1), scene.fleet.members["a"].pid
        assert pid is not None

        def kill_at_half(*_: object) -> None:
            if next(answers) == rounds * len(topics) // 2:
                os.kill(pid, signal.SIGKILL)
                half.set()

        client.client.on_publish = kill_at_half
        sent = [(topic, number, client.client.publish(topic, str(number), 1, True)) for number in range(1, rounds + 1) for topic in topics]
        assert half.wait(PATIENCE), "half of them acknowledged"
        scene.fleet.kill("a")
        client.disconnects.get(timeout=PATIENCE)
        client.client.loop_stop()
        acknowledged: dict[str, int] = {}
        for topic, number, info in sent:
            if info.rc == 0 and info.is_published():
                acknowledged[topic] = number
        assert len(acknowledged) == len(topics)
        assert not all(info.rc == 0 and info.is_published() for _, _, info in sent)
        scene.fleet.restart("a")
        wait_equal(scene, len(topics))
        scene.settle()
        answers = [ask_paho(scene, site, len(topics), "k/#") for site in scene.sites]
        assert all(answer == answers[0] for answer in answers)
        late = {topic: (acknowledged[topic], value) for topic, value in answers[0].items() if int(value) < acknowledged[topic]}
        assert not late, f"acknowledged and undone: {late}"
        last: dict[str, list[int]] = {topic: [] for topic in topics}
        watcher.subscribe("end", 1)
        watcher.publish("end", "", 1)
        while (message := watcher.next()).topic != "end":
            last[message.topic].append(int(message.payload))
        for topic, values in last.items():
            assert values == sorted(set(values)), f"{topic}: {values}"
            assert values[-1] == int(answers[0][topic]), f"{topic}: {values}, {answers[0][topic]!r} is retained"
        watcher.close()
