"""A whole mesh in one TOML file: its brokers, the links between them, and what all of them share.

    [mesh]
    name = "sites"
    key = "a secret of 16 bytes or more"        # the same table as in a broker's own file, without peers

    [[broker]]
    name = "porto"
    number = 1
    listen = "mqtt://127.0.0.1:18301"           # one address or a list of them
    data = "data/porto"                         # optional, relative to this file

    [[link]]
    between = ["porto", "lyon"]                 # the second dials the first
    cost = 1                                    # optional
    address = "mqtt://127.0.0.1:19301"          # optional: what to dial instead, such as a proxy
    [link.policy.porto]                         # optional: what porto lets out to lyon and in from it, see rules.py
    out = ["orders/#"]

    [tls]                                       # optional, see mesh/topology/tls.py; {name} in a path is the broker's name
    certificate = "tls/{name}.crt"              # a broker's own `tls = {...}` goes over it

    [limits]                                    # optional, as all of `TABLES`: the same table as in a broker's own file, for all brokers
    [broker.limits]                             # optional, below a [[broker]]: goes over it for this broker
    [[broker.attach]]                           # optional: a broker that is no member of the mesh, at this one (docs/attach.md)

`load` checks what concerns the mesh: what cannot work is a `ConfigError`, what works but is likely a mistake stands in `Topology.warnings`.
The graph itself (`Topology.graph`) goes to `mesh/topology/analysis.py` and to pictures. It does not know brokers' processes or
sockets, nor what the other tables of a broker's file mean; `broker.config.of_topology` turns one broker of it into a configuration, and
checks those.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx

from ...base.address import Address, parse_address
from ...base.settings import ConfigError, Section, guess, merged, read
from . import tls as certificates
from .borders import weak_borders
from .listeners import CLIENTS, Listeners, read_listeners, serves_of
from .rules import LinkRules, rules_of
from .settings import MeshSettings, number_of
from .tls import TlsSettings

# Tables of a broker's file that a topology gives too, for all brokers or for one
TABLES = (
    *("access", "directory", "http", "interchange", "journal", "limits", "management", "metabroker", "queues", "recipients", "store"),
    "websocket",
)
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_WIDE = 8  # warn when numbers reach this many times the number of brokers, and beyond one byte of bits


@dataclass(slots=True, frozen=True)
class BrokerEntry:
    """One broker of a topology. data: its folder, None when the file names none. tls: its certificates, None without. serves: whom
    listeners serve that say it (listeners.py). listeners: names of those that have one, by address. tables: of `TABLES`, what is
    said of this broker; `attach` is a list of tables.
    """

    name: str
    number: int
    listen: tuple[str, ...]
    data: Path | None = None
    tls: TlsSettings | None = None
    serves: dict[str, str] = field(default_factory=dict)
    listeners: dict[str, str] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class LinkEntry:
    """One link: `dialler` connects to `listener`, or to `address` where that is given. rules: of its ends, by name."""

    listener: str
    dialler: str
    cost: int = 1
    address: str | None = None
    rules: dict[str, LinkRules] = field(default_factory=dict)

    @property
    def ends(self) -> frozenset[str]:
        return frozenset((self.listener, self.dialler))

    @property
    def guarded(self) -> bool:
        """Whether an end has a policy of topics."""
        return any(not rules.policy.open for rules in self.rules.values())


@dataclass(slots=True)
class Topology:
    """A checked topology. file: as it was given to `load`. tables: of `TABLES`, what all brokers share. warnings: one line each."""

    file: str
    mesh: MeshSettings
    brokers: list[BrokerEntry]
    links: list[LinkEntry]
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def guarded(self) -> bool:
        """Whether some link has a policy of topics."""
        return any(link.guarded for link in self.links)

    def broker(self, name: str) -> BrokerEntry:
        """The broker of this name; KeyError when there is none."""
        for broker in self.brokers:
            if broker.name == name:
                return broker
        raise KeyError(name)

    def tables_of(self, name: str) -> dict[str, Any]:
        """The tables of one broker's file: what it says itself goes over what all share, and `{name}` in texts is its name."""
        found: dict[str, Any] = _named(merged(self.tables, self.broker(name).tables), name)
        return found

    def dialled_by(self, name: str) -> list[LinkEntry]:
        """The links that this broker has to dial."""
        return [link for link in self.links if link.dialler == name]

    def dial_address(self, link: LinkEntry) -> str:
        """What the link's dialler connects to; a listener on any interface is reached on the loopback one.

        The listener's first address that serves links, or its first one with TLS where links show certificates.
        """
        if link.address is not None:
            return link.address
        broker = self.broker(link.listener)
        listen = [one for one in broker.listen if serves_of(one, broker.serves) != CLIENTS]
        encrypted = [one for one in listen if one.startswith("mqtts://")]
        address = parse_address(encrypted[0] if encrypted and self.mesh.certified else listen[0])
        return str(address._replace(host=_ANY_HOST.get(address.host, address.host)))

    def graph(self) -> nx.Graph[str]:
        """Nodes are broker names with `number`, edges have `cost`; nodes in order of number."""
        graph: nx.Graph[str] = nx.Graph(name=self.mesh.name)
        for broker in sorted(self.brokers, key=lambda broker: broker.number):
            graph.add_node(broker.name, number=broker.number)
        for link in self.links:
            graph.add_edge(link.listener, link.dialler, cost=link.cost)
        return graph


def load(path: str | Path) -> Topology:
    """Read and check a topology file. Raises ConfigError."""
    section = read(path)
    if not section.has("mesh"):
        raise section.error("mesh", "give a table [mesh] with name and key")
    mesh_section = section.section("mesh")
    mesh = MeshSettings.of(mesh_section)
    mesh_section.done()
    brokers = _brokers(section, Path(path).parent)
    links = _links(section, brokers)
    topology = Topology(section.file, mesh, brokers, links, _tables(section))
    section.done()
    _check_tls(topology)
    if mesh.mode == "flood" and topology.guarded:
        raise mesh_section.error(
            "mode", 'a mesh with policies of topics needs mode = "routed": nothing is flooded over a link with a policy'
        )
    topology.warnings = _warnings(topology)
    return topology


def check_one_machine(topology: Topology) -> None:
    """Whether all brokers can run on one machine: no two listen at one address. Raises ConfigError."""
    taken: list[tuple[Address, str]] = []
    for number, broker in enumerate(topology.brokers, 1):
        _check_free(topology.file, number, broker, taken)


# brokers


def _brokers(section: Section, folder: Path) -> list[BrokerEntry]:
    brokers: list[BrokerEntry] = []
    shared = section.section("tls")
    for one in section.sections("broker"):
        data = one.path_of("data", folder, "give the path of a folder") if one.has("data") else None
        name = one.name("name")
        listen, serves, names = _listen(one)
        tables: dict[str, Any] = _tables(one)
        if one.has("attach"):
            tables["attach"] = [dict(attached.table) for attached in one.sections("attach")]
        broker = BrokerEntry(name, number_of(one, "number"), tuple(listen), data, _tls(shared, one, name, folder), serves, names, tables)
        one.done()
        for other in brokers:
            _check_distinct(one, broker, other)
        _check_free(section.file, len(brokers) + 1, broker, [])
        brokers.append(broker)
    if not brokers:
        raise section.error("broker", "give at least one [[broker]] with name, number and listen")
    return brokers


def _tables(section: Section) -> dict[str, dict[str, Any]]:
    """The tables of a broker's file that stand here."""
    return {key: dict(section.section(key).table) for key in TABLES if section.has(key)}


def _named(value: Any, name: str) -> Any:
    """A value of a table with the broker's name for `{name}` in all its texts."""
    if isinstance(value, dict):
        return {key: _named(one, name) for key, one in value.items()}
    if isinstance(value, list):
        return [_named(one, name) for one in value]
    return value.replace("{name}", name) if isinstance(value, str) else value


def _tls(shared: Section, section: Section, name: str, folder: Path) -> TlsSettings | None:
    """What all brokers share, and what this one says over it."""
    own = section.section("tls")
    if not shared.table and not own.table:
        return None
    merged = Section(section.file, {**shared.table, **own.table}, own.path if own.table else shared.path)
    return TlsSettings.of(merged, name, folder)


def _check_tls(topology: Topology) -> None:
    """Whether every broker has the certificates that its listeners and links need."""
    for number, broker in enumerate(topology.brokers, 1):
        peers = [
            (f"link[{i}].{'between' if link.address is None else 'address'}", topology.dial_address(link))
            for i, link in enumerate(topology.links, 1)
            if link.dialler == broker.name
        ]
        certificates.check(topology.file, broker.tls, (f"broker[{number}].listen", broker.listen), topology.mesh, peers)


def _listen(section: Section) -> Listeners:
    right = 'give an address such as "mqtt://127.0.0.1:1883", or a list of them'
    given = section.table.get("listen")
    single = isinstance(given, str)
    found = read_listeners(Section(section.file, {"listen": [given]}, section.path) if single else section, right, True)
    section.has("listen")
    for text in found.addresses:
        address = parse_address(text)
        if address.scheme != "unix" and not address.port:
            raise ConfigError(section.file, section.key("listen"), text, "a broker that others dial needs a fixed port, 1 to 65535")
    if all(parse_address(text).websocket for text in found.addresses):
        raise section.error("listen", "links do not run over WebSocket: give an address such as mqtt://127.0.0.1:1883 too")
    if all(serves_of(text, found.serves) == CLIENTS for text in found.addresses):
        raise section.error("listen", 'no listener serves links: leave serves = "clients" out at one of them, or give another address')
    return found


def _check_distinct(section: Section, broker: BrokerEntry, other: BrokerEntry) -> None:
    if broker.name == other.name:
        raise section.error("name", f"number {other.number} has this name already: give each broker its own")
    if broker.number == other.number:
        raise section.error("number", f'"{other.name}" has this number already: give each broker its own')
    if broker.data is not None and broker.data == other.data:
        raise section.error("data", f'"{other.name}" has this folder already: give each broker its own')


def _check_free(file: str, number: int, broker: BrokerEntry, taken: list[tuple[Address, str]]) -> None:
    """Whether each listener has an address of its own. taken: what others listen at; this broker's come to it. Raises ConfigError."""
    for address in map(parse_address, broker.listen):
        for other, holder in taken:
            if address == other or (
                "unix" not in (address.scheme, other.scheme) and address.port == other.port and _meet(address.host, other.host)
            ):
                who = f'"{holder}" listens' if holder != broker.name else "the broker listens"
                raise ConfigError(file, f"broker[{number}].listen", str(address), f"{who} at {other} already: give another address")
        taken.append((address, broker.name))


def _meet(one: str, other: str) -> bool:
    """Whether listeners of one port on these hosts are in each other's way."""
    if one == other or {one, other} == {"localhost", "127.0.0.1"}:
        return True
    if not {one, other} & set(_ANY_HOST):
        return False
    return "localhost" in (one, other) or (":" in one) == (":" in other)  # [::] takes IPv6 only


# links


def _links(section: Section, brokers: list[BrokerEntry]) -> list[LinkEntry]:
    names = [broker.name for broker in brokers]
    places: dict[frozenset[str], str] = {}
    links: list[LinkEntry] = []
    for one in section.sections("link"):
        listener, dialler = _between(one, names)
        link = LinkEntry(listener, dialler, one.whole("cost", 1, 65535, 1), one.address("address") if one.has("address") else None)
        if one.has("policy"):
            link.rules.update(_rules(one.section("policy"), (listener, dialler)))
        one.done()
        if link.ends in places:
            raise one.error("between", f"{places[link.ends]} joins these two already: leave one out")
        places[link.ends] = one.path
        links.append(link)
    return links


def _rules(section: Section, ends: tuple[str, str]) -> dict[str, LinkRules]:
    found = {}
    for name in section.table:
        if name not in ends:
            raise section.error(name, f"the link joins {ends[0]} and {ends[1]}: name one of them{guess(name, ends)}")
        found[name] = rules_of(section.section(name))
    return found


def _between(section: Section, names: list[str]) -> tuple[str, str]:
    right = "give the names of two brokers, the second dials the first"
    ends = section.strings("between", right=right)
    if len(ends) != 2:
        raise section.error("between", right)
    for name in ends:
        if name not in names:
            near = guess(name, names)
            raise section.error(
                "between", f'no broker is called "{name}"{near}' if near else f'no broker is called "{name}"; known: {", ".join(names)}'
            )
    if ends[0] == ends[1]:
        raise section.error("between", "a link joins two different brokers")
    return ends[0], ends[1]


def _warnings(topology: Topology) -> list[str]:
    warnings = []
    parts = sorted(nx.connected_components(topology.graph()), key=len, reverse=True)
    if len(parts) > 1:
        apart = "; ".join(", ".join(sorted(part)) for part in parts[1:])
        warnings.append(f"the brokers are not all connected: no path from {apart} to the others")
    highest = max(topology.brokers, key=lambda broker: broker.number)
    if highest.number >= max(64, _WIDE * len(topology.brokers)):
        size = highest.number // 8 + 1
        warnings.append(
            f"number {highest.number} of {highest.name} makes the visited bits of each message {size} bytes; small numbers keep them small"
        )
    return warnings + weak_borders(topology)
