"""Queues across sites (docs/queues.md, "Across sites"): what one broker does for queues elsewhere, and for clients elsewhere.

    publisher's broker   `put`       takes messages into custody for the home of the queue
    home                 `arrivals`  puts them; `guests` are its members elsewhere
    member's broker      `away`      its clients at queues elsewhere

Brokers tell each other which queues they are the home of when they meet; a broker without queues says so only to one that has some. After
that, each asks again for its clients; so a cut, a restart of either end and a new home all end the same way.

What it does not know: what a state allows, when something is on the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ....base.process.tokens import Tokens
from ....base.queues import TEMPORARY
from ....base.quoting import quoted
from ....mesh.wire.visited import numbers
from ....mqtt.errors import UsageError
from ....mqtt.reasons import Reason
from ..committer import Gate
from ..refused import Refused
from ..seats import Place
from . import wire
from .arrivals import Arrivals
from .asking import ASK, TOLD, Asking
from .away import AwaySeat
from .fleeting import Fleeting, Who
from .guests import Guest, PullGuest
from .homes import Homes, home_of
from .keeping import BACK, Keeping
from .unclaimed import Unclaimed

if TYPE_CHECKING:
    from ....mesh.node.actions import Event
    from ....mesh.wire.identity import Identity
    from ....mqtt.batch.batch import Batch
    from ....mqtt.packets import Subscription
    from ....mqtt.publish import PublishProperties
    from ...persistence.commits import Persistence
    from ...ports import Context, Posts
    from ..core.queue import Queue

log = logging.getLogger("mqmesh.broker")

AT_ONCE = 256  # guests that go before everybody else has a turn
MOVING = "\0"  # how the names of sessions begin that are on their way to another site: their clients are there
HERE = 0  # the site of this broker's own clients


class Here(Protocol):
    """The queues of this broker, as those see them who speak for other sites."""

    def now(self) -> int:
        """Milliseconds since 1970."""

    def queue_here(self, name: str) -> Queue | None:
        """A queue that has its home here."""

    def terms_here(self) -> dict[str, int]:
        """Those of them that other brokers may be home of, with the term of this one."""

    def outdone(self, name: str) -> None:
        """Another broker is home of such a queue, by a later term."""

    def full_here(self) -> dict[str, bool]:
        """All of them, with whether they take no more."""

    def may_join(self, name: str, key: str) -> bool:
        """Whether a client of another site may be a member, as far as the queue itself has a say."""

    def refusal(self, queue: Queue, selector: str) -> str | None:
        """Why nobody may be a member with a selector; None: that is possible."""

    def sit(self, seat: Any) -> None:
        """A member takes messages of a queue here."""

    def stand(self, seat: Any) -> None:
        """It takes no more: what it has goes back."""

    def leave_plan(self, queue: Queue, name: str) -> None:
        """A subscriber is none any more."""

    def stir(self, name: str) -> None:
        """A queue here may have something for a member."""


class Members(Protocol):
    """The other brokers of the mesh (`mesh/node/node.py`)."""

    def known(self) -> int:
        """Those that can be posted to, reachable or not, as a set."""

    def live(self) -> int:
        """Those that can be reached."""

    def name(self, number: int) -> str:
        """A broker's name, or its number in figures."""

    @property
    def identity(self) -> Identity:
        """Who this broker is."""


class Putting(Protocol):
    """What puts messages into the queues of this broker."""

    def put_parcel(self, post: wire.PutPost) -> Gate | None:
        """Put messages of another site. The gate of their commit; None: they were put before. Raises Refused."""

    def put_together(self, posts: list[wire.PutPost]) -> Gate | None:
        """Put messages into one queue, in order. None: nothing was done, they have to be put one by one."""


class Sites:
    """See the module.

    own: names of the queues that have their home here, now. here: these queues. publishers: gives what puts parcels into them.
    changed: told names whose home is another one now.
    """

    def __init__(
        self, context: Context, own: Collection[str], here: Here, publishers: Callable[[], Putting], changed: Callable[[set[str]], None]
    ) -> None:
        self.context = context
        self.keeping = Keeping()
        self.parcels = Tokens(12)  # their numbers: who guesses one could have a parcel of another site taken for a repeat
        self.homes = Homes(own, self.keeping)
        self.arrivals = Arrivals(self.keeping, lambda post: publishers().put_parcel(post), lambda posts: publishers().put_together(posts))
        self.asking = Asking(context)
        self.fleeting = Fleeting(self.keeping.put_fleeting)
        self._unclaimed = Unclaimed()
        self.posts: Posts | None = None
        self._here = here
        self._changed = changed
        self._node: Members | None = None
        self._roam = False
        self._seats: dict[str, dict[str, AwaySeat]] = {}  # queue -> client -> its seat
        self._guests: dict[tuple[str, str, int], Guest] = {}  # (queue, client, its site)
        self._came: dict[tuple[str, str], list[int]] = {}  # (queue, member that is a guest, or was) -> its sites, the latest last
        self._told: set[int] = set()
        self._full: dict[str, bool] = {}
        self._back: dict[bytes, wire.PutPost] = {}
        self._fed: dict[Guest, None] = {}  # guests that messages are to be posted for
        self._talking: dict[AwaySeat, None] = {}  # seats here whose clients have said something
        self._woken: dict[AwaySeat, None] = {}  # seats here that may take what waits for them
        self._posted = False

    # ---- life

    def join_mesh(self, node: Members, posts: Posts, roam: bool) -> None:
        """The broker is a member of a mesh. roam: a client identifier is one client in all of it."""
        self._node, self.posts, self._roam = node, posts, roam
        self.homes.maker = self._maker
        self.asking.join_mesh(posts)
        for kind, received, returned in (
            (wire.HOMES, self._homes, None),
            (wire.JOIN, self._join, None),
            (wire.ALL, self._all, None),
            (wire.LEAVE, self._leave, None),
            (wire.GIVE, self._give, None),
            (wire.ALERT, self._alert, None),
            (wire.SAID, self._said, None),
            (ASK, self.asking.asked, None),
            (TOLD, self.asking.told, None),
        ):
            posts.register(kind, _Handler(kind, received, returned))
        posts.register(wire.PUT, _Parcels(self.arrivals, self._put_returned))

    def start(self, persistence: Persistence, parcels: set[bytes]) -> None:
        """The store is there. parcels: those that the log of the queues has. Raises StoreError."""
        kept = self.keeping.read(persistence)
        self.homes.restore(kept.homes)
        self.arrivals.restore(kept.arrived, parcels)
        self.fleeting.restore(kept.fleeting)
        names = self._here.full_here().keys() - self._here.terms_here().keys()  # with several homes it may be any site
        queues = [queue for name in sorted(names) if (queue := self._here.queue_here(name)) is not None]
        who = [(queue.name, member) for queue in queues for member, ends in queue.subscribers.items() if ends]
        self._end_all([], [one for one in who if one not in self.fleeting], HERE)
        for body in kept.back.values():
            post = wire.decode_put(body)
            self._back[post.parcel] = post

    def event(self, event: Event) -> None:
        """Members of the mesh come and go."""
        number: Any = event.fields.get("number")
        if event.name in ("member_up", "member_forgotten"):
            self._changed({f"{TEMPORARY}{number}/#"})
        if event.name == "member_up":
            self._told.discard(number)
            self.context.loop.call_soon(self._meet, number)
        elif event.name == "member_down":
            self._told.discard(number)
            self._drop(number)
        elif event.name == "member_forgotten":
            self._drop(number, forgotten=True)
            for came in [one for one in self._came.values() if number in one]:
                came.remove(number)
            self._moved(self.homes.forgotten(number))
            self._end_unclaimed()

    def _meet(self, number: int) -> None:
        self.context.refresh()
        if self._here.full_here():
            self._tell(1 << number)
        self.context.flush()

    def _tell(self, brokers: int) -> None:
        """Say which queues this broker is the home of."""
        assert self._node is not None
        brokers &= self._node.known()
        if brokers and self.posts is not None:
            self._full = self._here.full_here()
            self._told.update(numbers(brokers))
            self._send(brokers, wire.HOMES, wire.encode(wire.HomesPost(self.context.life, self._full, self._here.terms_here())))

    def _send(self, brokers: int, kind: str, body: bytes) -> None:
        assert self.posts is not None
        try:
            self.posts.send(brokers, kind, body, must=True)
            self._posted = True
        except UsageError as error:
            log.warning("event=queue-post-unsent kind=%s text=%s", kind, error)

    def _drop(self, number: int, but: int | None = None, forgotten: bool = False) -> None:
        """The guests of a site are gone, little by little where they are many. but: those of this life of its broker stay.

        So are the subscribers of other lives, or all if the site is forgotten, whose sessions have ended with their connections.
        """
        gone = [(key, guest) for key, guest in self._guests.items() if guest.site == number and guest.life != but]
        ended = self.fleeting.ended(number, but) if forgotten or but is not None else []
        self._end_all(gone, ended, number)

    def _end_all(self, gone: list[tuple[tuple[str, str, int], Guest]], ended: list[Who], number: int) -> None:
        steps, turns = self._dropped(gone, ended, number), self.context.turns
        next(steps, None)
        if len(gone) + len(ended) > AT_ONCE:
            turns.run(turns.broker, steps, "work=queue-guests")

    def _dropped(self, gone: list[tuple[tuple[str, str, int], Guest]], ended: list[Who], number: int) -> Iterator[None]:
        for count, (key, guest) in enumerate(gone, 1):
            if self._guests.get(key) is guest:
                self._gone(key)
            if not count % AT_ONCE:
                yield
        for count, (name, member) in enumerate(ended, len(gone) + 1):
            queue = self._here.queue_here(name)
            if queue is not None and (name, member) not in self.fleeting:  # else it has come again
                self._end_with_site(queue, member, number)
            if not count % AT_ONCE:
                yield

    def _end_with_site(self, queue: Queue, name: str, site: int) -> None:
        """A session has ended that was last heard at a site: its member is no subscriber any more, unless it has been elsewhere too."""
        member, came = queue.members.get(name), self._came.get((queue.name, name), [])
        if site in came:
            came.remove(site)
        if member is not None and not member.active and not came:
            self._came.pop((queue.name, name), None)
            self._here.leave_plan(queue, name)

    def _gone(self, key: tuple[str, str, int]) -> None:
        guest = self._guests.pop(key)
        self._here.stand(guest)
        if guest.member.active:  # it has moved: its other site is where it is, whichever was heard last
            sites = numbers(self._node.known()) if self._node is not None else ()
            others = [site for site in sites if (guest.name, guest.client, site) in self._guests]
            self._comes(guest.name, guest.member.name, others[-1] if others else 0)

    # ---- homes

    def _maker(self, name: str) -> int | None:
        """The other broker that has made a temporary queue; None: it is not known here."""
        number = home_of(name)
        here = self._node is None or number is None or number == self._node.identity.number or not self._node.known() >> number & 1
        return None if here else number

    def _homes(self, origin: int, body: bytes) -> None:
        post = wire.decode_homes(body)
        self._drop(origin, but=post.life)
        for name, term in post.terms.items():
            if term > self._here.terms_here().get(name, term):
                self._here.outdone(name)
        moved = self.homes.told(origin, post.queues, post.terms)
        if post.queues and origin not in self._told:
            self._tell(1 << origin)
        self._moved(moved)
        for name in self.homes.at(origin):
            if name not in moved:
                self._sit_again(name)

    def own_changed(self, name: str) -> None:
        """A queue has its home here, or not any more."""
        for key in [one for one in self._guests if one[0] == name]:
            self._gone(key)
        for one in [one for one in self._came if one[0] == name]:
            del self._came[one]
        self.fleeting.gone(name)
        self._unclaimed.gone(name)
        queue, term = self._here.queue_here(name), self._here.terms_here().get(name)
        if queue is not None and term is not None:
            self._unclaimed.begin(name, term, [member for member, ends in queue.subscribers.items() if ends])
        self.homes.own_changed()
        self._changed({"#"})  # with the first queue, and without the last one, all topics of queues go another way
        self._moved({name})
        if self._node is not None:
            self._tell(self._node.live())

    def _moved(self, names: set[str]) -> None:
        """Queues have another home, or none."""
        if not names:
            return
        self._changed(names)
        for name in sorted(names):
            self._sit_again(name)
        self._pass_on()
        for post in [one for one in self._back.values() if self.homes.home(one.name) is not None or self._here.queue_here(one.name)]:
            self._place(post)

    def _pass_on(self) -> None:
        """Parcels that have come here go on to the home that a queue has now."""
        for name in self.arrivals.names:
            home = self.homes.home(name)
            if home is not None and not self.homes.full(name) and self._node is not None and self._node.known() >> home & 1:
                for post in self.arrivals.leave(name):
                    self._send(1 << home, wire.PUT, wire.encode(post))

    def _sit_again(self, name: str) -> None:
        """Ask the home of a queue anew for the clients here."""
        seats = self._seats.get(name, {}).values()
        for seat in seats:
            if self.homes.home(name) is None:
                seat.lost()
            elif seat.place.session.connection is not None and not seat.client.startswith(MOVING):
                seat.join(self.context.life)
        if self.homes.shared(name) and not any(seat.client.startswith(MOVING) for seat in seats):  # the other site tells of one that moves
            self._post(name, wire.ALL, wire.encode(wire.AllPost(name, self.homes.term(name))))

    def _post(self, name: str, kind: str, body: bytes) -> None:
        """To the home of a queue."""
        home = self.homes.home(name)
        if home is not None and self.posts is not None:
            self._send(1 << home, kind, body)

    def home_name(self, name: str) -> str | None:
        """The name of the site that is home of a queue; None: none is known, or it is this one."""
        home = self.homes.home(name)
        return self.site_name(home) if home is not None and self._node is not None else None

    def site_name(self, number: int) -> str:
        """The name of another site."""
        assert self._node is not None
        return self._node.name(number)

    # ---- publishers here

    def put(self, name: str, publisher: str, user: str, run: Batch, properties: PublishProperties | None) -> None:
        """Take messages into custody for a queue elsewhere. Raises Refused."""
        block = properties.without_expiry if properties is not None else b""
        self.send(name, publisher, user, block, run.expiry, [bytes(payload) for payload in run.payloads])

    def send(
        self, name: str, publisher: str, user: str, block: bytes, expiry: int | None, payloads: list[bytes], together: bool = False
    ) -> None:
        """The same of payloads. block: their encoded properties without expiry. expiry: in seconds. together: see `Posts.send`."""
        home = self.homes.home(name)
        if home is None or self.posts is None:
            raise Refused(Reason.TOPIC_NAME_INVALID, f"there is no queue {name!r}")
        if self.homes.shared(name) and not (self._node is not None and self._node.live() >> home & 1):
            raise Refused(Reason.QUOTA_EXCEEDED, f"the home of queue {name!r} is away, and another one takes over: try again")
        if self.homes.full(name):
            raise Refused(Reason.QUOTA_EXCEEDED, f"the home of queue {name!r} takes no more messages for now")
        persistence = self.keeping.persistence
        if persistence is not None and persistence.closed:
            raise Refused(Reason.QUOTA_EXCEEDED, "the store of this broker takes no more messages for now")
        if persistence is not None:
            persistence.need_commit()
        post = wire.PutPost(self.parcels.next(), name, publisher, user, block, expiry, payloads)
        try:
            taken = self.posts.send(1 << home, wire.PUT, wire.encode(post), expiry=expiry, together=together)
        except UsageError as error:
            raise Refused(Reason.TOPIC_NAME_INVALID, f"the home of queue {name!r} is gone: {error}") from None
        if not taken:
            raise Refused(Reason.QUOTA_EXCEEDED, f"too many messages wait here for the home of queue {name!r}")
        self._posted = True

    def _put_returned(self, destination: int, body: bytes, reason: str) -> None:
        """A parcel will not arrive: its time is over, another home has it, or it waits for one."""
        post = wire.decode_put(body)
        if reason == "expired":
            log.info("event=queue-parcel-expired queue=%s number=%d messages=%d", quoted(post.name), destination, len(post.payloads))
            return
        log.warning("event=queue-parcel-returned queue=%s number=%d reason=%s", quoted(post.name), destination, reason)
        self._back[post.parcel] = post
        self.keeping.put_parcel(BACK, post.parcel, body)
        self._place(post)

    def _place(self, post: wire.PutPost) -> None:
        """Give a parcel that came back to the home of its queue, if there is one."""
        home = self.homes.home(post.name)
        if self._here.queue_here(post.name) is not None:
            self.arrivals.arrive(wire.encode(post))
        elif home is not None and self._node is not None and self._node.known() >> home & 1:
            self._send(1 << home, wire.PUT, wire.encode(post))
        elif not post.name.startswith(TEMPORARY):
            return
        del self._back[post.parcel]
        self.keeping.put_parcel(BACK, post.parcel, None)

    # ---- members here

    def seat(self, place: Place, name: str, qos: int, suffix: bytes, pulls: bool, said: Subscription | None) -> AwaySeat:
        """A client here is a member of a queue elsewhere, as soon as its home is known. said: its SUBSCRIBE."""
        wishes = (said.selector, said.reorders, said.key) if said is not None else ("", False, "")
        seat = AwaySeat(place, name, qos, suffix, pulls, *wishes, self._post, self._talks)
        self._seats.setdefault(name, {})[seat.client] = seat
        return seat

    def _talks(self, seat: AwaySeat) -> None:
        self._talking[seat] = None

    def _feeds(self, guest: Guest) -> None:
        self._fed[guest] = None

    def sit(self, seat: AwaySeat) -> None:
        """Its client is there."""
        if self.homes.home(seat.name) is not None:
            seat.join(self.context.life)

    def leave(self, seat: AwaySeat) -> None:
        """It is no member any more."""
        seat.leave(True)
        seats = self._seats.get(seat.name, {})
        if seats.get(seat.client) is seat:
            del seats[seat.client]
        if not seats:
            self._seats.pop(seat.name, None)

    def wake(self, seat: AwaySeat) -> None:
        """A client here may take more of a queue elsewhere."""
        self._woken[seat] = None

    def _give(self, origin: int, body: bytes) -> None:
        post = wire.decode_give(body)
        seat = self._seats.get(post.name, {}).get(post.client)
        if seat is not None and self.homes.home(post.name) == origin:
            seat.given(post.token, post.entries, self.context.now)
            self.wake(seat)

    def _alert(self, origin: int, body: bytes) -> None:
        self.context.loop.call_soon(self._alerted, origin, wire.decode_alert(body))  # behind the answer to what was asked before

    def _alerted(self, origin: int, post: wire.AlertPost) -> None:
        self.context.refresh()
        seat = self._seats.get(post.name, {}).get(post.client)
        if seat is not None and self.homes.home(post.name) == origin:
            seat.alerted(post.token, post.waiting, self.context.now)
            self.wake(seat)
        self.context.flush()

    # ---- members elsewhere

    def _join(self, origin: int, body: bytes) -> None:
        post = wire.decode_join(body)
        queue = self._here.queue_here(post.name)
        if queue is None or not self._here.may_join(post.name, post.key):
            return
        key = post.name, post.client, origin
        if key in self._guests:
            self._gone(key)
        name = self._member_name(queue, post.client, origin)
        if (text := self._here.refusal(queue, post.selector)) is not None:
            log.warning("event=queue-selector-refused queue=%s member=%s text=%s", quoted(post.name), quoted(name), text)
            return
        queue.subscribe(name, post.ends)
        member = queue.member(name)
        if post.pulls:
            guest: Guest = PullGuest(queue, member, origin, post, self._feeds, self._alerts)
        else:
            guest = Guest(queue, member, origin, post, self._feeds)
        self._guests[key] = guest
        self._comes(post.name, name, origin)
        self.fleeting.joined((post.name, name), (origin, post.life), post.ends)
        self._here.sit(guest)

    def _all(self, origin: int, body: bytes) -> None:
        post = wire.decode_all(body)
        self._unclaimed.heard(post.name, post.term, origin)
        self._end_unclaimed()

    def _end_unclaimed(self) -> None:
        """Subscribers of a log that has come here are none any more, if their sessions ended with their site."""
        if self._node is None:
            return
        over = self._unclaimed.over(self._node.known() & ~(1 << self._node.identity.number))
        queues = {name: self._here.queue_here(name) for name, _ in over}
        ended = [(name, member) for name, member in over if (queue := queues[name]) is not None and queue.subscribers.get(member)]
        if ended:
            log.info("event=queue-subscribers-ended queues=%s members=%d", ",".join(sorted({name for name, _ in ended})), len(ended))
        self._end_all([], [one for one in ended if one not in self.fleeting], HERE)

    def _alerts(self, guest: PullGuest, waiting: int) -> None:
        self._send(1 << guest.site, wire.ALERT, wire.encode(wire.AlertPost(guest.name, guest.client, guest.token, waiting)))

    def puller(self, name: str, client: str, origin: int) -> PullGuest | None:
        """The client of another site that asks for messages of a queue; None: it does not."""
        guest = self._guests.get((name, client, origin))
        return guest if isinstance(guest, PullGuest) else None

    def member(self, name: str, client: str, origin: int) -> str:
        """Under which name a client of another site is a member here, or would be: never that of another client that is one now."""
        guest, queue = self._guests.get((name, client, origin)), self._here.queue_here(name)
        if guest is not None:
            return guest.member.name
        return self._member_name(queue, client, origin) if queue is not None else client

    def names(self, name: str, client: str) -> list[str]:
        """Under which names clients of other sites with this name are members here."""
        sites = numbers(self._node.known()) if self._node is not None else ()
        return [self._guests[key].member.name for number in sites if (key := (name, client, number)) in self._guests]

    def _member_name(self, queue: Queue, client: str, origin: int) -> str:
        """Under which name a client of another site is a member.

        Its own. But where clients do not roam, another site may have another client of that name: the later one has its site in its name,
        for as long as it is a subscriber.
        """
        if self._roam:
            return client
        second, member, rules = f"{client}@{origin}", queue.members.get(client), queue.rules
        if member is not None and member.active:
            return second
        plans = (rules.plan,) if rules.load is None else (rules.load.normal, rules.load.loaded)
        wanted = any(client in group for plan in plans for group in plan.groups or ())  # a group has its members by their identifiers
        return second if second in queue.subscribers and not wanted else client

    def _leave(self, origin: int, body: bytes) -> None:
        post = wire.decode_leave(body)
        key = post.name, post.client, origin
        guest, queue = self._guests.get(key), self._here.queue_here(post.name)
        if queue is None or (guest is not None and guest.token != post.token):
            return
        if guest is not None:
            name = guest.member.name
            self._gone(key)
        else:  # it was lost before
            name = self._member_name(queue, post.client, origin)
        if post.for_good:
            self._end(queue, name, origin)

    def _comes(self, name: str, member: str, site: int) -> None:
        """A member is at this site now; 0: here."""
        came = self._came.setdefault((name, member), [])
        if site in came:
            came.remove(site)
        came.append(site)

    def came_here(self, name: str, client: str) -> None:
        """A client of this broker is a member now."""
        if (name, client) in self._came:
            self._comes(name, client, HERE)
        self.fleeting.joined((name, client), (HERE, self.context.life), False)

    def left_here(self, queue: Queue, client: str) -> None:
        """A client of this broker is no member any more."""
        self._end(queue, client, HERE)

    def _end(self, queue: Queue, name: str, site: int) -> None:
        """A member is no subscriber any more, as this site says: unless it has come to another site since."""
        self.fleeting.left((queue.name, name), site)
        member, came = queue.members.get(name), self._came.get((queue.name, name), [])
        if site in came[:-1]:
            came.remove(site)
        elif member is not None and not member.active:
            self._came.pop((queue.name, name), None)
            self._here.leave_plan(queue, name)

    def _said(self, origin: int, body: bytes) -> None:
        post = wire.decode_said(body)
        guest = self._guests.get((post.name, post.client, origin))
        if guest is None or guest.token != post.token:
            return
        now = self._here.now()
        for first, count in post.ranges:
            guest.said(post.what, first, count, now)
        self._here.stir(post.name)

    # ---- the end of a piece of work

    @property
    def busy(self) -> bool:
        """Whether there is something for `settle`."""
        return bool(self._posted or self._fed or self._talking or self._woken)

    def settle(self) -> bool:
        """Post what guests are given and what clients here have said: whether something was posted since the last time."""
        woken, self._woken = self._woken, {}
        for one in woken:
            one.pump(self._here.now())
        for guest in list(self._fed):
            self.give(guest)
        talking, self._talking = self._talking, {}
        for seat in talking:
            seat.tell()
        posted, self._posted = self._posted, False
        return posted

    def give(self, guest: Guest) -> None:
        """Post what a guest was given."""
        if guest in self._fed:
            del self._fed[guest]
            for body in guest.posts():
                self._send(1 << guest.site, wire.GIVE, body)

    def tick(self) -> None:
        """From time to time."""
        self.arrivals.look()
        self._pass_on()
        if self._node is not None and self._here.full_here() != self._full:
            self._tell(self._node.live())


class _Handler:
    """Takes the posts of one kind."""

    def __init__(self, kind: str, received: Callable[[int, bytes], None], returned: Callable[[int, bytes, str], None] | None) -> None:
        self._kind = kind
        self._received = received
        self._returned = returned

    def received(self, origin: int, body: bytes, expiry: int | None) -> None:
        try:
            self._take(origin, body, expiry)
        except ValueError as error:
            log.warning("event=queue-post-refused kind=%s origin=%d text=%s", self._kind, origin, error)

    def _take(self, origin: int, body: bytes, expiry: int | None) -> None:
        self._received(origin, body)

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        if self._returned is not None:  # of the others, each end says anew what it wants when it meets the other
            self._returned(destination, body, reason)


class _Parcels(_Handler):
    """Takes parcels: their messages live on for what custody has left them."""

    def __init__(self, arrivals: Arrivals, returned: Callable[[int, bytes, str], None]) -> None:
        super().__init__(wire.PUT, lambda origin, body: arrivals.arrive(body), returned)
        self._arrivals = arrivals

    def _take(self, origin: int, body: bytes, expiry: int | None) -> None:
        self._arrivals.arrive(body, expiry)
