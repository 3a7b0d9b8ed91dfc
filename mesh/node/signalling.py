"""Control packets as they come: read, given to the part of the node that they are for, and what those of a tree do on their way.

What brokers say of themselves (`summary`, `linkstate`, `interest`, `want`) is for `membership.py`, comparisons of retained messages
for `keeper.py`. Here is what goes along trees, over the links of the record that the origin's tree made: `open`, `branch` and `noted` down,
`receipts` and `dropped` up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...mqtt.errors import PeerError
from ...mqtt.length import known_length
from ...mqtt.reasons import Reason
from ..view.branches import check_branch, part, tree_digest
from ..view.trees import Child, Record, branches, check_open
from ..wire.control import DEFLATED, LARGE, PREFIX, Branch, Noted, Open, decode, decode_packed, encode_mask
from ..wire.envelope import bad_frame
from ..wire.packed import Unpacker
from .core import Core, LinkEnd
from .dispatch import Dispatch
from .links import Links
from .membership import Membership
from .orders import Orders
from .relay import Relay
from .retained import KIND as RETAINED
from .retained import RetainedMessages

FLOODED = ("linkstate", "interest", "life")
KEPT, LONGEST_KEPT = 1000, 1000  # packets of these kinds that are known again, and their bytes
SAID_TO_ALL = ("life", "summary", "synced", "linkstate", "interest", "want")  # what a link that is not used carries


class Signalling:
    """What neighbours say to this node beside messages."""

    def __init__(
        self,
        core: Core,
        members: Membership,
        links: Links,
        relay: Relay,
        dispatch: Dispatch,
        retained: RetainedMessages,
        orders: Orders,
    ) -> None:
        self._core = core
        self._members = members
        self._links = links
        self._relay = relay
        self._dispatch = dispatch
        self._retained = retained
        self._heard: dict[tuple[str, bytes], Any] = {}  # packets that were flooded, as they came -> what they say
        self._handlers: dict[str, Callable[[LinkEnd, Any], None]] = {
            "summary": members.on_summary,
            "synced": self._on_synced,
            "linkstate": self._on_linkstate,
            "life": self._members.on_life,
            "interest": members.exchange.hear,
            "want": members.on_want,
            "open": self._on_open,
            "receipts": self._on_receipts,
            "dropped": self._on_dropped,
            "noted": self._on_noted,
            "orders": orders.received,
        }

    def receive(self, end: LinkEnd, data: bytes, position: int, topic: int) -> int:
        """Handle one control packet; returns where it ends. topic: where its topic begins."""
        topic_end = topic + (data[topic - 2] << 8 | data[topic - 1])
        length, start = known_length(data, position + 1)
        stop = start + length
        if stop > len(data) or topic_end >= stop:
            raise bad_frame("a control packet is cut off")
        if data[topic_end] != 0:
            raise bad_frame("a control packet has properties")
        kind = data[topic + len(PREFIX) : topic_end].decode("ascii", "replace")
        self._core.counters.control_received += 1
        tree = self._unpacked(end, kind, data[topic_end + 1 : stop]) if kind in DEFLATED else None  # in any case: the next needs it
        if (end.twin and kind != "life") or (end.second and kind not in SAID_TO_ALL):
            return stop
        if kind == RETAINED:
            compare = self._retained.receive if end.compared else self._retained.early
            compare(end, data[topic_end + 1 : stop])
            return stop
        if tree is not None:
            self._on_open(end, tree)
            return stop
        body = self._read(kind, data[topic_end + 1 : stop])
        if body is not None:
            self._handlers[kind](end, body)
        return stop

    def _read(self, kind: str, payload: bytes) -> Any:
        """The body of a packet. What is flooded comes once from each neighbour."""
        if kind == "interest" and len(payload) > LARGE:
            return payload
        if kind not in FLOODED or len(payload) > LONGEST_KEPT:
            return decode(kind, payload)
        body = self._heard.get((kind, payload))
        if body is None:
            if len(self._heard) >= KEPT:
                self._heard.clear()
            body = self._heard[kind, payload] = decode(kind, payload)
        return body

    @staticmethod
    def _unpacked(end: LinkEnd, kind: str, payload: bytes) -> Any:
        end.unpacker = end.unpacker or Unpacker()
        return decode_packed(kind, payload, end.unpacker)

    def _on_synced(self, end: LinkEnd, body: int) -> None:
        self._members.exchange.once_heard(end, lambda: self._synced(end, body))

    def _synced(self, end: LinkEnd, body: int) -> None:
        if not end.synced:
            self._members.on_synced(end, body)
            self._links.compare()

    def _on_linkstate(self, end: LinkEnd, records: tuple[Any, ...]) -> None:
        if self._members.on_linkstate(end, records):
            self._links.compare()

    def _on_open(self, end: LinkEnd, message: Open | Branch) -> None:
        """An origin's tree, or the branch of it that begins here: take it if it is newer and came over the link that it says, answer, pass
        it on."""
        core = self._core
        if message.origin == core.number:
            raise PeerError(Reason.PROTOCOL_ERROR, "$mesh/open: it came back to its origin")
        parent, incarnation = check_open(message, core.number) if isinstance(message, Open) else check_branch(message, core.number)
        known = self._relay.records.get(message.origin)
        if known is not None and message.tree <= known.tree and (core.keys is None or known.uuid == message.uuid):
            return  # (whoever signs and has the number under another UUID has a link of now in its tree, so that it is no repeat)
        if parent != end.peer.number or incarnation != end.incarnation:
            return
        self._members.refresh()
        if self._members.states.foreign(message.origin, message.uuid, message.epoch):
            return  # another life of the origin holds its place
        kind, shape = ("open", message.nodes) if isinstance(message, Open) else ("branch", tree_digest(message))
        if not self._members.believes(end, kind, message.origin, None, message.seal, (*message[:4], shape)):
            return
        self._relay.records[message.origin] = self._passed_on(end, message)
        self._relay.resume(message.origin, message.uuid, core.lives.life_at(message.origin, message.uuid, message.epoch))
        core.stale()
        self._relay.owe(message.origin)

    def _passed_on(self, end: LinkEnd, message: Open | Branch) -> Record:
        """Pass a tree on to the children that this broker has in it, and what there is to keep of it."""
        core = self._core
        record = Record(message.origin, message.uuid, message.tree, end.id)
        links = {number: incarnation for number, parent, incarnation in message.nodes if parent == core.number}
        beyond = {} if isinstance(message, Open) else part(message.path, core.number, end.incarnation, message.nodes[1:])
        root = message.origin if isinstance(message, Open) else end.peer.number
        for number, mask in branches([(n, p) for n, p, _ in message.nodes], root, core.number).items():
            child = core.by_number.get(number)
            if child is None or child.incarnation != links[number]:
                continue
            record.children[child.id] = Child(child.id, mask)
            if isinstance(message, Open):
                core.open(child, message)
            else:
                path, nodes = beyond[number]
                core.branch(child, message._replace(path=path, nodes=tuple(nodes)))
        return record

    def _on_receipts(self, end: LinkEnd, receipts: tuple[Any, ...]) -> None:
        for receipt in receipts:
            if receipt.origin == self._core.number:
                self._dispatch.receipt(receipt)
            else:
                self._relay.receipt(end.id, receipt)

    def _on_dropped(self, end: LinkEnd, drops: tuple[Any, ...]) -> None:
        for dropped in drops:
            if dropped.origin == self._core.number:
                self._dispatch.dropped(dropped.tree, dropped.brokers)
            else:
                self._relay.dropped(end.id, dropped)

    def _on_noted(self, end: LinkEnd, noted: Noted) -> None:
        record = self._relay.records.get(noted.origin)
        if record is None or record.tree != noted.tree or record.upstream != end.id:
            return
        if noted.destination == self._core.number:
            window = self._relay.window(noted.origin, record.uuid)
            window.noted(noted.position)
            if self._core.journal is not None:
                self._core.journal.window(window.owner, window)
            return
        for child in record.children.values():
            if child.mask >> noted.destination & 1:
                self._core.control(child.link, "noted", noted, urgent=False)

    def flush(self) -> None:
        """Say what goes up the trees now."""
        receipts, drops = self._relay.flush()
        if not (receipts or drops):
            return
        for link, some in receipts.items():
            self._core.control(link, "receipts", some)
        for link, lost in drops.items():
            self._core.control(link, "dropped", [(d.origin, d.tree, encode_mask(d.brokers)) for d in lost])
