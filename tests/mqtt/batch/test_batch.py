"""Every kind of batch answers every question, and the same messages give the same answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mqtt.batch.batch import Batch
from mqmesh.mqtt.batch.packets import PacketBatch
from mqmesh.mqtt.batch.parts import PartsBatch
from mqmesh.mqtt.batch.run import Run

MORE = (b"", b"\x0b\x05", b"\x02\0\0\0\x09\x0b\x07")


def kinds(topic: bytes, payloads: list[bytes], qos: int, version: int) -> list[Batch]:
    """The same messages as a run, as packets of a client of a version, and as parts."""
    run = Run(topic, qos, False, payloads, received=1.0)
    block = bytes(run.stamped(version, qos, False, b"", 0, run.count, 1, False)) if qos else run.block(version)
    name = len(topic).to_bytes(2, "big") + topic
    return [run, PacketBatch(block, version, qos, run.count, 1.0), PartsBatch([name] * run.count, payloads, qos, 1.0)]


def answers(batch: Batch) -> list[object]:
    """What does not depend on a recipient."""
    return [batch.messages(), batch.topics, batch.payloads, batch.count, batch.qos, batch.retain, batch.expired(1e9), batch.received]


@given(
    st.sampled_from([b"t", b"a/" * 80]),
    st.integers(0, 200).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=5)),
    st.integers(0, 2),
    st.sampled_from([4, 5]),
    st.data(),
)
def test_the_same_messages_give_the_same_answers(topic: bytes, payloads: list[bytes], qos: int, version: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(payloads) - 1))
    stop = data.draw(st.integers(start + 1, len(payloads)))
    some = data.draw(st.lists(st.integers(0, len(payloads) - 1), min_size=1, unique=True))
    goes, retain, more = data.draw(st.sampled_from([4, 5])), data.draw(st.booleans()), data.draw(st.sampled_from(MORE))
    wanted, again = data.draw(st.sampled_from([1, 2])), data.draw(st.booleans())
    made = kinds(topic, payloads, qos, version)
    for derive in (
        lambda batch: batch,
        lambda batch: batch.part(start, stop),
        lambda batch: batch.chosen(some),
        lambda batch: batch.every(start, 2),
        lambda batch: batch.single(start),
        lambda batch: batch.parts(),
        lambda batch: PacketBatch(*batch.written(), batch.qos, batch.count, batch.received),
    ):
        first, *others = [derive(batch) for batch in made]
        for other in others:
            assert answers(other) == answers(first)
            assert other.block(goes, retain, more) == first.block(goes, retain, more)
            stamped = [bytes(one.stamped(goes, wanted, retain, more, 0, one.count, 300, again)) for one in (first, other)]
            assert stamped[0] == stamped[1]
