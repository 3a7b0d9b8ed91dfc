"""Addresses of brokers: `mqtt://host:1883`, `wss://host/mqtt`, `unix:///run/mqmesh.sock`, `amqps://host:5671/vhost`.

There is one `Address` and one parser. What a caller accepts is a `Form`: its schemes, whether user name and password may stand in the
address, and so on. Nothing is resolved or opened here.
"""

from __future__ import annotations

import errno
import ipaddress
import re
from typing import NamedTuple
from urllib.parse import quote, unquote

WEBSOCKETS = ("ws", "wss")  # MQTT over WebSocket
WEBSOCKET_PATH = "/mqtt"  # where an address names none
LONGEST_VIRTUAL_HOST = 255  # characters
_PARTS = re.compile(
    r"(?:(?P<login>[^\s/]*)@)?(?:\[(?P<ip>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<host>[^\s\x00-\x1f\x7f:/@\[\]?#]+))"  # resolvers stop at \x00
    r"(?::(?P<port>[0-9]+))?(?P<path>/.*)?"
)
_NO_LOGIN = "an address holds no user name and password here: give them apart from it, and write {}"
_NO_PORT = "the port must be a number from 1 to 65535, as in {}://host:{}"


class Scheme(NamedTuple):
    """What a scheme says. protocol: mqtt, amqp or nats. port: where an address names none."""

    protocol: str
    tls: bool
    port: int


SCHEMES = {
    "mqtt": Scheme("mqtt", False, 1883),
    "mqtts": Scheme("mqtt", True, 8883),
    "ws": Scheme("mqtt", False, 80),
    "wss": Scheme("mqtt", True, 443),
    "unix": Scheme("mqtt", False, 0),
    "amqp": Scheme("amqp", False, 5672),
    "amqps": Scheme("amqp", True, 5671),
    "nats": Scheme("nats", False, 4222),
    "tls": Scheme("nats", True, 4222),
}


class AddressError(ValueError):
    """The text is not such an address. The message says what to write instead; it does not repeat the text."""


class Form(NamedTuple):
    """What a caller accepts.

    examples: for messages.
    schemes: accepted ones.
    login: `user:password@` may stand before the host.
    topic: a topic may stand as the path of mqtt:// and mqtts://.
    plain: a host or `host:port` without a scheme is accepted.
    listener: port 0 is accepted and means any free port. The text itself stays in use, so its scheme must be in lower case.
    """

    examples: str
    schemes: tuple[str, ...] = ("mqtt", "mqtts", "ws", "wss", "unix")
    login: bool = False
    topic: bool = False
    plain: bool = False
    listener: bool = False


LISTENER = Form("mqtt://HOST:PORT, mqtts://HOST:PORT, ws://HOST:PORT/PATH, wss://HOST:PORT/PATH or unix:///PATH", listener=True)
COMMAND_LINE = Form(
    "mqtt://host:1883, mqtts://host:8883, ws://host:9001/mqtt, wss://host:9001/mqtt or unix:///path", login=True, topic=True, plain=True
)
CLIENT = Form(
    "mqtt://HOST:PORT, mqtts://HOST:PORT, ws://HOST:PORT/PATH or wss://HOST:PORT/PATH, with USER:PASSWORD@ before the host where needed",
    ("mqtt", "mqtts", "ws", "wss"),
    login=True,
)
REMOTE = Form(
    "mqtt://host:1883, mqtts://host:8883, ws://host:80/mqtt, wss://host:443/mqtt, amqp://host:5672/vhost, amqps://host:5671/vhost, "
    "nats://host:4222 or tls://host:4222",
    ("mqtt", "mqtts", "ws", "wss", "amqp", "amqps", "nats", "tls"),
)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host: `localhost` or a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Address(NamedTuple):
    """Where a broker is. Its text form has no user name and password.

    path: of a WebSocket or a Unix socket; `/` and the encoded name of an AMQP virtual host, empty for the virtual host `/`;
    behind mqtt://host of a command line the encoded topic. Else empty.
    """

    scheme: str = "mqtt"
    host: str = ""
    port: int = 0
    path: str = ""
    user: str | None = None
    password: str | None = None

    @property
    def protocol(self) -> str:
        """mqtt, amqp or nats."""
        return SCHEMES[self.scheme].protocol

    @property
    def tls(self) -> bool:
        return SCHEMES[self.scheme].tls

    @property
    def websocket(self) -> bool:
        return self.scheme in WEBSOCKETS

    @property
    def topic(self) -> str | None:
        """The topic that stands as the path of mqtt:// and mqtts://."""
        return unquote(self.path[1:]) or None if self.scheme in ("mqtt", "mqtts") else None

    @property
    def virtual_host(self) -> str:
        """The AMQP virtual host."""
        return unquote(self.path[1:]) or "/"

    @property
    def endpoint(self) -> str:
        """The text form for people: `host:port` for MQTT over TCP or TLS, else the whole address."""
        return self._host_and_port if self.scheme in ("mqtt", "mqtts") else str(self)

    @property
    def _host_and_port(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path if self.scheme == 'unix' else self._host_and_port + self.path}"

    def __repr__(self) -> str:
        return f"<Address {self}>"


def parse_address(text: str, form: Form = LISTENER, default_port: int | None = None) -> Address:
    """The address that `text` names. default_port: of MQTT over TCP or TLS, where the text names none. Raises AddressError."""
    scheme, separator, rest = text.partition("://")
    right = f"write {form.examples}"
    if not separator:
        if not form.plain:
            raise AddressError(f'{right}; perhaps "mqtt://{text}"')
        return _plain_address(text, default_port or SCHEMES["mqtt"].port)
    if not form.listener:
        scheme = scheme.lower()
    if scheme not in form.schemes:
        raise AddressError(right if form.listener else f"the scheme {scheme!r} is not known here: {right}")
    if scheme == "unix":
        if not rest.startswith("/"):
            raise AddressError("write unix:/// with three slashes and an absolute path, as unix:///run/mqmesh.sock")
        return Address("unix", path=rest)
    parts = _PARTS.fullmatch(rest)
    if parts is None:
        raise AddressError(f"{right}; an IPv6 address stands in brackets, as mqtt://[::1]:1883")
    if parts["login"] is not None and not form.login:
        raise AddressError(_NO_LOGIN.format(form.examples))
    user, colon, password = (parts["login"] or "").partition(":")
    return Address(
        scheme,
        parts["ip"] or (parts["host"] if form.listener else parts["host"].lower()),
        _port(parts["port"], scheme, form, default_port),
        _path(scheme, parts["path"] or "", form, rest),
        None if parts["login"] is None else unquote(user),
        unquote(password) if colon else None,
    )


def interchangeable(first: Address, addresses: list[Address]) -> list[Address]:
    """The addresses that a connection to `first` can try instead: of the same protocol, AMQP virtual host and (NATS) use of TLS."""

    def family(one: Address) -> tuple[str, str, bool]:
        return one.protocol, one.path if one.protocol == "amqp" else "", one.tls and one.protocol == "nats"

    return [one for one in addresses if family(one) == family(first)]


def split_login(text: str) -> tuple[str, str | None, str | None]:
    """(address without user name and password, user name, password), whatever the scheme. Raises AddressError."""
    scheme, separator, rest = text.partition("://")
    parts = _PARTS.fullmatch(rest)
    if not scheme or not separator or parts is None:
        raise AddressError("write SCHEME://HOST:PORT, with USER:PASSWORD@ before the host where needed")
    if parts["login"] is None:
        return text, None, None
    user, colon, password = parts["login"].partition(":")
    return f"{scheme}://{rest[parts.end('login') + 1 :]}", unquote(user), unquote(password) if colon else None


def _port(digits: str | None, scheme: str, form: Form, default_port: int | None) -> int:
    usual = SCHEMES[scheme].port
    if digits is None:
        return usual if scheme in WEBSOCKETS else default_port or usual
    port = int(digits[:6])
    if port > 65535:
        raise AddressError(f"port {digits[:20]} is above 65535")
    if not port and not form.listener:
        raise AddressError(_NO_PORT.format(scheme, usual))
    return port


def _path(scheme: str, path: str, form: Form, rest: str) -> str:
    """The path as `Address` holds it."""
    if scheme in WEBSOCKETS:
        if not re.fullmatch(r"[!-~]*", path) or "?" in path or "#" in path:
            raise AddressError(f"write a path without ? and #, as {scheme}://{rest.partition('/')[0].rpartition('@')[2]}{WEBSOCKET_PATH}")
        return path if len(path) > 1 else WEBSOCKET_PATH
    if SCHEMES[scheme].protocol == "amqp":
        name = unquote(path[1:])
        if "/" in path[1:] or "?" in path or "#" in path or len(name) > LONGEST_VIRTUAL_HOST:
            raise AddressError("the path names no virtual host: write amqp://host:5672/vhost, with %2F for a / in its name")
        return "" if name in ("", "/") else "/" + quote(name, safe="")
    if len(path) > 1 and not (form.topic and scheme in ("mqtt", "mqtts")):
        raise AddressError(f"{scheme}:// has no path: write {form.examples}")
    return path if len(path) > 1 else ""


def _plain_address(text: str, port: int) -> Address:
    """`host`, `host:port` or an IPv6 address without brackets."""
    parts = _PARTS.fullmatch(f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text)
    given = int(parts["port"][:6]) if parts and parts["port"] else port
    if parts is None or parts["login"] or parts["path"] or not 0 < given <= 65535:
        raise AddressError("this is no host or host:port; write 127.0.0.1, 127.0.0.1:1883 or mqtt://127.0.0.1:1883")
    return Address("mqtt", parts["ip"] or parts["host"], given)


def why_not_listening(error: OSError) -> str:
    """Why a program does not listen at an address, and what to do about it: one line without the address."""
    if error.filename is not None:  # of a certificate, say
        return f"{error.filename}: {error.strerror}"
    if error.errno == errno.EADDRINUSE:
        return "the address is taken by another program; give another port, or port 0 for any free one"
    if error.errno == errno.EACCES:
        return "not permitted; ports below 1024 need privileges"
    return error.strerror or str(error)
