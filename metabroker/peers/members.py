"""One metabroker of several, as the others know it: what it reaches, which sessions it has, and how it says so.

Messages go to `metabroker/peer/NUMBER`, msgpack maps with `what`:

    here     who it is and what its policy reaches; retained, so that who comes later finds it
    state    all its sessions, with the times of durable ones, and whom it counts in
    begin    a session more; `count` counts these and the next ones
    end      a session less
    beat     it is there; only while there are others
    ask      everybody is to say its state

An empty message says that it is gone. It may come from another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import msgpack

from ...base.metabroker import client_name
from ...base.wildcards import fits
from ..policy import Policy, Rule
from ..remotes import Remotes, remotes_of, target

LARGEST = 16_777_216  # bytes of a message


class Note(NamedTuple):
    """A session as others know it. key: of its remote and account.

    at: when its client got it or came back to it, seconds since 1970; 0: not yet, or not known.
    """

    client: str
    key: bytes
    durable: bool
    at: float = 0.0


class Reach(NamedTuple):
    """An `[[allow]]`: who may reach what. account: digest of the account that the metabroker has there itself; empty: the client's."""

    clients: tuple[str, ...]
    remotes: tuple[Remotes, ...]
    account: bytes


@dataclass(slots=True)
class Member:
    """One metabroker.

    number: tells it from all others. epoch: how often it has begun with its store.
    where: its place, which has one metabroker at a time. site: name of the broker that it is inside of.
    reaches: its policy. sessions: by identifier. keys: how many sessions each has. count: of the changes of `sessions`; -1: not known.
    counted: whom it counts in. active: it answers. heard: how many of our beats we had heard when it last said something.
    owed: homes that it has taken, and whose sessions it has not said.
    """

    number: int
    epoch: int = -1
    where: str = ""
    site: str = ""
    reaches: tuple[Reach, ...] = ()
    sessions: dict[str, Note] = field(default_factory=dict)
    keys: Counter[bytes] = field(default_factory=Counter)
    count: int = -1
    counted: frozenset[int] = frozenset()
    active: bool = False
    heard: int = 0
    owed: set[int] = field(default_factory=set)

    def begin(self, session: str, note: Note) -> None:
        """It has a session."""
        self.end(session)
        self.sessions[session] = note
        self.keys[note.key] += 1

    def end(self, session: str) -> None:
        """It has it no longer."""
        note = self.sessions.pop(session, None)
        if note is not None:
            self.keys[note.key] -= 1
            if not self.keys[note.key]:
                del self.keys[note.key]

    def durable(self) -> Iterator[tuple[str, Note]]:
        """Its durable sessions."""
        return ((session, note) for session, note in self.sessions.items() if note.durable)

    def serves(self, client: str, key: bytes) -> bool:
        """Whether it has a session of a client with this key."""
        return bool(self.keys[key]) and any(note.client == client and note.key == key for note in self.sessions.values())

    def key(self, client: str, remote: str, asked: bytes) -> bytes | None:
        """Of the connection that it would use for a client; None: its policy does not allow that. asked: the client's own account."""
        named = target(remote)
        for clients, remotes, account in self.reaches:
            if named is not None and any(one.match(named) for one in remotes) and any(fits(one, client_name(client)) for one in clients):
                return key_of(remote, account or asked)
        return None


def account_of(username: str | None, password: bytes | None, credentials: str | None = None) -> bytes:
    """The digest of an account."""
    return blake2b(bytes(msgpack.packb((username, password, credentials))), digest_size=16).digest()


def own_account(rule: Rule) -> bytes:
    """The digest of the account that a rule gives; empty: it gives none."""
    given = rule.username is not None or rule.credentials is not None
    return account_of(rule.username, rule.password, rule.credentials) if given else b""


def key_of(remote: str, account: bytes) -> bytes:
    """What sessions have in common that share a connection."""
    return blake2b(remote.encode("utf-8", "surrogatepass") + b"\0" + account, digest_size=16).digest()


def reaches_of(policy: Policy) -> tuple[Reach, ...]:
    """What a policy reaches."""
    return tuple(Reach(rule.clients, rule.remotes, own_account(rule)) for rule in policy.rules)


def written(what: str, **items: Any) -> bytes:
    """A message."""
    return bytes(msgpack.packb({"what": what, **items}))


def read(body: bytes) -> dict[str, Any] | None:
    """A message; None: it is none."""
    try:
        found = msgpack.unpackb(body, max_ext_len=0)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError):
        return None
    return found if type(found) is dict and type(found.get("epoch")) is int else None


def written_reaches(reaches: tuple[Reach, ...]) -> list[Any]:
    """As values of a message."""
    return [(one.clients, [remotes.text for remotes in one.remotes], one.account) for one in reaches]


def read_reaches(values: Any) -> tuple[Reach, ...]:
    """From values of a message. Raises ValueError, TypeError."""
    return tuple(Reach(tuple(clients), tuple(remotes_of(one) for one in remotes), bytes(account)) for clients, remotes, account in values)
