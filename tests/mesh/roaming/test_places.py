"""The states of a roaming client and its cut, by themselves and by chance; what is stored and sent comes back as it was."""

from __future__ import annotations

import contextlib
import itertools

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.roaming import wire
from mqmesh.mesh.roaming.places import (
    TABLE,
    Cut,
    Forward,
    Input,
    Known,
    Leave,
    Place,
    State,
    decode_forwards,
    decode_known,
    decode_leave,
    decode_place,
    encode_forwards,
    encode_known,
    encode_leave,
    encode_place,
    step,
)
from mqmesh.mesh.roaming.wire import Answer, Claim, Fence, Move, Said

keys = st.tuples(st.integers(0, 2**62), st.integers(0, 65_535))
small = st.tuples(st.integers(1, 9), st.integers(0, 3))


def test_each_state_leads_to_here() -> None:
    reached = {State.HERE}
    for _ in State:
        reached |= {state for (state, _), then in TABLE.items() if then in reached}
    assert reached == set(State)


@given(st.lists(st.sampled_from(Input), max_size=20))
def test_a_client_that_is_here_stays_and_none_goes_back(inputs: list[Input]) -> None:
    order = [State.ASKING, State.FETCHING, State.TAKING, State.HERE]
    state = State.ASKING
    for event in inputs:
        after = step(state, event)
        assert order.index(after) >= order.index(state)
        state = after


@given(st.lists(st.one_of(small, st.just(None)), max_size=30), st.sets(small, min_size=2, max_size=5))
def test_each_message_is_for_one_session(said: list[tuple[int, int] | None], claimed: set[tuple[int, int]]) -> None:
    """Sessions of several claims, one after the other: whatever an origin's markers, each message is for at most one of those
    that all have heard of, and for exactly one once a marker of these has come."""
    first, *later = sorted(claimed)
    cuts = [Cut(first), *[Cut(key) for key in later]]
    for cut in cuts[1:]:
        cut.gated = True
    highest = None
    for what in said:
        if what is None:
            takers = [cut.keys[0] for cut in cuts if cut.takes(7)]
            assert len(takers) <= 1 or highest is None
            if highest is None:
                assert takers == [first]
            elif highest in claimed:
                assert takers == [highest]
        else:
            for cut in cuts:
                cut.marker(7, what)
            if what >= first and (highest is None or what > highest):
                highest = what


def test_a_session_that_is_claimed_again_takes_what_its_new_marker_gives_it() -> None:
    cut = Cut((1, 0))
    cut.gated = True
    cut.marker(5, (1, 0))
    assert cut.takes(5)
    cut.marker(5, (2, 3))
    assert not cut.takes(5)
    assert cut.closed
    cut.again((4, 0))
    assert not cut.takes(5)
    assert not cut.marked(1 << 5)
    cut.marker(5, (4, 0))
    assert cut.takes(5)
    assert cut.marked(1 << 5)
    cut.marker(5, (3, 1))  # late, and without a meaning
    assert cut.takes(5)
    assert not cut.passed(1 << 5)
    cut.marker(5, (9, 1))
    assert cut.passed(1 << 5)


def described(place: Place | Leave) -> list[object]:
    values = [getattr(place, name) for name in place.__slots__ if name not in ("cut", "waiting", "coming", "until", "lost")]
    return [*values, *[getattr(place.cut, name) for name in Cut.__slots__]]


@given(
    keys,
    keys,
    st.integers(0, 2**70),
    st.booleans(),
    st.dictionaries(keys, st.booleans(), max_size=3),
    st.dictionaries(st.integers(0, 9), keys),
)
def test_what_is_stored_comes_back(
    key: wire.Key, other: wire.Key, mask: int, flag: bool, sources: dict[wire.Key, bool], heard: dict[int, wire.Key]
) -> None:
    place = Place("ä", key, flag)
    place.state, place.claimed, place.asked, place.around = State.TAKING, mask, mask >> 3, mask >> 5
    place.pending = other
    place.sources, place.following, place.cut.heard, place.cut.gated = sources, (other, flag) if flag else None, heard, flag
    place.cut.again(other)
    assert described(decode_place("ä", encode_place(place))) == described(place)
    leave = Leave("ä", other, key, place.cut)
    leave.ended = flag
    assert described(decode_leave(encode_leave(leave))) == described(leave)
    forwards = [Forward(key, other, mask, tuple(sources))]
    assert decode_forwards(encode_forwards(forwards)) == forwards
    assert decode_known(encode_known(Known(mask, key[0]))) == Known(mask, key[0])


@pytest.mark.parametrize("decode", [lambda v: decode_place("c", v), decode_leave, decode_forwards, decode_known])
@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x90", b"\x93\x02\xc4\x00\x05", b"\x01", b"\xa3abc"])
def test_what_is_not_ours_is_refused_in_one_line(decode: object, value: bytes) -> None:
    with pytest.raises(ValueError) as raised:
        decode(value)  # type: ignore[operator]
    assert "\n" not in str(raised.value)


names = st.text(min_size=1, max_size=5).filter(lambda text: "\0" not in text)
BODIES = {
    wire.SESSION: st.tuples(keys, st.lists(keys, max_size=2).map(tuple), st.booleans(), st.binary(max_size=9)),
    wire.PIECE: st.tuples(keys, st.booleans(), st.binary(max_size=9)),
    wire.READY: st.tuples(keys),
    wire.MARKER: st.just(()),
    wire.END: st.tuples(keys),
    wire.LEFT: st.tuples(keys),
}


@given(st.data(), names, keys, st.booleans(), st.integers(0, 2**70))
def test_what_is_said_is_understood(data: st.DataObject, client: str, key: wire.Key, flag: bool, mask: int) -> None:
    for kind, rests in BODIES.items():
        rest = data.draw(rests)
        assert wire.decode(kind, wire.encode(client, key, *rest)) == Move(client, key, rest)
    claims = [Claim(client, key, flag)] * 2
    assert wire.decode(wire.CLAIM, wire.encode_claims(claims)) == claims
    answer = Answer(client, key, Said.NEWER, data.draw(st.one_of(st.none(), keys)), flag, not flag, flag)
    assert wire.decode(wire.ANSWER, wire.encode_answer(answer)) == answer
    fence = Fence(client, key, (5, 2**64 - 1), mask)
    assert wire.decode(wire.FENCE, wire.encode_fence(fence)) == fence


values = st.recursive(st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3), lambda inner: st.lists(inner, max_size=6))


@given(st.sampled_from(wire.KINDS), st.one_of(st.binary(max_size=60), values.map(msgpack.packb)))
def test_anything_else_is_refused_by_name(kind: str, body: bytes) -> None:
    with contextlib.suppress(ValueError):
        wire.decode(kind, body)
        return
    with pytest.raises(ValueError, match=kind):
        wire.decode(kind, body)


def test_kinds_are_told_apart() -> None:
    assert len(set(wire.KINDS)) == len(wire.KINDS) == len(BODIES) + 3
    assert all(one == other or not one.startswith(other + "/") for one, other in itertools.product(wire.KINDS, repeat=2))
