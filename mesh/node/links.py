"""The live links of a node: which may be, what rests on each, and what is asked of them.

A link is between this broker and a neighbour; the handshake has ended (`mesh/link/link.py`), so the peer's identity is known. Of two links
to one peer one goes, a peer that must not be is refused with a reason.

It does not know what goes over a link.
"""

from __future__ import annotations

from ...mqtt.reasons import Reason
from ..view.interest import Interests
from ..view.linkstate import LinkStates
from ..wire.identity import Identity
from ..wire.policy import Policy, PolicyFilter
from .actions import LinkInfo
from .core import Core, LinkEnd
from .dispatch import Dispatch
from .membership import Membership
from .orders import Orders
from .relay import Relay
from .retained import RetainedMessages


class Links:
    """This node's ends of its links."""

    def __init__(
        self,
        core: Core,
        states: LinkStates,
        interests: Interests,
        members: Membership,
        relay: Relay,
        dispatch: Dispatch,
        retained: RetainedMessages,
        orders: Orders,
    ) -> None:
        self._core = core
        self._states = states
        self._interests = interests
        self._members = members
        self._relay = relay
        self._dispatch = dispatch
        self._retained = retained
        self._orders = orders
        core.on_drop = self._dropped

    def up(self, link: int, peer: Identity, incarnation: int, cost: int, policy: Policy | None) -> None:
        """See `Node.link_up`."""
        core = self._core
        refusal = self._refusal(peer, incarnation)
        if refusal is not None:
            name, reason, text = refusal
            core.close(link, reason, text)
            core.event(name, link=link, peer=str(peer), text=text)
            return
        self._members.shown(peer)
        for old in [e for e in core.links.values() if e.peer.number == peer.number and not e.peer.twin_of(peer)]:
            self._core.drop(old)
            core.close(old.id, Reason.SESSION_TAKEN_OVER, f"{peer} has a new link")
        end = core.links[link] = LinkEnd(
            link, peer, incarnation, max(cost, 1), None if policy is None or policy.open else PolicyFilter(policy)
        )
        end.twin = peer.uuid == core.identity.uuid
        self._members.fence.introduce(end)
        if end.twin:
            return
        end.second = core.by_number.setdefault(peer.number, end) is not end
        core.stale()  # a flooded stream has one more neighbour
        core.event("link_up", link=link, peer=str(peer), cost=end.cost)
        self._orders.linked(end)
        core.control(link, "summary", self._members.summary())
        if len(core.links) == 1 and core.config.mode == "flood":
            self._interests.all_stale()

    def _refusal(self, peer: Identity, incarnation: int) -> tuple[str, Reason, str] | None:
        """Why a link to this peer must not be: event, reason, text."""
        me = self._core.identity
        if self._core.fenced:
            return "fenced_link", Reason.USE_ANOTHER_SERVER, f"{me} has yielded to another life of its identity"
        if peer.mesh != me.mesh:
            return "wrong_mesh", Reason.NOT_AUTHORIZED, f"{peer} is of mesh {peer.mesh!r}, this broker of mesh {me.mesh!r}"
        if me.twin_of(peer):
            return None
        if peer.number == me.number:
            if peer.uuid == me.uuid:
                return "own_link", Reason.USE_ANOTHER_SERVER, f"{me} is linked to itself"
            text = f"{peer.name!r} ({peer.uuid}) and {me.name!r} ({me.uuid}) both have number {me.number}; give one of them another number"
            return "number_conflict", Reason.CLIENT_IDENTIFIER_NOT_VALID, text
        other = self._states.is_live(peer.number, peer.uuid.bytes)
        if other is not None:
            text = f"{peer.name!r} has number {peer.number}, which {other.name!r} holds; give one of them another number"
            return "number_conflict", Reason.CLIENT_IDENTIFIER_NOT_VALID, text
        old = self._core.by_number.get(peer.number)
        if old is not None and old.peer.same_life(peer) and old.incarnation > incarnation:
            return "second_link", Reason.SESSION_TAKEN_OVER, f"there is a link to {peer} already"
        return None

    def down(self, link: int) -> None:
        """See `Node.link_down`."""
        end = self._core.links.get(link)
        if end is not None:
            self._core.drop(end)
            self._members.say_links()

    def _dropped(self, end: LinkEnd) -> None:
        """A link is gone from the table; so is what rested on it."""
        if end.twin or end.second:
            return
        self._relay.lose(end.id)
        self._dispatch.link_lost(end.id)
        self._retained.lost(end)
        if not self._core.links and self._core.config.mode == "flood":
            self._interests.all_stale()

    def cost(self, link: int, cost: int) -> None:
        """See `Node.link_cost`."""
        end = self._core.links.get(link)
        if end is not None and end.cost != max(cost, 1):
            end.cost = max(cost, 1)
            self._members.say_links()

    def full(self, link: int, full: bool) -> None:
        """See `Node.link_full`."""
        end = self._core.links.get(link)
        if end is None or end.full == full:
            return
        end.full = full
        if not full:
            self._relay.has_space(link)
            self._dispatch.wake()

    # ---- what is asked

    def listed(self) -> list[LinkInfo]:
        """The live links, by peer."""
        self._members.refresh()
        found = []
        for end in sorted((e for e in self._core.links.values() if not e.twin), key=lambda e: e.peer.number):
            other = self._states.records.get((end.peer.number, end.peer.uuid.bytes))
            used = other is not None and end.synced and any(entry.incarnation == end.incarnation for entry in other.links)
            policy = end.gate is not None
            found.append(LinkInfo(end.id, end.peer.number, end.peer.name, end.incarnation, end.cost, end.full, used, policy))
        return found

    def gate(self, link: int) -> PolicyFilter | None:
        """See `Node.gate`."""
        end = self._core.links.get(link)
        return None if end is None else end.gate

    def guarded(self, link: int) -> bool:
        """See `Node.guarded`."""
        end = self._core.links.get(link)
        if end is None or end.gate is not None:
            return end is not None
        record = self._states.records.get((end.peer.number, end.peer.uuid.bytes))
        return record is not None and any(e.incarnation == end.incarnation and e.policy is not None for e in record.links)

    # ---- retained messages

    def compare(self) -> None:
        """Retained messages are compared over links that both ends list and that have no policy at either."""
        if self._states.twins:
            self._members.refresh()  # a new life of a neighbour may hold its place only now
        for end in self._core.links.values():
            if end.synced and not end.compared and not end.twin and not end.second:
                record = self._states.records.get((end.peer.number, end.peer.uuid.bytes))
                entry = None if record is None else next((e for e in record.links if e.incarnation == end.incarnation), None)
                if entry is not None:
                    end.compared = True
                    if end.gate is None and entry.policy is None:
                        self._retained.linked(end)
