"""The address of an HTTP listener in a broker's file."""

from __future__ import annotations

from typing import NamedTuple

from ...base.address import parse_address
from ...base.settings import Section


class HttpAddress(NamedTuple):
    """Where it listens. tls: with the broker's certificate."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.tls}://{host}:{self.port}"


def http_address(section: Section, key: str, schemes: tuple[str, ...] = ("http",)) -> HttpAddress:
    """The address under a key, as `http://127.0.0.1:9883`. Raises ConfigError."""
    right = 'give the address, as "http://127.0.0.1:9883"'
    scheme, separator, rest = section.string(key, right=right).partition("://")
    rest = rest.removesuffix("/")
    try:
        if scheme not in schemes or not separator or "/" in rest or not rest.rpartition("]")[2].count(":"):
            raise ValueError
        address = parse_address(f"mqtt://{rest}")
    except ValueError:
        raise section.error(key, right) from None
    return HttpAddress(address.host, address.port, scheme == "https")
