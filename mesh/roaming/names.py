"""What a roaming session is known by between brokers: its client identifier and its owner, as one text.

    name                          session
    "meter-7"                     of nobody: its site cannot prove who a client is, or the client has shown nothing
    "meter-7" NUL "alice"         of the user alice
    "meter-7" NUL NUL "role"      of whoever has proven a role of the broker itself

So sessions of two users are two sessions at every broker, also where the client identifier is the same: a claim, a marker or a clean
start for one never means the other. A client identifier has no NUL (MQTT-1.5.4-2) and a user's name does not begin with one; so the first
NUL ends the identifier, and no user can take a role.

A broker of the release before uses client identifiers only, which are names of nobody. A session with an owner is never given to it.
"""

from __future__ import annotations

from typing import TypeVar

from .places import Leave, Place

T = TypeVar("T")

SEPARATOR = "\0"
ASIDE, LEAVING, PARKED = "\0aside.", "\0leaving.", "\0parked."  # how a broker's names of clients' sessions begin while they move
ROLE = "\0"  # how the owner's name of a role begins


def name_of(client: str, owner: str | None) -> str:
    """The name of a session. owner: its proven user; None: nobody."""
    return client if owner is None else f"{client}{SEPARATOR}{owner}"


def client_of(name: str) -> str:
    """The client identifier in a name."""
    return name.partition(SEPARATOR)[0]


def owner_of(name: str) -> str | None:
    """The owner in a name; None: nobody."""
    _, separator, owner = name.partition(SEPARATOR)
    return owner if separator else None


def is_role(name: str) -> bool:
    """Whether the owner in a name is a role."""
    return name.partition(SEPARATOR)[2].startswith(ROLE)


class Named(dict[str, T]):
    """What one broker has of sessions, by name, and the names by client identifier."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, list[str]] = {}

    def __setitem__(self, name: str, value: T) -> None:
        if name not in self:
            self._names.setdefault(client_of(name), []).append(name)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        client = client_of(name)
        names = self._names[client]
        names.remove(name)
        if not names:
            del self._names[client]

    def pop(self, name: str, default: T | None = None) -> T | None:  # type: ignore[override]
        """As of a dictionary, but without KeyError."""
        value = self.get(name, default)
        if name in self:
            del self[name]
        return value

    def others(self, name: str) -> list[T]:
        """What there is of other owners with the same client identifier."""
        return [self[one] for one in self._names.get(client_of(name), ()) if one != name]


class Places(Named[Place]):
    """The places of one broker."""


class Leaving(Named[list[Leave]]):
    """The sessions on their way from one broker to others."""

    def add(self, leave: Leave) -> None:
        """One more."""
        if leave.client not in self:
            self[leave.client] = []
        self[leave.client].append(leave)
