"""NATS's client protocol on the wire: lines that end with CR LF, some followed by a payload.

INFO {json}                                       from the server, first of all
MSG subject sid [reply] size                      a message; its payload follows
HMSG subject sid [reply] header-size size         the same with headers before the payload
PING, PONG, +OK, -ERR 'text'
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ....mqtt.errors import PeerError
from ....mqtt.reasons import Reason

LONGEST_LINE = 65_536  # bytes; INFO of a large cluster is the longest
LARGEST_MESSAGE = 67_108_864  # the most that a server can be configured to carry
HEADER_LINE = b"NATS/1.0"


class Line(NamedTuple):
    """What needs no payload. verb: in capitals. rest: the arguments."""

    verb: str
    rest: bytes


class Delivery(NamedTuple):
    """A message. headers: as they came, with their first line; empty when there are none."""

    subject: bytes
    sid: int
    reply: bytes
    headers: bytes
    payload: bytes


class Framer:
    """Cuts a stream into lines and messages."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._message: tuple[bytes, int, bytes, int, int] | None = None  # subject, sid, reply, header size, size

    def feed(self, data: bytes) -> Iterator[Line | Delivery]:
        """What is complete. Raises PeerError."""
        kept = self._kept
        kept += data
        start = 0
        try:
            while True:
                if self._message is not None:
                    subject, sid, reply, head, size = self._message
                    if len(kept) - start < size + 2:
                        return
                    if kept[start + size : start + size + 2] != b"\r\n":
                        raise _malformed("a message does not end where it should")
                    body = bytes(kept[start : start + size])
                    start += size + 2
                    self._message = None
                    yield Delivery(subject, sid, reply, body[:head], body[head:])
                    continue
                end = kept.find(b"\r\n", start)
                if end < 0:
                    if len(kept) - start > LONGEST_LINE:
                        raise _malformed("a line does not end")
                    return
                verb, _, rest = bytes(kept[start:end]).partition(b" ")
                start = end + 2
                name = verb.decode("ascii", "replace").upper()
                if name in ("MSG", "HMSG"):
                    self._message = _head(name == "HMSG", rest)
                else:
                    yield Line(name, rest.strip())
        finally:
            del kept[:start]


def _head(headers: bool, rest: bytes) -> tuple[bytes, int, bytes, int, int]:
    words = rest.split()
    numbers = 2 if headers else 1
    if not 2 + numbers <= len(words) <= 3 + numbers:
        raise _malformed("the line of a message has other words")
    reply = words[2] if len(words) == 3 + numbers else b""
    try:
        sid, *sizes = (int(word) for word in (words[1], *words[-numbers:]))
    except ValueError:
        raise _malformed("the line of a message has no numbers") from None
    head, size = sizes if headers else (0, sizes[0])
    if not 0 <= head <= size <= LARGEST_MESSAGE:
        raise _malformed("a message has an impossible size")
    return words[0], sid, reply, head, size


def _malformed(text: str) -> PeerError:
    return PeerError(Reason.MALFORMED_PACKET, f"the server does not speak NATS: {text}", "")


def publish(subject: str, reply: str, headers: bytes, payload: bytes) -> bytes:
    """A message to the server. headers: from `headers`, or empty; reply: empty for none."""
    where = f"{subject} {reply}" if reply else subject
    if headers:
        return f"HPUB {where} {len(headers)} {len(headers) + len(payload)}\r\n".encode() + headers + payload + b"\r\n"
    return f"PUB {where} {len(payload)}\r\n".encode() + payload + b"\r\n"


def headers(pairs: list[tuple[str, str]]) -> bytes:
    """Names and values as a block; nothing for none."""
    if not pairs:
        return b""
    return HEADER_LINE + b"\r\n" + "".join(f"{name}: {value}\r\n" for name, value in pairs).encode() + b"\r\n"


def read_headers(data: bytes) -> tuple[str, list[tuple[str, str]]]:
    """The status (empty: it is a message like any other) and the pairs of a block; what is no pair or no text is left out."""
    first, *lines = data.split(b"\r\n")
    status = first.removeprefix(HEADER_LINE).strip().decode("ascii", "replace")
    pairs = []
    for line in lines:
        name, colon, value = line.partition(b":")
        try:
            if colon and name:
                pairs.append((name.decode(), value.strip(b" \t").decode()))
        except UnicodeDecodeError:
            continue
    return status, pairs
