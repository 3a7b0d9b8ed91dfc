"""Messages of a queue on their way to a member: together they become the frames that each of them would be by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.queue import Queue, Slice
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.offers import MANY, Offer, offers
from mqmesh.mqtt.batch.described import DescribedBatch
from mqmesh.mqtt.batch.run import Run

PROPERTIES = (b"", b"\x03\x00\x01a")


def given_of(messages: list[tuple[bytes, bytes]], start: int = 0, *, alone: bool = False) -> list[Offer]:
    """The offers of the messages from `start` on, of one block. messages: payload and properties of each."""
    queue = Queue("orders", Rules())
    for payload, own in messages:
        queue.put([payload], Meta("shop", own), 1, life=60_000)
    (block,) = queue.seal(1)
    queue.committed(block, 1)
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
