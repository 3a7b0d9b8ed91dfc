"""What operators change of one broker's mesh while it runs: who is forgotten, whom it dials, what a link costs, whether it takes clients.

Each change is a method that carries it out, or with `dry` only says what it would do, as one line. It raises UsageError with a line that
says why not. `forget`, `rekey` and `leave` are orders to the whole mesh (`mesh/node/orders.py`). The others concern this broker alone, and
last until it restarts or reads its file again. `renew` takes over from a file that was read anew (SIGHUP) what a running broker can.

It does not know who may ask; `broker/requests/mesh.py` does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, NamedTuple

from ...base.address import parse_address
from ...base.plural import counted
from ...mesh.node.orders import FORGET, LEAVE, REKEY
from ...mesh.topology.settings import HIGHEST_COST, MeshSettings, PeerSettings
from ...mesh.wire.identity import HIGHEST_NUMBER, Identity
from ...mesh.wire.keys import KEY_BYTES
from ...mqtt.errors import UsageError
from ...mqtt.reasons import Reason
from .link import LinkProtocol

if TYPE_CHECKING:
    from .shell import MeshShell

log = logging.getLogger("mqmesh.mesh")

UNTIL = "until this broker restarts or reads its file again"
TAKEN = frozenset(("peers", "rules", "keys", "brokers", "managers", "retry_first", "retry_last", "lowest_protocol"))


class Renewed(NamedTuple):
    """What a file that was read anew has changed. links: that ended because of it. kept: settings that need a restart."""

    links: int
    added: int
    removed: int
    kept: list[str]


class Management:
    """Changes to one broker's mesh."""

    def __init__(self, shell: MeshShell) -> None:
        self._shell = shell
        self.end: Callable[[], None] | None = None  # ends the process in order; None: whoever runs the broker ends it
        self._configured = {peer.address for peer in shell.settings.peers}  # not those that a directory has named

    # ---- orders to the whole mesh

    def forget(self, who: object, dry: bool) -> str:
        """A broker out of reach is gone for good."""
        shell = self._shell
        return shell.node.order(FORGET, self._number(who), shell.now(), dry=dry)

    def rekey(self, who: object, key: object, dry: bool) -> str:
        """The number of a broker out of reach belongs to another public key."""
        shell = self._shell
        try:
            public = bytes.fromhex(str(key))
        except ValueError:
            public = b""
        if len(public) != KEY_BYTES:
            raise UsageError(
                f"{str(key)[:80]!r} is no key: give the {2 * KEY_BYTES} hexadecimal digits that the new identity.json has as its key"
            )
        return shell.node.order(REKEY, self._number(who), shell.now(), public, dry)

    def leave(self, force: bool, dry: bool) -> str:
        """This broker ends, and all others forget it."""
        shell = self._shell
        messages, _ = shell.node.custody()
        sessions = shell.persistence.quota.sessions if shell.persistence is not None else 0
        left = [f"it holds {counted(messages, 'message')} that others have not confirmed"] * bool(messages)
        left += [f"it keeps {counted(sessions, 'session')}, to end with it"] * bool(sessions)
        if left and not force and not dry:
            raise UsageError(f"{shell.identity.name} would lose something: {' and '.join(left)}; drain it, end them, or give --force")
        said = shell.node.order(LEAVE, shell.identity.number, shell.now(), dry=dry)
        if not dry:
            self.drain(clients=False, dry=False)
            if self.end is not None:
                shell.context.loop.call_soon(self.end)
        return "; ".join([f"{said}; {shell.identity.name} ends" if self.end is not None else said, *left])

    # ---- this broker's links

    def add_peer(self, address: object, cost: object, number: object, dry: bool) -> str:
        """Dial one neighbour more."""
        shell = self._shell
        text, step = str(address), self._cost(1 if cost is None else cost)
        try:
            parsed = parse_address(text)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if parsed.scheme not in ("mqtt", "mqtts", "unix"):
            raise UsageError(f"{text}: links do not run over WebSocket: give an address such as mqtt://HOST:PORT")
        if parsed.scheme == "mqtts" and shell.tls is None:
            raise UsageError(f"{text}: this broker has no [tls]: give it certificates, or an mqtt:// address")
        if any(peer.address == text for peer in shell.settings.peers):
            raise UsageError(f"{text} is dialled already")
        if number is not None and (type(number) is not int or not 0 <= number <= HIGHEST_NUMBER):
            raise UsageError(f"number {str(number)[:20]}: give a whole number from 0 to {HIGHEST_NUMBER}")
        if not dry:
            self._configured.add(text)
            shell.add_peer(PeerSettings(text, step, number if type(number) is int else None))
            shell.status_soon()
        return f"{shell.identity.name} dials {text} at cost {step}, {UNTIL}"

    def remove_peer(self, who: object, dry: bool) -> str:
        """Dial a neighbour no more, and end the link to it."""
        shell = self._shell
        link = self._link(who)
        peers = shell.settings.peers
        peer = next((one for one in peers if one.address == str(who) or (link is not None and one.address == link.address)), None)
        if peer is None:  # nobody, or a link that the other end has dialled, though this end dials too
            peer = next((one for one in peers if str(who) in (one.name, str(one.number)) or self._met(one, who)), None)
        if peer is None and link is not None and link.peer is not None:
            peer = next((one for one in peers if self._leads_to(one, link.peer)), None)
        if peer is None and link is not None:
            raise UsageError(f"{link.peer} dials {shell.identity.name}: remove the peer there")
        if peer is None:
            dialled = ", ".join(one.address for one in shell.settings.peers) or "nobody"
            raise UsageError(f"{str(who)[:200]} is no peer of {shell.identity.name}, which dials {dialled}")
        if not dry:
            self._remove(peer)
        return f"{shell.identity.name} does not dial {peer.address} any more, {UNTIL}"

    def set_cost(self, who: object, cost: object, dry: bool) -> str:
        """A link has another cost at this end; what counts is the higher one of its two ends."""
        shell = self._shell
        link, step = self._link(who), self._cost(cost)
        if link is None or link.peer is None:
            raise UsageError(f"{shell.identity.name} has no link to {str(who)[:200]} now")
        if not dry:
            link.cost = step
            shell.costs[link.peer.number] = step
            shell.settings.peers = [
                replace(one, cost=step) if one.address == link.address or self._leads_to(one, link.peer) else one
                for one in shell.settings.peers
            ]
            self.price(link)
        return f"the link to {link.peer} costs {step} at this end, {UNTIL}"

    def drain(self, clients: bool, dry: bool) -> str:
        """Take no new clients, and have others route around this broker where they can. clients: end the connections of those here."""
        shell = self._shell
        connected = [one for one in list(shell.connections) if one.session is not None and not one.inside and one.address != "unix"]
        if not dry:
            shell.context.draining = True
            for link in shell.by_number.values():
                self.price(link)
            if clients:
                for one in connected:
                    one.disconnect(Reason.USE_ANOTHER_SERVER, "the broker is drained")
            shell.status_soon()
        held, _ = shell.node.custody()
        ended = "connections that end" if clients else "clients that stay"
        return f"{shell.identity.name} takes no new clients; {ended}: {len(connected):,}; messages that others have not confirmed: {held:,}"

    def resume(self, dry: bool) -> str:
        """Take clients again."""
        if not dry:
            self._shell.context.draining = False
            for link in self._shell.by_number.values():
                self.price(link)
            self._shell.status_soon()
        return f"{self._shell.identity.name} takes clients"

    def price(self, link: LinkProtocol) -> None:
        """Tell the node what a link costs now."""
        shell = self._shell
        shell.node.link_cost(link.id, shell.cost_of(link), shell.now())
        shell.drain()

    # ---- a file that was read anew

    def renew(self, settings: MeshSettings) -> Renewed:
        """Take over what a running broker can."""
        shell, old = self._shell, self._shell.settings
        kept = [one.name for one in fields(MeshSettings) if one.name not in TAKEN and getattr(old, one.name) != getattr(settings, one.name)]
        ended = shell.set_rules(settings.rules)
        for name in ("keys", "brokers", "managers", "retry_first", "retry_last", "lowest_protocol"):
            setattr(old, name, getattr(settings, name))
        shell.node.renew({name: bytes.fromhex(key) for name, key in old.keys.items()}, old.managers, old.brokers)
        links = [link for link in shell.links.values() if link.peer is not None and self._unwanted(link)]
        for link in links:
            link.close(Reason.ADMINISTRATIVE_ACTION, f"{link.peer} is not what mesh.keys and mesh.brokers of {shell.identity} say")
        wanted = {peer.address: peer for peer in settings.peers}
        gone = [peer for peer in old.peers if peer.address in self._configured and not _same(wanted.get(peer.address), peer)]
        for peer in gone:
            self._remove(peer)
        there = {peer.address for peer in old.peers}
        new = [peer for address, peer in wanted.items() if address not in there]
        for peer in new:
            self._configured.add(peer.address)
            shell.add_peer(peer)
        shell.costs.clear()
        for link in shell.by_number.values():
            one = wanted.get(link.address)
            cost = one.cost if one is not None else link.cost if link.machine.dialled else 1
            if cost != link.cost:
                link.cost = cost
                self.price(link)
        old.peers = [wanted.get(peer.address, peer) for peer in old.peers]
        shell.drain()
        shell.status_soon()
        return Renewed(ended + len(links), len(new), len(gone), [f"mesh.{name}" for name in kept])

    def _unwanted(self, link: LinkProtocol) -> bool:
        peer, brokers = link.peer, self._shell.settings.brokers
        assert peer is not None
        return (brokers is not None and brokers.get(peer.name) != peer.number) or self._shell.node.why_not(peer) is not None

    def _remove(self, peer: PeerSettings) -> None:
        shell = self._shell
        shell.settings.peers = [one for one in shell.settings.peers if one is not peer]
        self._configured.discard(peer.address)
        shell.dialler.end(peer)
        for link in list(shell.links.values()):
            if link.address == peer.address:
                link.close(Reason.ADMINISTRATIVE_ACTION, f"{shell.identity} does not dial {peer.address} any more")
        shell.errors.pop(peer.address, None)
        shell.down_since.pop(peer.address, None)
        shell.met.pop(peer.address, None)
        shell.status_soon()

    # ---- who is meant

    def _number(self, who: object) -> int:
        """The number of a broker that is given by number or name."""
        if type(who) is int or (isinstance(who, str) and who.isdecimal() and len(who) <= 5):
            return int(who)
        members = self._shell.node.members()
        found = [member.number for member in members if member.name == who]
        if len(found) != 1:
            known = ", ".join(f"{member.name} ({member.number})" for member in members)
            what = "is the name of several brokers: give its number" if found else "is not known here"
            raise UsageError(f"{str(who)[:200]} {what}; known are {known}")
        return found[0]

    def _link(self, who: object) -> LinkProtocol | None:
        """The link to a broker that is given by number, name or address."""
        said = str(who)
        links = self._shell.by_number.values()
        return next((one for one in links if one.peer and said in (one.peer.name, str(one.peer.number), one.address)), None)

    def _met(self, peer: PeerSettings, who: object) -> bool:
        met = self._shell.met.get(peer.address)
        return met is not None and str(who) in (met.name, str(met.number))

    def _leads_to(self, peer: PeerSettings, broker: Identity) -> bool:
        """Whether this neighbour is that broker, as far as is known."""
        return self._met(peer, broker.number) or peer.number == broker.number or (peer.name == broker.name and peer.number is None)

    @staticmethod
    def _cost(cost: object) -> int:
        if type(cost) is not int or not 1 <= cost <= HIGHEST_COST:
            raise UsageError(f"cost {str(cost)[:20]}: give a whole number from 1 to {HIGHEST_COST}")
        return cost


def _same(one: PeerSettings | None, other: PeerSettings) -> bool:
    """Whether it is the same neighbour, whatever the link costs."""
    return one is not None and replace(one, cost=other.cost) == other
