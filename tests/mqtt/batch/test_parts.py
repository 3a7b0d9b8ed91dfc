"""Messages as topics and payloads become the same frames as each of them by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mqtt.batch.packets import PacketBatch
from mqmesh.mqtt.batch.parts import PartsBatch
from mqmesh.mqtt.batch.run import Run

messages = st.lists(
    st.tuples(st.sampled_from([b"a", b"b/c", b"t" * 200]), st.sampled_from([b"", b"x", b"yy" * 60, b"z" * 20_000])), min_size=1, max_size=8
)


def parts(pairs: list[tuple[bytes, bytes]], qos: int) -> PartsBatch:
    return PartsBatch([len(topic).to_bytes(2, "big") + topic for topic, _ in pairs], [payload for _, payload in pairs], qos, 1.0)


def frames(pairs: list[tuple[bytes, bytes]], version: int, qos: int, first: int = 0, duplicate: bool = False) -> bytes:
    runs = [Run(topic, qos, False, [payload]) for topic, payload in pairs]
    if not qos:
        return b"".join(bytes(run.frames(version, 0).data) for run in runs)
    return b"".join(bytes(run.stamped(version, qos, False, b"", 0, 1, first + i, duplicate)) for i, run in enumerate(runs))


@given(messages, st.sampled_from([4, 5]))
def test_frames_at_qos_0(pairs: list[tuple[bytes, bytes]], version: int) -> None:
    assert parts(pairs, 1).block(version) == frames(pairs, version, 0)


@given(messages, st.sampled_from([4, 5]), st.sampled_from([1, 2]), st.integers(1, 65_000), st.booleans(), st.data())
def test_frames_with_identifiers(
    pairs: list[tuple[bytes, bytes]], version: int, qos: int, first: int, duplicate: bool, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(pairs) - 1))
    stop = data.draw(st.integers(start + 1, len(pairs)))
    run = parts(pairs, 2)
    for number in (first, 7):  # the second recipient gets its own
        stamped = run.stamped(version, qos, False, b"", start, stop - start, number, duplicate)
        assert stamped == frames(pairs[start:stop], version, qos, number, duplicate)


@given(messages, st.sampled_from([0, 1, 2]), st.sampled_from([4, 5]), st.data())
def test_parts_and_ways_back(pairs: list[tuple[bytes, bytes]], qos: int, version: int, data: st.DataObject) -> None:
    run = parts(pairs, qos)
    assert run.messages() == pairs
    stop = data.draw(st.integers(1, len(pairs)))
    assert run.part(0, stop).messages() == pairs[:stop]
    one = run.single(stop - 1)
    assert (one.topic, one.payloads, one.qos) == (pairs[stop - 1][0], [pairs[stop - 1][1]], qos)
    block, written = run.written()
    assert PacketBatch(block, written, qos, len(pairs), 1.0).parts().messages() == pairs
    came = PacketBatch(frames(pairs, version, qos, 1), version, qos, len(pairs), 1.0)
    assert came.parts().messages() == came.messages() == pairs
