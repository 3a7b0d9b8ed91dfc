"""A short run of the codec's fuzzing; `fuzz_codec.py` runs longer by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from .fuzz_codec import check, round_of, samples


def test_samples_are_accepted() -> None:
    for data, version in samples():
        assert check(data, version) == "accepted", data.hex()


@pytest.mark.parametrize("seed", range(8))
def test_damaged_packets_end_in_accepted_or_a_documented_error(seed: int) -> None:
    outcomes = round_of(seed, 2500)
    assert outcomes["accepted"] > 100
    assert len(outcomes) > 20


@settings(max_examples=examples(300))
@given(st.binary(max_size=60), st.sampled_from([4, 5]))
def test_random_bytes(data: bytes, version: int) -> None:
    check(data, version)


@settings(max_examples=examples(300))
@given(st.integers(1, 15), st.binary(max_size=60), st.sampled_from([4, 5]))
def test_random_bodies_behind_a_good_header(kind: int, body: bytes, version: int) -> None:
    flags = 2 if kind in (6, 8, 10) else 0
    check(bytes((kind << 4 | flags, len(body))) + body, version)


@pytest.mark.parametrize("version", [4, 5])
def test_every_pair_of_first_bytes(version: int) -> None:
    for first in range(256):
        for second in range(256):
            check(bytes((first, second)), version)
            check(bytes((first, 1, second)), version)
            check(bytes((first, 2, 0, second)), version)
