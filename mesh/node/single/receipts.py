"""Single messages of QoS 1 and their receipts, with as few steps as there are, as far as they go by themselves.

What a broker adds to the latency of a single message, and of its acknowledgement, is the work that it does for it. The general way gathers
receipts (`Relay.flush`), which wait for a commit at the destination, and looks at everything else that may be due. Here

- an origin asks for the receipt of a message that it would rather not write (`asking`, `hold_back`, `broker/mesh/hold_back.py`);
- a destination that has stored nothing of that message gives it at once (`delivered`);
- a relay passes that receipt on as it came (`take_receipt`), and the origin settles the message.

Messages that come thick and fast have their receipts together still: one each would cost more than it saves. So origins ask only while
they hold messages back.

Invariants
- `take_receipt` does all that the general way does, or nothing; it passes on what has passed the same checks;
- a receipt that waits for no commit speaks of messages only that are given to clients, or committed.

It does not know how the shell sends, nor what it holds back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....mqtt.errors import PeerError
from ...wire.control import PREFIX, Receipt, decode, encode
from ...wire.envelope import ASKS
from ...wire.visited import numbers
from ..core import Core
from ..dispatch import Dispatch
from ..own_tree import OwnTree
from ..relay import Relay
from .frames import TAIL

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        """Whether receipts at once may be asked for the newest message in custody: it goes to each destination now, and all brokers of the
        tree know the question, those too that pass it on and read the publish time."""
        custody = self._dispatch.custody
        newest = next(reversed(custody.entries.values()), None)
        if newest is None or not self._understood():
            return False
        flights = [custody.destinations[number].flight for number in numbers(newest.open)]
        return all(flight and flight[-1][0] is newest for flight in flights)

    def _understood(self) -> bool:
        tree, lives = self._tree, self._core.lives
        if self._answered != tree.number and all(lives.gives_receipts(n, one.uuid, one.epoch) for n, one in tree.shape.items()):
            self._answered = tree.number
        return self._answered == tree.number

    @staticmethod
    def asking(sends: Sequence[tuple[int, bytes | bytearray]], payload: int) -> list[tuple[int, bytes | bytearray]]:
        """What `Node.publish_one` has given, if `may_ask`: the same frames, asking for the receipt. payload: its length."""
        found: list[tuple[int, bytes | bytearray]] = []
        for link, frame in sends:
            asks = bytearray(frame)
            asks[-payload - TAIL] |= ASKS
            found.append((link, asks))
        return found

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

    def delivered(self, token: int, now: float, asked: bool) -> tuple[int, bytes] | None:
        """`Node.handed` and `Node.delivered` for a message of which nothing is stored here, so that its receipt waits for no commit.

        Only for what `Node.receive_one` took. Its window is in the next `Node.records`, which nothing waits for. asked: for the receipt.
        (link, packet): its receipt, which must be sent now; None: it goes with others, later.
        """
        core, relay = self._core, self._relay
        core.now = now
        if not asked and core.journal is None:
            relay.delivered(token)
            return None
        window, _, origin = relay.tokens[token]
        stirred = core.stirred
        if core.journal is not None:
            relay.handed(token)
        relay.delivered(token)
        record = relay.records.get(origin)
        if not asked or window.pending or window.refusals or record is None or record.upstream not in core.links:
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
