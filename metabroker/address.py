"""Where a remote broker is: an address such as `mqtt://host:port`. What has no `://` is the name of a service."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

# scheme: what is spoken, whether TLS is below it, the usual port
SCHEMES: dict[str, tuple[str, bool, int]] = {
    "mqtt": ("mqtt", False, 1883),
    "mqtts": ("mqtt", True, 8883),
    "ws": ("mqtt", False, 80),
    "wss": ("mqtt", True, 443),
    "amqp": ("amqp", False, 5672),
    "amqps": ("amqp", True, 5671),
    "nats": ("nats", False, 4222),
    "tls": ("nats", True, 4222),
}
WEBSOCKETS = ("ws", "wss")  # MQTT in frames of WebSocket
WEBSOCKET_PATH = "/mqtt"  # where an address names none
NAMES = {(kind, tls, scheme in WEBSOCKETS): scheme for scheme, (kind, tls, _) in SCHEMES.items()}
EXAMPLES = (
    "write mqtt://host:1883, mqtts://host:8883, ws://host:80/mqtt, wss://host:443/mqtt, amqp://host:5672/vhost, amqps://host:5671/vhost, "
    "nats://host:4222 or tls://host:4222"
)


class Address(NamedTuple):
    """A broker's address; as text always with its port. kind: mqtt, amqp or nats. path: an AMQP virtual host, empty for "/"; of a
    WebSocket with its first slash, empty for MQTT without one."""

    host: str
    port: int
    tls: bool
    kind: str = "mqtt"
    path: str = ""

    @property
    def websocket(self) -> bool:
        """MQTT in frames of WebSocket."""
        return self.kind == "mqtt" and bool(self.path)

    @property
    def family(self) -> tuple[str, str, bool]:
        """What addresses have in common that one connection can try in turn: virtual host of AMQP, TLS of NATS."""
        return self.kind, self.path if self.kind == "amqp" else "", self.tls and self.kind == "nats"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        path = self.path if self.websocket or not self.path else "/" + quote(self.path, safe="")
        return f"{NAMES[self.kind, self.tls, self.websocket]}://{host}:{self.port}{path}"


def parse_address(text: str) -> Address:
    """The address that a text names. Raises ValueError, one line."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"{text!r} is no address: {EXAMPLES}") from None
    kind, tls, usual = SCHEMES.get(parts.scheme, ("", False, 0))
    websocket = parts.scheme in WEBSOCKETS
    path = parts.path.removeprefix("/") if kind == "amqp" else ""
    if (
        not kind
        or not host
        or port == 0
        or (kind != "amqp" and not websocket and parts.path not in ("", "/"))
        or parts.query
        or parts.fragment
    ):
        raise ValueError(f"{text!r} is no address of a remote broker: {EXAMPLES}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address has no user name and password: give them with keys of their own")
    if websocket:
        return Address(host, port or usual, tls, kind, parts.path if len(parts.path) > 1 else WEBSOCKET_PATH)
    if "/" in path or len(vhost := unquote(path)) > 255:
        raise ValueError(f"{text!r} names no virtual host: write amqp://host:5672/vhost, with %2F for a / in its name")
    return Address(host, port or usual, tls, kind, "" if vhost == "/" else vhost)
