"""The key `listen` of a broker's file and of a broker in a topology: where a broker listens, and whom each listener serves.

    listen = ["mqtts://0.0.0.0:8883", { address = "mqtt://10.0.0.1:18831", serves = "links" }]
    listen = [{ address = "mqtt://127.0.0.1:1883", name = "hall" }, "mqtts://0.0.0.0:8883"]

A listener that is only an address serves both, clients and links; one of WebSocket serves clients. One that serves clients refuses
other brokers before they show anything, and one that serves links refuses clients.

Rules of access and `access.anonymous` may speak of listeners by name. Several may have one name.
"""

from __future__ import annotations

from typing import NamedTuple

from ...base.address import parse_address
from ...base.settings import ConfigError, Section

CLIENTS, LINKS, BOTH = "clients", "links", "both"
SERVES = (CLIENTS, LINKS, BOTH)


class Listeners(NamedTuple):
    """addresses: in their order. serves: whom those serve that say it, by address. names: of those that have one, by address."""

    addresses: list[str]
    serves: dict[str, str]
    names: dict[str, str]


def serves_of(address: str, serves: dict[str, str]) -> str:
    """Whom a listener serves."""
    return serves.get(address, CLIENTS if parse_address(address).websocket else BOTH)


def read_listeners(section: Section, right: str, in_mesh: bool, default: str | None = None, least: str = "") -> Listeners:
    """The value of `listen`. Raises ConfigError.

    right: what would be right; least: in place of none. in_mesh: the broker has links. default: the address where there is none; None: it
    is required.
    """
    if not section.has("listen") and default is not None:
        return Listeners([default], {}, {})
    entries = section.table.get("listen")
    if not isinstance(entries, list) or not all(isinstance(one, (str, dict)) for one in entries):
        raise section.error("listen", right)
    if not entries:
        raise section.error("listen", least or right)
    found = Listeners([], {}, {})
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, str):
            address, serves, name = entry, None, None
        else:
            table = Section(section.file, entry, section.key(f"listen[{number}]"))
            address = table.string("address", right="give an address such as mqtt://127.0.0.1:1883")
            serves = table.choice("serves", SERVES, BOTH) if table.has("serves") else None
            name = table.name("name") if table.has("name") else None
            table.done()
        section.checked_address("listen", address)
        if address in found.addresses and (parse_address(address).port or serves or name or {address} & {*found.serves, *found.names}):
            raise ConfigError(section.file, section.key("listen"), address, "the address stands twice: leave one out")
        if serves is not None and serves != CLIENTS and parse_address(address).websocket:
            raise table.error("serves", 'links do not run over WebSocket: write "clients", or leave it out')
        if serves == LINKS and not in_mesh:
            raise table.error("serves", "this broker is in no mesh: write [mesh] too, or leave it out")
        found.addresses.append(address)
        if serves is not None:
            found.serves[address] = serves
        if name is not None:
            found.names[address] = name
    return found
