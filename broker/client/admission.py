"""Who may come in at all: bounds on connections, before anything is spent on them.

    socket accepted -> Door: too many? closed at once -> TLS, WebSocket, Connection -> CONNECT: too many clients? CONNACK 0x97

A connection is a *stranger* until its CONNECT is here: in the handshake of TLS or WebSocket, or silent. Strangers of one address are
bounded (`connecting_per_address`), so that one host cannot use up what all share. Beyond `connections` there is some room: so that who is
refused can be told why, and so that neighbours of the mesh come in whatever clients do. What finds no room there is closed without a
word and without an object that outlives the call.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...base.refusals import host_of
from ...mqtt.reasons import Reason

if TYPE_CHECKING:
    from ...mqtt.packets import Connect
    from ..site import Site

log = logging.getLogger("mqmesh.broker")

FILES = 64  # descriptors that the broker needs for itself
SPARE = 1000  # connections beyond the limit that may be there to be refused, or be links, at most...
PART = 10  # ...and at most this part of the limit
FULL = "this broker has as many clients as it takes (limits.connections)"
CLOSED = "there are as many connections as this broker takes (limits.connections)"
CROWD = "too many connections from there have not sent CONNECT (limits.connecting_per_address)"


def connections_by_files() -> int:
    """How many connections the process has file descriptors for, those to be refused included."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1_000_000
    return max(16, (soft - FILES) * PART // (PART + 1))


class Entrance:
    """Of one broker. limit: connections whose CONNECT is here."""

    def __init__(self, site: Site) -> None:
        limits = site.config.limits
        self._site = site
        self.limit = limits.connections if limits.connections is not None else connections_by_files()
        self._spare = min(SPARE, self.limit // PART + 1)
        self._per_address = limits.connecting_per_address
        self._strangers: dict[object, str] = {}  # protocol -> host
        self._hosts: dict[str, int] = {}  # host -> how many strangers

    @property
    def total(self) -> int:
        """Connections, those in their handshakes included."""
        site = self._site
        handshakes = (site.tls.shaking if site.tls is not None else 0) + (site.websocket.opening if site.websocket is not None else 0)
        return len(site.connections) + handshakes

    # Strangers

    def begin(self, protocol: object, address: str) -> None:
        """A stranger is here. Again for the same one: nothing."""
        if protocol not in self._strangers:
            host = self._strangers[protocol] = host_of(address)
            self._hosts[host] = self._hosts.get(host, 0) + 1

    def end(self, protocol: object) -> None:
        """It is gone, or none any more. Again for the same one: nothing."""
        host = self._strangers.pop(protocol, None)
        if host is not None:
            left = self._hosts[host] - 1
            if left:
                self._hosts[host] = left
            else:
                del self._hosts[host]

    # Decisions

    def shut(self, address: str) -> str | None:
        """Why a connection that was just accepted is closed at once; None: it is not."""
        if self._hosts.get(host_of(address), 0) >= self._per_address:
            return CROWD
        return CLOSED if self.total >= self.limit + self._spare else None

    def refusal(self, packet: Connect) -> tuple[Reason, str] | None:
        """Why a client may not come in whose CONNECT is here, and which is no stranger any more; None: there is room.

        A client that takes the place of a connection of its own may.
        """
        if self.total - len(self._strangers) <= self.limit:
            return None
        known = self._site.sessions.get(packet.client_id) if packet.client_id else None
        if known is not None and known.connection is not None:
            return None
        self._site.context.counters.refused_connections += 1
        return Reason.QUOTA_EXCEEDED, FULL

    def door(self, made: Callable[[], Any]) -> Callable[[], Door]:
        """What a listener makes for each connection that it accepts. made: gives the protocol for one that may come in."""
        return lambda: Door(self, made)

    def enter(self, transport: Any, made: Callable[[], Any]) -> None:
        """A connection was accepted: let it in or close it."""
        peer = transport.get_extra_info("peername")
        address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix"
        text = self.shut(address)
        if text is not None:
            site = self._site
            site.context.counters.refused_connections += 1
            site.context.warnings.say("connection-refused", site.context.loop.time(), address, text)
            transport.abort()
            return
        protocol = made()
        self.begin(protocol, address)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


class Door(asyncio.Protocol):
    """Stands where a protocol is asked for before it is known whose connection it is."""

    __slots__ = ("_entrance", "_made")

    def __init__(self, entrance: Entrance, made: Callable[[], Any]) -> None:
        self._entrance = entrance
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._entrance.enter(transport, self._made)
