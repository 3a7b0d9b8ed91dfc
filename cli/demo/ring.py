"""The demo's mesh: a ring of five sites on free ports of this machine, with a key of its own."""

from __future__ import annotations

import contextlib
import random
import secrets
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...mesh.topology.topology import Topology

PORTS = range(20_000, 32_768)  # Linux gives out 32768 and up, other systems 49152 and up
_given: set[int] = set()  # by this process
NAMES = ("porto", "lyon", "turin", "graz", "gdansk")


def free_ports(count: int) -> list[int]:
    """TCP ports of 127.0.0.1 that nothing listens on at this moment.

    They are below the ports that a system gives to outgoing connections and to listeners on port 0. So none of these takes one before its
    broker listens, or while that broker restarts. No port is returned twice while there are others. Raises OSError if there are none.
    """
    found: list[int] = []
    for port in sorted(random.sample(PORTS, len(PORTS)), key=_given.__contains__):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            _given.update(found)
            return found
    raise OSError(f"there are no {count} free ports from {PORTS.start} to {PORTS.stop - 1}")


def ring(names: tuple[str, ...] = NAMES, mode: str = "routed") -> Topology:
    """A ring: each site is linked to its predecessor and its successor."""
    from ...mesh.topology.settings import MeshSettings
    from ...mesh.topology.topology import BrokerEntry, LinkEntry, Topology

    ports = free_ports(len(names))
    brokers = [
        BrokerEntry(name, number, (f"mqtt://127.0.0.1:{port}",)) for number, (name, port) in enumerate(zip(names, ports, strict=True), 1)
    ]
    links = [LinkEntry(name, names[(place + 1) % len(names)]) for place, name in enumerate(names)]
    return Topology("demo", MeshSettings("demo", secrets.token_hex(16), mode, retry_last=1.0), brokers, links)
