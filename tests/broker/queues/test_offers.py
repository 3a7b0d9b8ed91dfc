"""Messages of a queue on their way to a member: together they become the frames that each of them would be by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.queues.core.blocks import Block, Meta
from mqmesh.broker.queues.core.queue import Queue, Slice
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.offers import AHEAD_BYTES, MANY, Ahead, Offer, offers
from mqmesh.mqtt.batch.described import DescribedBatch
from mqmesh.mqtt.batch.run import Run

PROPERTIES = (b"", b"\x03\x00\x01a")


def block_of(messages: list[tuple[bytes, bytes]]) -> Block:
    """They are put, and committed. messages: payload and properties of each."""
    queue = Queue("orders", Rules())
    for payload, own in messages:
        queue.put([payload], Meta("shop", own), 1, life=60_000)
    (block,) = queue.seal(1)
    queue.committed(block, 1)
    return block


def given_of(messages: list[tuple[bytes, bytes]], start: int = 0, *, alone: bool = False) -> list[Offer]:
    """The offers of the messages from `start` on, of one block. messages: payload and properties of each."""
    block = block_of(messages)
    taken = Slice(block.parts[0], start, len(messages) - start, 0)
    return list(offers(taken, [payload for payload, _ in messages], b"$queue/orders", b"", None, 0.0, 1, alone, False))


@given(st.lists(st.tuples(st.sampled_from([b"", b"x", b"y", b"longer"]), st.sampled_from(PROPERTIES)), min_size=1, max_size=2), st.data())
def test_together_they_are_the_frames_that_they_are_alone(kinds: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3 * MANY))
    messages = [kinds[at * len(kinds) // count] for at in range(count)]
    start = data.draw(st.integers(0, count - 1))
    (offer,), singles = given_of(messages, start), given_of(messages, start, alone=True)
    assert (offer.base, offer.count, offer.run.expiry) == (start, count - start, singles[0].run.expiry)
    for one in (offer, *singles):
        one.first = 300 + one.base - start
    for version in (4, 5):
        for again in (False, True):
            wanted = b"".join([bytes(one.encode(version, b"", again)) for one in singles])
            assert bytes(offer.encode(version, b"", again)) == wanted
            half = offer.count // 2
            parts = [offer.part(0, half), offer.part(half, offer.count)] if half else [offer]
            assert b"".join([bytes(one.encode(version, b"", again)) for one in parts]) == wanted


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        ([(b"x" * 160, b"")] * MANY, Run),
        ([(b"x" * 160, PROPERTIES[1])] * MANY, Run),
        ([(b"x" * 160, b"")] * (MANY - 1), DescribedBatch),
        ([(b"x" * 160, b"")] * MANY + [(b"x", b"")], DescribedBatch),
        ([(b"x" * 160, b"")] * MANY + [(b"x" * 160, PROPERTIES[1])], DescribedBatch),
    ],
)
def test_many_that_are_alike_are_a_run(messages: list[tuple[bytes, bytes]], kind: type) -> None:
    (offer,) = given_of(messages)
    assert type(offer.run) is kind


KINDS = st.tuples(st.sampled_from([b"", b"x", b"longer", b"large" * 2000]), st.sampled_from(PROPERTIES))


@given(
    st.lists(KINDS, min_size=1, max_size=60), st.lists(st.tuples(st.integers(0, 59), st.integers(1, 20), st.integers(0, 900)), max_size=20)
)
def test_slices_that_are_made_ahead_are_the_frames_that_they_are_alone(
    messages: list[tuple[bytes, bytes]], slices: list[tuple[int, int, int]]
) -> None:
    """Members take slices of a block in order, or somewhere, at any time: each gets what it would get by itself."""
    block, ahead, wall, end = block_of(messages), Ahead(), 1, 0
    payloads = [payload for payload, _ in messages]
    for jump, length, passes in slices:
        start = end if jump % 3 else jump
        wall += passes
        if start >= len(messages):
            continue
        end = min(len(messages), start + length)
        taken = Slice(block.parts[0], start, end - start, 0)
        settings = b"$queue/orders", b"", None, wall / 1000, wall, False, False
        (offer,), (alone,) = offers(taken, payloads, *settings, ahead), offers(taken, payloads, *settings)
        assert (offer.base + offer.start, offer.count, offer.run.expiry) == (start, end - start, alone.run.expiry)
        assert wall / 1000 - offer.run.received < 1.0
        offer.first = alone.first = 300
        for version in (4, 5):
            for half in (offer.count // 2, offer.count):
                pieces = [(one.part(0, half), one.part(half, one.count)) if 0 < half < one.count else (one,) for one in (offer, alone)]
                made, wanted = ([bytes(one.encode(version, b"\x02\0\0\0\1")) for one in piece] for piece in pieces)
                assert made == wanted


@pytest.mark.parametrize(
    ("messages", "shared"),
    [
        ([(b"x" * 100, b"")] * 200, True),
        ([(b"x", PROPERTIES[1] * 20)] * 200, True),
        ([(b"x" * 10_000, b"")] * 200, False),
        ([(b"x", PROPERTIES[1] * 2_000)] * 200, False),
        ([(b"x", b"")] * 50 + [(b"x" * 100_000, b"")] + [(b"x", b"")] * 50, True),
    ],
)
def test_members_that_get_few_messages_share_batches_of_few_bytes(messages: list[tuple[bytes, bytes]], shared: bool) -> None:
    block, ahead, runs = block_of(messages), Ahead(), {}
    for at in range(0, len(messages) - 1, 2):
        (offer,) = offers(Slice(block.parts[0], at, 2, 0), [p for p, _ in messages], b"q", b"", None, 0.0, 1, False, False, ahead)
        runs[id(offer.run)] = offer.run
        held = range(offer.base, offer.base + offer.run.count)
        assert offer.run.count == 2 or sum(len(messages[one][0]) + len(messages[one][1]) for one in held) <= 2 * AHEAD_BYTES
    assert (len(runs) < 10) == shared


def test_nothing_is_made_ahead_for_members_at_different_places() -> None:
    block, ahead = block_of([(b"x", b"")] * 200), Ahead()
    for at in range(2, 80, 2):
        for start in (at, 100 + at):
            (offer,) = offers(Slice(block.parts[0], start, 2, 0), [b"x"] * 200, b"q", b"", None, 0.0, 1, False, False, ahead)
            assert offer.run.count == 2
