"""Where a remote broker is: `mqtt://host:port` or `mqtts://host:port`. What has no `://` is the name of a service."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

PORTS = {"mqtt": 1883, "mqtts": 8883}


class Address(NamedTuple):
    """A broker's address; as text always with its port."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


def parse_address(text: str) -> Address:
    """The address that a text names. Raises ValueError, one line."""
    right = "write mqtt://host:1883 or mqtts://host:8883"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"{text!r} is no address: {right}") from None
    if parts.scheme not in PORTS or not host or port == 0 or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is no address of a remote broker: {right}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address has no user name and password: give them with keys of their own")
    return Address(host, port or PORTS[parts.scheme], parts.scheme == "mqtts")
