"""The rate of a link, on a clock of the test's own: what passed against what the buckets hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.mesh.rate import BURST, RateLimiter
from mqmesh.mesh.wire.control import encode
from mqmesh.mqtt.batch.run import Run

LARGE = 1 << 30


def messages(count: int, length: int = 50) -> bytes:
    return Run(b"t", 0, False, [b"%0*d" % (length, i) for i in range(count)]).frames(5, 0).data


SIZE = len(messages(1))


def passed(limiter: RateLimiter, seconds: float, step: float = 0.01) -> bytes:
    """All that leaves in so many seconds, asked every `step`."""
    found = [limiter.take(0.0, LARGE)]
    for tick in range(1, round(seconds / step) + 1):
        found.append(limiter.take(tick * step, LARGE))
    return b"".join(found)


def test_bytes_a_second() -> None:
    limiter = RateLimiter(10_000, None, 0.0, LARGE)
    data = messages(5_000)
    limiter.put(data)
    got = passed(limiter, 10.0)
    assert data.startswith(got)
    assert 10_000 * 10.0 <= len(got) <= 10_000 * (10.0 + BURST) + SIZE
    assert limiter.waiting == len(data) - len(got)


def test_messages_a_second() -> None:
    limiter = RateLimiter(None, 100, 0.0, LARGE)
    data = messages(5_000)
    limiter.put(data)
    got = passed(limiter, 10.0)
    assert 1_000 <= len(got) // SIZE <= 100 * (10.0 + BURST) + 1
    assert len(got) % SIZE == 0


def test_the_slower_of_two_rates_counts() -> None:
    limiter = RateLimiter(10 * SIZE, 1_000, 0.0, LARGE)
    limiter.put(messages(5_000))
    assert 50 <= len(passed(limiter, 5.0)) // SIZE <= 10 * (5.0 + BURST) + 1


def test_a_packet_larger_than_the_bucket_goes_and_is_waited_for() -> None:
    limiter = RateLimiter(1_000, None, 0.0, LARGE)
    large = messages(1, 10_000)
    limiter.put(large)
    limiter.put(messages(1))
    assert limiter.take(0.0, LARGE) == large
    wait = limiter.wait()
    assert wait == pytest.approx((len(large) - 1_000 * BURST + 1) / 1_000)
    assert limiter.take(wait - 0.01, LARGE) == b""
    assert limiter.take(wait + 0.001, LARGE) == messages(1)
    assert limiter.wait() is None


def test_control_packets_cost_nothing_and_keep_their_place() -> None:
    limiter = RateLimiter(None, 1, 0.0, LARGE)
    noted = encode("noted", (1, 2, 3, (4, 5)))
    data = b"".join((noted * 50, messages(1), noted, messages(1)))
    limiter.put(data)
    first = limiter.take(0.0, LARGE)
    assert first == noted * 50 + messages(1) + noted
    assert limiter.take(1.0, LARGE) == messages(1)


@given(
    st.integers(100, 10**6),
    st.one_of(st.none(), st.integers(1, 1000)),
    st.lists(st.tuples(st.integers(1, 30), st.floats(0, 2)), max_size=20),
)
def test_nothing_is_lost_nothing_is_too_fast_and_waiting_ends(rate: int, most: int | None, bursts: list[tuple[int, float]]) -> None:
    limiter = RateLimiter(rate, most, 0.0, LARGE)
    now, put, got = 0.0, b"", b""
    for count, pause in bursts:
        data = messages(count)
        put += data
        limiter.put(data)
        got += limiter.take(now, LARGE)
        now += pause
    while (wait := limiter.wait()) is not None:
        now += wait + 1e-6
        more = limiter.take(now, LARGE)
        assert more
        got += more
    assert got == put
    assert len(got) <= rate * (now + BURST) + SIZE + 1
    assert most is None or len(got) // SIZE <= most * (now + BURST) + 2


def test_a_slow_link_is_full_early_and_says_when_it_is_not_any_more() -> None:
    limiter = RateLimiter(None, 100, 0.0, 8 << 20)
    limiter.put(messages(200))
    assert not limiter.full(False)
    limiter.put(messages(1))
    assert limiter.full(False)
    now = 0.0
    while limiter.full(True):
        now += 0.1
        limiter.take(now, LARGE)
    assert now == pytest.approx(1.3, abs=0.2)
    small = RateLimiter(1_000, None, 0.0, 8 << 20)
    small.put(messages(1, 70_000))
    assert small.full(False)
