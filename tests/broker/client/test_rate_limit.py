"""How many messages a client may send: the sum never exceeds what time has brought, whatever the pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.client.rate_limit import LONGEST, Throttle


@given(st.integers(1, 1000), st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3000)), max_size=50))
def test_what_is_taken_is_what_time_has_brought(rate: int, pieces: list[tuple[float, int]]) -> None:
    throttle = Throttle(rate, 0.0, 0)
    now, taken, largest = 0.0, 0, 0
    for passed, size in pieces:
        now += passed
        while taken > throttle.allowance or taken:
            wait = throttle.look(now, taken)
            if not wait:
                break
            assert wait <= LONGEST
            now += wait
        assert taken <= rate * (now + 1) + 1e-6  # a piece is read only when what came before is paid for
        taken += size
        largest = max(largest, size)
    assert taken <= rate * (now + 1) + largest + 1e-6


def test_a_burst_of_one_second_passes_and_an_overdraft_is_waited_for() -> None:
    throttle = Throttle(100, 0.0, 5)
    assert throttle.allowance == 105
    assert throttle.look(0.0, 104) == 0
    assert throttle.look(0.0, 155) == 0.5
    assert throttle.look(0.25, 155) == 0.25
    assert throttle.look(0.75, 155) == 0
    assert throttle.allowance == 180
