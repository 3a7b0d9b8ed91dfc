"""The queues of one broker: what clients put, who gets it, and when it is on the disk.

    PUBLISH to $queue/NAME            -> `publishers.put`; its acknowledgement waits at a gate for the commit
    SUBSCRIBE to $queue/NAME          -> `subscribed`: the client is a member
    PUBACK                            -> heard by the member's tap; DONE at the end of the piece of work (`settle`)
    PUBACK with a reason from 0x80 on -> `refused`: given back; with 0x99 UNUSABLE
    the connection is lost            -> `left`: everything goes back at once

What it does not know: the bytes of MQTT, files (`log/`), what a state allows (`core/`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from ...base.interchange import INBOX
from ...base.queues import ALERTS, KEY, PREFIX, REORDERS, SELECTOR, TEMPORARY
from ...base.quoting import quoted
from ...base.selector.selector import SelectorError
from ...mqtt.errors import UsageError
from ...mqtt.properties import Property, encode_properties
from ...mqtt.reasons import Reason
from ..auth.identifiers import identifier_of
from .answers import Answers
from .committer import Waiting
from .core.queue import LEAVE, Queue
from .core.rules import Rules
from .core.states import Subscriber
from .declared.declaring import Declared
from .declared.temporary import Temporary
from .feeding import LOOKS, MOST_SELECTORS, Row, news
from .handles import Handles, key_of
from .log.format import Damaged
from .log.port import Away
from .noting import Noting
from .offers import Offer, merged, offers
from .publishers import Publishers
from .pulls import PullSeat, queue_of_alerts
from .seats import Place, Seat, Sitting, fits
from .settings import QueueSettings
from .sharing import Sharing
from .sites.away import AwaySeat
from .sites.guests import Guest, PullGuest
from .sites.sites import Sites
from .stores import Stores
from .upkeep import AT_ONCE, Upkeep
from .workflow.publishing import DuePublisher
from .workflow.translating import Translators
from .workflow.workflow import Workflow

if TYPE_CHECKING:
    from pathlib import Path

    from ...mqtt.batch.run import Run
    from ...mqtt.packets import Subscribe, Subscription
    from ..ports import Context
    from ..session.session import Session
    from .core.blocks import Meta
    from .core.stock import Move

log = logging.getLogger("mqmesh.broker")

NOT_ASKING = f"get is for members that ask: subscribe to {PREFIX}{{}}{ALERTS}"
SOON = 0.01  # seconds that moves wait for what is written with them
UNUSABLE_REASON = Reason.PAYLOAD_FORMAT_INVALID


class Queues:
    """See the module.

    settings: without a folder there are no queues here, but clients of queues elsewhere. handles: what publishers called messages. answers:
    for trackers of connections where there is no mesh. bind: told which topic filters a queue is bound to. sites: queues of other sites.
    homes_changed: told topics whose messages go another way now. may_take: says who takes from the inbox of an interchange's service.
    publish: takes a message that was delayed; False: there is no room for it.
    """

    def __init__(self, context: Context, settings: QueueSettings, homes_changed: Callable[[set[str]], None]) -> None:
        self.context = context
        self.settings = settings
        self.store = Stores(settings, self.say)
        self.sites = Sites(context, settings.rules, self, lambda: self.publishers, self._homes_changed)
        self.workflow = Workflow(self)
        self.temporary = Temporary(self)
        self.translators = Translators(self, context.hooks.translations if context.hooks is not None else ())
        self.publish: Callable[[Run], bool] = lambda run: False
        self.ways_changed = homes_changed
        self.declared: Declared | None = None
        self.bind: Callable[[str, tuple[str, ...]], None] = lambda name, filters: None
        self.may_take: Callable[[Session, str], bool] = lambda session, service: False
        self.places: dict[Session, Place] = {}
        self.handles = Handles(context.limits.publisher_handles)
        self.answers = Answers()
        self.upkeep = Upkeep(context, settings, self.store, self.sites, self.handles, self.stir)
        self.publishers = Publishers(self)
        self.sharing = Sharing(self)
        self._rows: dict[Queue, Row] = {}  # who sits where
        self._stirred: dict[str, None] = {}  # queues that may have something for a member
        self._spoken: dict[Place, None] = {}  # clients that have acknowledged something
        self._later: dict[str, None] = {}  # queues that nothing can be given of until a commit succeeds
        self._goes_on = False
        self._soon: asyncio.TimerHandle | None = None  # until what nobody waits for is written
        self._written = asyncio.Event()
        self.due = DuePublisher(self)

    def _homes_changed(self, names: set[str]) -> None:
        """Queues have another home, or none."""
        self.workflow.moved(names)
        self.ways_changed({PREFIX + one for one in names})

    def say(self, text: str) -> None:
        log.error("event=queues-damaged text=%s", text)

    def now(self) -> int:
        """Milliseconds since 1970, by the steady clock."""
        return int(self.context.steady() * 1000)

    def stir(self, name: str) -> None:
        """A queue may have something for a member."""
        self._stirred[name] = None

    # ---- life

    def start(self) -> None:
        """Find the queues of an earlier life. Raises OSError, ConfigError, ImportError."""
        now = self.now()
        if self.settings.folder is not None:
            self._find(self.settings.folder, now)
        self.store.open_memory(now)
        noted = Noting(self.context.journal, self.store.queues).note if self.context.journal is not None else None
        self.store.start(self.context.loop.call_soon_threadsafe, self.now, self._committed, noted, self.context.write)
        for name in self.settings.rules:
            self._find_children(self.store.queues[name])
        self.sharing.start()
        self.translators.look()
        self.due.look()

    def _find(self, folder: Path, now: int) -> None:
        self.declared = Declared(folder)
        self.declared.read(self.settings)
        self.store.open(now)
        self.upkeep.start()
        for name in self.settings.rules:
            for subscriber in self.settings.subscribers.get(name, ()):
                self.store.queues[name].subscribe(subscriber)
        for name in self.store.queues:
            self._remember(self.store.queues[name])
            if name not in self.settings.rules and self.store.queues[name].blocks:
                log.warning("event=queue-undeclared queue=%s text=it is in the log and not in the file: nobody can use it", quoted(name))

    def found(self, queue: Queue) -> None:
        """A queue of a shared store is here, with what was put while it had another home."""
        self._remember(queue)
        self._find_children(queue)

    def _find_children(self, queue: Queue) -> None:
        if queue.blocks:
            self.work(self.workflow.find(queue))

    def _remember(self, queue: Queue) -> None:
        for block in queue.blocks.values():
            for index, meta in enumerate(map(block.meta, range(block.count))) if any(one.handle for one in block.metas) else ():
                if meta.handle:
                    self.handles.keep(key_of(queue.name, meta.publisher, meta.handle), block.first + index)

    async def settled(self, seconds: float) -> None:
        """Wait until everything so far is on the disk, and its acknowledgements are given to their connections."""
        self.store.stop_moving()
        try:
            async with asyncio.timeout(seconds):
                while self.store.busy or self.store.dirty:
                    self._written.clear()
                    self.store.begin()
                    if self.store.busy:
                        await self._written.wait()
                    elif self.store.failing:
                        return
        except TimeoutError:
            log.error("event=queues-left text=the disk of the queues did not answer in time")

    def stop(self) -> None:
        """Everything goes back; what is to be written is. Blocks."""
        for place in list(self.places.values()):
            self._rise(place)
        for queue in self.store.queues.values():
            queue.let_leave(self.now())
        self.upkeep.stop()
        if self._soon is not None:
            self._soon.cancel()
        self.store.close()
        self.sharing.close()

    def name_of(self, topic: str) -> str | None:
        """The queue of a topic or filter `$queue/NAME`, here or at another site; None: it is none."""
        name = topic[len(PREFIX) :] if topic.startswith(PREFIX) else ""
        return name if name in self.settings.rules or name in self.settings.shared or self.sites.homes.home(name) is not None else None

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether a filter is for a queue that there is, or for the alerts of one."""
        return self.name_of(topic_filter) is not None or self.name_of(PREFIX + queue_of_alerts(topic_filter)) is not None

    def may_consume(self, session: Session, subscription: Subscription) -> bool:
        """Whether a client may be a member of a queue, as far as the queue itself has a say."""
        name = queue_of_alerts(subscription.filter) or subscription.filter[len(PREFIX) :]
        if name.startswith(INBOX):
            return self.may_take(session, name[len(INBOX) :])
        return self.temporary.may_consume(session, name, subscription.key)

    def review(self, session: Session, unsubscribe: Callable[[Session, str], bool]) -> bool:
        """End a session's memberships of inboxes that it may not take from any more: whether it has others. unsubscribe: ends one."""
        inboxes = [one for one in session.subscriptions if one.startswith(PREFIX + INBOX)]
        gone = [one for one in inboxes if not self.may_take(session, (queue_of_alerts(one) or one[len(PREFIX) :])[len(INBOX) :])]
        for one in gone:
            unsubscribe(session, one)
            session.unsubscribed(one)
        return len(gone) < len(inboxes)

    def may_join(self, name: str, key: str) -> bool:
        """The same as `may_consume` of a client of another site."""
        return self.temporary.may_consume(None, name, key)

    def read(self, packet: Subscribe) -> str | None:
        """Give subscriptions of queues what user properties of their SUBSCRIBE say. Why the selector is none; None: it is one."""
        said = dict(reversed(packet.properties.get(Property.USER_PROPERTY, [])))
        selector, key, reorders = said.get(SELECTOR, "").strip(), said.get(KEY, ""), said.get(REORDERS) == "1"
        filters = [one for one in packet.subscriptions if self.may_subscribe(one.filter)] if selector or key or reorders else []
        try:
            fits(selector)
        except SelectorError as error:
            return f"{SELECTOR}: {error}" if filters else None
        for one in filters:
            one.selector, one.key, one.reorders = selector, key, reorders
        return None

    def no_room_for(self, subscription: Subscription) -> bool:
        """Whether a queue here has as many different selectors as it may."""
        queue = self.queue_here(queue_of_alerts(subscription.filter) or subscription.filter[len(PREFIX) :])
        return queue is not None and self.refusal(queue, subscription.selector) is not None

    def refusal(self, queue: Queue, selector: str) -> str | None:
        """Why nobody may be a member of a queue with a selector; None: that is possible."""
        row = self._rows.get(queue)
        try:
            fits(selector)
        except SelectorError as error:
            return str(error)
        if row is None or not selector or selector in row.selectors or len(row.selectors) < MOST_SELECTORS:
            return None
        return f"the members of queue {queue.name!r} have {MOST_SELECTORS} different selectors already"

    def owns(self, topic: str) -> bool:
        """Whether a topic is for queues alone: where there are none, `$queue/NAME` is as any other."""
        return self._declared or topic.startswith(PREFIX + TEMPORARY) or self.name_of(topic) is not None

    @property
    def _declared(self) -> bool:
        """Whether queues are declared here."""
        return len(self.settings.rules) > len(self.temporary) or bool(self.settings.shared)

    def ask_home(self, client: str, asked: dict[str, Any], send: Callable[[bytes], None]) -> bool:
        """Have the home of a queue of another site do what a client here asks; send: takes the answer. False: it is not elsewhere."""
        home = self.sites.homes.home(asked["name"])
        if home is None:
            return False
        self.sites.asking.ask(home, client, json.dumps(asked).encode(), send)
        return True

    def home_of(self, name: str) -> int | None:
        """The number of the broker that is home of a queue elsewhere."""
        return self.sites.homes.home(name)

    def forget_handle(self, name: str, meta: Meta) -> None:
        """A message does not count: what its publisher called it may be put again."""
        if meta.handle:
            self.handles.forget(key_of(name, meta.publisher, meta.handle))

    def names_of(self, name: str, client: str) -> list[str]:
        """Under which names a client may be a member of a queue here."""
        return [client, *self.sites.names(name, client)]

    def history(self, queue: Queue, position: int) -> Generator[None, None, list[Move]]:
        """All moves of a message that are in the log, in order. In steps."""
        _, moves = yield from self.store.of(queue).history(queue, position)
        return moves

    def work(self, steps: Iterator[object]) -> None:
        """Do something step by step, in turns with everybody else."""
        self.context.turns.run(self.context.turns.broker, steps, "work=queue-parents")

    def ask(self, home: int, request: dict[str, Any], answer: Callable[[bytes], None]) -> None:
        """Have the home of another queue do something; answer: gets its words. Raises UsageError."""
        self.sites.asking.ask(home, "", json.dumps(request).encode(), answer)

    @property
    def known(self) -> bool:
        """Whether there are queues, here or at another site."""
        return self._declared or self.sites.homes.known

    def queue_here(self, name: str) -> Queue | None:
        """A queue that has its home here."""
        return self.store.queues[name] if name in self.settings.rules else None

    def terms_here(self) -> dict[str, int]:
        """Those of them that other brokers may be home of, with the term of this one."""
        return self.sharing.terms

    def outdone(self, name: str) -> None:
        """Another broker is home of such a queue, by a later term."""
        self.sharing.outdone(name)

    def full_here(self) -> dict[str, bool]:
        """All queues that have their home here, and whether they take no more; temporary ones only then: their names say where they are."""
        queues = [self.store.queues[name] for name in self.settings.rules]
        full = {one.name: self.store.of(one).full is not None or self.sites.arrivals.waits(one.name) or one.full for one in queues}
        return {name: full[name] for name in full if full[name] or name not in self.temporary}

    # ---- queues that come and go

    def begin(self, name: str, rules: Rules, subscribers: list[str]) -> None:
        """A queue has its home here from now on."""
        self.settings.rules[name], self.settings.subscribers[name] = rules, subscribers
        queue = self.store.queue(name)
        for subscriber in subscribers:
            queue.subscribe(subscriber)
        self.bind(name, rules.topics)
        self._home_moved(name)

    def end(self, name: str) -> None:
        """A queue has its home here no more: nobody puts, and what members have goes back."""
        del self.settings.rules[name]
        self.bind(name, ())
        self._home_moved(name)

    def pause(self, name: str, paused: bool) -> None:
        """Members get no more of a queue, or get messages again."""
        (self.settings.paused.add if paused else self.settings.paused.discard)(name)
        queue = self.queue_here(name)
        row = self._rows.get(queue) if queue is not None else None
        if row is not None and not paused:
            row.wake_all()
            self.stir(name)

    def _home_moved(self, name: str) -> None:
        """Clients that are members of a queue sit where it is now."""
        for place in list(self.places.values()):
            seat = place.seats.get(name)
            if seat is not None:
                self._leave_seat(place, name)
                self._take_seat(place, name, seat.qos, seat.suffix)
        self.translators.look()
        self.due.look()
        self.upkeep.rules_changed()
        self.sites.own_changed(name)

    def after_commit(self, queue: Queue, waiting: Waiting) -> None:
        """Have something go when everything of a queue so far is on the disk."""
        self.store.after(queue, waiting)

    # ---- members

    def subscribed(self, session: Session, topic_filter: str, qos: int, identifier: int) -> None:
        """A client is a member, or has other options. Who is subscribed to the queue and to its alerts gets messages, and no alerts."""
        alerts = queue_of_alerts(topic_filter)
        name = alerts or topic_filter[len(PREFIX) :]
        if alerts and PREFIX + name in session.subscriptions:
            return
        place = self.places.get(session)
        if place is None:
            place = self.places[session] = Place(session, self._spoken)
        suffix = encode_properties({Property.SUBSCRIPTION_IDENTIFIER: [identifier]}) if identifier else b""
        qos = min(qos, 1)
        seat = place.seats.get(name)
        wanted = session.subscriptions[topic_filter]
        if seat is not None and (seat.pulls, seat.selector, seat.reorders) == (bool(alerts), wanted.selector, wanted.reorders):
            seat.qos, seat.suffix = qos, suffix
            return
        if seat is not None:
            self._leave_seat(place, name)
        self._take_seat(place, name, qos, suffix)

    def _take_seat(self, place: Place, name: str, qos: int, suffix: bytes) -> None:
        session, queue = place.session, self.queue_here(name)
        subscribed, alerts = session.subscriptions.get(PREFIX + name), session.subscriptions.get(PREFIX + name + ALERTS)
        pulls = subscribed is None and alerts is not None
        subscribed = subscribed or alerts
        seat: Sitting
        if queue is None:
            seat = self.sites.seat(place, name, qos, suffix, pulls, subscribed)
        else:
            client = identifier_of(session.client_id)
            if client == session.client_id:  # a session on its way to another site is no subscriber: its client is one there
                queue.subscribe(client, session.expiry == 0)
                self.sites.came_here(name, client)
            wishes = (subscribed.selector, subscribed.reorders) if subscribed is not None else ("", False)
            seat = (PullSeat if pulls else Seat)(place, queue, queue.member(client), qos, suffix, *wishes)
        place.seats[name] = seat
        if session.connection is not None:
            self._sit(seat)

    def unsubscribed(self, session: Session, topic_filter: str) -> None:
        """A client is no member of a queue any more."""
        alerts, place = queue_of_alerts(topic_filter), self.places.get(session)
        name = alerts or topic_filter[len(PREFIX) :]
        if place is None or name not in place.seats or (alerts and not place.seats[name].pulls):
            return
        seat = self._leave_seat(place, name)
        other = session.subscriptions.get(PREFIX + name + ALERTS)
        if other is not None and not seat.pulls:  # it asks for messages from now on
            self._take_seat(place, name, min(other.qos, 1), b"")
            return
        if isinstance(seat, Seat):
            self.sites.left_here(seat.queue, session.client_id)
        self._leave_place(place)
        self._stirred[name] = None

    def _leave_place(self, place: Place) -> None:
        if not place.seats:
            place.leave()
            del self.places[place.session]

    def stand_all(self, name: str) -> None:
        """A queue here takes no members any more."""
        row = self._rows.get(self.store.queues[name])
        for seat in row.seats if row is not None else ():
            if isinstance(seat, Seat):
                self._leave_seat(seat.place, name)
                self._leave_place(seat.place)

    def leave_plan(self, queue: Queue, name: str) -> None:
        """A subscriber is none any more: what waits for it alone expires, little by little where that is much. The file's stay."""
        if name in self.settings.subscribers.get(queue.name, ()):
            return
        steps = queue.unsubscribe(name, self.now())
        for _ in islice(steps, AT_ONCE if not queue.leaving else 0):
            pass
        turns = self.context.turns
        turns.run(turns.current, steps, f"client={quoted(name)} work=queue-leave")

    def _leave_seat(self, place: Place, name: str) -> Sitting:
        seat = place.seats[name]
        self._return(place, [seat])
        del place.seats[name]
        if isinstance(seat, AwaySeat):
            self.sites.leave(seat)
        return seat

    def came(self, session: Session) -> None:
        """A client is there again."""
        place = self.places.get(session)
        for seat in place.seats.values() if place is not None else ():
            self._sit(seat)

    def left(self, session: Session) -> None:
        """A client's connection is gone: what it had goes back at once."""
        place = self.places.get(session)
        if place is not None:
            self._rise(place)

    def _rise(self, place: Place) -> None:
        self._return(place, list(place.seats.values()))

    def resumed(self, session: Session) -> None:
        """A client's connection takes more."""
        place = self.places.get(session)
        if place is not None:
            self._wake(place)

    def _wake(self, place: Place) -> None:
        """A client may have room for more, of all its queues."""
        for name, seat in place.seats.items():
            if isinstance(seat, AwaySeat):
                self.sites.wake(seat)
            elif isinstance(seat, Seat) and (row := self._rows.get(seat.queue)) is not None:
                row.wake(seat)
                self._stirred[name] = None

    def _sit(self, seat: Sitting) -> None:
        if isinstance(seat, AwaySeat):
            self.sites.sit(seat)
        elif isinstance(seat, Seat):
            seat.queue.subscribe(seat.member.name, seat.place.session.expiry == 0)
            self.sites.came_here(seat.name, seat.member.name)
            self.sit(seat)

    def sit(self, seat: Seat | Guest) -> None:
        """A member takes messages of a queue here from now on."""
        seat.queue.choose(seat.member, seat.selector, fits(seat.selector))
        row = self._rows.get(seat.queue)
        if row is None:
            row = self._rows[seat.queue] = Row(seat.queue, self._give)
        row.sit(seat)
        self._stirred[seat.queue.name] = None

    def stand(self, seat: Seat | Guest, most: int = 0) -> None:
        """It takes no more: what it has goes back. most: at once; the rest in turns with everybody else."""
        row = self._rows.get(seat.queue)
        if row is not None and row.stand(seat, self.now(), most):
            del self._rows[seat.queue]
        self.stir(seat.queue.name)

    def _return(self, place: Place, seats: list[Sitting]) -> None:
        """What a client has of queues is for others, and it takes no more. What it has acknowledged by now counts."""
        self._listen(place)
        outbound, those = place.session.outbound, set(seats)
        had = [one for one in outbound.flights() if isinstance(one, Offer) and one.seat in those]
        outbound.drop(had)
        if had:
            self._spoken.setdefault(place)  # it has room for others
        left = LEAVE
        for seat in seats:
            if isinstance(seat, AwaySeat):
                seat.leave(False)
            elif isinstance(seat, Seat):
                held = seat.member.held
                self.stand(seat, left)
                left -= min(held, left)

    def refused(self, session: Session, number: int, reason: int) -> None:
        """A client answers a message with a PUBACK that refuses it."""
        flight = session.outbound.flight_of(number) if session in self.places else None
        if isinstance(flight, Offer):
            if flight.refused is None:
                flight.refused = {}
            flight.refused[number - flight.first] = reason

    # ---- the end of a piece of work

    def settle(self) -> bool:
        """Take what members have acknowledged, and give them more: whether something is on its way to other sites."""
        if self.publishers.early:
            self._stirred.update(dict.fromkeys(self.publishers.give_early()))
        if not (self._spoken or self._stirred or self.sites.busy):
            return False
        while self._spoken:
            place, _ = self._spoken.popitem()
            self._listen(place)
            self._wake(place)
        left = AT_ONCE
        while self._stirred and left > 0:
            name = next(iter(self._stirred))
            del self._stirred[name]
            left -= self._feed(name, left)
        if self._stirred and not self._goes_on:
            self._goes_on = True
            self.context.loop.call_soon(self._go_on)
        self.upkeep.set_timer()
        return self.sites.settle()

    def _go_on(self) -> None:
        """Members get more, now that everybody else had a turn."""
        self._goes_on = False
        self.context.refresh()
        self.context.flush()

    def begin_commit(self) -> None:
        """Write what is new; what nobody waits for, in a moment, together with what comes until then."""
        if self.store.quiet:
            return
        if self.store.pressing:
            self.store.begin_together()
        elif self._soon is None and self.store.dirty:
            self._soon = self.context.loop.call_later(SOON, self._begin_now)

    def _begin_now(self) -> None:
        self._soon = None
        self.context.refresh()
        self.store.begin()

    def _listen(self, place: Place) -> None:
        """What a client has acknowledged is DONE; what it has refused goes back."""
        heard, place.tap.heard = place.tap.heard, []
        now = self.now()
        done: dict[tuple[Sitting, object], list[tuple[int, int]]] = {}
        for offer, begin, end in heard:
            seat: Any = offer.seat
            base = offer.base + offer.start
            for at in [one for one in offer.refused or () if begin <= one < end]:
                self._refuse(seat, offer.part_of, base + at, (offer.refused or {})[at], now)
            spans = done.setdefault((seat, offer.part_of), [])
            if offer.refused is None:
                spans.append((base + begin, base + end))
            else:
                spans += [(base + at, base + at + 1) for at in range(begin, end) if at not in offer.refused]
        for (seat, part), spans in done.items():
            for start, stop in merged(spans):
                seat.acknowledged(part, start, stop - start, now)

    def _refuse(self, seat: Sitting, part: object, index: int, reason: int, now: int) -> None:
        if reason == UNUSABLE_REASON:
            seat.outcome(part, index, 1, Subscriber.UNUSABLE, now)
        else:
            seat.returned(part, index, 1, now)

    def _feed(self, name: str, most: int) -> int:
        """Give the members of a queue what they have room for, in turns: how many messages. most: then they are given more later."""
        known = self.store.queues.get(name)
        if known is not None and known.leaving:
            self._stirred[name] = None
            return AT_ONCE * known.let_leave(self.now(), LEAVE) // LEAVE
        queue = self.queue_here(name)
        row = self._rows.get(queue) if queue is not None else None
        if queue is None or row is None or name in self.settings.paused:
            return 0
        given, more = row.feed(most, self.context.now) if self._readable(queue) else (0, False)
        if not self._readable(queue):
            row.again()
            self._later[name] = None
        elif more:
            self._stirred[name] = None
        return given

    def _readable(self, queue: Queue) -> bool:
        """Whether messages can be given: this broker is home of the queue, and the server that has their bodies is there."""
        committer = self.store.committer(queue)
        return committer.store.held() and not committer.away

    def get(self, session: Session, name: str, most: int) -> tuple[int, int]:
        """Give a member what it asks for: how many messages, and how many more wait for it. Raises UsageError."""
        place = self.places.get(session)
        seat = place.seats.get(name) if place is not None else None
        if place is None or not isinstance(seat, PullSeat):
            raise UsageError(NOT_ASKING.format(name[:200]))
        self._listen(place)
        return self._pull(seat, most)

    def get_away(self, origin: int, client: str, name: str, most: int) -> tuple[int, int]:
        """The same for a client of another site: the messages are on their way before the answer."""
        guest = self.sites.puller(name, client, origin)
        if guest is None:
            raise UsageError(NOT_ASKING.format(name[:200]))
        found = self._pull(guest, most)
        self.sites.give(guest)
        return found

    def _pull(self, seat: PullSeat | PullGuest, most: int) -> tuple[int, int]:
        given = 0
        seat.queue.looks.left = LOOKS
        while (room := min(most - given, seat.asked())) > 0 and (found := self._give(seat, room)):
            given += found
        row = self._rows[seat.queue]
        row.tell(seat)
        if given or seat.member in seat.queue.looking:
            row.wake(seat)
            self.stir(seat.name)
        return given, seat.queue.waiting_for(seat.member)

    def _give(self, seat: Seat | Guest, most: int) -> int:
        if seat.name in self.settings.paused or not self._readable(seat.queue):
            return 0
        now, queue = self.now(), seat.queue
        ahead = self._rows[queue].ahead if isinstance(seat, Seat) and seat.qos else None
        wishes = (PREFIX + queue.name).encode(), seat.suffix, seat, self.context.now, now, seat.alone, queue.rules.requests, ahead
        slices = queue.take(seat.member, most, now)
        for number, one in enumerate(slices):
            block = one.part.block
            try:
                payloads = self.store.payloads(queue, block)
            except Away as error:
                self.store.committer(queue).wait(error)
                for part, start, length, _ in slices[number:]:
                    queue.untake(seat.member, part, start, length, now)
                return sum(one.length for one in slices[:number])
            except (Damaged, OSError) as error:
                log.error("event=queue-unreadable queue=%s text=%s", quoted(queue.name), error)
                queue.settle(seat.member, one.part, one.start, one.length, Subscriber.UNUSABLE, now)
                continue
            for offer in offers(one, payloads, *wishes):
                seat.send(offer, now)
            if not one.part.free and (number + 1 == len(slices) or slices[number + 1].part.block is not block):
                self.store.served(queue, block)
        return sum(one.length for one in slices)

    # ---- commits and time

    def _committed(self, error: OSError | None) -> None:
        self.context.refresh()
        self._written.set()
        if error is not None:
            log.error("event=queues-failed text=%s", self.store.why(error))
        if self.store.trim_soon:
            self.upkeep.trim(soon=True)
        self._stirred.update(self._later)
        self._later.clear()
        self._stirred.update(dict.fromkeys(news(self._rows, self.store.touched())))
        self.upkeep.set_timer()
        self.store.forget_calm()
        self.context.flush()

    def tick(self) -> None:
        """Called every now and then."""
        self.upkeep.tick()
        self.sites.tick()
        self.workflow.tick()
        self.translators.tick()
        self.due.tick()
