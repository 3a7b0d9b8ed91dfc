"""Visited bits: what is written is what is read, and a patch changes what differs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.wire.visited import bits_for, changes, mask_of, numbers, patch, share_of, width_for

masks = st.integers(0, (1 << 200) - 1)


@given(masks, st.integers(0, 4))
def test_a_share_survives_the_wire(share: int, wider: int) -> None:
    width = width_for(share) + wider
    bits = bits_for(share, width)
    assert len(bits) == width
    assert share_of(bits) == share


def test_bit_n_is_broker_n() -> None:
    assert bits_for(1 << 0 | 1 << 9, 2) == bytes((0xFE, 0xFD))
    assert share_of(bytes((0xFF, 0xFF))) == 0


def test_a_share_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(OverflowError):
        bits_for(1 << 8, 1)


@given(masks)
def test_numbers_and_mask_of_are_inverse(mask: int) -> None:
    found = list(numbers(mask))
    assert found == sorted(set(found))
    assert mask_of(found) == mask


@given(masks, masks, st.integers(1, 20), st.integers(0, 9), st.integers(0, 9))
def test_patching_each_frame_is_patching_the_block(old: int, new: int, count: int, before: int, after: int) -> None:
    width = width_for(old | new)
    was, will = bits_for(old, width), bits_for(new, width)
    frame, wanted = b"a" * before + was + b"z" * after, b"a" * before + will + b"z" * after
    block = bytearray(frame * count)
    patch(block, before, len(frame), count, changes(was, will))
    assert block == wanted * count
