"""Fuzzing of what reads the bytes of strangers at a WebSocket listener: each input ends in a documented status or code, in any chunks.

By hand:  python -m tests.fuzz.fuzz_websocket --for 300          seeded mutations of real handshakes and frames; prints the seed
          python -m tests.fuzz.fuzz_websocket --seed 7 --runs 1  one round again
          python -m tests.fuzz.fuzz_websocket --atheris [CORPUS] coverage-guided, with atheris installed

Frames are compared with what the package `websockets` makes of them, whose authors have read the same standard.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from typing import Any

from mqmesh.mqtt.websocket.frames import BINARY, CLOSE, CONTINUATION, FINAL, PING, PONG, TEXT, Deframer, close_frame, frame
from mqmesh.mqtt.websocket.opening import LONGEST_HEAD, ClientOpening, ServerOpening
from websockets.exceptions import PayloadTooBig, ProtocolError
from websockets.frames import Close, Frame

LIMIT = 1000
STATUSES = {101, 400, 403, 404, 405, 426, 431, 505}
CODES = {0, 1002, 1003, 1007, 1009}
REQUEST = ClientOpening("127.0.0.1:9001", "/mqtt", bytes(16)).request
WORDS = (b"\r\n", b"\r\n\r\n", b": ", b",", b"websocket", b"Upgrade", b"mqtt", b"Origin: http://127.0.0.1:9001\r\n", b"GET", b"\0", b"\xff")


def check_opening(data: bytes, chunk: int) -> str:
    """Give a server bytes in chunks and at once: the outcome, which has to be the same. Raises AssertionError."""
    whole = ServerOpening("/mqtt").feed(data)
    parts, answer = ServerOpening("/mqtt"), None
    for start in range(0, len(data), chunk):
        answer = parts.feed(data[start : start + chunk])
        if answer is not None:
            break
        assert len(parts._buffer) <= LONGEST_HEAD
    if whole is None:
        assert answer is None
        return "wait"
    assert whole.status in STATUSES
    assert answer is not None
    if chunk >= len(data):
        assert answer == whole
    elif whole.status == 101:
        assert answer.status == 101  # a refusal may have another reason where less had come
    return str(whole.status)


def expected(data: bytes) -> tuple[bytes, bool, bool]:
    """(payload of whole frames, whether a rule was broken, whether there was a close), by `websockets` and the rules of messages."""
    position, payload, opened, size = 0, b"", False, 0

    def exactly(count: int) -> Any:
        nonlocal position
        if position + count > len(data):
            raise EOFError
        position += count
        return data[position - count : position]
        yield

    while True:
        begun = position
        parser = Frame.parse(exactly, mask=True, max_size=LIMIT)
        try:
            next(parser)
        except StopIteration as stopped:
            found = stopped.value
        except EOFError:
            return payload, False, False
        except PayloadTooBig:
            return payload, position + 4 <= len(data), False  # the key belongs to the head: it may be on its way
        except Exception:
            return payload, True, False
        opcode = int(found.opcode)
        if position - begun != len(found.serialize(mask=True)):  # a length that is not in its shortest form (5.2)
            return payload, True, False
        if opcode == CLOSE:
            try:
                Close.parse(bytes(found.data))
            except (ProtocolError, UnicodeDecodeError):
                return payload, True, False
            return payload, False, True
        if opcode in (PING, PONG):
            continue
        size = len(found.data) + (size if opened else 0)
        if opcode == TEXT or (opcode == CONTINUATION) != opened or size > LIMIT:
            return payload, True, False
        payload += bytes(found.data)
        opened = not found.fin


def check_frames(data: bytes, chunk: int) -> str:
    """The same for frames. Raises AssertionError."""
    deframer, pieces = Deframer(True, LIMIT), []
    for start in range(0, len(data), chunk):
        pieces.append(deframer.feed(data[start : start + chunk]))
        assert len(deframer._head) <= 131
    payload, code = b"".join(pieces), deframer.error.code if deframer.error else 0
    assert code in CODES
    wanted, broken, closed = expected(data)
    assert payload.startswith(wanted)
    if broken:
        assert code, "a broken rule went unnoticed"
    if closed:
        assert not code
        assert deframer.ended
        assert payload == wanted
    return f"code {code}" if code else "close" if deframer.ended else "payload"


def samples(chance: random.Random) -> bytes:
    """Some good frames in a row."""

    def key() -> bytes:
        return chance.randbytes(4)

    def part(final: bool, opcode: int) -> bytes:
        made = frame(opcode, chance.randbytes(chance.choice((0, 1, 5, 125, 126, 300))), key())
        return made if final else bytes((made[0] & ~FINAL,)) + made[1:]

    made = b""
    for _ in range(chance.randrange(1, 6)):
        kind = chance.randrange(5)
        if kind == 0:
            made += frame(chance.choice((PING, PONG)), chance.randbytes(chance.choice((0, 5, 125))), key())
        elif kind == 1:
            made += part(False, BINARY) + frame(PING, b"", key()) + part(True, CONTINUATION)
        else:
            made += part(True, BINARY)
    return made + (close_frame(chance.choice((1000, 1001, 3000, 1005)), "bye", key()) if chance.random() < 0.3 else b"")


def mutate(data: bytes, chance: random.Random, words: tuple[bytes, ...]) -> bytes:
    """Damage it here and there, or not at all."""
    changed = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        place = chance.randrange(len(changed) + 1)
        kind = chance.randrange(5)
        if kind == 0 and place < len(changed):
            changed[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[place:place] = chance.choice(words)
        elif kind == 2:
            del changed[place : place + chance.randrange(1, 20)]
        elif kind == 3 and place < len(changed):
            changed[place] = chance.randrange(256)
        else:
            changed[place:] = changed[place:] * chance.choice((1, 2, 30))
    return bytes(changed)


def round_of(seed: int, count: int = 1000) -> Counter[str]:
    """`count` inputs of one seed; how often each outcome came."""
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        chunk = chance.choice((1, 3, 100, 10**9))
        if chance.random() < 0.3:
            outcomes[check_opening(mutate(REQUEST, chance, WORDS), max(chunk, 3))] += 1
        else:
            outcomes[check_frames(mutate(samples(chance), chance, (b"\x82\x80", b"\x02", b"\xff", b"\x88\x82", b"\x82\xfe")), chunk)] += 1
    return outcomes


def _atheris(arguments: list[str]) -> None:
    import atheris

    atheris.instrument_all()

    def one(data: bytes) -> None:
        if data:
            (check_opening if data[0] & 1 else check_frames)(data[1:], data[0] // 2 + 1)

    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


def main() -> None:
    """The command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for", dest="seconds", type=float, default=60.0, help="seconds to run (60)")
    parser.add_argument("--seed", type=int, default=None, help="first seed (random)")
    parser.add_argument("--runs", type=int, default=None, help="rounds of 1,000 inputs; without it, as many as fit the time")
    parser.add_argument("--atheris", action="store_true", help="coverage-guided; further arguments go to libFuzzer")
    options, rest = parser.parse_known_args()
    if options.atheris:
        _atheris(rest)
        return
    seed = options.seed if options.seed is not None else random.randrange(2**31)
    outcomes: Counter[str] = Counter()
    end = time.monotonic() + options.seconds
    rounds = 0
    while rounds < options.runs if options.runs is not None else time.monotonic() < end:
        try:
            outcomes += round_of(seed + rounds)
        except BaseException:
            print(f"failed at --seed {seed + rounds} --runs 1", file=sys.stderr)
            raise
        rounds += 1
    print(f"{outcomes.total()} inputs from seed {seed}, no failure")
    for outcome, count in outcomes.most_common():
        print(f"{count:10} {outcome}")


if __name__ == "__main__":
    main()
