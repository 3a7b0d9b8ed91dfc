"""The opening handshake of WebSocket (RFC 6455, 4): one HTTP request, one answer, at either end.

Neither end is an HTTP server or client beyond that: a request has no body, a refusal is a status with one line of text, and the
connection ends behind it. Whatever a peer sends, at most `LONGEST_HEAD` bytes of it are kept.

Whether a web page may connect is decided by its `Origin` (10.2). Browsers let any page open a WebSocket to any address that the
machine reaches, so a broker on loopback or in a private network would be open to every page that somebody there looks at. A page
is let in when its origin is listed. Programs that are no browsers send no Origin, or make one up from the address that they
dial; `same_origin` says which of those can be told from a page, also from one whose name was bound to the broker's address
behind its back (DNS rebinding).
"""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Collection
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
LONGEST_HEAD = 8192  # bytes of a request or an answer, its empty line included
MOST_HEADERS = 64
SUBPROTOCOLS = ("mqtt", "mqttv3.1")  # the better one first [MQTT-6.0.0-3], [MQTT-6.0.0-4]; the other one belongs to MQTT 3.1
ANY = "*"
VERSION = "13"
USUAL_PATH = "/mqtt"
SWITCHING = 101
_END = b"\r\n\r\n"
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
_REQUEST = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) HTTP/(\d)\.(\d)")
_STATUS = re.compile(r"HTTP/1\.\d (\d{3})(?: .*)?")
_PLAIN = re.compile(rb"[\t\r\n -~\x80-\xff]*")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PHRASES = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    426: "Upgrade Required",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}


class Answer(NamedTuple):
    """How a handshake ended. status: of HTTP, 101 when it succeeded, 0 for what is no HTTP. reply: bytes to send. rest: what came behind
    it. text: what is wrong, a clause about the peer."""

    status: int
    reply: bytes = b""
    rest: bytes = b""
    text: str = ""
    subprotocol: str = ""


class _Refusal(Exception):
    def __init__(self, status: int, text: str, *headers: str) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers


def refusal(status: int, text: str, *headers: str) -> bytes:
    """An answer that refuses."""
    body = f"{text}\n".encode()
    lines = (
        f"HTTP/1.1 {status} {_PHRASES[status]}",
        "Connection: close",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        *headers,
    )
    return "\r\n".join(lines).encode() + _END + body


def accept_key(key: bytes) -> str:
    """The Sec-WebSocket-Accept that answers a Sec-WebSocket-Key (4.2.2)."""
    return b64encode(hashlib.sha1(key + GUID, usedforsecurity=False).digest()).decode()


class ServerOpening:
    """The end that is dialled.

    path: the one that is served; with `USUAL_PATH` also `/`, where clients go that are given none.
    origins: of pages that may connect, as `normal_origin` writes them; `*` for all.
    """

    request = b""  # a server speaks second

    def __init__(self, path: str, origins: Collection[str] = ()) -> None:
        self._path = path
        self._origins = origins
        self._buffer = b""

    def feed(self, data: bytes) -> Answer | None:
        """Take what came; None while the request is not whole."""
        try:
            head, rest = _head(self._buffer, data)
            if head is None:
                self._buffer = rest
                return None
            return self._judge(head, rest)
        except _Refusal as problem:
            return Answer(problem.status, refusal(problem.status, problem.text, *problem.headers), b"", problem.text)

    def late(self, seconds: float) -> Answer:
        """The answer when time is up."""
        text = f"it did not finish the WebSocket handshake within {seconds:g} s"
        return Answer(408, refusal(408, text), b"", text)

    def _judge(self, head: str, rest: bytes) -> Answer:
        line, _, lines = head.partition("\r\n")
        matched = _REQUEST.fullmatch(line)
        if matched is None:
            raise _Refusal(400, "it does not speak HTTP")
        method, target, major, minor = matched.groups()
        if (major, minor) < ("1", "1") or major != "1":
            raise _Refusal(505, f"it speaks HTTP/{major}.{minor}, not HTTP/1.1")
        if method != "GET":
            raise _Refusal(405, f"its request is {method}, not GET", "Allow: GET")
        headers = _headers(lines)
        host = _single(headers, "host")
        if host is None:
            raise _Refusal(400, "its request has no Host")
        path = target.partition("?")[0]
        if path != self._path and (path != "/" or self._path != USUAL_PATH):
            raise _Refusal(404, f"it asks for {target[:80]}; here is {self._path}")
        if "upgrade" not in _words(headers, "connection") or "websocket" not in _words(headers, "upgrade"):
            raise _Refusal(426, "it asks for a web page, and here is MQTT over WebSocket only", "Upgrade: websocket")
        if _single(headers, "sec-websocket-version") != VERSION:
            raise _Refusal(426, "it speaks another version of WebSocket", "Upgrade: websocket", f"Sec-WebSocket-Version: {VERSION}")
        if "transfer-encoding" in headers or (_single(headers, "content-length") or "0") != "0":
            raise _Refusal(400, "its request has a body")
        key = _key(_single(headers, "sec-websocket-key"))
        origin = _single(headers, "origin")
        if origin is not None and not origin_allowed(origin, host, self._origins):
            raise _Refusal(403, f"its page is of {origin[:120]}, which is not among the origins that are let in (websocket.origins)")
        offered = _words(headers, "sec-websocket-protocol", False)
        chosen = next((one for one in SUBPROTOCOLS if one in offered), "")
        if not chosen:
            raise _Refusal(400, "it does not offer the subprotocol mqtt [MQTT-6.0.0-3]")
        reply = (
            "HTTP/1.1 101 Switching Protocols",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Accept: {accept_key(key)}",
            f"Sec-WebSocket-Protocol: {chosen}",
        )
        return Answer(SWITCHING, "\r\n".join(reply).encode() + _END, rest, "", chosen)


class ClientOpening:
    """The end that dials. host: with its port, as it stands in the address. key: 16 random bytes."""

    def __init__(self, host: str, path: str, key: bytes, subprotocol: str = SUBPROTOCOLS[0]) -> None:
        self._key = b64encode(key)
        self._subprotocol = subprotocol
        self._buffer = b""
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {self._key.decode()}",
            f"Sec-WebSocket-Version: {VERSION}",
            f"Sec-WebSocket-Protocol: {subprotocol}",
        )
        self.request = "\r\n".join(lines).encode() + _END

    def feed(self, data: bytes) -> Answer | None:
        """Take what came; None while the answer is not whole."""
        try:
            head, rest = _head(self._buffer, data)
            if head is None:
                self._buffer = rest
                return None
            return self._judge(head, rest)
        except _Refusal as problem:
            return Answer(0, b"", b"", problem.text)

    def late(self, seconds: float) -> Answer:
        """The answer when time is up."""
        return Answer(0, b"", b"", f"it did not answer the WebSocket handshake within {seconds:g} s")

    def _judge(self, head: str, rest: bytes) -> Answer:
        line, _, lines = head.partition("\r\n")
        matched = _STATUS.fullmatch(line)
        if matched is None:
            raise _Refusal(0, "it does not speak HTTP: is that a WebSocket listener?")
        status = int(matched[1])
        if status != SWITCHING:
            return Answer(status, b"", b"", f"it refuses WebSocket: {line[:120].partition(' ')[2]}")
        headers = _headers(lines)
        if "upgrade" not in _words(headers, "connection") or "websocket" not in _words(headers, "upgrade"):
            raise _Refusal(0, "its answer to the WebSocket handshake is no upgrade")
        if _single(headers, "sec-websocket-accept") != accept_key(self._key):
            raise _Refusal(0, "its answer is to another WebSocket handshake: is there a cache in between?")
        if "sec-websocket-extensions" in headers:
            raise _Refusal(0, "it uses a WebSocket extension that it was not asked for")
        if _single(headers, "sec-websocket-protocol") != self._subprotocol:
            raise _Refusal(0, f"it does not take the WebSocket subprotocol {self._subprotocol} [MQTT-6.0.0-4]: is that an MQTT broker?")
        return Answer(SWITCHING, b"", rest, "", self._subprotocol)


# HTTP, as much as is needed


def _head(before: bytes, data: bytes) -> tuple[str | None, bytes]:
    """(the head without its empty line, what is behind it), or (None, all that came). Raises _Refusal."""
    if not before and data[:1] == b"\x16":
        raise _Refusal(400, "it speaks TLS, and this listener does not: a wss:// listener does")
    if not before and data[:1] == b"\x10":
        raise _Refusal(400, "it speaks MQTT without WebSocket: let it use ws:// or wss://, or a listener for mqtt://")
    whole = before + data
    end = whole.find(_END, max(0, len(before) - 3), LONGEST_HEAD)
    stop = end if end >= 0 else LONGEST_HEAD
    if not _PLAIN.fullmatch(whole, min(len(before), stop), stop):  # what came before has been looked at
        raise _Refusal(400, "it does not speak HTTP")
    if end >= 0:
        return whole[:end].decode("latin-1"), whole[end + len(_END) :]
    if len(whole) >= LONGEST_HEAD:
        raise _Refusal(431, f"the head of its request has more than {LONGEST_HEAD} bytes")
    return None, whole


def _headers(text: str) -> dict[str, list[str]]:
    """Names in small letters, with all their values."""
    lines = text.split("\r\n") if text else []
    if len(lines) > MOST_HEADERS:
        raise _Refusal(431, f"its request has more than {MOST_HEADERS} headers")
    headers: dict[str, list[str]] = {}
    for line in lines:
        matched = _HEADER.fullmatch(line)
        if matched is None:
            raise _Refusal(400, "its request has a header that cannot be read")
        headers.setdefault(matched[1].lower(), []).append(matched[2])
    return headers


def _single(headers: dict[str, list[str]], name: str) -> str | None:
    values = headers.get(name)
    if values is None:
        return None
    if len(values) > 1:
        raise _Refusal(400, f"its request has {name} more than once")
    return values[0]


def _words(headers: dict[str, list[str]], name: str, small: bool = True) -> list[str]:
    """The items of a header that is a list."""
    joined = ",".join(headers.get(name, ()))
    return [word.strip() for word in (joined.lower() if small else joined).split(",")]


def _key(text: str | None) -> bytes:
    try:
        if text is not None and len(b64decode(text, validate=True)) == 16:
            return text.encode()
    except (binascii.Error, ValueError):
        pass
    raise _Refusal(400, "its Sec-WebSocket-Key is not 16 bytes in base64")


# Origins


def normal_origin(text: str) -> str:
    """An origin in its usual form: small letters, the scheme's default port left out; `null` and `*` as they are. Raises ValueError."""
    if text in (ANY, "null"):
        return text
    right = "write an origin such as https://app.example.com or http://localhost:8080, null, or *"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(right) from None
    if not parts.scheme or not host or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(right)
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port is not None and port != _DEFAULT_PORTS.get(parts.scheme) else "")


def origin_allowed(origin: str, host: str, origins: Collection[str]) -> bool:
    """Whether who sends this Origin, and this Host, may connect."""
    if ANY in origins:
        return True
    try:
        wanted = normal_origin(origin)
    except ValueError:
        return False
    return wanted in origins or same_origin(wanted, host)


def same_origin(origin: str, host: str) -> bool:
    """Whether an origin (in its usual form) is that of the address which was dialled, and no page can have got it by rebinding a name.

    A page of https may only use wss, so the broker, or a proxy before it, has shown a certificate for the page's name. A page of http
    could have come from anybody to whom the name led a moment ago, so only addresses and localhost count, which nobody can rebind.
    """
    scheme, _, rest = origin.partition("://")
    if scheme not in _DEFAULT_PORTS:
        return False
    try:
        if normal_origin(f"{scheme}://{host}") != origin:
            return False
    except ValueError:
        return False
    if scheme == "https":
        return True
    name = urlsplit(f"//{rest}").hostname or ""
    if name == "localhost":
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
