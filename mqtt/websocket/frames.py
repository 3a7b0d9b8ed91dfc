"""Frames of WebSocket (RFC 6455, 5): bytes in, payload out, and back.

To MQTT a WebSocket is a stream of bytes: packets may begin and end anywhere in its frames [MQTT-6.0.0-2]. So nothing is collected
here: what a chunk holds of a frame is given on at once, and a frame takes no memory, however long it says it is. Only the head
of a frame and the payload of a control frame wait until they are whole, at most 131 bytes.

Payload of clients is masked (5.3), each frame with a key of its own; C code of the package `websockets` takes it off where that is
installed, big integers where it is not.

    first byte   0x80 final, 0x70 reserved, 0x0F opcode: 0 continuation, 1 text, 2 binary, 8 close, 9 ping, 10 pong
    second byte  0x80 masked, 0x7F length; 126: two bytes of length follow, 127: eight
    four bytes   the key, if masked
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

Mask = Callable[[bytes, bytes], bytes]

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
NORMAL, PROTOCOL_ERROR, UNSUPPORTED_DATA, NO_CODE, INVALID_DATA, TOO_BIG = 1000, 1002, 1003, 1005, 1007, 1009
FINAL = 0x80
_USUAL = FINAL | BINARY
_REGISTERED = (range(1000, 1004), range(1007, 1015), range(3000, 5000))  # codes that may stand in a close frame (7.4)
PIECE = 16384  # payload bytes of the largest frame that is sent: some clients take many small packets out of one frame slowly
LONGEST_CONTROL = 125


def mask_plainly(data: bytes, key: bytes) -> bytes:
    """Put a mask on, or take it off."""
    quads = (len(data) + 3) >> 2
    whole = int.from_bytes(data, "little") ^ int.from_bytes(key * quads, "little")
    return whole.to_bytes(4 * quads, "little")[: len(data)]


def _find_mask() -> Mask:
    """That of `websockets`, whose other modules stay out: importing them takes a twentieth of the time in which a broker starts."""
    package = PathFinder.find_spec("websockets")
    found = package and PathFinder.find_spec("websockets.speedups", package.submodule_search_locations)
    if not found or found.loader is None:
        return mask_plainly
    module = module_from_spec(found)
    found.loader.exec_module(module)
    mask: Mask = module.apply_mask
    return mask


mask: Mask = _find_mask()


class FrameError(Exception):
    """The peer broke a rule of WebSocket. code: to close with (7.4.1). text: a clause about the peer."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class Deframer:
    """What one end receives.

    masked: whether frames must be masked, as those of clients are, or must not be. limit: bytes of the largest message.
    controls: control frames that have come, as (opcode, payload), for the owner to take out. error: the rule that the peer broke. ended:
    it closed, or broke a rule; nothing behind that is looked at.
    """

    __slots__ = ("_head", "_key", "_left", "_limit", "_masked", "_message", "_open", "controls", "ended", "error")

    def __init__(self, masked: bool, limit: int) -> None:
        self._masked = masked
        self._limit = limit
        self._head = b""  # the begin of a frame that is not there yet
        self._left = 0  # bytes of payload that the current frame still has
        self._key = b""  # for the next of them
        self._open = False  # a message has begun whose last fragment did not come
        self._message = 0  # its bytes so far
        self.controls: list[tuple[int, bytes]] = []
        self.error: FrameError | None = None
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """Take what came; returns the payload of binary messages in it. Look at `controls` and `error` behind it."""
        if self.ended:
            return b""
        if self._head:
            data = self._head + data
            self._head = b""
        pieces: list[bytes] = []
        try:
            self._take(data, pieces)
        except FrameError as error:
            self.error = error
            self.ended = True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take(self, data: bytes, pieces: list[bytes]) -> None:
        """Frame by frame; the usual ones, whole, final and below 64 KiB, without a further call."""
        size = len(data)
        position = self._payload(data, 0, pieces) if self._left else 0
        masked, limit, append, unmask = self._masked, self._limit, pieces.append, mask
        flag, head = (0x80, 6) if masked else (0, 2)
        while position + head <= size:
            length, start = data[position + 1] - flag, position + head
            if length == 126 and start + 2 <= size:
                length, start = data[position + 2] << 8 | data[position + 3], start + 2
                usual = 126 <= length <= limit
            else:
                usual = 0 <= length < 126
            end = start + length
            if usual and end <= size and data[position] == _USUAL and not self._open:
                append(unmask(data[start:end], data[start - 4 : start]) if masked else data[start:end])
                position = end
                continue
            after = self._frame(data, position, pieces)
            if self.ended:
                return
            if after < 0:
                break
            position = after
        if position < size and not self._left:
            self._begins(data, position)
            self._head = data[position:]

    def _begins(self, data: bytes, position: int) -> None:
        """Rules about the first two bytes, also where no more of the frame is there. Raises FrameError."""
        first = data[position]
        opcode = first & 0x0F
        if first & 0x70:
            raise FrameError(PROTOCOL_ERROR, "it sent a frame with reserved bits, and no extension was agreed on")
        if opcode == TEXT:
            raise FrameError(UNSUPPORTED_DATA, "it sent a text frame; MQTT goes in binary ones [MQTT-6.0.0-1]")
        if opcode not in (CONTINUATION, BINARY, CLOSE, PING, PONG):
            raise FrameError(PROTOCOL_ERROR, f"it sent a frame with opcode {opcode}, which nothing defines")
        if opcode == CONTINUATION and not self._open:
            raise FrameError(PROTOCOL_ERROR, "it went on with a message that it had not begun")
        if opcode == BINARY and self._open:
            raise FrameError(PROTOCOL_ERROR, "it began a message within another one")
        if opcode >= CLOSE and not first & FINAL:
            raise FrameError(PROTOCOL_ERROR, "it sent a control frame in fragments")
        if position + 1 < len(data):
            second = data[position + 1]
            if bool(second & 0x80) != self._masked:
                text = "it sent a frame without a mask [RFC 6455, 5.1]" if self._masked else "it sent a masked frame [RFC 6455, 5.1]"
                raise FrameError(PROTOCOL_ERROR, text)
            if opcode >= CLOSE and second & 0x7F > LONGEST_CONTROL:
                raise FrameError(PROTOCOL_ERROR, "it sent a control frame of more than 125 bytes")

    def _frame(self, data: bytes, position: int, pieces: list[bytes]) -> int:
        """Any frame; returns where it ends, or -1 when its head, or a control frame, is not whole. Raises FrameError."""
        self._begins(data, position)
        size = len(data)
        first, length = data[position], data[position + 1] & 0x7F
        start = position + 2
        if length > LONGEST_CONTROL:
            wide = 2 if length == 126 else 8
            if start + wide > size:
                return -1
            length = int.from_bytes(data[start : start + wide], "big")
            start += wide
            if length < (126 if wide == 2 else 65536) or length >> 63:
                raise FrameError(PROTOCOL_ERROR, "it wrote a length in the wrong form")
        if self._masked:
            start += 4
            if start > size:
                return -1
        opcode = first & 0x0F
        key = data[start - 4 : start] if self._masked else b""
        if opcode >= CLOSE:
            if start + length > size:
                return -1
            payload = data[start : start + length]
            self._control(opcode, mask(payload, key) if key else payload)
            return start + length
        self._message = length + (self._message if self._open else 0)
        if self._message > self._limit:
            raise FrameError(TOO_BIG, f"it sent a message of {self._message} bytes or more; {self._limit} are taken")
        self._open = not first & FINAL
        self._left, self._key = length, key
        return self._payload(data, start, pieces)

    def _payload(self, data: bytes, start: int, pieces: list[bytes]) -> int:
        """What has come of a data frame's payload; returns where it ends."""
        end = min(len(data), start + self._left)
        piece = data[start:end]
        taken = end - start
        self._left -= taken
        key = self._key
        if key and piece:
            piece = mask(piece, key)
            turn = taken & 3
            self._key = key[turn:] + key[:turn]
        if piece:
            pieces.append(piece)
        return end

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == CLOSE:
            close_code(payload)
            self.ended = True
        self.controls.append((opcode, payload))


def close_code(payload: bytes) -> int:
    """The code in a close frame's payload, `NO_CODE` where there is none. Raises FrameError for what may not stand there (5.5.1, 7.4)."""
    if not payload:
        return NO_CODE
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or not any(code in codes for codes in _REGISTERED):
        raise FrameError(PROTOCOL_ERROR, "it closed with a code that does not exist")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        raise FrameError(INVALID_DATA, "it closed with a reason that is not UTF-8") from None
    return code


def frame(opcode: int, payload: bytes, key: bytes = b"") -> bytes:
    """One final frame. key: four random bytes of a client; a server has none."""
    size, flag = len(payload), 0x80 if key else 0
    if size < 126:
        head = bytes((FINAL | opcode, flag | size))
    elif size < 65536:
        head = bytes((FINAL | opcode, flag | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((FINAL | opcode, flag | 127)) + size.to_bytes(8, "big")
    return head + key + mask(payload, key) if key else head + payload


def frames(data: bytes | bytearray | memoryview, new_key: Callable[[], bytes] | None = None) -> bytes:
    """Bytes of MQTT as binary frames of at most `PIECE` each. new_key: gives a client four random bytes, for each frame anew (5.3)."""
    if len(data) <= PIECE:
        return frame(BINARY, bytes(data), new_key() if new_key else b"")
    with memoryview(data) as view:
        return b"".join(
            frame(BINARY, bytes(view[start : start + PIECE]), new_key() if new_key else b"") for start in range(0, len(view), PIECE)
        )


def close_frame(code: int, text: str = "", key: bytes = b"") -> bytes:
    """A close frame; without code for `NO_CODE`. The text is cut to what a control frame can hold."""
    if code == NO_CODE:
        return frame(CLOSE, b"", key)
    reason = text.encode()[: LONGEST_CONTROL - 2].decode(errors="ignore").encode()
    return frame(CLOSE, code.to_bytes(2, "big") + reason, key)
