"""What a member has of a block is found without a look at each message."""

from __future__ import annotations

from array import array
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.queues.core.blocks import HELD_BYTES, Block, Lane, Part

MEMBERS = st.sampled_from([0, 1, 2, 256, 257, 0x01000000, 0x00010100, 0xFFFFFFFF])  # also such whose bytes are found between two others
STATES = st.integers(0, max(HELD_BYTES) + 1)


@given(st.lists(st.tuples(STATES, MEMBERS), max_size=60), MEMBERS)
def test_what_a_member_has(messages: list[tuple[int, int]], member: int) -> None:
    part = Part(cast(Block, None), 0, cast(Lane, None))
    part.states = bytearray(state for state, _ in messages)
    part.takers = array("I", [taker for _, taker in messages])
    has = [state in HELD_BYTES and taker == member for state, taker in messages]
    found = part.held_by(member)
    assert [index for start, count in found for index in range(start, start + count)] == [index for index, one in enumerate(has) if one]
    assert all(start + count == len(has) or not has[start + count] for start, count in found), "neighbours go together"
