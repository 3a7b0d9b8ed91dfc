"""Extension points of a broker: what a program that embeds one is told. See docs/embedding.md.

A program subclasses `Hooks`, overrides the methods that it needs, and gives an object to the broker. The broker calls a method once for
each batch of messages, in its event loop and between two pieces of work: a hook must return soon, and must not wait for anything.

    admitted -> delivered -> acknowledged       a batch that is taken
    admitted -> dropped                         a part of it that finds no room
    dropped                                     a batch whose publisher has no permission

Inside the broker `Context.hooks` is a `HookCalls`, or None while nobody listens. So a path costs one truth test without hooks:

    if context.hooks is not None:
        context.hooks.admitted(client_id, batch)

An exception of a hook is logged and does not reach the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..mqtt.batch.batch import Batch

log = logging.getLogger("mqmesh.hooks")


class QueueMessage(NamedTuple):
    """A message of a queue. user: its user properties. correlation: Correlation Data."""

    payload: bytes
    user: tuple[tuple[str, str], ...] = ()
    content_type: str | None = None
    response_topic: str | None = None
    correlation: bytes | None = None


class Translation(NamedTuple):
    """What becomes of each message of a queue. See docs/queues.md, "Translations".

    source: a queue of this broker. target: a queue here or at another site. translate: makes the child of a message, which goes to the
    target; None: nothing follows from it. It is called in the event loop, must return soon, and may be called again for the same message.
    """

    source: str
    target: str
    translate: Callable[[QueueMessage], QueueMessage | None]


class Hooks:
    """Extension points that do nothing. Subclass it and override those that you need.

    batch: messages that came together: `count`, `qos`, `retain`, and `messages()`, which gives (topic, payload) pairs of bytes. It is
    valid during the call only, and must not be changed.
    publisher: the client identifier; None for a will, another broker of the mesh, or the broker itself.
    translations: what becomes of messages of queues. It is read once, when the broker is made.
    """

    translations: Sequence[Translation] = ()

    def admitted(self, publisher: str | None, batch: Batch) -> None:
        """A publisher may publish these messages; they are delivered next."""

    def delivered(self, publisher: str | None, batch: Batch, recipients: Sequence[str]) -> None:
        """The messages were given to the sessions of these client identifiers. The sessions send them, or keep them until they can."""

    def acknowledged(self, publisher: str, batch: Batch) -> None:
        """The publisher's messages of QoS 1 or 2 are accepted; their acknowledgements follow, after the commit where there is one."""

    def dropped(self, publisher: str | None, batch: Batch, count: int, reason: str) -> None:
        """The last `count` messages of the batch are not delivered to somebody, or to nobody. reason: one line."""

    def session_opened(self, client_id: str, user: str | None, address: str, resumed: bool) -> None:
        """A client is connected. user: its proven name, or the name that it gave. resumed: its session was there before."""

    def session_closed(self, client_id: str, kept: bool) -> None:
        """A client's connection is closed, or its session has ended while it was away. kept: its session waits for it."""

    def link_up(self, name: str, number: int) -> None:
        """A link to a neighbour of the mesh is up. name, number: the neighbour's."""

    def link_down(self, name: str, number: int) -> None:
        """The link to a neighbour of the mesh is down."""


class HookCalls(Hooks):
    """Calls each method of all hooks of one broker, and keeps their exceptions away from it."""

    def __init__(self, hooks: Sequence[Hooks]) -> None:
        self._hooks = tuple(hooks)
        self.translations = _checked([one for each in hooks for one in each.translations])

    def _call(self, name: str, *values: object) -> None:
        for hooks in self._hooks:
            try:
                getattr(hooks, name)(*values)
            except Exception:
                log.exception("event=hook-failed hook=%s method=%s", type(hooks).__name__, name)

    def admitted(self, publisher: str | None, batch: Batch) -> None:
        self._call("admitted", publisher, batch)

    def delivered(self, publisher: str | None, batch: Batch, recipients: Sequence[str]) -> None:
        self._call("delivered", publisher, batch, recipients)

    def acknowledged(self, publisher: str, batch: Batch) -> None:
        self._call("acknowledged", publisher, batch)

    def dropped(self, publisher: str | None, batch: Batch, count: int, reason: str) -> None:
        self._call("dropped", publisher, batch, count, reason)

    def session_opened(self, client_id: str, user: str | None, address: str, resumed: bool) -> None:
        self._call("session_opened", client_id, user, address, resumed)

    def session_closed(self, client_id: str, kept: bool) -> None:
        self._call("session_closed", client_id, kept)

    def link_up(self, name: str, number: int) -> None:
        self._call("link_up", name, number)

    def link_down(self, name: str, number: int) -> None:
        self._call("link_down", name, number)


def _checked(translations: Sequence[Translation]) -> tuple[Translation, ...]:
    """Translations that can be. Raises ValueError."""
    pairs = [(one.source, one.target) for one in translations]
    for source, target in pairs:
        if source == target:
            raise ValueError(f"a translation goes from queue {source!r} to itself: give it another target")
        if pairs.count((source, target)) > 1:
            raise ValueError(f"two translations go from queue {source!r} to {target!r}: make one of them")
    return tuple(translations)
