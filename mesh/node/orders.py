"""Orders: what operators tell the whole mesh about one broker.

An order is a signed statement of the broker that was asked (its *issuer*). Brokers pass it on over all links without a policy, and again
when a link comes up, so that those who were apart hear of it. Each carries it out by itself:

    forget    the broker is gone for good: its interest, its key and what waits for it go, where it is out of reach
    leave     the same, said by the broker itself before it ends; carried out once it is out of reach
    rekey     the number belongs to another key: a machine that was replaced without its identity comes in

Rules
- an order holds for the lives of its target up to the epoch that it names. A broker that is forgotten while it lives hears of it, goes
  above that epoch, and is a member as before;
- what is passed on of a life that was forgotten is not believed, so that a neighbour who has not heard of it cannot bring it back;
- an order counts once; one that is older than `KEPT` seconds, or than one of the same kind for the same broker, does not count;
- an order from more than `AHEAD` seconds in the future does not count: the next order for that broker would need a later time still;
- at the bounds of what is kept, a new order is refused. None is dropped for it: a dropped one would be new again and circulate for ever;
- `managers` names the brokers whose orders count; None: those of all. The key of a manager, in `mesh.keys`, proves its name; without one
  its name is the one that its number has here.

Orders are kept in memory. It does not know who may ask for one; the shell does.
"""

from __future__ import annotations

import os

from ...mqtt.errors import UsageError
from ..wire.control import Order
from ..wire.identity import MANAGE
from ..wire.keys import Pin, shown
from ..wire.visited import numbers
from .core import Core, LinkEnd
from .membership import Membership

FORGET, LEAVE, REKEY = "forget", "leave", "rekey"
KEPT = 7 * 86_400.0  # seconds
AHEAD = 86_400.0  # seconds by which the clocks of two brokers may differ
MOST = 1000  # orders that are kept
MOST_GONE = 10_000  # lives that were forgotten, and are remembered
EVERY = 60.0  # seconds between two looks for old orders


class Orders:
    """The orders that one broker has heard of."""

    def __init__(self, core: Core, members: Membership) -> None:
        self._core = core
        self._members = members
        self.known: dict[bytes, Order] = {}
        self._gone: dict[tuple[int, bytes], int] = {}  # life that was forgotten -> up to which epoch
        self._look = 0.0  # when old orders are looked for next
        members.buried = self.buried
        members.on_went = self._went

    # ---- asked here

    def give(self, what: str, target: int, key: bytes = b"", dry: bool = False) -> str:
        """Carry out an order of an operator here and pass it on; what it does, as one line. dry: only say it.

        Raises UsageError: one line that says why not.
        """
        core = self._core
        managers = core.config.managers
        if managers is not None and core.identity.name not in managers:
            raise UsageError(
                f"{core.identity.name} is not among mesh.managers, {', '.join(managers) or 'which names nobody'}: ask one of them"
            )
        self._members.refresh()
        own = target == core.number
        uuid, epoch, name = self._life(target)
        full = self._full(what, target, uuid)
        if full:
            raise UsageError(f"{full}; the oldest order ends {KEPT / 86_400:.0f} days after it was given")
        if own is not (what == LEAVE):
            raise UsageError("a broker leaves by itself, and is forgotten by others")
        if not own and self._members.states.live >> target & 1:
            raise UsageError(f"{name} (number {target}) can be reached: stop it first, or have it leave")
        if what == REKEY:
            given = core.keys.given_to(name) if core.keys is not None else None
            if given is not None and given != key:
                raise UsageError(f"mesh.keys of this broker says that {name} has the key {shown(given)}: change it there (SIGHUP takes it)")
        time = max(core.wall_ms(), self._newest(what, target) + 1)
        order = Order(os.urandom(16), core.number, core.identity.name, time, what, target, uuid, epoch, key)
        held = self._members.held_for(target)
        if not dry:
            if core.keys is not None:
                order = order._replace(seal=core.keys.seal("order", *order[:-1]))
            self._take(order, None)
        if what == REKEY:
            return f"number {target} ({name}) belongs to the key {shown(key)} at all brokers of the mesh"
        what_waits = f", and what waits for it here is given up, messages: {held:,}" if held else ""
        return f"{name} (number {target}) is forgotten by all brokers of the mesh{' once it is gone' * own}{what_waits}"

    def _life(self, target: int) -> tuple[bytes, int, str]:
        core = self._core
        if target == core.number:
            return core.uuid, core.identity.epoch, core.identity.name
        lives = [record for (number, _), record in self._members.states.records.items() if number == target]
        active = self._members.interests.active.get(target)
        found = next((record for record in lives if record.uuid == active), None) or max(lives, key=lambda r: r.epoch, default=None)
        if found is None:
            raise UsageError(f"no broker with number {target} is known here")
        return found.uuid, found.epoch, found.name

    # ---- from others

    def linked(self, end: LinkEnd) -> None:
        """A link is up: its peer hears of all orders, before anything else."""
        if self.known and self._passes(end):
            self._core.control(end.id, "orders", list(self.known.values()))

    def received(self, end: LinkEnd, orders: tuple[Order, ...]) -> None:
        """Take what is new. Orders do not come over a link with a policy."""
        for order in orders:
            if order.id in self.known or end.gate is not None:
                continue
            if not self._members.believes(end, "order", order.issuer, order.name, order.seal, order[:-1]):
                continue
            why = self._not_managed(order)
            if why:
                self._refuse(order, why)
                continue
            self._take(order, end)

    def _not_managed(self, order: Order) -> str:
        """Why its issuer is none of the brokers whose orders count; "": it is one of them."""
        core, members = self._core, self._members
        if core.config.managers is None:
            return ""
        if order.name not in core.config.managers:
            return "it is not among mesh.managers"
        if core.keys is not None and core.keys.given_to(order.name) is not None:
            return ""  # `believes` has compared the key
        members.refresh()
        uuid = members.interests.active.get(order.issuer, b"")
        known = members.states.holders.get(order.issuer) or members.states.records.get((order.issuer, uuid))
        if known is None or known.name != order.name:
            return f"broker {order.issuer} is not known here under that name: give the key of {order.name} in mesh.keys"
        return ""

    def _full(self, what: str, target: int, uuid: bytes) -> str:
        """Why one more order is not kept; "": it is."""
        if len(self.known) >= MOST:
            return f"{MOST:,} orders are kept already"
        if what != REKEY and len(self._gone) >= MOST_GONE and (target, uuid) not in self._gone:
            return f"{MOST_GONE:,} brokers have been forgotten already"
        return ""

    def _refuse(self, order: Order, why: str) -> None:
        self._core.event("order_refused", what=order.what, issuer=order.name, text=why)

    def _take(self, order: Order, source: LinkEnd | None) -> None:
        core = self._core
        if order.time <= max(self._newest(order.what, order.target), core.wall_ms() - int(KEPT * 1000)):
            return
        if source is not None:
            full = self._full(order.what, order.target, order.uuid)
            if order.time > core.wall_ms() + int(AHEAD * 1000):
                full = "its time is more than a day ahead of the clock here: compare the clocks of the two brokers"
            if full:
                self._refuse(order, full)
                return
        self.known[order.id] = order
        core.event("order", what=order.what, number=order.target, issuer=order.name)
        for end in list(core.links.values()):
            if end is not source and self._passes(end):
                core.control(end.id, "orders", [order])
        if order.what == REKEY:
            self._rekey(order)
        elif order.what in (FORGET, LEAVE) and (order.what == FORGET or order.issuer == order.target):
            self._forget(order)

    def _newest(self, what: str, target: int) -> int:
        return max([order.time for order in self.known.values() if (order.what, order.target) == (what, target)], default=-1)

    def _passes(self, end: LinkEnd) -> bool:
        return MANAGE in end.peer.capabilities and end.gate is None

    # ---- what they do

    def _forget(self, order: Order) -> None:
        core, members = self._core, self._members
        if (order.target, order.uuid) == (core.number, core.uuid):
            if order.what == FORGET:
                members.go_above(order.epoch)
            return
        life = order.target, order.uuid
        self._gone[life] = max(order.epoch, self._gone.get(life, 0))
        members.refresh()
        if not members.states.live >> order.target & 1:
            members.forget_life(*life, self._gone[life])

    def _rekey(self, order: Order) -> None:
        core, members = self._core, self._members
        keys = core.keys
        if keys is None or order.target == core.number:
            return
        members.refresh()
        if members.states.live >> order.target & 1:
            self._refuse(order, f"broker {order.target} can be reached under its key")
        else:
            members.pin(order.target, Pin(order.key, lasting=True))

    def _went(self, went: int) -> None:
        """Brokers are out of reach: those that were to be forgotten then are."""
        for number in numbers(went):
            for target, uuid in list(self._gone):
                if target == number and (number, uuid) in self._members.states.records and self.gone(number, uuid):
                    self._members.forget_life(number, uuid, self._gone[number, uuid])

    def gone(self, number: int, uuid: bytes) -> bool:
        """Whether a broker has left or was forgotten, and has not begun another life that is known here."""
        epoch = self._gone.get((number, uuid))
        record = self._members.states.records.get((number, uuid))
        return epoch is not None and (record is None or record.epoch <= epoch)

    def buried(self, number: int, uuid: bytes, epoch: int) -> bool:
        """Whether a life was forgotten and is not reachable, so that what others pass on of it does not count."""
        return epoch <= self._gone.get((number, uuid), -1) and not self._members.states.live >> number & 1

    def expire(self) -> None:
        """Old orders do not count any more."""
        if not self.known or self._core.now < self._look:
            return
        self._look = self._core.now + EVERY
        last = self._core.wall_ms() - int(KEPT * 1000)
        self.known = {id_: order for id_, order in self.known.items() if order.time > last}
