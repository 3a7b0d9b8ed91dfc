"""What the roamer decides over: sessions, posts and a store, as the shell has them. A client is a name (`names.py`)."""

from __future__ import annotations

from typing import Protocol

from ..wire.control import Position
from .places import Leave, Place


class Port(Protocol):
    """What the roamer decides over. All of it is done at once, in the batch that is open."""

    def known(self) -> int:
        """The other brokers that are known, as a set."""

    def live(self) -> int:
        """Those that are in reach."""

    def interest_of(self, number: int) -> Position:
        """How new what is known of a broker's interest is; of this one's: with all that it has."""

    def send_to_brokers(self, brokers: int, kind: str, body: bytes) -> None:
        """Say something to brokers."""

    def keeps(self, client: str) -> bool:
        """Whether the client's session outlives this broker's life, or there is none."""

    def save_place(self, client: str, value: bytes | None) -> None:
        """Keep a place; None: it is no more, or need not be known in a later life."""

    def save_leave(self, leave: Leave, value: bytes | None) -> None:
        """Keep a leave with its session; None: it is no more."""

    def save_forwards(self, client: str, value: bytes | None) -> None:
        """Keep what is passed on of a client; None: nothing more."""

    def save_known(self, value: bytes) -> None:
        """Keep what the broker knows beside its clients."""

    def accept(self, client: str) -> bool:
        """The connection that waits, if any, is let in, with the session that is here or a new one. False: there is neither."""

    def deny(self, client: str) -> None:
        """The connection that waits, if any, is refused: another owner has the client identifier."""

    def contested(self, client: str, broker: int) -> None:
        """There is a session here, and another owner's with the same client identifier at a broker that could not be asked before."""

    def renamed(self, client: str, name: str) -> None:
        """A session that had no owner in its name has one: it is the session of this owner from now on."""

    def may_have(self, client: str, owner: str | None) -> bool:
        """Whether the session of a place without an owner in its name is nobody's, or is this owner's."""

    def turn_away(self, client: str) -> None:
        """The client is elsewhere now: close its connection, waiting or served."""

    def discard(self, client: str) -> None:
        """Its connection is closed, its session ends, with all that was put aside."""

    def release(self, leave: Leave) -> bytes | None:
        """Its connection is closed, its session becomes the leave's and is described; None: it ended with its connection."""

    def install(self, place: Place, state: bytes, merge: bool) -> None:
        """Make the session that a description says, or (merge) add it to the one that is here."""

    def take(self, place: Place, flights: bool, items: bytes) -> None:
        """Messages that waited elsewhere, for the session here. flights: they were in flight, and stay so."""

    def gate(self, at: Place | Leave) -> None:
        """Its cut has begun, changed or ended."""

    def drain(self, place: Place) -> None:
        """What was put aside goes behind what is there; `Roamer.drained` follows, perhaps at once."""

    def sent(self, leave: Leave) -> bool:
        """Whether nothing waits to be sent."""

    def begin(self, leave: Leave) -> None:
        """Send the leave's messages: first what was in flight, then `Leaves.flights_sent`, then what waits and what comes."""

    def restore(self, leave: Leave, place: Place) -> None:
        """Its session is the place's again, or what it has goes to the session of the place."""

    def forget(self, leave: Leave) -> None:
        """Its session is no more."""
