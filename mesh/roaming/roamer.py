"""Where the sessions of roaming clients are, and how they move: one broker's part, sans-IO.

Strategy. The broker that a client comes to *claims* it at all others, unless it has the session. Who has it *releases* it: closes its
connection, sends the session, then all that waits, in pieces. The new broker subscribes, and asks all origins for a *marker* (`Cut`,
places.py): what came before it at the old broker is passed on, what comes behind it at the new one is put aside until the
old broker has said `end`. Brokers that are out of reach are claimed when they come back, and are cut off in the same way.

All messages are posts, in order and once, and what an input changes is in one commit with it; so a crash of any broker at any
time leaves a state from which the others go on. See docs/roaming.md for what is promised.

Invariants
- of two claims the higher key wins, at every broker; a broker's key is above all that it has seen;
- an origin's messages are taken for a client by one session at a time, in the order of its markers;
- a session is handed on only when it is whole.

It does not know messages, sockets or stores; `Port` does.
"""

from __future__ import annotations

from typing import Protocol

from ..control import Position
from ..visited import mask_of
from . import wire
from .places import Cut, Forward, Input, Known, Leave, Place, State, encode_forwards, encode_known, encode_leave, encode_place
from .wire import Answer, Claim, Fence, Key, Move, Said

NEVER = float("inf")
COMING = 60.0  # seconds that a session may need that is on its way to one of them


class Port(Protocol):
    """What the roamer decides over. All of it is done at once, in the batch that is open."""

    def known(self) -> int:
        """The other brokers that are known, as a set."""

    def live(self) -> int:
        """Those that are in reach."""

    def interest_of(self, number: int) -> Position:
        """How new what is known of a broker's interest is; of this one's: with all that it has."""

    def post(self, brokers: int, kind: str, body: bytes) -> None:
        """Say something to brokers."""

    def save_place(self, client: str, value: bytes | None) -> None:
        """Keep a place with its session; None: it is no more."""

    def save_leave(self, leave: Leave, value: bytes | None) -> None:
        """Keep a leave with its session; None: it is no more."""

    def save_forwards(self, client: str, value: bytes | None) -> None:
        """Keep what is passed on of a client; None: nothing more."""

    def save_known(self, value: bytes) -> None:
        """Keep what the broker knows beside its clients."""

    def accept(self, client: str) -> bool:
        """The connection that waits, if any, is let in, with the session that is here or a new one. False: there is neither."""

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
        """Send the leave's messages: first what was in flight, then `Roamer.flights_sent`, then what waits and what comes."""

    def restore(self, leave: Leave, place: Place) -> None:
        """Its session is the place's again, or what it has goes to the session of the place."""

    def forget(self, leave: Leave) -> None:
        """Its session is no more."""


class Roamer:
    """All roaming clients at one broker. number: the broker's. wait: seconds that a client waits for the answers of all members that
    are known, before it gets a new session."""

    def __init__(self, number: int, port: Port, wait: float = 3.0) -> None:
        self.number = number
        self._port = port
        self._wait = wait
        self.places: dict[str, Place] = {}
        self._asking: dict[str, Place] = {}  # those that are looked for, and some that were
        self.leaves: dict[str, list[Leave]] = {}
        self.forwards: dict[str, list[Forward]] = {}
        self.members = 0  # ever known
        self._highest = 0  # time in any key seen
        self._fences: list[Fence] = []  # whose interest is not known yet
        self.now = 0.0
        self.wall = 0  # ms
        self.counts = {"claims": 0, "in": 0, "out": 0, "merged": 0, "refused": 0}

    # ---- keys

    def _key(self) -> Key:
        self._highest = max(self._highest + 1, self.wall)
        if self._highest > self.wall:
            self._save_known()
        return self._highest, self.number

    def _saw(self, key: Key) -> None:
        if key[0] > self._highest:
            self._highest = key[0]
            if key[0] > self.wall:  # else the next life's clock is above it anyway
                self._save_known()

    def _save_known(self) -> None:
        self._port.save_known(encode_known(Known(self.members, self._highest)))

    # ---- restart

    def restore(self, places: list[Place], leaves: list[Leave], forwards: dict[str, list[Forward]], known: Known) -> None:
        """Go on where an earlier life was: sessions and what was put aside are there, nothing is connected."""
        self.members, self._highest = known
        self.forwards = forwards
        for place in places:
            self._saw(place.key)
            self.places[place.client] = place
            if place.state is State.ASKING:
                self._asking[place.client] = place
            if not place.cut.whole or place.state is not State.HERE:
                self._port.gate(place)
        for leave in leaves:
            self._saw(leave.key)
            self.leaves.setdefault(leave.client, []).append(leave)
            self._port.gate(leave)
            self._port.begin(leave)
        for place in places:
            if place.state is State.TAKING and all(place.sources.values()):
                self._port.drain(place)

    def adopt(self, client: str) -> None:
        """A session that was here before clients could roam."""
        place = self.places[client] = Place(client, (0, self.number))
        place.state = State.HERE
        self._save(place)

    # ---- clients

    def connect(self, client: str, clean: bool) -> bool:
        """A client comes. True: let it in now; False: it waits for `accept` or `turn_away`."""
        place = self.places.get(client)
        if place is None:
            place = self.places[client] = Place(client, self._key())
            place.clean = clean
            self.counts["claims"] += 1
            self._claim(place, self._port.live())
            if not clean and self._may_wait(place):
                self._save(place)
                return False
            self._nobody(place, waits=False)
            return True
        if clean and not (place.state is State.HERE and place.cut.whole and not place.open and not self._late(place)):
            self._fresh(place)
            return True
        if place.state is State.HERE and place.cut.closed:
            self._reclaim(place)
        if place.state is State.ASKING and place.lost and place.following is None:
            self._claim_again(place)
        if place.state is State.ASKING and not place.waiting and place.following is None:
            self._claim(place, self._port.live() & ~place.asked)
            if not self._may_wait(place):
                self._nobody(place, waits=False)
        return place.state in (State.HERE, State.TAKING)

    def _may_wait(self, place: Place) -> bool:
        """Whether a member may still say that it has the session, and there is time for that."""
        return bool(self._late(place)) and self.now < place.until

    def _claim(self, place: Place, brokers: int) -> None:
        place.waiting = brokers
        place.claimed |= brokers
        place.until = self.now + self._wait
        if place.state is State.ASKING:
            self._asking[place.client] = place
        if brokers:
            self._port.post(brokers, wire.CLAIM, wire.encode_claims([Claim(place.client, place.key, place.clean)]))

    def _claim_again(self, place: Place) -> None:
        """A client whose session is looked for gets a key above those seen since."""
        place.key = self._key()
        place.claimed = place.asked = place.around = 0
        place.cut, place.lost = Cut(place.key), False
        self._claim(place, self._port.live())
        self._save(place)

    def _reclaim(self, place: Place) -> None:
        """Some origins were told of a newer claim that never came here, and the client is back: go above it."""
        place.key = self._key()
        self._decline(place)
        place.claimed, place.asked = 0, 0
        place.cut.again(place.key)
        self._claim(place, self._port.live())
        self._fence(place, self._port.live())
        self._port.gate(place)
        self._save(place)

    def _fresh(self, place: Place) -> None:
        """The client wants a clean start while its session moves, or while some members have not been asked."""
        place.clean = True
        if place.state is not State.ASKING:
            self._port.discard(place.client)
        place.step(Input.FRESH)
        place.key = self._key()
        self._decline(place)
        place.claimed, place.asked, place.around, place.sources, place.cut = 0, 0, 0, {}, Cut(place.key)
        self._claim(place, self._port.live())
        self._save(place)

    def _decline(self, place: Place) -> None:
        """A claim that waits for the session is older than the place's now."""
        if place.following is not None:
            self._answer(place.client, place.following[0], Said.NEWER, place.key)
            place.following = None

    def ended(self, client: str) -> None:
        """A session that was here is no more. What may still come of an older one finds a place."""
        place = self.places.get(client)
        if place is None:
            return
        if place.open and not place.clean:
            self._vacate(place)
        else:
            self._remove(place)

    def _vacate(self, place: Place) -> None:
        """There is no session, and one may still come."""
        place.state, place.cut.gated, place.until = State.ASKING, False, NEVER
        self._save(place)

    def _remove(self, place: Place) -> None:
        del self.places[place.client]
        self._port.save_place(place.client, None)

    def saved(self, client: str) -> None:
        """A session was opened here for a place: keep the place with it."""
        place = self.places.get(client)
        if place is not None:
            self._save(place)
            if not place.cut.whole:
                self._port.gate(place)

    def _save(self, place: Place) -> None:
        if self.places.get(place.client) is place:
            self._port.save_place(place.client, encode_place(place))

    def _late(self, place: Place) -> int:
        """Members that have not answered the place's claim."""
        return (self._port.known() | self.members) & ~place.asked & ~(1 << self.number)

    # ---- the place's part

    def _nobody(self, place: Place, waits: bool = True) -> None:
        """No member in reach has the session: it is new. Those out of reach may have it and are cut off. waits: a connection may wait."""
        place.waiting = 0
        self._note_members()
        if place.following is not None:
            (key, clean), place.following = place.following, None
            self._yield(place, key, clean)
            return
        place.step(Input.NOBODY)
        if waits and not self._port.accept(place.client):
            if place.open:
                self._vacate(place)
            else:
                self._remove(place)
            return
        late = self._late(place) | place.around
        if late and not place.clean:
            place.cut.gated = True
            self._fence(place, self._port.live())
            self._port.gate(place)
        self._save(place)

    def _resolve(self, place: Place) -> bool:
        """Whether nobody will say any more that it has the session; then what follows is done."""
        if place.state is not State.ASKING or place.until == NEVER or place.waiting:
            return False
        if place.following is None and self._may_wait(place):
            return False
        self._nobody(place)
        return True

    def _note_members(self) -> None:
        members = self.members | self._port.known()
        if members != self.members:
            self.members = members
            self._save_known()

    def _fence(self, place: Place, brokers: int, more: int = 0, own: bool = True) -> None:
        """Ask these origins for markers, which go to all that may have a session of the client too, and set this broker's own (own).
        more: such brokers, beside those that follow from the place."""
        holders = more | self._late(place) | place.around | mask_of([broker for _, broker in place.sources])
        fence = Fence(place.client, place.key, self._port.interest_of(self.number), holders)
        place.cut.fenced = True
        if brokers:
            self._port.post(brokers, wire.FENCE, wire.encode_fence(fence))
        if own:
            self._mark(fence)

    def _on_answer(self, origin: int, answer: Answer) -> None:
        if answer.said is Said.NONE and not answer.more:
            self._answered(answer.client, 1 << origin, answer.key)
        place = self.places.get(answer.client)
        if place is None or place.key != answer.key:
            return
        if answer.said is Said.COMING:
            place.until = self.now + COMING  # it will be passed on
            return
        if answer.said is Said.NEWER and answer.known is not None:
            self._saw(answer.known)
            if answer.settled and place.state is State.ASKING and place.following is None and place.waiting:
                self._claim_again(place)  # that one is older in fact: clocks differ
                return
            if place.state is State.ASKING:
                place.lost = True
                self._port.turn_away(place.client)  # the newer one gets the session; what comes here is passed on to it
            elif answer.settled:
                self._on_claim(place.client, answer.known, False)  # two sessions, by clocks that differ: they become one there
                return
        if not answer.more:
            place.asked |= 1 << origin
        if (answer.leaving or answer.said is Said.NEWER) and not place.clean:
            place.around |= 1 << origin
            if place.cut.fenced:
                self._fence(place, self._port.live(), 1 << origin)
        place.waiting &= ~(1 << origin)
        if self._resolve(place):
            return
        self._save(place)
        self._look(place)

    def _on_session(self, origin: int, move: Move) -> None:
        source, more, passing, state = move.rest
        holder = source[1]
        answered = 1 << holder if origin == holder and not passing else 0
        place = self.places.get(move.client)
        self._answered(move.client, answered, move.key, (source, *more))
        if place is None:
            self._follow(move.client, move.key, (source, *more))
        if self._forward(wire.SESSION, move):
            return
        if place is None:
            place = self.places[move.client] = Place(move.client, move.key)
        place.asked |= answered
        place.waiting &= ~(1 << origin)
        if place.clean:
            self._save(place)
            return
        place.sources[source] = False
        for other in more:
            place.sources.setdefault(other, True)
        self._note_members()
        if place.state is not State.ASKING:
            self.counts["merged"] += 1
            self._port.install(place, state, True)
            self._fence(place, self._port.live(), 1 << holder)
        else:
            self.counts["in"] += 1
            place.step(Input.SESSION)
            place.cut.gated = True
            self._port.install(place, state, False)
            self._fence(place, self._port.live(), 1 << holder)
        self._port.gate(place)
        self._save(place)

    def _on_piece(self, origin: int, move: Move) -> None:
        _, flights, items = move.rest
        place = self.places.get(move.client)
        if self._forward(wire.PIECE, move) or place is None:
            pass
        elif not place.clean and place.state is not State.ASKING:
            self._port.take(place, flights and place.state is State.FETCHING, items)

    def _on_ready(self, origin: int, move: Move) -> None:
        place = self.places.get(move.client)
        if self._forward(wire.READY, move) or place is None:
            pass
        elif move.rest[0] in place.sources and place.state is State.FETCHING:
            place.step(Input.READY)
            self._save(place)
            self._port.accept(place.client)

    def _on_end(self, origin: int, move: Move) -> None:
        place = self.places.get(move.client)
        if self._forward(wire.END, move) or place is None:
            pass
        elif move.rest[0] in place.sources:
            place.sources[move.rest[0]] = True
            self._save(place)
            self._may_drain(place)

    def _may_drain(self, place: Place) -> None:
        if place.state is State.TAKING and all(place.sources.values()):
            self._port.drain(place)
        else:
            self._look(place)

    def drained(self, client: str) -> None:
        """What was put aside is behind what came."""
        place = self.places.get(client)
        if place is not None and place.state is State.TAKING:
            place.step(Input.DRAINED)
            self._port.gate(place)
            self._save(place)
            self._look(place)

    def _on_left(self, origin: int, move: Move) -> None:
        source = move.rest[0]
        place = self.places.get(move.client)
        if self._forward(wire.LEFT, move) or place is None:
            pass
        elif source in place.sources:
            del place.sources[source]
            self._save(place)
            self._may_drain(place)
        self._source_left(move.client, source, move.key)

    def _look(self, place: Place) -> None:
        """Whether a newer claim can have it now, and whether the cut is over."""
        if self.places.get(place.client) is not place:
            return
        if place.state is State.ASKING and not place.open and place.until == NEVER and place.following is None:
            self._remove(place)
            return
        if place.following is not None and place.complete:
            (key, clean), place.following = place.following, None
            self._yield(place, key, clean)
            return
        cut = place.cut
        if cut.gated and place.complete and not cut.closed:
            everybody = self._port.known() | self.members | 1 << self.number
            if cut.marked(everybody):
                place.cut.gated = False
                self._port.gate(place)
                self._save(place)

    # ---- what is passed on

    def _forward(self, kind: str, move: Move) -> bool:
        """Pass on what came for a claim that was given up for a newer one, whether the client is here again or not."""
        at = self._forward_of(move.client, move.key, move.rest[0])
        if at is None:
            return False
        key = self.forwards[move.client][at].key
        if self._port.known() >> key[1] & 1:
            self._port.post(1 << key[1], kind, wire.encode(move.client, key, *move.rest))
        return True

    def _forward_of(self, client: str, key: Key, source: Key | None) -> int | None:
        """The index of the forward for what is sent for a claim: of the lowest claim that is not older, as claims are raised.
        source: one that is in it; None: one that some broker has not answered."""
        found = [
            (forward.older, index)
            for index, forward in enumerate(self.forwards.get(client, ()))
            if forward.older >= key and (forward.silent if source is None else source in forward.sources)
        ]
        return min(found)[1] if found else None

    def _add_forward(self, place: Place, key: Key) -> None:
        forward = Forward(place.key, key, place.claimed & ~place.asked, tuple(place.sources))
        self._set_forwards(place.client, [forward, *self.forwards.get(place.client, ())])

    def _set_forwards(self, client: str, forwards: list[Forward]) -> None:
        left = [forward for forward in forwards if forward.open]
        for key in {forward.key for forward in forwards} - {forward.key for forward in left}:
            self._answer(client, key, Said.NONE, more=bool(left))
        if left == self.forwards.get(client, []):
            return
        if left:
            self.forwards[client] = left
        else:
            self.forwards.pop(client, None)
        self._port.save_forwards(client, encode_forwards(left) if left else None)

    def _answered(self, client: str, brokers: int, key: Key, sources: tuple[Key, ...] = ()) -> None:
        """Brokers (a set) have answered a claim, with sessions or (none) with nothing: for its forward."""
        at = self._forward_of(client, key, None)
        if at is not None:
            forwards = list(self.forwards[client])
            forward = forwards[at]
            forwards[at] = forward._replace(silent=forward.silent & ~brokers, sources=forward.sources + sources)
            self._set_forwards(client, forwards)

    def _follow(self, client: str, key: Key, sources: tuple[Key, ...]) -> None:
        """Sessions have come for a claim that was raised since, and what was here has left: they go the same way."""
        if self._forward_of(client, key, sources[0]) is not None:
            return
        forwards = self.forwards.get(client, [])
        newer = [leave.key for leave in self.leaves.get(client, ()) if leave.older > key]
        newer += [forward.key for forward in forwards if forward.older > key]
        if newer:
            self._set_forwards(client, [Forward(key, max(newer), 0, sources), *forwards])

    def _redirect(self, client: str, key: Key) -> None:
        """What has not begun to come goes to the newest claim; a session that has goes on to where it went."""
        found = []
        for forward in self.forwards.get(client, []):
            if forward.key < key and forward.silent:
                found += [forward._replace(key=key, sources=()), forward._replace(silent=0)]
            else:
                found.append(forward)
        if found:
            self._set_forwards(client, found)

    def _source_left(self, client: str, source: Key, key: Key) -> None:
        """A session has come whole for a claim: for its forward."""
        at = self._forward_of(client, key, source)
        if at is not None:
            forwards = list(self.forwards[client])
            forward = forwards[at]
            forwards[at] = forward._replace(sources=tuple([one for one in forward.sources if one != source]))
            self._set_forwards(client, forwards)

    def _broker_gone(self, broker: int) -> None:
        for client, forwards in list(self.forwards.items()):
            left = [f._replace(silent=f.silent & ~(1 << broker), sources=tuple([s for s in f.sources if s[1] != broker])) for f in forwards]
            self._set_forwards(client, left)

    # ---- the holder's part

    def _on_claims(self, claims: list[Claim]) -> None:
        for claim in claims:
            self._saw(claim.key)
            self._on_claim(claim.client, claim.key, claim.clean)

    def _answer(self, client: str, key: Key, said: Said, known: Key | None = None, settled: bool = False, more: bool = False) -> None:
        if self._port.known() >> key[1] & 1:
            answer = Answer(client, key, said, known, settled, more, client in self.leaves)
            self._port.post(1 << key[1], wire.ANSWER, wire.encode_answer(answer))

    def _on_claim(self, client: str, key: Key, clean: bool) -> None:
        place = self.places.get(client)
        given = max([leave.key for leave in self.leaves.get(client, ())], default=key)
        if place is None and given > key:
            self._answer(client, key, Said.NEWER, given)  # a claim that is newer was here first
        elif place is None:
            self._redirect(client, key)
            self._answer(client, key, Said.NONE, more=any(forward.silent for forward in self.forwards.get(client, ())))
        elif key <= place.key:
            self._answer(client, key, Said.NEWER, place.key, place.state is not State.ASKING)
        elif place.following is not None and place.following[0] == key:
            self._answer(client, key, Said.COMING)  # the same claim once more
        elif place.following is not None and place.following[0] > key:
            self._answer(client, key, Said.NEWER, place.following[0], False)
        else:
            if place.following is not None:
                self._answer(client, place.following[0], Said.NEWER, key, False)
                place.following = None
            self._port.turn_away(client)
            if self.places.get(client) is not place:  # it ended with its connection
                self._on_claim(client, key, clean)
            elif clean or place.complete or (place.state is State.ASKING and not place.waiting):
                self._yield(place, key, clean)
            else:
                place.following = (key, clean)
                self._answer(client, key, Said.COMING)
                self._save(place)

    def _yield(self, place: Place, key: Key, clean: bool) -> None:
        """Give the session to the broker of a newer claim."""
        client = place.client
        assert key > place.key, "a session goes to newer claims only"
        if not self._port.known() >> key[1] & 1:
            self._look(place)
            return  # it was given up meanwhile
        self.counts["out"] += 1
        leave = Leave(client, key, place.key, place.cut)
        state = None
        if clean:
            self._port.discard(client)
        else:
            state = self._port.release(leave)
        if self.places.get(client) is place:
            self._remove(place)
        if place.open:
            self._add_forward(place, key)
        if state is None:
            self._answer(client, key, Said.NONE, more=client in self.forwards)
            return
        self.leaves.setdefault(client, []).append(leave)
        passing = any(forward.silent for forward in self.forwards.get(client, ()))
        self._port.post(1 << key[1], wire.SESSION, wire.encode(client, key, leave.older, tuple(place.sources), passing, state))
        self._port.save_leave(leave, encode_leave(leave))
        self._port.gate(leave)
        self._port.begin(leave)
        self._progress(leave)

    def flights_sent(self, leave: Leave) -> None:
        """The pieces with what was in flight are posted."""
        self._port.post(1 << leave.to, wire.READY, wire.encode(leave.client, leave.key, leave.older))

    def send(self, leave: Leave, flights: bool, items: bytes) -> None:
        """Post a piece of what waits; the caller deletes it in the same batch."""
        self._port.post(1 << leave.to, wire.PIECE, wire.encode(leave.client, leave.key, leave.older, flights, items))

    def idle(self, leave: Leave) -> None:
        """Nothing waits to be sent."""
        self._progress(leave)

    def _progress(self, leave: Leave) -> None:
        """Say `end` when all that is before the markers of members in reach is sent, `left` when that holds for all members."""
        if leave not in self.leaves.get(leave.client, ()) or not self._port.sent(leave):
            return
        own, live = 1 << self.number, self._port.live()
        if not live >> leave.to & 1:
            return  # else a broker that has just started would take few for all
        if not leave.ended and leave.cut.passed(live | own):
            leave.ended = True
            self._port.post(1 << leave.to, wire.END, wire.encode(leave.client, leave.key, leave.older))
            self._port.save_leave(leave, encode_leave(leave))
        if leave.ended and leave.cut.passed(self._port.known() | self.members | own):
            self._port.post(1 << leave.to, wire.LEFT, wire.encode(leave.client, leave.key, leave.older))
            self._drop(leave)

    def _drop(self, leave: Leave) -> None:
        left = self.leaves[leave.client]
        left.remove(leave)
        if not left:
            del self.leaves[leave.client]
        self._port.save_leave(leave, None)
        self._port.forget(leave)

    # ---- the origin's part

    def _on_fence(self, fence: Fence) -> None:
        if self._port.interest_of(fence.key[1]) >= fence.version:
            self._mark(fence)
        else:
            self._fences.append(fence)

    def interest_changed(self) -> None:
        """Others' interest has changed: perhaps some wait for that."""
        if self._fences:
            waiting, self._fences = self._fences, []
            for fence in waiting:
                self._on_fence(fence)

    def _mark(self, fence: Fence) -> None:
        """From here on this broker's messages go to the broker of the key; tell it and the holders, and act on it here."""
        to = (fence.holders | 1 << fence.key[1]) & self._port.known()
        if to:
            self._port.post(to, wire.MARKER, wire.encode(fence.client, fence.key))
        self._on_marker(self.number, fence.client, fence.key)

    def _on_marker(self, origin: int, client: str, key: Key) -> None:
        self._saw(key)
        place = self.places.get(client)
        if place is not None and place.cut.marker(origin, key):  # also while it is looked for: what comes later is not its either
            self._port.gate(place)
            self._save(place)
            self._look(place)
        for leave in list(self.leaves.get(client, ())):
            if leave.cut.marker(origin, key):
                self._port.save_leave(leave, encode_leave(leave))
                self._progress(leave)

    # ---- what comes from others

    def received(self, origin: int, kind: str, body: bytes) -> None:
        """A post of another broker. Raises ValueError when it is not as it should be."""
        found = wire.decode(kind, body)
        if isinstance(found, list):
            self._on_claims(found)
        elif isinstance(found, Answer):
            self._on_answer(origin, found)
        elif isinstance(found, Fence):
            self._saw(found.key)
            self._on_fence(found)
        elif kind == wire.SESSION:
            self._on_session(origin, found)
        elif kind == wire.PIECE:
            self._on_piece(origin, found)
        elif kind == wire.READY:
            self._on_ready(origin, found)
        elif kind == wire.MARKER:
            self._on_marker(origin, found.client, found.key)
        elif kind == wire.END:
            self._on_end(origin, found)
        else:
            self._on_left(origin, found)

    def returned(self, destination: int, kind: str, body: bytes) -> None:
        """A post to a broker that is given up: a session that was on its way to it stays here."""
        if kind not in (wire.SESSION, wire.PIECE):
            return
        found = wire.decode(kind, body)
        assert isinstance(found, Move)
        for leave in list(self.leaves.get(found.client, ())):
            if leave.to == destination:
                self._stay(leave)
        place = self.places.get(found.client)
        if place is not None and kind == wire.PIECE:
            self._port.take(place, False, found.rest[2])

    def _stay(self, leave: Leave) -> None:
        """Its new broker is no more."""
        place = self.places.get(leave.client)
        self.leaves[leave.client].remove(leave)
        self._port.save_leave(leave, None)
        if place is not None:  # the client came back before
            self._port.restore(leave, place)
            return
        place = self.places[leave.client] = Place(leave.client, self._key())
        place.state = State.HERE
        place.cut = leave.cut
        place.cut.again(place.key)
        self._port.restore(leave, place)
        self._port.gate(place)
        self._save(place)

    # ---- members come and go

    def member_up(self, number: int) -> None:
        """A member is in reach: claim what it may have, ask for markers that it has not set."""
        self._note_members()
        bit = 1 << number
        claims = []
        for place in list(self.places.values()):
            if not place.asked & bit:
                claims.append(Claim(place.client, place.key, place.clean))
                place.claimed |= bit
                self._save(place)
            if place.sources or (place.cut.fenced and not place.cut.marked(bit)):
                self._fence(place, bit, own=False)
        for start in range(0, len(claims), 1000):
            self._port.post(bit, wire.CLAIM, wire.encode_claims(claims[start : start + 1000]))

    def member_down(self, number: int) -> None:
        """A member is out of reach: nobody waits for it."""
        for place in list(self.places.values()):
            if place.state is State.ASKING and place.waiting >> number & 1:
                place.waiting &= ~(1 << number)
                self._resolve(place)
        self._progress_all()

    def member_gone(self, number: int) -> None:
        """A member is given up: what it held is lost, what was to go to it stays."""
        bit = 1 << number
        self.members &= ~bit
        self._save_known()
        for place in list(self.places.values()):
            lost = [source for source in place.sources if source[1] == number]
            for source in lost:
                del place.sources[source]
                if place.state is State.FETCHING:
                    place.step(Input.READY)
                    self._port.accept(place.client)
            place.asked |= bit
            self._may_drain(place)
        self._broker_gone(number)
        self._progress_all()

    def _progress_all(self) -> None:
        for leaves in list(self.leaves.values()):
            for leave in list(leaves):
                self._progress(leave)

    # ---- time

    def next_deadline(self) -> float | None:
        """When `tick` wants to be called."""
        return min([place.until for place in self._asking.values() if place.state is State.ASKING and place.until != NEVER], default=None)

    def tick(self) -> None:
        """Clients wait for members that do not answer only so long."""
        for client, place in list(self._asking.items()):
            if place.state is not State.ASKING or place.until == NEVER or self.places.get(client) is not place:
                del self._asking[client]
            elif place.until <= self.now:
                self._nobody(place)
