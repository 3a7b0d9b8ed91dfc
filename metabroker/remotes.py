"""Which remotes an entry of a policy names.

    mqtts://broker.example.com:8883      one address
    wss://*.example.com:443/mqtt         `*` any characters and `?` one, within the host, ...
    amqps://plant.example.com:*/site-*   ... the port (a number, or `*`), and the path
    amqp*://127.0.0.1:*                  ... and the scheme
    mqtt://[2001:db8:*]:1883             an IPv6 address stands in brackets; only such entries and the host `*` name any
    mqtts://*                            every address of a scheme
    *                                    every address and every service
    weather, plant-a/weather             a service, as NAME or MESH/NAME: no wildcard stands for the slash

Each part is matched by itself. No wildcard reaches over the end of its part: what stands in the path of a request never counts as
its host. Without a path an entry names the usual one: `/mqtt` of WebSocket, the virtual host `/` of AMQP.

An entry that no request can match is a mistake, found when the file is read: each entry is tried with an address of its own form.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from ..base.address import REMOTE, WEBSOCKET_PATH, Address, AddressError, parse_address
from ..base.wildcards import fits

_ANY = "*"
_FORM = re.compile(
    r"(?P<scheme>[^/:]*)://(?:(?P<rest>\*)|(?P<host>\[[^\[\]/]*\]|[^\[\]:/]*)(?::(?P<port>[^/]*))?(?P<path>/.*)?)", re.DOTALL
)
_EXAMPLES = 'write an address such as "mqtts://broker.example.com:8883" or "wss://*.example.com:443/*", or the name of a service'


class Remotes(NamedTuple):
    """One entry. Services have no schemes.

    schemes: of the addresses.
    host: pattern; an IPv6 address in brackets.
    port: a number, or `*`.
    path: pattern; None: the usual one of the scheme.
    """

    text: str
    schemes: tuple[str, ...] = ()
    host: str = _ANY
    port: str = _ANY
    path: str | None = _ANY

    def match(self, remote: str | Address) -> bool:
        """Whether the entry names a remote: an address, or the text of a service's name."""
        if self.text == _ANY:
            return True
        if isinstance(remote, str):
            return not self.schemes and fits(self.text, remote, without="/")
        if remote.scheme not in self.schemes or self.port not in (_ANY, str(remote.port)):
            return False
        path = _path_of(remote)
        fitting = path == (WEBSOCKET_PATH if remote.websocket else path[:1]) if self.path is None else fits(self.path, path)
        return fitting and (self.host == _ANY or fits(self.host, _host_of(remote)))


def target(remote: str) -> str | Address | None:
    """What `Remotes.match` takes for a remote that a request names; None: it is no address."""
    if "://" not in remote:
        return remote
    try:
        return parse_address(remote, REMOTE)
    except AddressError:
        return None


def remotes_of(text: str) -> Remotes:
    """Read an entry. Raises ValueError, whose text says what to write, for one that names no remote."""
    if "://" not in text:
        return Remotes(text)
    parts = _FORM.fullmatch(text)
    if parts is None:
        raise ValueError(f"{_EXAMPLES}; an IPv6 address stands in brackets, as mqtt://[::1]:1883")
    if "@" in text.partition("://")[2].partition("/")[0]:
        raise ValueError(f"an entry holds no user name and password: {_EXAMPLES}")
    scheme, host, port, path = parts["scheme"], parts["host"], parts["port"], parts["path"]
    schemes = [one for one in REMOTE.schemes if fits(scheme.lower(), one)]
    if not schemes:
        raise ValueError(f"the scheme {scheme!r} is not known here: write {REMOTE.examples}")
    if scheme != scheme.lower():
        raise ValueError(f'no request matches: write "{scheme.lower()}{text[len(scheme) :]}"')
    if parts["rest"]:
        return Remotes(text, tuple(schemes))
    if port != _ANY and not (port or "0").isdecimal():
        raise ValueError("the port is a number from 1 to 65535, or * for any")
    wrong = [_mistake(one, host, port, path) for one in schemes]
    found = tuple(one for one, mistake in zip(schemes, wrong, strict=True) if mistake is None)
    if not found:
        raise ValueError(wrong[0])
    return Remotes(text, found, host, port, path)


def _mistake(scheme: str, host: str, port: str | None, path: str | None) -> str | None:
    """Why no address of a scheme matches these parts: addresses that are made of them are tried. None: one does."""
    colon = "" if port is None else ":1" if port == _ANY else f":{port}"
    entry, address = Remotes("", (scheme,), host, port or _ANY, path), None
    mistake = "no IPv6 address has this form: write its digits in lower case, without leading zeros, as [2001:db8:*]"
    for sample in _samples(host):
        try:
            address = parse_address(f"{scheme}://{sample}{colon}{_filled(path or '', 'x')}", REMOTE)
        except AddressError as error:
            mistake = mistake if _wild(host) and host.startswith("[") else str(error)
        else:
            if port is not None and entry.match(address):
                return None
    if address is None or (_wild(host) and host.startswith("[")):
        return mistake
    right_host = host.lower() if _wild(host) else _host_of(address)
    right_path = path if path is None or _wild(path) else _path_of(address)
    return f'no request matches: write "{scheme}://{right_host}:{port if port == _ANY else address.port}{right_path or ""}"'


def _wild(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


def _filled(pattern: str, letter: str) -> str:
    return pattern.replace("*", letter).replace("?", letter[:1])


def _samples(host: str) -> list[str]:
    """Hosts that fit a pattern."""
    if not host.startswith("["):
        return [_filled(host, "x")]
    groups = [":".join("1" * count) for count in range(1, 9)]
    ends = [f"{before}{group}{after}" for group in ("", *groups) for before in ("", ":", "::") for after in ("", ":", "::")]
    return [host] if not _wild(host) else [host.replace("?", "1").replace("*", end) for end in ends]


def _path_of(address: Address) -> str:
    """The path as patterns see it: the virtual host `/` of AMQP has the path `/`."""
    return address.path or ("/" if address.protocol == "amqp" else "")


def _host_of(address: Address) -> str:
    """The host as patterns see it: an IPv6 address in its shortest form, in brackets."""
    if ":" not in address.host:
        return address.host
    try:
        return f"[{ipaddress.IPv6Address(address.host)}]"
    except ValueError:
        return f"[{address.host.lower()}]"
