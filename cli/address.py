"""Where a broker is: `mqtt://host:port`, `mqtts://host:port`, `ws://host:port/path`, `wss://...`, `unix:///path`, or a host name alone.

Only text is looked at here; nothing is resolved or opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
WEBSOCKETS = ("ws", "wss")
WEBSOCKET_PATH = "/mqtt"  # where an address names none


FORMS = "mqtt://host:1883, mqtts://host:8883, ws://host:9001/mqtt, wss://host:9001/mqtt or unix:///path"


class AddressError(ValueError):
    """The text is no address of a broker; the message says what is wrong and gives an example."""


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's address. `path` is set for a Unix socket, else `host` and `port`; `topic` is what stood behind the port. `websocket`: the
    path of a WebSocket, None for none."""

    host: str = "127.0.0.1"
    port: int = 1883
    tls: bool = False
    path: str | None = None
    username: str | None = None
    password: str | None = None
    topic: str | None = None
    websocket: str | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.websocket is not None:
            return f"{'wss' if self.tls else 'ws'}://{host}:{self.port}{self.websocket}"
        return f"{host}:{self.port}"


def parse(text: str, default_port: int | None = None) -> Address:
    """The address that `text` names; `default_port` applies where it names no port. Raises AddressError."""
    if "://" not in text:
        return _plain(text, default_port)
    parts = urlsplit(text)
    if parts.scheme == "unix":
        if not parts.path.startswith("/") or parts.netloc:
            raise AddressError(f"{text!r}: a Unix socket is written unix:///run/mqmesh.sock")
        return Address(path=parts.path)
    if parts.scheme not in PORTS:
        raise AddressError(f"{text!r}: the scheme {parts.scheme!r} is not known; write {FORMS}")
    try:
        port = parts.port
    except ValueError:
        raise AddressError(f"{text!r}: the port must be a number from 1 to 65535, as in mqtt://127.0.0.1:1883") from None
    if not parts.hostname or port == 0:
        raise AddressError(f"{text!r}: host or port is missing; write it as mqtt://127.0.0.1:1883")
    websocket = parts.scheme in WEBSOCKETS
    if websocket and (parts.query or parts.fragment):
        raise AddressError(f"{text!r}: a WebSocket has a path without ? and #, as in ws://127.0.0.1:9001/mqtt")
    return Address(
        host=parts.hostname,
        port=port or (not websocket and default_port) or PORTS[parts.scheme],
        tls=parts.scheme in ("mqtts", "wss"),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        topic=None if websocket else unquote(parts.path[1:]) or None,
        websocket=(parts.path if len(parts.path) > 1 else WEBSOCKET_PATH) if websocket else None,
    )


def _plain(text: str, default_port: int | None) -> Address:
    """``host``, ``host:port`` or an IPv6 address without brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host.strip("[]") and not text.startswith("[")):
        host, port = text, ""
    if text.startswith("[") and text.endswith("]"):
        host, port = text, ""
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise AddressError(f"{text!r} is no host or host:port; write 127.0.0.1, 127.0.0.1:1883 or mqtt://127.0.0.1:1883")
    return Address(host=host.strip("[]"), port=int(port) if port else default_port or PORTS["mqtt"])
