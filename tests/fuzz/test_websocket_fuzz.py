"""A short run of WebSocket's fuzzing; `fuzz_websocket.py` runs longer by hand."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples

from .fuzz_websocket import REQUEST, check_frames, check_opening, round_of


@pytest.mark.parametrize("seed", range(4))
def test_damaged_handshakes_and_frames(seed: int) -> None:
    outcomes = round_of(seed, 1500)
    assert {"101", "400", "wait", "payload", "close", "code 1002", "code 1003", "code 1009"} <= set(outcomes)


@settings(max_examples=examples(300))
@given(st.binary(max_size=80), st.integers(1, 80))
@example(b"\x88\x80\0\0\0\0", 1)
@example(b"\x82\xfe\0\x7d\0\0\0\0", 3)
def test_random_frames(data: bytes, chunk: int) -> None:
    check_frames(data, chunk)


@settings(max_examples=examples(200))
@given(st.binary(max_size=80), st.integers(0, len(REQUEST)), st.integers(3, 80))
def test_random_bytes_in_a_good_request(data: bytes, place: int, chunk: int) -> None:
    check_opening(REQUEST[:place] + data + REQUEST[place:], chunk)


def test_every_pair_of_first_bytes() -> None:
    for first in range(256):
        for second in range(256):
            check_frames(bytes((first, second, 0, 0, 0, 0, 0, 0, 0, 0)), 10)
