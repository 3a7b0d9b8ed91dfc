"""``mqtt://user:password@host:port``, or ``ws://`` with a path, as `ConnectionFactory` takes it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from .core.errors import JMSError

PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
WEBSOCKET_PATH = "/mqtt"  # where an address names none


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker is. path: of a WebSocket, empty without one."""

    host: str
    port: int
    tls: bool
    user: str | None = None
    password: str | None = None
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = ("ws" if self.path else "mqtt") + ("s" if self.tls else "")
        return f"{scheme}://{host}:{self.port}{self.path}"


def parse_address(text: str) -> Address:
    """Raises `JMSError`, saying what would be right."""
    parts = urlsplit(text)
    wrong = (
        f"address {text!r}: expected mqtt://HOST:PORT, mqtts://HOST:PORT, ws://HOST:PORT/PATH or wss://HOST:PORT/PATH, "
        "with USER:PASSWORD@ before the host where needed"
    )
    websocket = parts.scheme in ("ws", "wss")
    try:
        port = parts.port
    except ValueError as error:
        raise JMSError(wrong, "address") from error
    if parts.scheme not in PORTS or not parts.hostname or (not websocket and parts.path not in ("", "/")) or parts.query or parts.fragment:
        raise JMSError(wrong, "address")
    user = unquote(parts.username) if parts.username is not None else None
    password = unquote(parts.password) if parts.password is not None else None
    path = (parts.path if len(parts.path) > 1 else WEBSOCKET_PATH) if websocket else ""
    return Address(parts.hostname, port or PORTS[parts.scheme], parts.scheme in ("mqtts", "wss"), user, password, path)
