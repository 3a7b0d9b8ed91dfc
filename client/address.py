"""``mqtt://user:password@host:port``, as `ConnectionFactory` takes it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from .errors import JMSError

PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    tls: bool
    user: str | None = None
    password: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Raises `JMSError`, saying what would be right."""
    parts = urlsplit(text)
    wrong = f"address {text!r}: expected mqtt://HOST:PORT or mqtts://HOST:PORT, with USER:PASSWORD@ before the host where needed"
    try:
        port = parts.port
    except ValueError as error:
        raise JMSError(wrong, "address") from error
    if parts.scheme not in PORTS or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise JMSError(wrong, "address")
    user = unquote(parts.username) if parts.username is not None else None
    password = unquote(parts.password) if parts.password is not None else None
    return Address(parts.hostname, port or PORTS[parts.scheme], parts.scheme == "mqtts", user, password)
