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
from typing import TYPE_CHECKING, Protocol

from ...mesh.node.actions import PeerMessage, Returned, Verdict
from ...mesh.wire.envelope import peer_message_kind

if TYPE_CHECKING:
    from ...mesh.node.node import Node
    from ..ports import Context

log = logging.getLogger("mqmesh.mesh")


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

    def __init__(self, context: Context, node: Node, saved: Callable[[], None]) -> None:
        """saved: writes what the node was told into the open batch of the store."""
        self._context = context
        self._node = node
        self._saved = saved
        self._handlers: dict[str, Handler] = {}
        self._ahead: set[str] = set()
        self._waiting: dict[str, Callable[[], None]] = {}  # kind -> whom to tell that there is room
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
    ) -> bool:
        """Post to brokers (a set, bit n: broker n), known here (`Node.known`), not this one.

        False: custody is full, nothing was done; `room`, if given, is called once when there is room again (the last one of a
        kind counts). must: take it all the same; the caller bounds how much of that there is. expiry: seconds after which it is given
        back. Raises UsageError for unknown brokers.
        """
        if self._node.send_to_brokers(brokers, kind, body, self._context.now, must, expiry) is not Verdict.TAKEN:
            if room is not None:
                self._waiting[kind] = room
            return False
        self.counts["sent"] += brokers.bit_count()
        self._saved()
        return True

    # What the shell tells

    def received(self, action: PeerMessage) -> None:
        """Hand a post to its handler. One without a kind was handed over in an earlier life."""
        if not action.kind:
            return
        handler = self._handlers.get(action.kind)
        if handler is None:
            self.counts["unhandled"] += 1
            log.warning("event=post-unknown kind=%s origin=%d text=is a newer version of mqmesh running there?", action.kind, action.origin)
            return
        self.counts["received"] += 1
        handler.received(action.origin, action.body, action.expiry)

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
