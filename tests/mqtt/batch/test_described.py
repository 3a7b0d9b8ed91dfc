"""Messages with properties of their own become the frames that each of them would be by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mqtt.batch.described import DescribedBatch
from mqmesh.mqtt.batch.run import Run

PROPERTIES = (b"", b"\x03\x00\x01a", b"\x26\x00\x01k" + b"\x00\xc8" + b"v" * 200)


@given(
    st.lists(st.tuples(st.binary(max_size=200), st.sampled_from(PROPERTIES)), min_size=1, max_size=6),
    st.sampled_from([4, 5]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([b"", b"\x02\0\0\0\x09"]),
    st.data(),
)
def test_each_is_the_frame_that_it_is_alone(
    messages: list[tuple[bytes, bytes]], version: int, retain: bool, again: bool, more: bytes, data: st.DataObject
) -> None:
    batch = DescribedBatch(b"orders", [payload for payload, _ in messages], [own for _, own in messages], 1, 9, 1.0)
    assert batch.messages() == [(b"orders", payload) for payload, _ in messages]
    indexes = data.draw(st.lists(st.integers(0, len(messages) - 1), min_size=1, unique=True))
    start = data.draw(st.integers(0, len(messages) - 1))
    for some, made in ((indexes, batch.chosen(indexes)), (list(range(start, len(messages))), batch.part(start, len(messages)))):
        runs = [Run(b"orders", 1, False, [messages[at][0]], messages[at][1], 9, 1.0) for at in some]
        assert made.payloads == [messages[at][0] for at in some]
        assert made.expired(11.0)
        assert made.block(version, retain, more) == b"".join([run.block(version, retain, more) for run in runs])
        for qos in (1, 2):
            wanted = [bytes(run.stamped(version, qos, retain, more, 0, 1, 300 + at, again)) for at, run in enumerate(runs)]
            assert made.stamped(version, qos, retain, more, 0, len(some), 300, again) == b"".join(wanted)
            assert made.stamped(version, qos, retain, more, len(some) - 1, 1, 300 + len(some) - 1, again) == wanted[-1]
            assert made.single(0).stamped(version, qos, retain, more, 0, 1, 300, again) == wanted[0]
