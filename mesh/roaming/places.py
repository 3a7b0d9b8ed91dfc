"""The states of one client at one broker, and what a move knows of each origin.

    state      the client's session                                             its client, if it is connected
    ASKING     is looked for                                                    waits for CONNACK
    FETCHING   is coming: subscriptions and what was in flight                  waits for CONNACK
    TAKING     is here; what waited for it elsewhere is still coming            is served
    HERE       is here                                                          is served

There is no place for a client that is not at this broker; a session that leaves is a `Leave` beside it, so that the client may come
back before the old session is gone.

**The cut.** What an origin publishes for a session that moves is in two parts: what stands before its marker belongs to the old broker,
which passes it on, what stands behind it to the new one. Origins' messages arrive in order and once at both; so nothing is lost
or doubled, whatever is on the way. `Cut` is one broker's side of it: from which origins a session takes messages.

This file knows no messages, clocks or sessions.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import msgpack

from ..wire.visited import mask_of, numbers
from .wire import Claim, Key, octets

FORM = 1
PLACE_FORM = 2  # 1: without what is pending, and whether it is clean in the place of the floor
NO_KEY: Key = (0, 0)
NEVER = float("inf")


class State(Enum):
    """Where a client's session stands at this broker."""

    ASKING = 1
    FETCHING = 2
    TAKING = 3
    HERE = 4


class Input(Enum):
    """What moves it on."""

    NOBODY = "no member in reach has a session"
    SESSION = "a holder's session has come"
    READY = "all that was in flight has come"
    DRAINED = "what waited elsewhere has come, and what was put aside here is behind it"


# (state, input) -> next state. A pair that is missing leaves the state as it is: what comes late or from a second holder.
# When its session is no more a client is looked for again, if anything is (`Place.empty`).
TABLE: dict[tuple[State, Input], State] = {
    (State.ASKING, Input.NOBODY): State.HERE,
    (State.ASKING, Input.SESSION): State.FETCHING,
    (State.FETCHING, Input.READY): State.TAKING,
    (State.TAKING, Input.DRAINED): State.HERE,
}


def step(state: State, event: Input) -> State:
    """One move of one client."""
    return TABLE.get((state, event), state)


class Cut:
    """From which origins a session takes messages.

    keys: of the claims that it came here by, and was claimed again by, rising. heard: the highest key of which an origin's marker came; a
    lower one behind it means nothing, because its session got nothing in between. gated: it takes nothing from an origin that it
    has not heard of. fenced: markers were asked for.
    """

    __slots__ = ("fenced", "gated", "heard", "keys")

    def __init__(self, key: Key) -> None:
        self.keys: tuple[Key, ...] = (key,)
        self.heard: dict[int, Key] = {}
        self.gated = self.fenced = False

    def marker(self, origin: int, key: Key) -> bool:
        """An origin says that from here on its messages go to the session of a key. Whether that matters."""
        if key < self.keys[0] or key <= self.heard.get(origin, NO_KEY):
            return False
        self.heard[origin] = key
        return True

    def takes(self, origin: int) -> bool:
        """Whether messages of an origin are for this session."""
        heard = self.heard.get(origin)
        return not self.gated if heard is None else heard in self.keys

    @property
    def closed(self) -> bool:
        """Whether some origin sends to another session."""
        return any(key not in self.keys for key in self.heard.values())

    @property
    def whole(self) -> bool:
        """Whether it takes everything."""
        return not (self.gated or self.closed)

    def marked(self, brokers: int) -> bool:
        """Whether all these have set the marker of the highest key, or of a still higher one."""
        return all(self.heard.get(number, NO_KEY) >= self.keys[-1] for number in numbers(brokers))

    def passed(self, brokers: int) -> bool:
        """Whether all these send to a newer session."""
        return all(self.heard.get(number, NO_KEY) > self.keys[-1] for number in numbers(brokers))

    def again(self, key: Key) -> None:
        """It is claimed again, by a higher key."""
        self.keys = (*self.keys, key)
        self.fenced = False


class Place:
    """A client that is at this broker, or comes.

    key: of its claim. floor: of the latest clean start that is known: what comes of sessions with lower keys was discarded by it, and is
    dropped. claimed: brokers that the claim was sent to; asked: those that have answered it; around: those of them from which a session
    leaves to another claim; taken: those that have said that another owner has the client identifier; waiting: those whose answer the
    client waits for; coming: those of them that have said that a session will come. until: when it waits no longer. sources: sessions that
    are being sent, by the keys that they had, and whether all of each that belongs before the markers has come. pending: the highest key
    of those that have come, until all in reach have said what they know; no origin is asked for its marker before.
    following: a newer claim, and whether it is clean. lost: somebody has said that there is a newer one.
    """

    __slots__ = (
        "around",
        "asked",
        "claimed",
        "client",
        "coming",
        "cut",
        "floor",
        "following",
        "key",
        "lost",
        "pending",
        "sources",
        "state",
        "taken",
        "until",
        "waiting",
    )

    def __init__(self, client: str, key: Key, clean: bool = False) -> None:
        self.client = client
        self.key = key
        self.state = State.ASKING
        self.floor = key if clean else NO_KEY
        self.claimed = 0
        self.asked = 0
        self.around = 0
        self.taken = 0
        self.lost = False
        self.waiting = 0
        self.coming = 0
        self.pending = NO_KEY
        self.until = 0.0
        self.cut = Cut(key)
        self.sources: dict[Key, bool] = {}
        self.following: tuple[Key, bool] | None = None

    @classmethod
    def here(cls, client: str, key: Key, leave: Leave | None = None) -> Place:
        """A client whose session is here. leave: it was on its way, and came back."""
        place = cls(client, key)
        place.state = State.HERE
        if leave is not None:
            place.cut = leave.cut
            place.cut.again(key)
        return place

    def step(self, event: Input) -> None:
        self.state = step(self.state, event)

    @property
    def waits(self) -> bool:
        """Whether its client waits for answers, or will if it comes."""
        return self.until != NEVER and (self.state is State.ASKING or self.pending != NO_KEY)

    def awaits(self, now: float) -> bool:
        """Whether a member in reach may still say that what has come was discarded before."""
        return self.pending != NO_KEY and bool(self.waiting & ~self.coming) and now < self.until

    @property
    def clean(self) -> bool:
        """Whether its claim is that of a clean start."""
        return self.floor == self.key

    @property
    def claims(self) -> list[Claim]:
        """What others are told: a clean start before it, then its own claim."""
        own = Claim(self.client, self.key, self.clean)
        return [own] if self.clean or self.floor == NO_KEY else [Claim(self.client, self.floor, True), own]

    def drops(self, source: Key) -> bool:
        """Whether a session was discarded before it came here."""
        return source < self.floor and source not in self.sources

    def begin(self, key: Key) -> None:
        """Another claim, as if there had been none."""
        self.again(key)
        self.cut, self.lost, self.around = Cut(key), False, 0

    def again(self, key: Key) -> None:
        """Another claim. Who has not answered the one before it may still send a session for that."""
        self.key = key
        self.claimed, self.asked, self.taken = self.claimed & ~self.asked, 0, 0

    def empty(self) -> None:
        """There is no session here any more, and one may still come."""
        self.state = State.ASKING
        self.cut.gated = False
        self.pending = NO_KEY

    def orphaned(self) -> bool:
        """Its session was not kept, and has ended with an earlier life of its broker. Whether the place is still of use."""
        self.empty()
        return self.owed

    @property
    def owed(self) -> bool:
        """Whether others still have something to send or to be told, though there may be no session here any more."""
        return bool(self.open) or self.following is not None

    @property
    def complete(self) -> bool:
        """Whether the session is whole, so that it can be handed on."""
        return self.state is State.HERE and all(self.sources.values())

    @property
    def settled(self) -> bool:
        """Whether nothing of it is on its way, to here or to elsewhere."""
        return self.complete and self.cut.whole and self.following is None and self.pending == NO_KEY and not self.open

    @property
    def open(self) -> int:
        """Brokers that may still send a session for its claim, or more of one."""
        return (self.claimed & ~self.asked) | mask_of([broker for _, broker in self.sources])


class Leave:
    """A session on its way to the broker of the claim `key`. older: the key of the place that it was. ended: the new broker was told
    that all before the markers is sent."""

    __slots__ = ("client", "cut", "ended", "key", "older")

    def __init__(self, client: str, key: Key, older: Key, cut: Cut) -> None:
        self.client = client
        self.key = key
        self.older = older
        self.cut = cut
        self.ended = False

    @property
    def to(self) -> int:
        """The broker that it goes to."""
        return self.key[1]


class Forward(NamedTuple):
    """What still comes for a claim of this broker goes to the broker of a newer one: of the sessions in `sources`, and of any from
    brokers that have not answered the claim (`silent`)."""

    older: Key
    key: Key
    silent: int
    sources: tuple[Key, ...]

    @property
    def open(self) -> int:
        """The brokers that may still send something."""
        return self.silent | mask_of([broker for _, broker in self.sources])


# What is stored


def encode_place(place: Place) -> bytes:
    """As a store keeps it."""
    following = None if place.following is None else [*place.following[0], place.following[1]]
    masks = [octets(place.claimed), octets(place.asked), octets(place.around)]
    what = [PLACE_FORM, place.state.value, place.key, place.floor, *masks, _cut(place.cut), list(place.sources.items()), following]
    what.append(place.pending)
    packed: bytes = msgpack.packb(what)
    return packed


def encode_leave(leave: Leave) -> bytes:
    """As a store keeps it."""
    packed: bytes = msgpack.packb([FORM, leave.client, leave.key, leave.older, _cut(leave.cut), leave.ended])
    return packed


def encode_forwards(forwards: list[Forward]) -> bytes:
    """As a store keeps them, those of one client together."""
    packed: bytes = msgpack.packb([FORM, [[forward.older, forward.key, octets(forward.silent), forward.sources] for forward in forwards]])
    return packed


class Known(NamedTuple):
    """What a broker remembers beside its clients: all brokers ever known, and the highest time in any claim seen."""

    members: int
    highest: int


def encode_known(known: Known) -> bytes:
    """As a store keeps it."""
    packed: bytes = msgpack.packb([FORM, octets(known.members), known.highest])
    return packed


def decode_known(value: bytes) -> Known:
    """The reverse. Raises ValueError."""
    try:
        form, members, highest = msgpack.unpackb(value)
        known = Known(int.from_bytes(members, "little"), highest)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise _foreign(error) from None
    _check(form)
    return known


def decode_place(client: str, value: bytes) -> Place:
    """The reverse. Raises ValueError."""
    try:
        form, state, key, floor, claimed, asked, around, cut, sources, following, *more = msgpack.unpackb(value)
        place = Place(client, (key[0], key[1]), clean=floor is True)
        place.state = State(state)
        if form == PLACE_FORM:
            [pending] = more
            place.floor, place.pending = (floor[0], floor[1]), (pending[0], pending[1])
        place.claimed, place.asked = int.from_bytes(claimed, "little"), int.from_bytes(asked, "little")
        place.around = int.from_bytes(around, "little")
        place.cut, place.sources = _cut_of(cut), {(key[0], key[1]): ended for key, ended in sources}
        place.following = None if following is None else ((following[0], following[1]), following[2])
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise _foreign(error) from None
    _check(form, FORM, PLACE_FORM)
    return place


def decode_leave(value: bytes) -> Leave:
    """The reverse. Raises ValueError."""
    try:
        form, client, key, older, cut, ended = msgpack.unpackb(value)
        leave = Leave(client, (key[0], key[1]), (older[0], older[1]), _cut_of(cut))
        leave.ended = ended
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise _foreign(error) from None
    _check(form)
    return leave


def decode_forwards(value: bytes) -> list[Forward]:
    """The reverse. Raises ValueError."""
    try:
        form, found = msgpack.unpackb(value)
        forwards = [
            Forward((a[0], a[1]), (b[0], b[1]), int.from_bytes(mask, "little"), tuple([(n, broker) for n, broker in sources]))
            for a, b, mask, sources in found
        ]
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise _foreign(error) from None
    _check(form)
    return forwards


def _cut(cut: Cut) -> list[Any]:
    return [cut.keys, list(cut.heard.items()), cut.gated, cut.fenced]


def _cut_of(items: Any) -> Cut:
    keys, heard, gated, fenced = items
    cut = Cut(NO_KEY)
    cut.keys = tuple([(n, broker) for n, broker in keys])
    cut.heard = {origin: (key[0], key[1]) for origin, key in heard}
    cut.gated, cut.fenced = gated, fenced
    return cut


def _check(form: object, *known: int) -> None:
    known = known or (FORM,)
    if form not in known:
        remedy = "run the version that wrote it, or begin with an empty store"
        raise ValueError(f"a roaming client's state has form {form}, this version reads {' and '.join(map(str, known))}: {remedy}")


def _foreign(error: Exception) -> ValueError:
    return ValueError(f"a roaming client's state cannot be read ({error}): restore a copy, or begin with an empty store")
