"""The load generator notices everything that a broker could do wrong, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.spec import Result

CLEAN: list[dict[str, Any]] = [
    {},
    {"version": 5},
    {"qos": 1},
    {"qos": 1, "version": 5},
    {"subscribers": 3},
    {"publishers": 3},
    {"publishers": 3, "subscribers": 3, "pairs": True},
    {"topics": 100},
    {"topics": 100, "qos": 1},
    {"sizes": (1024, 1024)},
    {"sizes": (16, 512)},
    {"window": 1},
    {"window": 1, "qos": 1},
    {"kind": "latency"},
    {"kind": "latency", "qos": 1, "version": 5},
]


def counters(result: Result) -> dict[str, int]:
    """What went wrong, without the zeros."""
    named = {"lost": result.lost, "duplicates": result.duplicates, "disorder": result.disorder, "corrupt": result.corrupt}
    return {name: value for name, value in named.items() if value}


@pytest.mark.parametrize("fields", CLEAN, ids=str)
def test_a_faultless_server_is_found_faultless(bench: Any, fields: dict[str, Any]) -> None:
    result = bench.run(**fields)
    assert result.error == ""
    assert counters(result) == {}
    assert result.slow_packets == 0 or fields.get("kind") == "latency"
    assert result.deliveries >= 100
    assert result.rate > 0


class Once:
    """A spoiler that does its deed to the first group that is long enough."""

    def __init__(self, deed: Any) -> None:
        self.deed, self.done = deed, False

    def __call__(self, frames: list[bytes]) -> list[bytes]:
        if self.done or len(frames) < 4:
            return frames
        self.done = True
        return list(self.deed(frames))


def flip(frame: bytes) -> bytes:
    """The frame with its last byte changed."""
    return frame[:-1] + bytes((frame[-1] ^ 1,))


DEEDS: list[tuple[str, Any, dict[str, int]]] = [
    ("loses one", lambda f: f[:1] + f[2:], {"lost": 1}),
    ("loses three in a row", lambda f: f[3:], {"lost": 3}),
    ("repeats one at once", lambda f: f[:2] + f[1:], {"duplicates": 1}),
    ("repeats one later", lambda f: [*f, f[0]], {"duplicates": 1}),
    ("repeats a group", lambda f: f + f[:3], {"duplicates": 3}),
    ("swaps two", lambda f: [f[1], f[0], *f[2:]], {"disorder": 1}),
    ("alters one", lambda f: [f[0], flip(f[1]), *f[2:]], {"lost": 1, "corrupt": 1}),
    ("loses one and repeats another", lambda f: [f[0], f[2], f[2], *f[3:]], {"lost": 1, "duplicates": 1}),
    ("puts one in place of another", lambda f: [f[0], f[0], *f[2:]], {"lost": 1, "duplicates": 1}),
]


@pytest.mark.parametrize("fields", [{}, {"qos": 1}, {"publishers": 2}, {"version": 5}, {"topics": 10}], ids=str)
@pytest.mark.parametrize(("name", "deed", "found"), DEEDS, ids=[name for name, _, _ in DEEDS])
def test_each_fault_is_counted(bench: Any, name: str, deed: Any, found: dict[str, int], fields: dict[str, Any]) -> None:
    spoil = Once(deed)
    bench.server.after = 500
    result = bench.run(spoil, **fields)
    assert spoil.done
    assert result.error == ""
    assert counters(result) == found


def test_every_subscriber_is_judged(bench: Any) -> None:
    result = bench.run(Once(lambda f: f[1:]), subscribers=3)
    assert counters(result) == {"lost": 3}


@pytest.mark.parametrize("qos", [0, 1])
def test_a_server_that_stops_forwarding_has_lost_what_is_in_flight(bench: Any, qos: int) -> None:
    bench.server.after = 20_000
    result = bench.run(lambda frames: [], qos=qos, patience=3.0, least=100_000, window=2000)
    assert 0 < result.lost <= 2000
    assert result.notes == ["the stream stopped before everything had arrived"]


def test_another_framing_is_judged_packet_by_packet(bench: Any) -> None:
    """A broker may set DUP on some deliveries: slower to judge, and no fault."""
    result = bench.run(lambda frames: [bytes((frame[0] | 8,)) + frame[1:] for frame in frames], qos=1)
    assert counters(result) == {}
    assert result.slow_packets > 100


def test_a_broker_that_is_not_there_is_an_error(bench: Any) -> None:
    bench.server.stopped = True
    bench.port = 1
    assert "Connection refused" in bench.run().error


def test_a_path_that_never_comes_up_is_an_error(bench: Any) -> None:
    bench.server.after = 0
    result = bench.run(lambda frames: [], subscribers=0, patience=0.3)
    assert "no subscriber" in result.error
