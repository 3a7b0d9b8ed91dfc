"""Admission of connections: bounds that apply before the broker spends anything on a connection.

    socket accepted -> Door: too many? closed at once -> TLS, WebSocket, Connection -> CONNECT: too many clients? CONNACK 0x97
                                                                                -> a link: too many in their handshake? the oldest goes

A connection is a *stranger* until it is known who it is: it is in the handshake of TLS or WebSocket, silent, its password waits to be
compared, or it is a link that has not proved the mesh's key. The strangers of one address are bounded (`connecting_per_address`), so
that one host cannot use up what all share. There is some spare room beyond `connections`, for two reasons: a refused client can be
told why, and neighbours of the mesh are admitted whatever clients do. A connection beyond the spare room is closed without an
answer, and no object is kept for it; but if another address has more strangers, or this one half of all room, the oldest one there is
closed instead. So strangers cannot keep others out.

Links in their handshake have a bound of their own (`link_handshakes`). At the bound a new one takes the place of the oldest one of the
address that has most: a neighbour at another address always finds room, and one at the same address needs two round trips.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...base.refusals import source_of
from ...mqtt.reasons import Reason
from ..ledger import HANDSHAKES, STRANGER, TLS

if TYPE_CHECKING:
    from ...mqtt.packets import Connect
    from ..ledger import Account
    from ..ports import PendingLink
    from ..site import Site

log = logging.getLogger("mqmesh.broker")

FILES = 128  # descriptors that the broker needs for itself: its store, links that are up, 64 connections of its HTTP face
SPARE = 1000  # connections beyond the limit, to be refused or for links, at most...
FEW = 100  # connections; who has descriptors for fewer has hardly meant it
PART = 10  # ...and at most this part of the limit
FULL = "this broker has as many clients as it takes (limits.connections)"
CLOSED = "there are as many connections as this broker takes (limits.connections)"
CROWD = "too many connections from there have not said who they are (limits.connecting_per_address)"
HOARD = "what is held for that address is its share of memory (limits.broker_bytes)"
LINKS = "too many links have not proved the key of the mesh, most of them from there (limits.link_handshakes)"


def connections_by_files() -> int:
    """How many connections the process has file descriptors for, including those to be refused."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1_000_000
    return max(16, (soft - FILES) * PART // (PART + 1))


class Admission:
    """Decides which connections one broker admits.

    limit: connections of clients.
    """

    def __init__(self, site: Site) -> None:
        limits = site.config.limits
        self._site = site
        self.limit = limits.connections if limits.connections is not None else connections_by_files()
        self._spare = min(SPARE, self.limit // PART + 1)
        self._per_address = limits.connecting_per_address
        self._strangers: dict[object, Account] = {}  # protocol -> what is held for it
        self._hosts: dict[str, dict[Any, None]] = {}  # host -> its strangers, the oldest first
        self._most_links = limits.link_handshakes
        self._links: dict[str, dict[PendingLink, None]] = {}  # host -> its links in their handshake, the oldest first
        self._pending = 0  # how many these are

    @property
    def total(self) -> int:
        """The number of connections, including those in their handshakes. Links that are up do not count."""
        site = self._site
        handshakes = (site.tls.shaking if site.tls is not None else 0) + (site.websocket.opening if site.websocket is not None else 0)
        return len(site.connections) + handshakes + self._pending

    # Strangers

    def begin(self, protocol: object, address: str) -> None:
        """Count a stranger; a second call for the same one does nothing."""
        if protocol not in self._strangers:
            host = source_of(address)
            account = self._strangers[protocol] = self._site.context.ledger.account(host)
            account.charge(HANDSHAKES, TLS if getattr(protocol, "NAME", "") == "tls" else STRANGER)
            self._hosts.setdefault(host, {})[protocol] = None

    def end(self, protocol: object) -> None:
        """Stop counting a stranger; a second call for the same one does nothing."""
        account = self._strangers.pop(protocol, None)
        if account is not None:
            host = _host(account)
            account.close()
            strangers = self._hosts[host]
            del strangers[protocol]
            if not strangers:
                del self._hosts[host]

    def begin_link(self, link: PendingLink, address: str) -> None:
        """Count a link that has not proved the key. At the bound the oldest one of the address that has most is closed."""
        host = source_of(address)
        self.begin(link, address)
        self._links.setdefault(host, {})[link] = None
        self._pending += 1
        if self._pending <= self._most_links:
            return
        site = self._site
        most = max(self._links, key=lambda one: (len(self._links[one]), one == host))
        oldest = next(iter(self._links[most]))
        site.context.counters.refused_connections += 1
        site.context.warnings.say("link-refused", site.context.loop.time(), f"{most}:", LINKS)
        oldest.close(Reason.SERVER_BUSY, LINKS)
        self.end_link(oldest)

    def end_link(self, link: PendingLink) -> None:
        """Stop counting a link: it is gone, or it has proved the key. A second call for the same one does nothing."""
        account = self._strangers.get(link)
        host = "" if account is None else _host(account)
        if link not in self._links.get(host, ()):
            return
        self._pending -= 1
        del self._links[host][link]
        if not self._links[host]:
            del self._links[host]
        self.end(link)

    # Decisions

    def rejection(self, address: str) -> str | None:
        """Why a connection that was just accepted is closed at once; None: it is admitted."""
        host = source_of(address)
        if len(self._hosts.get(host, ())) >= self._per_address:
            return CROWD
        if self._site.context.ledger.overdrawn(host):
            self._site.context.counters.refused_holders += 1
            return HOARD
        return CLOSED if self.total >= self.limit + self._spare and not self._make_room(host) else None

    def _make_room(self, host: str) -> bool:
        """Close the oldest stranger of the address that has most of them: whether one was closed.

        It has to have clearly more than `host`; or to be `host` and have half of the room: whoever means it needs a moment only.
        """
        most = max(self._hosts, key=lambda one: len(self._hosts[one]), default=host)
        strangers = len(self._hosts.get(most, ()))
        if most == host:
            if 2 * strangers < self.limit + self._spare:
                return False
        elif strangers <= len(self._hosts.get(host, ())) + 1:
            return False
        site = self._site
        oldest = next(iter(self._hosts[most]))
        site.context.counters.refused_connections += 1
        site.context.warnings.say("connection-refused", site.context.loop.time(), f"{most}:", CLOSED)
        getattr(oldest, "transport", oldest).abort()  # a connection or link has a transport, a layer is one
        if oldest in self._links.get(most, ()):
            self.end_link(oldest)
        else:
            self.end(oldest)
        return True

    def refusal(self, connection: object, packet: Connect) -> tuple[Reason, str] | None:
        """Why a client is refused after its CONNECT; None: it is admitted.

        A client that replaces its own connection is admitted.
        """
        if self.total - len(self._strangers) + (connection in self._strangers) <= self.limit:
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


def _host(account: Account) -> str:
    assert account.address is not None
    return account.address.name


class Door(asyncio.Protocol):
    """The first protocol of an accepted connection, before its address is known."""

    __slots__ = ("_admission", "_made")

    def __init__(self, admission: Admission, made: Callable[[], Any]) -> None:
        self._admission = admission
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._admission.enter(transport, self._made)
