"""What a member has of a block, and what it may take next, is found without a look at each message."""

from __future__ import annotations

import heapq
from array import array
from itertools import islice
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.queues.core import blocks
from mqmesh.broker.queues.core.blocks import APART, FEW, FREE, HELD_BYTES, Block, Lane, Part, rising
from mqmesh.broker.queues.core.plan import ANYBODY

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


@given(st.lists(st.tuples(st.integers(-9, 0), st.integers(1, 20)), max_size=3 * FEW))
def test_the_entries_of_a_heap_rise(keys: list[tuple[int, int]]) -> None:
    heap: list[tuple[int, int, int]] = []
    for number, key in enumerate(keys):
        heapq.heappush(heap, (*key, number))
    in_order = sorted(heap, key=lambda one: one[:2])
    found = []
    for one in rising(heap):
        found.append(one)
        heap.clear()  # it may change meanwhile
    assert found == in_order


def test_who_takes_a_few_of_very_many_looks_at_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages with a group are looked at one by one, in order."""
    looks = [0]
    key = blocks._key

    def counted(one: tuple[int, int]) -> tuple[int, int]:
        looks[0] += 1
        return key(one)

    monkeypatch.setattr(blocks, "_key", counted)
    lane, count = Lane(ANYBODY), 10_000
    for number in range(count):
        free: Any = SimpleNamespace(states=bytes((FREE,)), cursor=0, block=None)
        apart: Any = SimpleNamespace(states=bytes((APART,)), block=SimpleNamespace(priority_of=lambda index: 4))
        heapq.heappush(lane.ready, (-4, 2 * number + 1, free))
        heapq.heappush(lane.apart, (-4, 2 * number + 2, apart, 0))
    taken = list(islice(lane.in_order(), 16))
    assert [part.states[0] for part, _ in taken] == [FREE, APART] * 8
    assert looks[0] < 100
