"""Where the sessions of roaming clients are, and how they move: one broker's part, sans-IO.

Strategy. The broker that a client comes to *claims* it at all others, unless it has the session. Who has it *releases* it: closes its
connection, sends the session, then all that waits, in pieces. The new broker subscribes, and asks all origins for a *marker* (`Cut`,
places.py): what came before it at the old broker is passed on, what comes behind it at the new one is put aside until the
old broker has said `end`. Brokers that are out of reach are claimed when they come back, and are cut off in the same way.

All messages are posts, in order and once, and what an input changes is in one commit with it; so a crash of any broker at any
time leaves a state from which the others go on. See docs/roaming.md for what is promised.

A client is known by its identifier and its owner together (`names.py`); `client` below is this name. Who claims a client identifier that
another owner has is told so by the broker that has it, and changes nothing there.

Invariants
- a session goes to claims of its owner only; one of nobody becomes the first owner's who claims it;
- of two claims the higher key wins, at every broker; a broker's key is above all that it has seen;
- an origin's messages are taken for a client by one session at a time, in the order of its markers;
- a session is handed on only when it is whole;
- what a clean start discards is ordered by its key, the *floor*: it travels with the session, and before it, to each newer claim; and a
  client is let in with a session that has come only when all members in reach have said what they know.

It does not know messages, sockets or stores; `Port` does.
"""

from __future__ import annotations

import itertools
from functools import partial

from ..wire.visited import mask_of
from . import wire
from .asking import Asking
from .fences import Fences
from .forwards import Forwards
from .leaves import Leaves
from .memory import Memory
from .names import Places, is_role, owner_of
from .places import NEVER, NO_KEY, Forward, Input, Known, Leave, Place, State, encode_place
from .port import Port
from .reach import Reach
from .wire import Answer, Fence, Key, Move, Said
from .words import Words

TOGETHER = 50  # clients that are let in by one `tick`
COMING = 60.0  # seconds that a session may need that is on its way to one of them


class Roamer:
    """All roaming clients at one broker. number: the broker's. wait: seconds that a client waits for the answers of all members that
    are known, before it gets a new session."""

    def __init__(self, number: int, port: Port, wait: float = 3.0) -> None:
        self.number = number
        self._port = port
        self._wait = wait
        self.places = Places()
        self._asking = Asking(self.places)
        self.memory = Memory(number, port)
        self.leaves = Leaves(port, self.memory)
        self._words = Words(port, self.leaves)
        self.forwards = Forwards(port, self.leaves, lambda client, key: self._words.answer(client, key, Said.NONE))
        self.fences = Fences(number, port, self._on_marker)
        self.reach = Reach(self.places, self._asking, port, partial(self._fence, own=False), self._save, self._no_longer_waits)
        self._moves = {
            wire.SESSION: self._on_session,
            wire.PIECE: self._on_piece,
            wire.READY: self._on_ready,
            wire.END: self._on_end,
            wire.LEFT: self._on_left,
        }
        self.now = 0.0
        self.counts = {"claims": 0, "in": 0, "out": 0, "merged": 0, "refused": 0, "denied": 0}

    # ---- restart

    def restore(self, places: list[Place], leaves: list[Leave], forwards: dict[str, list[Forward]], known: Known) -> None:
        """Go on where an earlier life was: sessions and what was put aside are there, nothing is connected."""
        self.memory.restore(known)
        self.forwards.of = forwards
        for place in places:
            self.memory.saw(place.key)
            self.places[place.client] = place
            if place.state is State.ASKING or place.pending != NO_KEY:
                self._asking.add(place)
            if not place.cut.whole or place.state is not State.HERE:
                self._port.gate(place)
        for leave in leaves:
            self.memory.saw(leave.key)
            self.leaves.restore(leave)
        for place in places:
            if place.state is State.TAKING and all(place.sources.values()):
                self._port.drain(place)

    def adopt(self, client: str) -> None:
        """A session that was here before clients could roam."""
        self.places[client] = Place.here(client, (0, self.number))
        self._save(self.places[client])

    # ---- owners

    def rename(self, client: str, name: str) -> bool:
        """Give a session of nobody, or one that an earlier release has placed, to its owner. False: it still moves, so it cannot be yet."""
        place = self.places[client]
        if not place.settled or name in self.places:
            return False
        del self.places[client]
        self._port.save_place(client, None)
        place.client = name
        self.places[name] = place
        place.claimed = place.asked = place.around = place.taken = 0  # under this name nobody was asked
        self._port.renamed(client, name)
        self._save(place)
        return True

    def adopt_here(self, client: str, name: str) -> bool:
        """`rename` for an owner who comes here. Others that have a session under this name are claimed."""
        if not self.rename(client, name):
            return False
        self._reclaim(self.places[name])
        return True

    def _rival(self, client: str, key: Key) -> Place | Leave | None:
        """What another owner has here with the client identifier of a claim. Of two who only ask for it the older claim has it."""
        owner = owner_of(client)
        if is_role(client):
            return None
        place = self.places.get(client)
        if place is not None and owner is None and place.state is not State.ASKING and not self._port.may_have(client, None):
            return place  # an earlier release has placed it
        for other in self.places.others(client) if place is None or place.state is State.ASKING else ():
            if other.state is State.ASKING:
                if other.waits and other.key < key:
                    return other
                continue
            nobodys = owner is not None and owner_of(other.client) is None and self._port.may_have(other.client, owner)
            if not nobodys or not self.rename(other.client, client):
                return other
        if owner is not None and (place is None or place.state is State.ASKING):
            return self._leaving(client)
        return None

    def _leaving(self, client: str) -> Leave | None:
        """A session of another owner on its way to a broker in reach, which may have denied nothing yet."""
        live = self._port.live()
        left = itertools.chain.from_iterable(self.leaves.of.others(client))
        return next((leave for leave in left if owner_of(leave.client) is not None and live >> leave.to & 1), None)

    def _deny(self, rival: Place | Leave, client: str, key: Key) -> None:
        """Answer a claim of a client identifier that another owner has."""
        if client not in self.places:
            self.forwards.redirect(client, key)
        if owner_of(client) is not None and owner_of(rival.client) is None and self._port.may_have(rival.client, owner_of(client)):
            self._words.answer(client, key, Said.COMING)  # it will be this owner's once it does not move any more
        else:
            self._words.answer(client, key, Said.NONE, rival.key, more=self.forwards.leads_to(client, key))

    # ---- clients

    def connect(self, client: str, clean: bool) -> bool:
        """A client comes. True: let it in now; False: it waits for `accept` or `turn_away`."""
        place = self.places.get(client)
        if clean:
            self.leaves.discarded(client, self.memory.next_key())
        if place is None:
            place = self.places[client] = Place(client, self.memory.next_key(), clean)
            self.counts["claims"] += 1
            self._claim(place, self._port.live())
        elif clean:
            self._fresh(place)
        if place.state is State.HERE and place.cut.closed:
            self._reclaim(place)
        if place.state is State.ASKING and place.lost and place.following is None:
            self._claim_again(place)
        if place.state is State.ASKING and place.following is None and (not place.waiting or self.now >= place.until):
            place.taken = 0
            self._claim(place, self._port.live())  # those that have answered too: another owner may have come there since
        if place.state is State.ASKING and place.following is None and not self._may_wait(place):
            self._nobody(place, waits=False)
        if place.pending != NO_KEY and not place.waiting:
            self._claim(place, self._port.live() & ~place.asked)
            self._settle(place)
        if place.state is State.ASKING:
            self._save(place)
        return place.state in (State.HERE, State.TAKING) and place.pending == NO_KEY

    def _may_wait(self, place: Place) -> bool:
        """Whether a member may still say that it has the session, or (clean) has to discard it, and there is time for that."""
        return bool(place.waiting if place.clean else self._late(place)) and self.now < place.until

    def _claim(self, place: Place, brokers: int) -> None:
        place.waiting, place.coming = brokers, 0
        place.claimed |= brokers
        place.until = self.now + self._wait
        if place.state is State.ASKING or place.pending != NO_KEY:
            self._asking.add(place)
        if brokers:
            self._port.send_to_brokers(brokers, wire.CLAIM, wire.encode_claims(place.claims))

    def _claim_again(self, place: Place) -> None:
        """A client whose session is looked for gets a key above those seen since."""
        clean = place.clean and place.until != NEVER
        place.begin(self.memory.next_key())
        place.floor = place.key if clean else place.floor
        self._claim(place, self._port.live())
        self._save(place)

    def _reclaim(self, place: Place) -> None:
        """Some origins were told of a newer claim that never came here, and the client is back: go above it."""
        place.again(self.memory.next_key())
        self._decline(place)
        place.cut.again(place.key)
        self._claim(place, self._port.live())
        self._fence(place, self._port.live())
        self._port.gate(place)
        self._save(place)

    def _fresh(self, place: Place) -> None:
        """The client wants a clean start."""
        if place.state is not State.ASKING:
            self._port.discard(place.client)
        if place.state is State.HERE and place.cut.whole and not place.open and not self._late(place):
            return  # nobody else has anything
        place.empty()
        place.begin(self.memory.next_key())
        place.floor = place.key
        self._decline(place)
        self._words.decline_all(place)
        self._claim(place, self._port.live())
        self._save(place)

    def _decline(self, place: Place) -> None:
        """A claim that waits for the session is older than the place's now."""
        if place.following is not None:
            self._newer(place.client, place.following[0], place.key)
            place.following = None

    def ended(self, client: str) -> None:
        """A session that was here is no more. What may still come of an older one finds a place."""
        place = self.places.get(client)
        if place is not None and place.following is not None:
            self._go_on(place)
        elif place is not None:
            self._over(place)

    def _over(self, place: Place) -> None:
        """There is no session. One that may still come finds a place, and is dropped, if a clean start was here before."""
        if place.open:
            place.empty()
            place.waiting, place.until = 0, NEVER
            if place.sources and not place.cut.fenced:  # who sends them waits for markers
                self._fence(place, self._port.live())
            self._save(place)
        else:
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
        """Keep a place with its session, and one of a session that is not kept while something may still come for it."""
        if self.places.get(place.client) is place:
            kept = self._port.keeps(place.client) or place.owed
            self._port.save_place(place.client, encode_place(place) if kept else None)

    def _late(self, place: Place) -> int:
        """Members that have not answered the place's claim."""
        return self.memory.others() & ~(place.asked | place.taken)

    # ---- the place's part

    def _nobody(self, place: Place, waits: bool = True) -> None:
        """No member in reach has the session: it is new. Those out of reach may have it and are cut off. waits: a connection may wait."""
        place.waiting = 0
        self.memory.note_members()
        if place.following is not None:
            self._go_on(place)
            return
        if place.taken:
            self.counts["denied"] += 1
            self._port.deny(place.client)
            self._over(place)
            return
        place.step(Input.NOBODY)
        if waits and not self._port.accept(place.client):
            self._over(place)
            return
        late = self._late(place) | place.around
        if late and not place.clean:
            place.cut.gated = True
            self._fence(place, self._port.live())
            self._port.gate(place)
        self._save(place)

    def _settle(self, place: Place) -> None:
        """If all have said what they know of what has come: its messages come here from now on, and the client that waits is let in."""
        if self.places.get(place.client) is not place or place.awaits(self.now):
            return
        if place.pending != NO_KEY and place.state is not State.ASKING:
            place.pending = NO_KEY
            self._fence(place, self._port.live())
            self._port.gate(place)
            self._save(place)
        if place.state in (State.TAKING, State.HERE):
            self._port.accept(place.client)

    def _discarded(self, place: Place, floor: Key) -> None:
        """There was a clean start before the place's claim. What has come of older sessions, and is not the client's yet, goes."""
        if floor <= place.floor:
            return
        place.floor = floor
        self._save(place)
        if NO_KEY < place.pending < floor:
            self._words.decline_all(place)
            self._empty(place)

    def _empty(self, place: Place) -> None:
        """What has come is nobody's."""
        self._port.discard(place.client)
        place.empty()
        self._save(place)
        if not self._resolve(place):
            self._look(place)

    def _resolve(self, place: Place) -> bool:
        """Whether nobody will say any more that it has the session; then what follows is done."""
        if place.state is not State.ASKING or place.until == NEVER or place.waiting:
            return False
        if place.following is None and self._may_wait(place):
            return False
        self._nobody(place)
        return True

    def _fence(self, place: Place, brokers: int, own: bool = True) -> None:
        """Ask these origins for markers, which go to all that may have a session of the client too, and set this broker's own (own)."""
        holders = self._late(place) | place.around | mask_of([broker for _, broker in place.sources])
        fence = Fence(place.client, place.key, self._port.interest_of(self.number), holders)
        place.cut.fenced = True
        if brokers:
            self._port.send_to_brokers(brokers, wire.FENCE, wire.encode_fence(fence))
        if own:
            self.fences.mark(fence)

    def _on_answer(self, origin: int, answer: Answer) -> None:
        if answer.said is not Said.COMING and not answer.more:
            self.forwards.answered(answer.client, 1 << origin, answer.key, newer=answer.known if answer.said is Said.NEWER else None)
        place = self.places.get(answer.client)
        if place is None or place.key != answer.key:
            return
        if (answer.leaving or answer.said is Said.NEWER) and not place.clean:  # whatever follows, it has to hear of the markers
            place.around |= 1 << origin
            if place.cut.fenced:
                self._fence(place, self._port.live())
        if answer.said is Said.NONE and answer.known is not None:
            self._on_denial(place, 1 << origin)
            return
        if answer.said is Said.COMING:
            place.until = self.now + COMING  # it will be passed on
            place.coming |= 1 << origin
            self._settle(place)
            return
        if not answer.more:
            place.asked |= 1 << origin
        if answer.said is Said.NEWER and answer.known is not None:
            self.memory.saw(answer.known)
            if answer.known[1] != origin:
                self._words.tell(place, answer.known[1])
            if answer.settled and place.state is State.ASKING and place.following is None and place.waiting:
                self._claim_again(place)  # that one is older in fact: clocks differ
                return
            if place.state is State.ASKING:
                place.lost = True
                self._port.turn_away(place.client)  # the newer one gets the session; what comes here is passed on to it
            else:
                self._on_claim(place.client, answer.known, False)  # two sessions, by clocks that differ: they become one there
                return
        place.waiting &= ~(1 << origin)
        if self._resolve(place):
            return
        self._save(place)
        self._settle(place)
        self._look(place)

    def _on_denial(self, place: Place, bit: int) -> None:
        """Another owner has the client identifier there. If this one has a session nowhere, its client is refused; else both go on."""
        if place.state is not State.ASKING:
            self._port.contested(place.client, bit.bit_length() - 1)
        place.taken |= bit
        place.claimed &= ~bit
        place.waiting &= ~bit
        if not self._resolve(place):
            self._save(place)
            self._settle(place)
            self._look(place)

    def _on_session(self, origin: int, move: Move) -> None:
        source, more, passing, state = move.rest
        holder = source[1]
        answered = 1 << holder if origin == holder and not passing else 0
        place = self.places.get(move.client)
        self.forwards.answered(move.client, answered, move.key, (source, *more))
        if place is None:
            self.forwards.follow(move.client, move.key, (source, *more))
        if self.forwards.pass_on(wire.SESSION, move):
            return
        if place is None:
            place = self.places[move.client] = Place(move.client, move.key)
        place.asked |= answered
        place.waiting &= ~(1 << origin)
        if place.drops(source):
            self._words.decline(place, source)
            if not self._resolve(place):
                self._save(place)
                self._settle(place)
                self._look(place)
            return
        place.sources[source] = False
        for other in more:
            place.sources.setdefault(other, True)
        self.memory.note_members()
        merge = place.state is not State.ASKING
        self.counts["merged" if merge else "in"] += 1
        if not merge:
            place.step(Input.SESSION)
            place.cut.gated = True
        if not merge or place.pending != NO_KEY:
            place.pending = max(place.pending, source)
            self._asking.add(place)
        self._port.install(place, state, merge)
        if place.pending == NO_KEY:
            self._fence(place, self._port.live())
        self._port.gate(place)
        self._save(place)
        self._settle(place)

    def _on_piece(self, origin: int, move: Move) -> None:
        source, flights, items = move.rest
        place = self.places.get(move.client)
        passed = self.forwards.pass_on(wire.PIECE, move)
        if not passed and place is not None and place.state is not State.ASKING and not place.drops(source):
            self._port.take(place, flights and place.state is State.FETCHING, items)

    def _on_ready(self, origin: int, move: Move) -> None:
        place = self.places.get(move.client)
        passed = self.forwards.pass_on(wire.READY, move)
        if not passed and place is not None and move.rest[0] in place.sources and place.state is State.FETCHING:
            place.step(Input.READY)
            self._save(place)
            self._settle(place)

    def _on_end(self, origin: int, move: Move) -> None:
        place = self.places.get(move.client)
        if not self.forwards.pass_on(wire.END, move) and place is not None and move.rest[0] in place.sources:
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
        if source[1] == self.number != move.key[1]:
            self.leaves.declined(move.client, source)
            return
        place = self.places.get(move.client)
        if self.forwards.pass_on(wire.LEFT, move) or place is None:
            pass
        elif source in place.sources:
            del place.sources[source]
            if place.state is State.FETCHING and not place.sources:  # it was discarded where it was, before all of it was sent
                self._empty(place)
            else:
                self._save(place)
                self._may_drain(place)
        self.forwards.source_left(move.client, source, move.key)

    def _look(self, place: Place) -> None:
        """Whether a newer claim can have it now, and whether the cut is over."""
        known = self.places.get(place.client) is place
        if known and place.state is State.ASKING and not place.open and place.until == NEVER and place.following is None:
            self._over(place)
        elif known and place.following is not None and place.complete:
            self._go_on(place)
        elif known:
            self._look_at_cut(place)

    def _look_at_cut(self, place: Place) -> None:
        if place.floor not in (NO_KEY, place.key) and not (place.open or place.around or self._late(place)):
            place.floor = NO_KEY  # nobody has anything older
        cut = place.cut
        if cut.gated and place.complete and not cut.closed and cut.marked(self.memory.everybody()):
            place.cut.gated = False
            self._port.gate(place)
            self._save(place)

    # ---- the holder's part

    def _on_claim(self, client: str, key: Key, clean: bool) -> None:
        if clean:
            self.leaves.discarded(client, key)
        rival = self._rival(client, key)
        if rival is not None:
            self._deny(rival, client, key)
            return
        place = self.places.get(client)
        given = max([leave.key for leave in self.leaves.of.get(client, ())], default=key)
        if place is None and given > key:
            self._newer(client, key, given, clean=clean)  # a claim that is newer was here first
        elif place is None:
            self.forwards.redirect(client, key)
            self._words.answer(client, key, Said.NONE, more=self.forwards.leads_to(client, key, clean))
        elif key <= place.key:
            self._newer(client, key, place.key, place.state is not State.ASKING, clean)
            if clean:
                self._discarded(place, key)
        elif place.following is not None and place.following[0] == key:
            self._words.answer(client, key, Said.COMING)  # the same claim once more
        elif place.following is not None and place.following[0] > key:
            self._newer(client, key, place.following[0], clean=clean)
            if clean:  # what is here is older than that
                newer, place.following, place.floor = place.following[0], None, key
                self._yield(place, newer, True)
        else:
            if place.following is not None:
                self._newer(client, place.following[0], key)
                place.following = None
            self._port.turn_away(client)
            if self.places.get(client) is not place:  # it ended with its connection
                self._on_claim(client, key, clean)
            elif clean or place.complete or (place.state is State.ASKING and (place.clean or not place.waiting)):
                self._yield(place, key, clean)
            else:
                place.following = (key, clean)
                self._words.tell(place, key[1])
                self._words.answer(client, key, Said.COMING)
                self._save(place)

    def _newer(self, client: str, key: Key, known: Key, settled: bool = False, clean: bool = False) -> None:
        """Answer a claim that there is a newer one. What is passed on to it goes on coming, and its end is another answer."""
        self._words.answer(client, key, Said.NEWER, known, settled, more=self.forwards.leads_to(client, key, clean))

    def _go_on(self, place: Place) -> None:
        """The claim that waits gets the session."""
        assert place.following is not None
        (key, clean), place.following = place.following, None
        self._yield(place, key, clean)

    def _yield(self, place: Place, key: Key, clean: bool) -> None:
        """Give the session to the broker of a newer claim."""
        client = place.client
        assert key > place.key, "a session goes to newer claims only"
        if not self._port.known() >> key[1] & 1:
            self._look(place)
            return  # it was given up meanwhile
        self.counts["out"] += 1
        self._words.tell(place, key[1])
        leave = Leave(client, key, place.key, place.cut)
        if clean:
            self._port.discard(client)
        state = None if clean else self._port.release(leave)
        if self.places.pop(client, None) is not None:
            self._port.save_place(client, None)
        if place.open:
            self.forwards.add(place, key)
            if missed := place.claimed & ~place.asked & ~self._port.live() & self._port.known():  # an earlier claim, but not this one
                self._port.send_to_brokers(missed, wire.CLAIM, wire.encode_claims(place.claims))
        if state is None:
            self._words.answer(client, key, Said.NONE, more=self.forwards.leads_to(client, key))
            return
        self.leaves.begin(leave, tuple(place.sources), self.forwards.leads_to(client, key), state)

    # ---- what comes from others

    def _on_marker(self, origin: int, client: str, key: Key) -> None:
        self.memory.saw(key)
        place = self.places.get(client)
        if place is not None and place.cut.marker(origin, key):  # also while it is looked for: what comes later is not its either
            self._port.gate(place)
            self._save(place)
            self._look(place)
        self.leaves.marker(origin, client, key)

    def received(self, origin: int, kind: str, body: bytes) -> None:
        """A post of another broker. Raises ValueError when it is not as it should be."""
        found = wire.decode(kind, body)
        if isinstance(found, list):
            for claim in found:
                self.memory.saw(claim.key)
                self._on_claim(*claim)
        elif isinstance(found, Answer):
            self._on_answer(origin, found)
        elif isinstance(found, Fence):
            self.memory.saw(found.key)
            self.fences.add(found)
        elif kind == wire.MARKER:
            self._on_marker(origin, found.client, found.key)
        else:
            self._moves[kind](origin, found)

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
        place = self.places[leave.client] = Place.here(leave.client, self.memory.next_key(), leave)
        self._port.restore(leave, place)
        self._port.gate(place)
        self._save(place)

    # ---- members come and go

    def member_up(self, number: int) -> None:
        """A member is in reach: claim what it may have, ask for markers that it has not set. `reach` has to go on."""
        self.memory.note_members()
        self.reach.up(number)

    def member_down(self, number: int) -> None:
        """A member is out of reach: nobody waits for it. `reach` has to go on."""
        self.reach.down(number)
        self.leaves.progress_all()

    def _no_longer_waits(self, place: Place) -> None:
        """A member that its client waited for is out of reach."""
        if not self._resolve(place):
            self._settle(place)

    def member_gone(self, number: int) -> None:
        """A member is given up: what it held is lost, what was to go to it stays."""
        bit = 1 << number
        self.memory.gone(number)
        for place in list(self.places.values()):
            lost = [source for source in place.sources if source[1] == number]
            for source in lost:
                del place.sources[source]
                if place.state is State.FETCHING:
                    place.step(Input.READY)
                    self._settle(place)
            place.asked |= bit
            if not place.settled or place.cut.gated or place.floor != NO_KEY:
                self._may_drain(place)
        self.forwards.broker_gone(number)
        self.leaves.progress_all()

    # ---- time

    def next_deadline(self) -> float | None:
        """When `tick` wants to be called."""
        return self._asking.next()

    def tick(self) -> None:
        """Clients wait for members that do not answer only so long. Where many have waited long enough, the rest is for the next call."""
        for place in self._asking.due(self.now, TOGETHER):
            if place.state is State.ASKING:
                self._nobody(place)
            else:
                place.waiting = 0
                self._settle(place)
