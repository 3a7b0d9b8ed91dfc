"""Forms of batches: made once for recipients of one kind, and no part of a batch that waits."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from mqmesh.mqtt.batch import forms, packets
from mqmesh.mqtt.batch.batch import Batch
from mqmesh.mqtt.batch.packets import PacketBatch
from mqmesh.mqtt.batch.parts import PartsBatch
from mqmesh.mqtt.batch.run import Run
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Publish

PAYLOAD = 100_000


def raw_run(number: int) -> Run:
    frame = encode(Publish("t", bytes([number]) * PAYLOAD, 1, packet_id=1), 4)
    return Run(b"t", 1, False, None, raw=(frame, len(frame) - PAYLOAD, len(frame), PAYLOAD), raw_version=4)


def packet_batch(number: int) -> PacketBatch:
    return PacketBatch(b"".join(encode(Publish(f"t/{n}", bytes([number]) * PAYLOAD, 1, packet_id=n), 4) for n in (1, 2)), 4, 1, 2, 0.0)


def parts_batch(number: int) -> PartsBatch:
    return PartsBatch([b"\0\1a", b"\0\1b"], [bytes([number]) * PAYLOAD] * 2, 1, 0.0)


@pytest.mark.parametrize("make", [raw_run, packet_batch, parts_batch])
def test_a_batch_that_waits_holds_its_messages_once(make: Callable[[int], Batch]) -> None:
    """Each goes to recipients of forty kinds, by QoS 0 and 1."""
    tracemalloc.start()
    try:
        waiting = [make(number) for number in range(20)]
        begun = tracemalloc.get_traced_memory()[0]
        for batch in waiting:
            for kind in range(40):
                more = b"\x0b" + bytes([kind])
                assert batch.block(5, False, more) == batch.block(5, False, more)
                batch.stamped(5, 1, False, more, 0, batch.count, 1, False)
            assert [len(payload) for payload in batch.payloads] == [PAYLOAD] * batch.count
        assert tracemalloc.get_traced_memory()[0] - begun < forms.MOST + 3 * PAYLOAD
    finally:
        tracemalloc.stop()


def test_recipients_of_one_kind_share_a_form_and_another_large_batch_ends_that() -> None:
    one, other = raw_run(1), raw_run(2)
    shared = one.block(5)
    assert one.block(5) is shared
    assert other.block(5) != shared
    assert one.forms is None
    assert one.block(5) == shared


def test_small_batches_have_forms_beside_each_other() -> None:
    """As the parts have that members of a shared subscription get: the whole is cut once."""
    batches = [Run(b"t", 1, False, [b"%d" % number]) for number in range(forms.BATCHES + 3)]
    for batch in batches:
        batch.block(5)
    assert [batch.forms is None for batch in batches] == [True] * 3 + [False] * forms.BATCHES


def test_a_batch_that_goes_in_small_parts_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a session that takes ten messages at a time, while other batches have forms: else each part would take as long as the whole."""
    looked = []
    end = packets._end
    monkeypatch.setattr(packets, "_end", lambda block, position: looked.append(position) or end(block, position))
    count = 1000
    batch = PacketBatch(b"".join(encode(Publish(f"t/{n}", b"x" * (n % 50), 1, packet_id=n + 1), 4) for n in range(count)), 4, 1, count, 0.0)
    for start in range(0, count, 10):
        batch.stamped(4, 1, False, b"", start, 10, 1, False)
        batch.stamped(5, 1, False, b"", start, 10, 1, False)
        for number in range(forms.BATCHES):
            raw_run(number).block(5)
    assert len(looked) <= 3 * count


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("duplicate", [False, True])
@pytest.mark.parametrize("start", range(3))
def test_a_part_is_stamped_as_it_is_in_the_whole(version: int, duplicate: bool, start: int) -> None:
    """Whether the whole was asked for before or not."""
    batches = (
        lambda: Run(b"t", 1, False, [b"a", b"b", b"c", b"d"]),
        lambda: PartsBatch([b"\0\1a", b"\0\2bb"] * 2, [b"x", b"yy"] * 2, 1, 0.0),
        lambda: PacketBatch(b"".join(encode(Publish(f"t/{n}", bytes(n), 1, packet_id=9), 4) for n in range(4)), 4, 1, 4, 0.0),
    )
    for make in batches:
        batch = make()
        apart = batch.stamped(version, 1, False, b"", start, 2, 7, duplicate)
        whole = batch.stamped(version, 1, False, b"", 0, 4, 7 - start, duplicate)
        assert bytes(apart) in bytes(whole)
        assert bytes(apart) == bytes(batch.stamped(version, 1, False, b"", start, 2, 7, duplicate))
