"""Single messages of QoS 1 and their receipts, with as few steps as there are, as far as they go by themselves.

What a broker adds to the latency of a single message, and of its acknowledgement, is the work that it does for it. The general way gathers
receipts (`Relay.flush`), which wait for a commit at the destination, and looks at everything else that may be due. Here

- an origin asks for the receipt of a message that it would rather not write (`asking`, `hold_back`, `broker/mesh/hold_back.py`);
- a destination that has stored nothing of that message gives it at once (`given`);
- a relay passes that receipt on as it came (`take_receipt`), and the origin settles the message.

Messages that come thick and fast have their receipts together still: one each would cost more than it saves. So origins ask only while
they hold messages back.

Invariants
- `take_receipt` does all that the general way does, or nothing; it passes on what has passed the same checks;
- a receipt that waits for no commit speaks of messages only that are given to clients, or committed.

It does not know how the shell sends, nor what it holds back.
"""

from __future__ import annotations

from ....mqtt.errors import PeerError
from ...wire.control import PREFIX, Receipt, decode, encode
from ..actions import Deliver
from ..core import Core
from ..dispatch import Dispatch
from ..own_tree import OwnTree
from ..relay import Relay
from .frames import Taken

TOPIC = PREFIX + b"receipts"
HEAD = len(TOPIC).to_bytes(2, "big") + TOPIC + b"\0"  # of the packet, behind its length of one byte


class SingleMessages:
    """What the parts of a node do for single messages."""

    def __init__(self, core: Core, relay: Relay, dispatch: Dispatch, tree: OwnTree) -> None:
        self._core = core
        self._relay = relay
        self._dispatch = dispatch
        self._tree = tree
        self._answered = 0  # the number of the last tree whose brokers all give receipts when they are asked

    # ---- origin

    @property
    def may_ask(self) -> bool:
        """Whether the receipt of the next message may be asked for at once: nothing else is to be written, and all brokers of the tree know
        the question, those too that pass it on and read the publish time."""
        journal = self._core.journal
        return journal is not None and journal.blank and self._understood()

    def _understood(self) -> bool:
        tree, lives = self._tree, self._core.lives
        if self._answered != tree.number and all(lives.gives_receipts(n, one.uuid, one.epoch) for n, one in tree.shape.items()):
            self._answered = tree.number
        return self._answered == tree.number

    def hold_back(self) -> int:
        """Nobody but its publisher waits for the next `Node.records`, which are of one message and of positions: the order of that message;
        0: they are of more than that."""
        journal = self._core.journal
        order = 0 if journal is None else journal.alone
        if journal is not None and order:
            journal.urgent = False
        return order

    def unwritten(self, order: int) -> bool:
        """Whether a message that is held back lacks a receipt, and is in the next `Node.records`."""
        return self._core.journal is not None and self._core.journal.unwritten(order)

    # ---- destination

    def admit(self, taken: Taken) -> int | None:
        """Let a message in that `Node.receive_one` took: the token of its delivery; None: it is of QoS 0 and has none."""
        window, head = taken.outcome.stream.window, taken.outcome.stream.head
        return None if window is None else self._relay.admit(window, head.origin, head.epoch, taken.sequence, taken.sequence)

    def delivery(self, taken: Taken, now: float) -> Deliver:
        """Let a message in that `Node.receive_one` took, for the shell to deliver as any other."""
        return taken.delivery(now, self.admit(taken))

    def given(self, taken: Taken, now: float) -> tuple[int, bytes] | None:
        """Let a message in that `Node.receive_one` took, and which is delivered already; nothing of it is stored here.

        It is `Node.handed` and `Node.delivered`, and its receipt waits for no commit: its window is in the next `Node.records`, which
        nothing waits for. (link, packet): its receipt, which must be sent now, as the origin asks for it; None: it goes with others, later.
        """
        core, relay, stream = self._core, self._relay, taken.outcome.stream
        window, head = stream.window, stream.head
        if window is None:
            return None
        core.now = now
        stirred, origin, sequence = core.stirred, head.origin, taken.sequence
        if core.journal is None:
            relay.delivered_one(window, origin, head.epoch, sequence)
        else:
            token = relay.admit(window, origin, head.epoch, sequence, sequence)
            relay.handed(token)
            relay.delivered(token)
        if not taken.asks:
            return None
        record = relay.records.get(origin)
        if window.pending or window.refusals or record is None or record.upstream not in core.links:
            return None
        assert record.upstream is not None, "it is a link"
        core.counters.control_sent += 1
        core.stirred = stirred  # that a receipt was owed is over
        return record.upstream, encode("receipts", [relay.said(origin, record)])

    # ---- receipts on their way

    def take_receipt(self, link: int, data: bytes, now: float) -> list[tuple[int, bytes]] | None:
        """Take `data` if it is one packet with one receipt, which refuses nothing: (link, packet) of what has to be sent now.

        None: nothing was done. An empty list: the receipt was for this broker.
        """
        core = self._core
        end = core.links.get(link)
        if end is None or end.twin or end.second or not data.startswith(HEAD, 2) or data[0] != 0x30 or data[1] != len(data) - 2:
            return None
        try:
            receipts = decode("receipts", data[2 + len(HEAD) :])
        except PeerError:
            return None  # the general way says it
        if len(receipts) != 1 or receipts[0].refusals:
            return None
        receipt: Receipt = receipts[0]
        core.now = now
        if receipt.origin == core.number:
            if not self._dispatch.single_receipt(receipt):
                return None
            core.counters.control_received += 1
            return []
        up = self._relay.upstream(link, receipt)
        if up is None:
            return None
        core.counters.control_received += 1
        core.counters.control_sent += 1
        return [(up, data)]
