"""Frames: whatever the chunks that they come in, and beside the package `websockets`, which others wrote."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mqmesh.mqtt.websocket import frames
from mqmesh.mqtt.websocket.frames import BINARY, CLOSE, CONTINUATION, FINAL, PING, PONG, TEXT, Deframer, close_frame, frame
from websockets.frames import Frame, Opcode

KEY = b"\x12\x34\x56\x78"
LIMIT = 2**20


def fragment(opcode: int, payload: bytes, key: bytes = KEY) -> bytes:
    """A frame that is not the last one of its message."""
    whole = frame(opcode, payload, key)
    return bytes((whole[0] & ~FINAL,)) + whole[1:]


def feed(data: bytes, chunks: list[int], masked: bool = True, limit: int = LIMIT) -> tuple[bytes, list[tuple[int, bytes]], int, bool]:
    """(payload, control frames, code of the error, ended) of bytes that come in chunks of these sizes, again and again."""
    deframer = Deframer(masked, limit)
    pieces, position, turn = [], 0, 0
    while position < len(data):
        size = max(1, chunks[turn % len(chunks)])
        pieces.append(deframer.feed(data[position : position + size]))
        position, turn = position + size, turn + 1
    return b"".join(pieces), deframer.controls, deframer.error.code if deframer.error else 0, deframer.ended


messages = st.lists(
    st.tuples(st.sampled_from((BINARY, BINARY, PING, PONG)), st.binary(max_size=400), st.integers(1, 3), st.binary(min_size=4, max_size=4)),
    max_size=12,
)


def written(parts: list[tuple[int, bytes, int, bytes]], masked: bool) -> tuple[bytes, bytes, list[tuple[int, bytes]]]:
    """(bytes on the wire, their payload, their control frames); a message in `pieces` fragments."""
    wire, payload, controls = b"", b"", []
    for opcode, data, pieces, key in parts:
        if opcode != BINARY:
            wire += frame(opcode, data[:125], key if masked else b"")
            controls.append((opcode, data[:125]))
            continue
        payload += data
        step = max(1, -(-len(data) // pieces))
        cut = [data[i : i + step] for i in range(0, len(data), step)] or [b""]
        for index, one in enumerate(cut):
            make = frame if index == len(cut) - 1 else fragment
            wire += make(BINARY if index == 0 else CONTINUATION, one, key if masked else b"")
    return wire, payload, controls


@given(messages, st.booleans(), st.lists(st.integers(1, 300), min_size=1, max_size=5))
@example([(BINARY, b"x" * 200, 3, KEY), (PING, b"?", 1, KEY)], True, [1])
def test_payload_and_controls_are_the_same_in_any_chunks(
    parts: list[tuple[int, bytes, int, bytes]], masked: bool, chunks: list[int]
) -> None:
    wire, payload, controls = written(parts, masked)
    assert feed(wire, chunks, masked) == (payload, controls, 0, False)
    assert feed(wire, [len(wire) + 1], masked) == (payload, controls, 0, False)


@given(st.binary(max_size=600), st.lists(st.integers(1, 40), min_size=1, max_size=4), st.booleans())
def test_any_bytes_end_alike_in_any_chunks(data: bytes, chunks: list[int], masked: bool) -> None:
    assert feed(data, chunks, masked, 300) == feed(data, [len(data) + 1], masked, 300)


@given(st.binary(max_size=70_000), st.binary(min_size=4, max_size=4))
@example(b"", KEY)
@example(b"x" * 125, KEY)
@example(b"x" * 126, KEY)
@example(b"x" * 65536, KEY)
def test_frames_are_those_of_websockets(payload: bytes, key: bytes) -> None:
    def read(wire: bytes, masked: bool) -> bytes:
        position = 0

        def exactly(size: int):  # type: ignore[no-untyped-def]
            nonlocal position
            yield from ()
            position += size
            return wire[position - size : position]

        parser = Frame.parse(exactly, mask=masked)
        with pytest.raises(StopIteration) as stopped:
            next(parser)
        found = stopped.value.value
        assert (found.opcode, found.fin) == (Opcode.BINARY, True)
        assert position == len(wire)
        return bytes(found.data)

    assert read(frame(BINARY, payload), False) == payload
    assert read(frame(BINARY, payload, key), True) == payload
    assert feed(Frame(Opcode.BINARY, payload).serialize(mask=True), [4096])[0] == payload


@given(st.binary(max_size=5000), st.binary(min_size=4, max_size=4))
def test_masks_without_c_code(data: bytes, key: bytes) -> None:
    assert frames.mask_plainly(data, key) == bytes(byte ^ key[i % 4] for i, byte in enumerate(data))
    assert frames.mask_plainly(frames.mask_plainly(data, key), key) == data == frames.mask(frames.mask(data, key), key)


def test_what_is_long_leaves_in_several_frames() -> None:
    data = bytes(range(256)) * 300
    assert feed(frames.frames(data), [1000], False)[0] == data
    keys = iter(bytes((i,)) * 4 for i in range(1, 100))
    assert feed(frames.frames(data, lambda: next(keys)), [1000])[0] == data
    assert next(keys) > b"\4", "one key for several frames"


BROKEN = {
    "text": (frame(TEXT, b"hello", KEY), 1003),
    "not masked": (frame(BINARY, b"hello"), 1002),
    "reserved bits": (b"\xc2\x80" + KEY, 1002),
    "opcode 3": (b"\x83\x80" + KEY, 1002),
    "continuation of nothing": (frame(CONTINUATION, b"x", KEY), 1002),
    "message in a message": (fragment(BINARY, b"x") + frame(BINARY, b"y", KEY), 1002),
    "text in a message": (fragment(BINARY, b"x") + frame(TEXT, b"y", KEY), 1003),
    "long ping": (b"\x89\xfe\x00\x7e" + KEY + b"x" * 126, 1002),
    "ping in fragments": (fragment(PING, b"x"), 1002),
    "length in two bytes without need": (b"\x82\xfe\x00\x7d" + KEY, 1002),
    "length in eight bytes without need": (b"\x82\xff" + (65535).to_bytes(8, "big") + KEY, 1002),
    "negative length": (b"\x82\xff\x80" + bytes(7) + KEY, 1002),
    "huge frame": (b"\x82\xff" + (2**62).to_bytes(8, "big") + KEY, 1009),
    "huge message": (fragment(BINARY, b"x" * 30_000) + fragment(CONTINUATION, b"x" * 30_000), 1009),
    "close with one byte": (frame(CLOSE, b"\x03", KEY), 1002),
    "close with 1005": (frame(CLOSE, (1005).to_bytes(2, "big"), KEY), 1002),
    "close with 999": (frame(CLOSE, (999).to_bytes(2, "big"), KEY), 1002),
    "close with a reason that is no text": (frame(CLOSE, b"\x03\xe8\xff", KEY), 1007),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("chunk", [1, 100_000_000])
def test_a_broken_rule_has_its_code_and_what_came_before_it_counts(case: str, chunk: int) -> None:
    wire, code = BROKEN[case]
    payload, _, found, ended = feed(frame(BINARY, b"good", KEY) + wire + frame(BINARY, b"behind", KEY), [chunk], limit=50_000)
    assert (found, ended) == (code, True)
    assert payload.startswith(b"good")
    assert b"behind" not in payload


def test_nothing_counts_behind_a_close() -> None:
    wire = frame(BINARY, b"a", KEY) + close_frame(1000, "bye", KEY) + frame(BINARY, b"b", KEY)
    assert feed(wire, [3]) == (b"a", [(CLOSE, b"\x03\xe8bye")], 0, True)


def test_a_reason_that_is_too_long_is_cut_between_letters() -> None:
    _, controls, code, _ = feed(close_frame(1002, "é" * 100), [500], False)
    assert code == 0
    assert controls == [(CLOSE, b"\x03\xea" + "é".encode() * 61)]


def test_a_frame_takes_no_memory_however_long_it_is() -> None:
    deframer = Deframer(True, 2**40)
    deframer.feed(b"\x82\xff" + (2**39).to_bytes(8, "big") + KEY)
    for _ in range(100):
        assert len(deframer.feed(bytes(1000))) == 1000
    assert deframer._head == b""
