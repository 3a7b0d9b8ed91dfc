"""Which certificates the brokers of a topology need, in which files, for which hosts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...base.address import parse_address
from ...mesh.topology.topology import BrokerEntry, Topology

LOCAL = ("localhost", "127.0.0.1", "::1")
_ANY = ("0.0.0.0", "::")


@dataclass(slots=True, frozen=True)
class Wanted:
    """A certificate to issue. hosts: that it is also valid for. server: for a broker."""

    name: str
    certificate: Path
    key: Path
    hosts: tuple[str, ...]
    server: bool


def of_topology(topology: Topology, folder: Path, elsewhere: bool = False, hosts: Iterable[str] = ()) -> list[Wanted]:
    """A certificate for each broker, in the files that the topology names. elsewhere: the user named another folder."""
    wanted = []
    for one in topology.brokers:
        certificate, key = folder / f"{one.name}.crt", folder / f"{one.name}.key"
        if one.tls is not None and not elsewhere:
            certificate, key = one.tls.certificate or certificate, one.tls.key or key
        wanted.append(Wanted(one.name, certificate, key, (*_hosts(topology, one), *hosts), True))
    return wanted


def _hosts(topology: Topology, broker: BrokerEntry) -> tuple[str, ...]:
    """Where it listens, this machine's names if it listens on all interfaces, and what links dial to reach it."""
    found: list[str] = []
    for text in broker.listen:
        host = parse_address(text).host
        found += LOCAL if host in (*_ANY, *LOCAL) else [host] if host else []
    dialled = [link.address for link in topology.links if link.listener == broker.name and link.address is not None]
    return tuple(dict.fromkeys([*found, *(host for text in dialled if (host := parse_address(text).host))]))


def refuse_twice(wanted: list[Wanted]) -> None:
    """Raises ValueError for a file that two certificates would be written to."""
    paths: dict[Path, str] = {}
    for one in wanted:
        for path in (one.certificate, one.key):
            if path in paths:
                who = f"{paths[path]} and {one.name}" if paths[path] != one.name else f"{one.name} twice"
                raise ValueError(f"{path} would be written for {who}: give each a name and files of its own")
            paths[path] = one.name


def authority_file(topology: Topology, folder: Path, elsewhere: bool = False) -> Path:
    """The certificate of the authority that the brokers trust. Raises ValueError when they trust different ones."""
    given = {one.tls.ca for one in topology.brokers if one.tls is not None and one.tls.ca is not None}
    if len(given) > 1:
        shown = ", ".join(sorted(map(str, given)))
        raise ValueError(f"{topology.file}: its brokers trust different authorities ({shown}): make their certificates one by one")
    return given.pop() if given and not elsewhere else folder / "ca.crt"
