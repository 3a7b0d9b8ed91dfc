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

from ..visited import mask_of
from . import wire
from .forwards import Forwards
from .leaves import Leaves
from .memory import Memory
from .places import Cut, Forward, Input, Known, Leave, Place, State, encode_place
from .port import Port
from .wire import Answer, Claim, Fence, Key, Move, Said

NEVER = float("inf")
COMING = 60.0  # seconds that a session may need that is on its way to one of them


class Roamer:
    """All roaming clients at one broker. number: the broker's. wait: seconds that a client waits for the answers of all members that
    are known, before it gets a new session."""

    def __init__(self, number: int, port: Port, wait: float = 3.0) -> None:
        self.number = number
        self._port = port
        self._wait = wait
        self.places: dict[str, Place] = {}
        self._asking: dict[str, Place] = {}  # those that are looked for, and some that were
        self._memory = Memory(number, port)
        self.leaves = Leaves(port, self._memory)
        self._forwards = Forwards(port, self.leaves, lambda client, key, more: self._answer(client, key, Said.NONE, more=more))
        self._fences: list[Fence] = []  # whose interest is not known yet
        self.now = 0.0
        self.counts = {"claims": 0, "in": 0, "out": 0, "merged": 0, "refused": 0}

    @property
    def wall(self) -> int:
        """Milliseconds since 1970; the caller sets it, as it does `now`."""
        return self._memory.wall

    @wall.setter
    def wall(self, ms: int) -> None:
        self._memory.wall = ms

    # ---- restart

    def restore(self, places: list[Place], leaves: list[Leave], forwards: dict[str, list[Forward]], known: Known) -> None:
        """Go on where an earlier life was: sessions and what was put aside are there, nothing is connected."""
        self._memory.restore(known)
        self._forwards.of = forwards
        for place in places:
            self._memory.saw(place.key)
            self.places[place.client] = place
            if place.state is State.ASKING:
                self._asking[place.client] = place
            if not place.cut.whole or place.state is not State.HERE:
                self._port.gate(place)
        for leave in leaves:
            self._memory.saw(leave.key)
            self.leaves.restore(leave)
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
            place = self.places[client] = Place(client, self._memory.next_key())
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
        place.key = self._memory.next_key()
        place.claimed = place.asked = place.around = 0
        place.cut, place.lost = Cut(place.key), False
        self._claim(place, self._port.live())
        self._save(place)

    def _reclaim(self, place: Place) -> None:
        """Some origins were told of a newer claim that never came here, and the client is back: go above it."""
        place.key = self._memory.next_key()
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
        place.key = self._memory.next_key()
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
        return self._memory.others() & ~place.asked

    # ---- the place's part

    def _nobody(self, place: Place, waits: bool = True) -> None:
        """No member in reach has the session: it is new. Those out of reach may have it and are cut off. waits: a connection may wait."""
        place.waiting = 0
        self._memory.note_members()
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
            self._forwards.answered(answer.client, 1 << origin, answer.key)
        place = self.places.get(answer.client)
        if place is None or place.key != answer.key:
            return
        if answer.said is Said.COMING:
            place.until = self.now + COMING  # it will be passed on
            return
        if answer.said is Said.NEWER and answer.known is not None:
            self._memory.saw(answer.known)
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
        self._forwards.answered(move.client, answered, move.key, (source, *more))
        if place is None:
            self._forwards.follow(move.client, move.key, (source, *more))
        if self._forwards.pass_on(wire.SESSION, move):
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
        self._memory.note_members()
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
        if self._forwards.pass_on(wire.PIECE, move) or place is None:
            pass
        elif not place.clean and place.state is not State.ASKING:
            self._port.take(place, flights and place.state is State.FETCHING, items)

    def _on_ready(self, origin: int, move: Move) -> None:
        place = self.places.get(move.client)
        if self._forwards.pass_on(wire.READY, move) or place is None:
            pass
        elif move.rest[0] in place.sources and place.state is State.FETCHING:
            place.step(Input.READY)
            self._save(place)
            self._port.accept(place.client)

    def _on_end(self, origin: int, move: Move) -> None:
        place = self.places.get(move.client)
        if self._forwards.pass_on(wire.END, move) or place is None:
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
        if self._forwards.pass_on(wire.LEFT, move) or place is None:
            pass
        elif source in place.sources:
            del place.sources[source]
            self._save(place)
            self._may_drain(place)
        self._forwards.source_left(move.client, source, move.key)

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
        if cut.gated and place.complete and not cut.closed and cut.marked(self._memory.everybody()):
            place.cut.gated = False
            self._port.gate(place)
            self._save(place)

    # ---- the holder's part

    def _on_claims(self, claims: list[Claim]) -> None:
        for claim in claims:
            self._memory.saw(claim.key)
            self._on_claim(claim.client, claim.key, claim.clean)

    def _answer(self, client: str, key: Key, said: Said, known: Key | None = None, settled: bool = False, more: bool = False) -> None:
        if self._port.known() >> key[1] & 1:
            answer = Answer(client, key, said, known, settled, more, client in self.leaves.of)
            self._port.post(1 << key[1], wire.ANSWER, wire.encode_answer(answer))

    def _on_claim(self, client: str, key: Key, clean: bool) -> None:
        place = self.places.get(client)
        given = max([leave.key for leave in self.leaves.of.get(client, ())], default=key)
        if place is None and given > key:
            self._answer(client, key, Said.NEWER, given)  # a claim that is newer was here first
        elif place is None:
            self._forwards.redirect(client, key)
            self._answer(client, key, Said.NONE, more=self._forwards.silent(client))
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
            self._forwards.add(place, key)
        if state is None:
            self._answer(client, key, Said.NONE, more=client in self._forwards.of)
            return
        self.leaves.begin(leave, tuple(place.sources), self._forwards.silent(client), state)

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
        self._memory.saw(key)
        place = self.places.get(client)
        if place is not None and place.cut.marker(origin, key):  # also while it is looked for: what comes later is not its either
            self._port.gate(place)
            self._save(place)
            self._look(place)
        self.leaves.marker(origin, client, key)

    # ---- what comes from others

    def received(self, origin: int, kind: str, body: bytes) -> None:
        """A post of another broker. Raises ValueError when it is not as it should be."""
        found = wire.decode(kind, body)
        if isinstance(found, list):
            self._on_claims(found)
        elif isinstance(found, Answer):
            self._on_answer(origin, found)
        elif isinstance(found, Fence):
            self._memory.saw(found.key)
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
        for leave in list(self.leaves.of.get(found.client, ())):
            if leave.to == destination:
                self._stay(leave)
        place = self.places.get(found.client)
        if place is not None and kind == wire.PIECE:
            self._port.take(place, False, found.rest[2])

    def _stay(self, leave: Leave) -> None:
        """Its new broker is no more."""
        place = self.places.get(leave.client)
        self.leaves.remove(leave)
        if place is not None:  # the client came back before
            self._port.restore(leave, place)
            return
        place = self.places[leave.client] = Place(leave.client, self._memory.next_key())
        place.state = State.HERE
        place.cut = leave.cut
        place.cut.again(place.key)
        self._port.restore(leave, place)
        self._port.gate(place)
        self._save(place)

    # ---- members come and go

    def member_up(self, number: int) -> None:
        """A member is in reach: claim what it may have, ask for markers that it has not set."""
        self._memory.note_members()
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
        self.leaves.progress_all()

    def member_gone(self, number: int) -> None:
        """A member is given up: what it held is lost, what was to go to it stays."""
        bit = 1 << number
        self._memory.gone(number)
        for place in list(self.places.values()):
            lost = [source for source in place.sources if source[1] == number]
            for source in lost:
                del place.sources[source]
                if place.state is State.FETCHING:
                    place.step(Input.READY)
                    self._port.accept(place.client)
            place.asked |= bit
            self._may_drain(place)
        self._forwards.broker_gone(number)
        self.leaves.progress_all()

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
