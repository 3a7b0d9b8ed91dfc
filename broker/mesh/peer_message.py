"""Post: messages from one broker to another, that no client sees.

A post is in custody as a QoS 2 message is: once `send` has returned True it is in the open batch of the store, and it arrives at each
broker that it is for, once, in the order of sending, through route changes, partitions and restarts. Its handler there runs
inside the batch that lets it in; so what the handler writes into the store, and the posts that it sends, are kept exactly when
the post is. A broker that is given up (forgotten, or another one took its number) gives its posts back to the handler here.

Without a store the same holds for as long as both brokers live.

What it does not know: what the kinds mean.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ...base.cache import Cache
from ...mesh.node.actions import PeerMessage, Returned, Verdict
from ...mesh.wire.envelope import peer_message_kind
from ...mesh.wire.visited import numbers
from ...mqtt.errors import UsageError

if TYPE_CHECKING:
    from ...mesh.node.node import Node
    from ..ports import Context

log = logging.getLogger("mqmesh.mesh")

WITHOUT = {"recipients": "that broker has [recipients] in its file: give it to this one too, or it knows neither origins nor names"}
UNKNOWN = 64  # parts that are remembered
MOST_TOGETHER = 65_536  # bytes of posts after which those that go together are sent


class Handler(Protocol):
    """What takes the posts of a kind."""

    def received(self, origin: int, body: bytes, expiry: int | None) -> None:
        """A post has come from a broker. What this writes is committed with it; a body that is not as it should be is its to log.

        expiry: seconds that are left of its life; None: it has no end.
        """

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        """A post will not arrive: "absent", "replaced"; "expired"; "forbidden", when the other broker is behind a link with a policy now;
        "cleared", when it lost its store and may have had it."""


class PeerMessages:
    """The posts of one broker. received, sent, returned counts are in `counts`."""

    def __init__(self, context: Context, node: Node, saved: Callable[[], None], gathers: Callable[[], None]) -> None:
        """saved: writes what the node was told into the open batch of the store. gathers: has `write_state` called before its commit."""
        self._context = context
        self._node = node
        self._saved, self._gathers = saved, gathers
        self._gathered: list[bytes] = []  # posts that go together
        self._alike: tuple[int, str, int | None, int] = (0, "", None, 0)  # of these: brokers, kind, expiry, length
        self._size = 0  # of these, in bytes
        self._tight = False  # those of last time found no room, and were taken all the same
        self._handlers: dict[str, Handler] = {}
        self._ahead: set[str] = set()
        self._waiting: dict[str, Callable[[], None]] = {}  # kind -> whom to tell that there is room
        self._unknown: Cache[str, None] = Cache(UNKNOWN)  # parts of the broker that posts were for, and that it does not have
        self.counts = {"sent": 0, "received": 0, "returned": 0, "unhandled": 0}

    def register(self, kind: str, handler: Handler, ahead: bool = False) -> None:
        """Say what takes a kind: letters, digits, '-' and '/', begun with the name of the part that it belongs to.

        ahead: it may come before messages of the same origin that were sent before it, and wait for room in the store.
        """
        assert kind not in self._handlers, kind
        self._handlers[kind] = handler
        if ahead:
            self._ahead.add(kind)

    def goes_ahead(self, kind: str) -> bool:
        """Whether a kind does not wait for messages before it."""
        return kind in self._ahead

    def send(
        self,
        brokers: int,
        kind: str,
        body: bytes,
        must: bool = False,
        room: Callable[[], None] | None = None,
        expiry: int | None = None,
        together: bool = False,
    ) -> bool:
        """Post to brokers (a set, bit n: broker n), known here (`Node.known`), not this one.

        False: custody is full, nothing was done; `room`, if given, is called once when there is room again (the last one of a
        kind counts). must: take it all the same; the caller bounds how much of that there is. expiry: seconds after which it is given
        back. together: with those of this piece of work that follow, as far as they are alike: custody, the store and receipts are one for
        all. Other posts do not overtake it, messages of clients may. Raises UsageError for unknown brokers.
        """
        alike = (brokers, kind, expiry, len(body))
        if self._gathered and not (together and alike == self._alike):
            self.write_state()
        if together and not self._tight and (self._gathered or (brokers and not brokers & ~self._node.known())):
            if not self._gathered:
                self._alike, self._size = alike, 0
                self._gathers()
            self._gathered.append(body)
            self._size += len(body)
            if self._size > MOST_TOGETHER:
                self.write_state()
            return True
        if self._node.send_to_brokers(brokers, kind, body, self._context.now, must, expiry) is not Verdict.TAKEN:
            if room is not None:
                self._waiting[kind] = room
            return False
        self._tight = self._tight and must
        self._sent(brokers, 1)
        return True

    def write_state(self) -> None:
        """Send what goes together. It was taken: without room in custody it goes all the same, and the next ones are refused."""
        bodies, self._gathered = self._gathered, []
        if not bodies:
            return
        brokers, kind, expiry, _ = self._alike
        send = partial(self._node.send_to_brokers, brokers, kind, bodies[0], self._context.now, expiry=expiry, more=bodies[1:])
        try:
            self._tight = send() is not Verdict.TAKEN
            if self._tight:
                send(must=True)
        except UsageError:  # one of them was given up in this moment
            for body in bodies:
                for number in numbers(brokers):
                    self._handlers[kind].returned(number, body, "absent")
            return
        self._sent(brokers, len(bodies))

    def _sent(self, brokers: int, count: int) -> None:
        self.counts["sent"] += count * brokers.bit_count()
        self._saved()

    # What the shell tells

    def received(self, action: PeerMessage) -> None:
        """Hand a post to its handler. One without a kind was handed over in an earlier life."""
        if not action.kind:
            return
        handler = self._handlers.get(action.kind)
        if handler is None:
            self.counts["unhandled"] += 1
            self._say_unknown(action)
            return
        self.counts["received"] += 1
        handler.received(action.origin, action.body, action.expiry)

    def _say_unknown(self, action: PeerMessage) -> None:
        """Once for each part that it belongs to: there are many posts of the same kind."""
        part = action.kind.partition("/")[0]
        if part in self._unknown:
            return
        self._unknown.keep(part, None)
        text = WITHOUT.get(part, "is a newer version of mqmesh running there?")
        log.warning("event=post-unknown kind=%s origin=%d text=%s", action.kind, action.origin, text)

    def returned(self, action: Returned) -> bool:
        """Hand back what will not arrive; False when it is a client's message."""
        kind = peer_message_kind(action.run.topic)
        if kind is None:
            return False
        self.counts["returned"] += action.run.count
        handler = self._handlers.get(kind)
        for body in action.run.payloads:
            if handler is not None:
                handler.returned(action.destination, body, action.reason)
        return True

    def unblocked(self) -> None:
        """There is room in custody again."""
        waiting, self._waiting = self._waiting, {}
        for room in waiting.values():
            self._context.loop.call_soon(room)
