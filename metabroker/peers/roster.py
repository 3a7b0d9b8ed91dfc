"""Which of several metabrokers answers: the owner. Every metabroker has one roster, and all come to the same answer.

A connect request has one owner: who has a session of this remote and account already; else, of those whose policy reaches the remote, the
one at the client's site; else the one with the highest hash (rendezvous hashing: HRW, Thaler and Ravishankar). So a connection is shared
by all sessions of a remote and account, and a metabroker that comes or goes changes nothing for the others. A session has its owner's
number in its identifier.

A newcomer *joins* first: it asks everybody for their sessions, and answers when each of them counts it in. Until then requests wait in it.
Those that another one owns are remembered for a while: if that one dies without a word of them, they are decided again.

Where metabrokers keep their sessions in one database (`shared`), each has a *home* there, named by its number. The home of one that is
silent is taken by another one, if the lease of the home can be had: that decides, not silence. Requests that concern sessions in it wait
until then, and so does a newcomer that finds homes of which it does not know whose they are. One whose lease stays is only cut off from us:
its sessions are its own, and connect requests wait for it no longer than a lease lasts.

Silence is measured by our own beats: a metabroker is dead when `SILENT` of ours have come back to us since it last said something. So
nobody is dead because we, or our way to the community broker, stood still.

What it does not know: sockets, time, sessions beyond their names.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple

from ...base.metabroker import PEER
from .members import LARGEST, Member, Note, Reach, account_of, read, read_reaches, written, written_reaches

BEAT, ALONE = 0.25, 1.0  # seconds between two; while there is nobody else, as far as we know
SILENT, QUIET = 6, 2  # of our own beats: one is dead; its home is tried
ASIDE = 1000  # requests that wait, or are remembered
REMEMBERED = 5.0  # seconds
PATIENCE = 1.0  # seconds after which a newcomer does without an echo of its own words, ...
MISSED = 20  # looks for a home that is not there any more
SETTLED = 8.0  # ... and after which it leaves homes alone whose leases others have; the same for the home of one that is silent
RANDOM = 10  # bytes of a session's identifier that nobody can guess
DIGITS = 32  # of a session's identifier: 8 for the number, 4 for the epoch


class Said(NamedTuple):
    """A message to all metabrokers."""

    topic: str
    body: bytes
    qos: int = 1
    retain: bool = False


class Request(NamedTuple):
    """A request as it came. properties: of its PUBLISH."""

    topic: str
    body: bytes
    properties: dict[int, Any]


class Waiting(NamedTuple):
    """A connect request of which another metabroker is the owner. until: it is forgotten."""

    request: Request
    client: str
    key: bytes
    until: float


class Roster:
    """See the module. number, epoch: see `Member`. reaches: of our policy. joining: there may be others; False: we answer at once.

    shared: sessions are in a database that others take them over from.
    dead: members that have died since this was read. again: requests that are to be decided now.
    """

    def __init__(self, number: int = 0, reaches: tuple[Reach, ...] = (), where: str = "", site: str = "", joining: bool = False) -> None:
        self.me = Member(number, 0, where, site, reaches, count=0, active=not joining)
        self.members: dict[int, Member] = {}
        self.dead: list[Member] = []
        self.again: list[Request] = []
        self.away: dict[str, Note] = {}  # durable sessions that wait for their owner
        self.patient = False  # others may be slow to be heard: in a mesh whose links are not up yet
        self.leaving = False
        self.deaf = False  # our own words do not come back
        self.twin = False  # another one lives in our place, and stays
        self._connections = 0
        self._buried: dict[int, int] = {}  # those that were in our place, and which connection of ours it was when we heard of them first
        self._said: list[Said] = []
        self._parked: list[Request] = []
        self._others: list[Waiting] = []
        self._beats = 0  # of our own, that have come back
        self._echo = False
        self._connected: float | None = None
        self._next_beat = 0.0
        self._met = False
        self._moved: dict[int, int] = {}  # number -> how often its clients were told to connect again
        self._heeded: set[tuple[int, int, int]] = set()
        self.outlived = False  # others have told clients of ours to connect again
        self.compare = False  # others may have sessions of clients that we have older ones of
        self.shared = self._unsettled = False
        self._pending: dict[int, Member] = {}  # silent, and nobody has said that it has taken their homes
        self._until: dict[int, float] = {}  # when connect requests do not wait for that any more
        self._now = 0.0
        self._missed: dict[int, int] = {}  # how many looks have not found these homes
        self._homes: set[int] | None = None  # of others; None: nobody has looked
        self._held: list[Request] = []  # until they are taken

    @property
    def changed(self) -> bool:
        """Whether there is something new: dead members, requests to decide, that others outlived us, sessions to compare."""
        return bool(self.dead or self.again or self.outlived or self.compare)

    def share(self) -> None:
        """Sessions are in a database that others take them over from."""
        self.shared = self._unsettled = True

    # What is said

    def take(self) -> list[Said]:
        """What is to be said, in order."""
        said, self._said = self._said, []
        return said

    @property
    def topic(self) -> str:
        """Where we say it."""
        return f"{PEER}{self.me.number:08x}"

    def _say(self, what: str, qos: int = 1, retain: bool = False, **items: Any) -> None:
        self._said.append(Said(self.topic, written(what, epoch=self.me.epoch, **items), qos, retain))

    def _here(self) -> None:
        me = self.me
        self._say("here", retain=True, where=me.where, site=me.site, reaches=written_reaches(me.reaches))

    def _state(self) -> None:
        me = self.me
        sessions = [(session, note.client, note.key, note.durable) for session, note in me.sessions.items()]
        items: dict[str, Any] = {"where": me.where, "site": me.site, "reaches": written_reaches(me.reaches), "counted": list(self.members)}
        items["moved"] = list(self._moved.items())
        items["at"] = {session: note.at for session, note in me.durable()}
        self._say("state", count=me.count, active=me.active, sessions=sessions, **items)

    def connected(self, now: float) -> None:
        """The community broker takes our words; we hear those of others."""
        self._connected = now
        self._connections += 1
        for member in self.members.values():
            member.heard = self._beats
        self._here()
        self._say("ask")

    def disconnected(self) -> None:
        """We hear nobody."""
        self._connected = None

    def leave(self) -> None:
        """We go."""
        if not self.leaving:
            self.leaving = True
            self._said.append(Said(self.topic, b"", 1, retain=True))

    def refused(self) -> None:
        """The community broker does not let us hear others, or them hear us."""
        self._echo, self.deaf = True, True
        self._look()

    # Our sessions

    def begin(self, session: str, client: str, key: bytes, durable: bool) -> None:
        """We have a session."""
        note = Note(client, key, durable)
        self.me.begin(session, note)
        self.me.count += 1
        self.away.pop(session, None)
        self._others = [one for one in self._others if (one.client, one.key) != (client, key)]
        if self.members:
            self._say("begin", count=self.me.count, session=session, client=client, key=key, durable=durable)

    def end(self, session: str) -> None:
        """We have it no longer."""
        if session in self.me.sessions:
            self.me.end(session)
            self.me.count += 1
            if self.members:
                self._say("end", count=self.me.count, session=session)

    def answered(self, session: str, at: float) -> None:
        """Its client has been told that we have it."""
        if (note := self.me.sessions.get(session)) is not None:
            self.me.sessions[session] = note._replace(at=at)

    def outdated(self) -> list[str]:
        """Durable sessions of ours whose clients have newer ones, begun at metabrokers that did not hear us then."""
        self.compare = False
        newest: dict[tuple[str, bytes], tuple[float, int, str]] = {}
        for member in (self.me, *self.members.values()):
            for session, note in member.durable():
                place, rank = (note.client, note.key), (note.at, member.number, session)
                newest[place] = max(rank, newest.get(place, rank))
        return [session for session, note in self.me.durable() if newest[note.client, note.key][2] != session]

    def new_session(self, random: bytes) -> str:
        """An identifier. random: `RANDOM` bytes."""
        return f"{self.me.number:08x}{self.me.epoch & 0xFFFF:04x}{random.hex()}"

    # What others say

    def hear(self, topic: str, body: bytes, now: float) -> None:
        """A message has come."""
        try:
            number = int(topic.removeprefix(PEER), 16)
        except ValueError:
            return
        if number == self.me.number:
            self._hear_ourselves(body)
            return
        if not body:
            self._die(number)
            return
        said = read(body) if len(body) <= LARGEST else None
        if said is None:
            return
        member = self.members.get(number)
        if member is not None and said["epoch"] != member.epoch:
            if said["epoch"] < member.epoch:
                return
            self._die(number)
            member = None
        if member is None:
            member = self.members[number] = Member(number, said["epoch"])
            self._met = True
            self._state()
            self._say("ask")
            self._next_beat = now
        member.heard = self._beats
        try:
            self._take_word(member, said)
        except (KeyError, ValueError, TypeError):
            return
        self._look()

    def _hear_ourselves(self, body: bytes) -> None:
        said = read(body)
        if said is None:
            if not body and not self.leaving and self._connected is not None:  # somebody takes us for dead
                self._here()
                self._state()
            return
        self._echo, self.deaf = True, False
        if said.get("what") == "beat":
            self._beats += 1
            for number in [one.number for one in self.members.values() if self._beats - one.heard >= SILENT]:
                self._said.append(Said(f"{PEER}{number:08x}", b"", 1, retain=True))
                self._die(number)
        self._look()

    def _take_word(self, member: Member, said: dict[str, Any]) -> None:
        match said["what"]:
            case "here":
                self._take_place(member, said)
            case "state":
                self._take_place(member, said)
                member.sessions.clear()
                member.keys.clear()
                times = dict(said.get("at", {}))  # earlier releases say none
                for session, client, key, durable in said["sessions"]:
                    self._begun(member, str(session), Note(str(client), bytes(key), bool(durable), float(times.get(session, 0.0))))
                self.compare = True
                member.count, member.active = int(said["count"]), bool(said["active"])
                member.counted = frozenset(said["counted"])
                self._heed(member, dict(said["moved"]))
                if member.number in self._pending:  # it was only cut off, or slow, and now it is known what it has
                    self._settled(member.number)
                self._settle_owed(member)
            case "begin" | "end" if member.count + 1 == said["count"]:
                member.count += 1
                if said["what"] == "end":
                    member.end(str(said["session"]))
                else:
                    note = Note(str(said["client"]), bytes(said["key"]), bool(said["durable"]))
                    self._begun(member, str(said["session"]), note)
            case "beat":
                member.active = bool(said["active"])
                if member.count != said["count"]:
                    self._say("ask")
            case "took":
                member.owed.add(int(said["home"]))
                if said.get("count", member.count) == member.count >= 0:  # earlier releases say none
                    self._settle_owed(member)
                else:  # its words that it has begun their sessions were not heard: its state says so
                    self._say("ask")
            case "ask":
                self._state()

    def _take_place(self, member: Member, said: dict[str, Any]) -> None:
        member.where, member.site, member.reaches = str(said["where"]), str(said["site"]), read_reaches(said["reaches"])
        for other in [one for one in self.members.values() if one.where == member.where and one is not member]:
            if other.count < 0 or said["what"] == "state":  # of an earlier life in the same place
                self._die(other.number)
        if member.where == self.me.where:
            self._die(member.number)
            self._meet_double(member.number)

    def _meet_double(self, number: int) -> None:
        """One in our place is an earlier life of this program, and its words are taken away. If it says them again it lives: two programs
        have one client identifier, and each ends the connection of the other. The one with the higher number makes room."""
        if number not in self._buried:
            self._buried[number] = self._connections
            self._said.append(Said(f"{PEER}{number:08x}", b"", 1, retain=True))
        elif self._buried[number] < self._connections and number < self.me.number:
            self.twin = True

    def move_to(self, where: str) -> None:
        """We have another place."""
        self.me.where, self.twin = where, False

    def _heed(self, member: Member, moved: dict[int, int]) -> None:
        """Others have taken us for dead."""
        word = (member.number, member.epoch, moved.get(self.me.number, 0))
        if word[2] and word not in self._heeded:
            self._heeded.add(word)
            self.outlived = True

    def move(self, member: Member) -> list[tuple[str, Note]]:
        """The sessions of a dead member whose clients we tell to connect again, or to wait. We do it for the others, too."""
        self._moved[member.number] = self._moved.get(member.number, 0) + 1
        if self._speaker(f"{member.number:08x}") != self.me.number:
            told: list[tuple[str, Note]] = []
        else:
            told = list(member.sessions.items())
        self.away.update((session, note) for session, note in member.sessions.items() if note.durable)
        return told

    def _begun(self, member: Member, session: str, note: Note) -> None:
        """It has answered a request, which may have come here, or is to come."""
        member.begin(session, note)
        self.away.pop(session, None)
        self._others = [one for one in self._others if (one.client, one.key) != (note.client, note.key)]

    def _die(self, number: int) -> None:
        member = self.members.pop(number, None)
        if member is None:
            return
        if not self.shared:
            self.dead.append(member)
        else:
            if member.count >= 0 or number not in self._pending:  # else it was heard again, and has not said yet what it has
                self._pending[number] = member
            self._missed[number] = 0
            self._until[number] = self._now + SETTLED
        others, self._others = self._others, []
        for one in others:
            if self.shared:  # it may be slow and have answered, or answer yet
                self._hold(one.request)
            else:
                self.again.append(one.request)
        self._look()

    # Joining

    def _look(self) -> None:
        """Whether everybody counts us in."""
        if self.me.active or not self._echo or self._connected is None or self.patient:
            return
        if self._unsettled and (self._homes is None or not self._homes <= self.members.keys()):
            return
        if all(one.count >= 0 and self.me.number in one.counted for one in self.members.values()):
            self.me.active = True
            parked, self._parked = self._parked, []
            self.again += parked
            if self.members:
                self._state()

    def tick(self, now: float) -> None:
        """Say that we are there; forget what is old."""
        self._now = now
        if self._connected is None:
            return
        if late := [number for number, until in self._until.items() if now >= until]:
            for number in late:
                del self._until[number]
            self._release()
        if now - self._connected >= PATIENCE:
            self.patient = False
            if not self._echo:
                self.refused()
        if now - self._connected >= SETTLED:
            self._unsettled = False
        self._look()
        self._others = [one for one in self._others if now < one.until]
        if self._met and now >= self._next_beat:
            self._next_beat = now + (BEAT if self.members else ALONE) * 0.9
            self._say("beat", 0, count=self.me.count, active=self.me.active)

    # Who answers

    def connect(self, request: Request, client: str, remote: str, account: tuple[str | None, bytes | None], site: str, now: float) -> bool:
        """Whether we answer a connect request. It is kept, if that is not known yet.

        remote: address or service. account: what the client shows there. site: where it is, empty: not known.
        """
        if not self.me.active:
            self._park(request)
            return False
        if self._waits(client, remote, account_of(*account)):
            self._hold(request)
            return False
        if not self.members:
            return True
        owner, key = self.owner(client, remote, account_of(*account), site)
        if owner == self.me.number:
            return True
        if key is not None and not self.members[owner].serves(client, key) and len(self._others) < ASIDE:
            self._others.append(Waiting(request, client, key, now + REMEMBERED))
        return False

    def owner(self, client: str, remote: str, asked: bytes, site: str) -> tuple[int, bytes | None]:
        """Who answers a connect request, and the key of its session there; None: nobody may reach the remote, and this one says so."""
        found = []
        for member in (self.me, *self.members.values()):
            key = member.key(client, remote, asked)
            if key is not None:
                near = bool(site) and member.site == site
                found.append((bool(member.keys[key]), near, _score(member.number, key), member.number, key))
        if not found:
            return self._speaker(client), None
        _, _, _, number, key = max(found)
        return number, key

    def _speaker(self, name: str) -> int:
        """Who speaks where nobody is the owner."""
        return _first([self.me.number, *self.members], name)

    def speaks(self, name: str) -> bool:
        """Whether we answer what has no owner."""
        return self.me.active and self._speaker(name) == self.me.number

    def session(self, session: str, request: Request) -> bool:
        """Whether we say that there is no such session. The request is kept, if that is not known yet."""
        number = number_of(session)
        if number in self.members or session in self.away:  # it answers; the community keeps the request for it
            return False
        if not self.me.active:
            self._park(request)
            return False
        if number == self.me.number:
            return True
        if number in self._pending or number in self._homes_found or any(session in one.sessions for one in self._pending.values()):
            self._hold(request)
            return False
        return not any(session in one.sessions for one in self.members.values()) and self.speaks(session)

    def absent(self, client: str, remote: str, account: tuple[str | None, bytes | None]) -> bool:
        """Whether a durable session waits for its owner."""
        key = self.me.key(client, remote, account_of(*account)) if self.away or self._pending else None
        cut = (
            note for one in self._pending.values() if key is not None and one.keys[key] for note in one.sessions.values() if note.durable
        )
        return any(note.client == client and note.key == key for note in (*self.away.values(), *cut))

    # Homes

    @property
    def _homes_found(self) -> set[int]:
        return self._homes or set()

    def found(self, homes: set[int]) -> list[int]:
        """Homes of others that there are. Returns those that we should try to take."""
        self._homes = homes
        for number in [one for one in self._pending if one not in homes]:
            self._missed[number] += 1
            if self._missed[number] >= MISSED:  # who took it has died, too
                self._taken(number)
        quiet = {one.number for one in self.members.values() if self._beats - one.heard >= QUIET}
        there = [self.me.number, *(number for number in self.members if number not in quiet)]
        self._look()
        return [one for one in sorted(homes) if (one not in self.members or one in quiet) and _first(there, f"{one:08x}") == self.me.number]

    @property
    def seeks(self) -> bool:
        """Whether homes are to be looked for soon."""
        return bool(self._homes is None or self._pending or any(self._beats - one.heard >= QUIET for one in self.members.values()))

    def take_home(self, number: int) -> None:
        """We have the home of another one: it is dead."""
        self.compare = True
        self._said.append(Said(f"{PEER}{number:08x}", b"", 1, retain=True))
        self._die(number)

    def took_home(self, number: int) -> None:
        """Its sessions are ours now."""
        self._say("took", home=number, count=self.me.count)
        self._taken(number)

    def _settle_owed(self, member: Member) -> None:
        """It is known which sessions a member has: those of the homes that it has taken, too."""
        owed, member.owed = member.owed, set()
        for home in owed:
            self._taken(home)

    def _taken(self, number: int) -> None:
        self._homes_found.discard(number)
        self._settled(number)
        self._look()

    def _settled(self, number: int) -> None:
        """It is known who has the sessions of one that was silent."""
        self._pending.pop(number, None)
        self._missed.pop(number, None)
        self._until.pop(number, None)
        self._release()

    def _release(self) -> None:
        """What waited is decided again."""
        held, self._held = self._held, []
        self.again += held

    def _waits(self, client: str, remote: str, asked: bytes) -> bool:
        """Whether a connect request may be for a session in a home that nobody has."""
        keys = [(one, one.key(client, remote, asked)) for number, one in self._pending.items() if number in self._until]
        return any(key is not None and one.keys[key] for one, key in keys)

    def _hold(self, request: Request) -> None:
        if len(self._held) < ASIDE:
            self._held.append(request)

    def _park(self, request: Request) -> None:
        if len(self._parked) < ASIDE:
            self._parked.append(request)


def number_of(session: str) -> int | None:
    """The number in a session's identifier; None: it has none."""
    digits = session.rpartition("/")[2]
    try:
        return int(digits[:8], 16) if len(digits) == DIGITS else None
    except ValueError:
        return None


def _first(numbers: list[int], name: str) -> int:
    return max((_score(one, name.encode("utf-8", "surrogatepass")), one) for one in numbers)[1]


def _score(number: int, key: bytes) -> bytes:
    return blake2b(key, digest_size=8, key=number.to_bytes(8, "big")).digest()
