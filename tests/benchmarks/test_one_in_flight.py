"""Publishers with one message in flight each: what the load generator sends, and what it makes of what comes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks import runner
from benchmarks.load_generator import wire
from benchmarks.load_generator.one_in_flight import SingleSubscriber
from benchmarks.load_generator.subscriber import Source
from benchmarks.load_generator.traffic import Traffic
from benchmarks.peers import PEERS
from benchmarks.scenarios import Scenario
from benchmarks.spec import Result

KIND = {"kind": "one-in-flight", "least": 300}
CLEAN = [
    {"publishers": 1, "window": 1},
    {"publishers": 1, "window": 1, "qos": 1},
    {"publishers": 1, "window": 1, "qos": 1, "version": 5},
    {"publishers": 5, "window": 5},
    {"publishers": 5, "window": 5, "qos": 1},
    {"publishers": 5, "subscribers": 5, "window": 5, "pairs": True, "qos": 1},
    {"publishers": 3, "subscribers": 2, "window": 3, "topics": 10, "sizes": (200, 200)},
]


def counters(result: Result) -> dict[str, int]:
    """What went wrong, without the zeros."""
    named = {"lost": result.lost, "duplicates": result.duplicates, "disorder": result.disorder, "corrupt": result.corrupt}
    return {name: value for name, value in named.items() if value}


@pytest.mark.parametrize("fields", CLEAN, ids=str)
def test_a_faultless_server_is_found_faultless(bench: Any, fields: dict[str, Any]) -> None:
    result = bench.run(**KIND, **fields)
    assert result.error == ""
    assert counters(result) == {}
    assert result.slow_packets == 0
    assert result.deliveries >= 300
    assert result.generator_cpu > 0


def test_a_lost_message_stops_its_publisher(bench: Any) -> None:
    bench.server.after = 500
    result = bench.run(lambda frames: [], publishers=2, window=2, patience=2.0, **{**KIND, "least": 10_000})
    assert counters(result) == {"lost": 2}
    assert result.notes == ["the stream stopped before everything had arrived"]


def test_a_message_that_comes_twice_is_counted(bench: Any) -> None:
    repeats = iter([True, False])
    bench.server.after = 500
    result = bench.run(lambda frames: frames * (1 + next(repeats, False)), publishers=1, window=1, **{**KIND, "least": 3000})
    assert counters(result) == {"duplicates": 1}


def test_an_altered_message_is_counted(bench: Any) -> None:
    alters = iter([True])
    bench.server.after = 500

    def alter(frames: list[bytes]) -> list[bytes]:
        return [frames[0][:-1] + b"~", *frames[1:]] if next(alters, False) else frames

    result = bench.run(alter, publishers=1, window=1, patience=2.0, **{**KIND, "least": 10_000})
    assert counters(result) == {"corrupt": 1, "lost": 1}


@pytest.mark.parametrize(
    "fields", [{"publishers": 2, "window": 20}, {"publishers": 1, "window": 1, "qos": 2}, {"publishers": 101, "window": 101}], ids=str
)
def test_what_cannot_be_measured_so_is_refused(bench: Any, fields: dict[str, Any]) -> None:
    assert bench.run(**KIND, **fields).error.startswith("ValueError")


def subscriber(traffics: list[Traffic]) -> SingleSubscriber:
    """A subscriber without a connection, after the probes."""
    made = SingleSubscriber.__new__(SingleSubscriber)
    made.qos = traffics[0].qos
    made.sources = {traffic.publisher: Source(traffic) for traffic in traffics}
    for source in made.sources.values():
        source.learn(b"")
    made.start()
    return made


@pytest.mark.parametrize("qos", [0, 1])
def test_messages_of_many_publishers_are_taken_from_one_piece_of_bytes(qos: int) -> None:
    """Of mixed sizes at QoS 0, whatever order they come in; what is no next message ends it."""
    sizes = (12, 300) if not qos else (64, 64)
    traffics = [Traffic(number, qos, 4, 7, sizes, 1) for number in range(20)]
    chance = random.Random(1)
    taken = subscriber(traffics)
    following = dict.fromkeys(range(20), 0)
    for _ in range(50):
        order = chance.choices(range(20), k=30)
        data, answer = b"", b""
        for number in order:
            index, traffic = following[number], traffics[number]
            pid = chance.randrange(1, 65536) if qos else 0
            data += wire.publish(traffic.topic(index), traffic.payloads[index], qos, 4, pid)
            answer += wire.acknowledgement(wire.PUBACK, pid) if qos else b""
            following[number] += 1
        assert taken.whole(data + data[:10]) == (order, len(data), answer)
    again = wire.publish(traffics[0].topic(0), traffics[0].payloads[0], qos, 4, 1 if qos else 0)
    assert taken.whole(again) == ([], 0, b"")


def test_a_broker_is_measured_with_mixed_sizes(tmp_path: Path) -> None:
    fields = {"publishers": 10, "subscribers": 3, "topics": 5, "sizes": (20, 200), "window": 10, "kind": "one-in-flight"}
    result = runner.measure(Scenario("mixed", "", fields), PEERS["mqmesh"], runner.Settings(0.1, 0.05, 1), tmp_path / "broker")
    assert result["error"] == ""
    assert result["slow_packets"] == 0
    assert [result[key] for key in ("lost", "duplicates", "disorder", "corrupt")] == [0, 0, 0, 0]
