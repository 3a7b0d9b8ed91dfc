"""A short run of the meter on the event loop; `fuzz_slices.py` runs longer by hand and judges what it measures."""

from __future__ import annotations

import pytest

from .fuzz_slices import MeteredLoop, story_of


@pytest.mark.parametrize("seed", range(2))
def test_each_slice_has_a_cause(seed: int) -> None:
    meter = story_of(seed, steps=12)
    assert meter.count > 12
    assert meter.longest == sorted(meter.longest, reverse=True)
    assert all(one.what and one.seed == seed for one in meter.longest)


def test_only_the_broker_is_measured() -> None:
    loop = MeteredLoop()
    try:
        assert loop._metered(len) is len
    finally:
        loop.close()
