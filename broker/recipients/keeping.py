"""What a broker keeps of its recipients in its store, so that it survives a restart (row F19).

    table       key                 value
    recipients  "s" name            state, since when, history, whether an operator holds it, whether a probe is out
    recipients  "a" name            an application that its client or the directory has declared
    recipients  "r" number, name    a record of another broker's recipient
    recipients  "w" serial          a parcel that finds no room where it should go

Times are of the wall clock there: the loop's clock begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from ...store.base import Kind, StoreError
from ..persistence.table import Table
from .handover import parcels, records
from .machine import Change, State

if TYPE_CHECKING:
    from ..persistence.commits import Persistence
    from .handover.parcels import Parcel
    from .handover.records import Record
    from .recipient import Recipient
    from .settings import Application

TABLE = "recipients"


class Kept:
    """What an earlier life of the broker has left. waiting: parcels by their keys."""

    def __init__(self) -> None:
        self.states: dict[str, bytes] = {}
        self.applications: list[Application] = []
        self.records: list[Record] = []
        self.waiting: dict[bytes, Parcel] = {}


class Keeping(Table):
    """The table of one broker."""

    def __init__(self) -> None:
        super().__init__(TABLE)

    def read(self, persistence: Persistence) -> Kept:
        """What is there. Raises StoreError."""
        self.persistence = persistence
        kept = Kept()
        for key, value in self.values():
            try:
                kind, rest = key[:1], key[1:]
                if kind == b"s":
                    kept.states[rest.decode()] = value
                elif kind == b"a":
                    kept.applications.append(records.decode_application(value))
                elif kind == b"r":
                    kept.records += records.decode(value)[0]
                elif kind == b"w":
                    kept.waiting[key] = parcels.decode(value)
            except ValueError as error:
                raise StoreError(Kind.CORRUPT, TABLE, str(error)) from None
        return kept

    def put_state(self, recipient: Recipient, offset: float) -> None:
        """offset: seconds from the loop's clock to the steady clock."""
        self.put(b"s" + recipient.name.encode(), state_value(recipient, offset))

    def put_record(self, record: Record | None, number: int, name: str) -> None:
        """A record of another broker; None: there is none any more."""
        value = None if record is None else records.encode([record])
        self.put(b"r" + number.to_bytes(2, "big") + name.encode(), value)


def state_value(recipient: Recipient, offset: float) -> bytes:
    """A recipient's state as it is kept."""
    machine = recipient.machine
    history = [[at + offset, before.value, after.value, why] for at, before, after, why in machine.history]
    packed: bytes = msgpack.packb([1, machine.state.value, machine.since + offset, history, recipient.held, recipient.probing])
    return packed


def restore_state(recipient: Recipient, value: bytes, offset: float, now: float) -> None:
    """The reverse. No time lies in the future: nothing waits for longer than an interval."""
    try:
        _, state, since, history, held, probing = msgpack.unpackb(value)
        recipient.machine.restore(State(state), min(now, since - offset), None)
        for at, before, after, why in history:
            recipient.told = Change(at - offset, State(before), State(after), why)
            recipient.machine.history.append(recipient.told)
        recipient.held, recipient.probing = bool(held), bool(probing)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StoreError(Kind.CORRUPT, TABLE, f"state of {recipient.name}: {error}") from None
