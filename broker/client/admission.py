"""Admission of connections: bounds that apply before the broker spends anything on a connection.

    socket accepted -> Door: too many? closed at once -> TLS, WebSocket, Connection -> CONNECT: too many clients? CONNACK 0x97

A connection is a *stranger* until its CONNECT arrives: it is in the handshake of TLS or WebSocket, or silent. The strangers of one
address are bounded (`connecting_per_address`), so that one host cannot use up what all share. There is some spare room beyond
`connections`, for two reasons: a refused client can be told why, and neighbours of the mesh are admitted whatever clients do. A connection
beyond the spare room is closed without an answer, and no object is kept for it.
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
SPARE = 1000  # connections beyond the limit, to be refused or for links, at most...
PART = 10  # ...and at most this part of the limit
FULL = "this broker has as many clients as it takes (limits.connections)"
CLOSED = "there are as many connections as this broker takes (limits.connections)"
CROWD = "too many connections from there have not sent CONNECT (limits.connecting_per_address)"


def connections_by_files() -> int:
    """How many connections the process has file descriptors for, including those to be refused."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1_000_000
    return max(16, (soft - FILES) * PART // (PART + 1))


class Admission:
    """Decides which connections one broker admits.

    limit: connections whose CONNECT has arrived.
    """

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
        """The number of connections, including those in their handshakes."""
        site = self._site
        handshakes = (site.tls.shaking if site.tls is not None else 0) + (site.websocket.opening if site.websocket is not None else 0)
        return len(site.connections) + handshakes

    # Strangers

    def begin(self, protocol: object, address: str) -> None:
        """Count a stranger; a second call for the same one does nothing."""
        if protocol not in self._strangers:
            host = self._strangers[protocol] = host_of(address)
            self._hosts[host] = self._hosts.get(host, 0) + 1

    def end(self, protocol: object) -> None:
        """Stop counting a stranger; a second call for the same one does nothing."""
        host = self._strangers.pop(protocol, None)
        if host is not None:
            left = self._hosts[host] - 1
            if left:
                self._hosts[host] = left
            else:
                del self._hosts[host]

    # Decisions

    def rejection(self, address: str) -> str | None:
        """Why a connection that was just accepted is closed at once; None: it is admitted."""
        if self._hosts.get(host_of(address), 0) >= self._per_address:
            return CROWD
        return CLOSED if self.total >= self.limit + self._spare else None

    def refusal(self, packet: Connect) -> tuple[Reason, str] | None:
        """Why a client is refused after its CONNECT; None: it is admitted. The client is no longer counted as a stranger.

        A client that replaces its own connection is admitted.
        """
        if self.total - len(self._strangers) <= self.limit:
            return None
        known = self._site.sessions.get(packet.client_id) if packet.client_id else None
        if known is not None and known.connection is not None:
            return None
        self._site.context.counters.refused_connections += 1
        return Reason.QUOTA_EXCEEDED, FULL

    def door(self, made: Callable[[], Any]) -> Callable[[], Door]:
        """A factory of doors for a listener. made: creates the protocol of a connection that is admitted."""
        return lambda: Door(self, made)

    def enter(self, transport: Any, made: Callable[[], Any]) -> None:
        """Admit a connection that was accepted, or close it."""
        peer = transport.get_extra_info("peername")
        address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix"
        text = self.rejection(address)
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
    """The first protocol of an accepted connection, before its address is known."""

    __slots__ = ("_admission", "_made")

    def __init__(self, admission: Admission, made: Callable[[], Any]) -> None:
        self._admission = admission
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._admission.enter(transport, self._made)
