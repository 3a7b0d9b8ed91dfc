"""Two protocols joined without a socket: order, flow control, the end, and faults."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.transport.in_process import CHUNK, InProcessEnd, InProcessPair


class Talker(asyncio.Protocol):
    """Notes what happens to it. on_data: what it does with what comes."""

    transport: InProcessEnd

    def __init__(self, on_data: Callable[[bytes], None] = lambda _: None) -> None:
        self.on_data = on_data
        self.got = bytearray()
        self.chunks: list[bytes] = []
        self.paused = 0
        self.resumed = 0
        self.lost: list[Exception | None] = []
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.chunks.append(data)
        self.on_data(data)

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.resumed += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)
        self.gone.set()


def nothing(error: Exception) -> None:
    raise AssertionError(error)


STEPS = st.tuples(st.booleans(), st.binary(min_size=1, max_size=50), st.sampled_from(["", "pump", "turn", "hand", "stop", "go"]))


@given(st.lists(STEPS, max_size=30), st.booleans())
def test_bytes_arrive_in_order_and_once(steps: list[tuple[bool, bytes, str]], at_once: bool) -> None:
    """What the other end is given it answers. stop, go: the end that is written to reads no more, or goes on."""

    async def main() -> None:
        def answer(data: bytes) -> None:
            if b"?" in data:
                sent[other] += b"!"
                other.transport.write(b"!")

        one, other = Talker(), Talker(answer)
        pair = InProcessPair(one, other, nothing)
        pair.at_once = at_once
        sent = {one: b"", other: b""}
        for first, data, then in steps:
            who, reader = (one, other) if first else (other, one)
            sent[who] += data
            if then == "hand":
                who.transport.hand(bytearray(data))
            else:
                who.transport.write(bytearray(data))
            if then == "pump":
                pair.pump()
            elif then == "turn":
                await asyncio.sleep(0)
            elif then == "stop":
                reader.transport.pause_reading()
            elif then == "go":
                reader.transport.resume_reading()
        for end in (one, other):
            end.transport.resume_reading()
        pair.pump()
        assert (bytes(other.got), bytes(one.got)) == (sent[one], sent[other])
        assert all(type(chunk) is bytes for chunk in one.chunks + other.chunks)

    asyncio.run(main())


@pytest.mark.parametrize("at_once", [False, True])
async def test_bytes_are_handed_over_at_once_where_that_may_be(at_once: bool) -> None:
    one, other = Talker(), Talker(lambda data: other.transport.write(b"answer"))
    pair = InProcessPair(one, other, nothing)
    pair.at_once = at_once
    one.transport.hand(b"x")
    assert (bytes(other.got), bytes(one.got)) == (b"x" * at_once, b"")
    for _ in range(3):
        await asyncio.sleep(0)
    assert (bytes(other.got), bytes(one.got)) == (b"x", b"answer")


async def test_an_exception_during_a_hand_over_ends_both() -> None:
    def fail(data: bytes) -> None:
        raise ValueError

    failed: list[Exception] = []
    one, other = Talker(), Talker(fail)
    pair = InProcessPair(one, other, failed.append)
    pair.at_once = True
    one.transport.hand(b"x")
    await one.gone.wait()
    await other.gone.wait()
    assert [type(error) for error in failed] == [ValueError]


async def test_what_nobody_hands_over_the_loop_does() -> None:
    one, other = Talker(), Talker()
    InProcessPair(one, other, nothing)
    one.transport.write(b"x")
    assert not other.got
    await asyncio.sleep(0)
    assert other.got == b"x"


async def test_a_long_talk_does_not_deepen_the_stack_nor_keep_the_loop() -> None:
    depths = set()
    left = 5000

    def answer(who: Talker) -> Callable[[bytes], None]:
        def on_data(_: bytes) -> None:
            nonlocal left
            left -= 1
            depth = 0
            frame = sys._getframe()
            while frame.f_back is not None:
                frame, depth = frame.f_back, depth + 1
            depths.add(depth)
            if left:
                who.transport.write(b"x")
            else:
                done.set()

        return on_data

    done = asyncio.Event()
    one, other = Talker(), Talker()
    one.on_data, other.on_data = answer(one), answer(other)
    pair = InProcessPair(one, other, nothing)
    one.transport.write(b"x")
    pair.pump()
    assert 0 < left < 5000  # the loop has its turn between
    await done.wait()
    assert max(depths) - min(depths) < 20


async def test_who_does_not_read_is_waited_for() -> None:
    one, other = Talker(), Talker()
    pair = InProcessPair(one, other, nothing)
    one.transport.set_write_buffer_limits(high=10, low=3)
    other.transport.pause_reading()
    one.transport.write(b"x" * 10)
    assert not one.paused
    one.transport.write(b"y")
    pair.pump()
    assert (one.paused, one.resumed, other.got) == (1, 0, b"")
    assert one.transport.get_write_buffer_size() == 11
    other.transport.resume_reading()
    await asyncio.sleep(0)
    assert (one.paused, one.resumed, other.got) == (1, 1, b"x" * 10 + b"y")
    assert one.transport.get_write_buffer_size() == 0


async def test_a_chunk_has_a_bound_unless_a_piece_is_larger() -> None:
    one, other = Talker(), Talker()
    pair = InProcessPair(one, other, nothing)
    pieces = [b"a" * (CHUNK // 2), b"b" * (CHUNK // 2), b"c", b"d" * (2 * CHUNK), b"e"]
    for piece in pieces:
        one.transport.write(piece)
    pair.pump()
    await asyncio.sleep(0)
    assert other.chunks == [pieces[0] + pieces[1], pieces[2], pieces[3], pieces[4]]


async def test_close_comes_behind_what_was_written() -> None:
    one, other = Talker(), Talker()
    InProcessPair(one, other, nothing)
    other.transport.pause_reading()
    one.transport.write(b"last words")
    one.transport.close()
    one.transport.write(b"nothing more")
    await one.gone.wait()
    assert (one.lost, other.lost, other.transport.is_closing()) == ([None], [], False)
    other.transport.resume_reading()
    await other.gone.wait()
    assert (bytes(other.got), other.lost) == (b"last words", [None])
    other.transport.write(b"to nobody")
    other.transport.close()
    one.transport.abort()
    await asyncio.sleep(0)
    assert (len(one.lost), len(other.lost), bytes(one.got)) == (1, 1, b"")


async def test_abort_drops_what_waits() -> None:
    one, other = Talker(), Talker()
    pair = InProcessPair(one, other, nothing)
    one.transport.write(b"x")
    one.transport.abort()
    pair.pump()
    await asyncio.sleep(0)
    assert (one.lost, other.lost, bytes(other.got)) == ([None], [None], b"")


@pytest.mark.parametrize("which", ["one", "other"])
async def test_a_fault_ends_both(which: str, caplog: pytest.LogCaptureFixture) -> None:
    def fault(_: bytes) -> None:
        raise ValueError("of the test")

    failed: list[Exception] = []
    one, other = Talker(), Talker()
    pair = InProcessPair(one, other, failed.append)
    faulty, honest = (one, other) if which == "one" else (other, one)
    faulty.on_data = fault
    honest.transport.write(b"x")
    pair.pump()
    await asyncio.sleep(0)
    assert [type(error) for error in faulty.lost] == [ValueError]
    assert honest.lost == [None]
    assert len(failed) == (which == "other")
    assert ("event=internal-error" in caplog.text) == (which == "one")  # else who is told says it
