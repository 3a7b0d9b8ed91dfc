"""`Node`: one broker's membership of one mesh, sans-IO.

The shell tells it of links, of bytes that they bring, of local subscriptions and of messages. The node answers with actions (`take`). It
holds no socket, clock or task; the caller passes the time as `now`.

    links.py         the live links, and which links must end
    signalling.py    control packets (control.py), each given to the part that handles it
    membership.py    the brokers, their links (linkstate.py) and their subscriptions (interest.py)
    origin.py        this broker as origin: its tree (own_tree.py) and its frames (framing.py)
    dispatch.py      messages in custody (custody.py) on the way to their destinations, and receipts (joins.py)
    shared_picks.py  which broker serves a shared subscription
    orders.py        what operators tell the whole mesh
    relay.py         this broker as relay and destination: frames (envelope.py, visited.py), windows (windows.py)
    flood.py         flooded frames of QoS 0
    direct.py        one frame by itself
    retained.py      retained messages, the same at every broker (retained/)
    restore.py       the state of an earlier life
    node.py          what a shell calls, and the order of all this

docs/mesh-protocol.md explains the rules.

Invariants
- state that follows from other state (routes, streams, trees) is dropped with it, or computed again at the next use;
- actions stand in the order of their causes; control packets that a flush makes come after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...mqtt.batch.batch import Batch
from ...mqtt.batch.parts import PartsBatch
from ...mqtt.batch.run import Run
from ...mqtt.errors import UsageError
from ...mqtt.length import known_length
from ..custody.custody import Entry
from ..custody.journal import Records
from ..custody.watches import Standing, Watch
from ..retained import DeleteValue, PutValue
from ..view.interest import Interests
from ..view.linkstate import LinkStates
from ..view.lives import Former, Lives
from ..view.zones import Zones
from ..wire.control import PREFIX, Position
from ..wire.envelope import PEER_TOPICS, Share, bad_frame
from ..wire.identity import Identity
from ..wire.keys import Keys
from ..wire.policy import Policy, PolicyFilter
from ..wire.visited import mask_of, numbers
from .actions import Action, Deliver, FiltersChanged, Held, LinkInfo, Member, MeshRoute, Verdict
from .core import Core, Counters, MeshConfig, Tap
from .dispatch import Dispatch
from .framing import Framer
from .links import Links
from .membership import Membership
from .orders import Orders
from .origin import Origin
from .own_tree import OwnTree
from .relay import Relay
from .restore import restore
from .retained import RetainedMessages
from .signalling import Signalling
from .single.receipts import SingleMessages

__all__ = ["Identity", "MeshConfig", "MeshRoute", "Node", "Verdict"]


class Node:
    """One broker's membership of one mesh, without sockets and clocks.

    A caller tells it what happens (`link_up`, `receive`, `subscribe`, `publish`, `handle_timer`), then carries out the actions
    that `take` returns. With a store it calls `restore` first, writes `records` in a batch, and calls `committed` after the commit."""

    def __init__(
        self,
        identity: Identity,
        config: MeshConfig | None = None,
        wall_offset: float = 0.0,
        keys: Keys | None = None,
        claim: int = 0,
        former: Former | None = None,
    ) -> None:
        """identity: who this broker is in this life. wall_offset: seconds since 1970 minus the clock that `now` is of.
        keys: who may speak for which number; None: nobody signs, and everybody is believed. claim: see `view/lives.py`. former: the
        identity that the broker had before an operator gave it this one."""
        lives = Lives(identity, claim, former)
        self._core = Core(identity, config or MeshConfig(), wall_offset, lives, keys)
        self._core.former = former
        self._states = LinkStates((identity.number, identity.uuid.bytes), lives)
        self.interests = Interests()  # callers only read it
        own_groups: set[Share] = set()
        self._zones = Zones(identity.number, self.interests)
        self._tree = OwnTree(self._core, self._states)
        frames = Framer(self._core, self._tree)
        self._dispatch = Dispatch(self._core, self._states, self.interests, self._zones, self._tree, frames, own_groups)
        self._dispatch.local = self._serve_here
        self._origin = Origin(self._core, self._states, self._zones, self._tree, frames, self._dispatch)
        self._relay = Relay(self._core)
        self.receive_one = self._relay.direct.take  # one frame by itself, see there; nothing else is due then, but for its token
        parts = (self._core, self._states, self.interests)
        self._members = Membership(*parts, self._zones, self._tree, self._dispatch, own_groups)
        self._retained = RetainedMessages(self._core)
        self._origin.keep, self._relay.keep = self._retained.put, self._retained.live
        self._relay.after_kept = self._retained.collect
        self._members.on_known, self._members.on_forgotten = self._retained.members, self._retained.forget
        self._orders = Orders(self._core, self._members)
        self._links = Links(*parts, self._members, self._relay, self._dispatch, self._retained, self._orders)
        self._signalling = Signalling(self._core, self._members, self._links, self._relay, self._dispatch, self._retained, self._orders)
        self.single = SingleMessages(self._core, self._relay, self._dispatch, self._tree)  # for messages that go by themselves
        self._here: dict[int, tuple[Entry, list[Share]]] = {}  # tokens of messages re-picked for this broker: groups that refused

    # ---- who and what

    @property
    def identity(self) -> Identity:
        """Who this broker is; its epoch rises when an earlier life of its number turns out to be ahead."""
        return self._core.identity

    @property
    def fenced(self) -> bool:
        """Whether this life has yielded to another one of its identity (docs/copies.md): it has no links and takes nothing any more."""
        return self._core.fenced

    @property
    def counters(self) -> Counters:
        """What was counted since the node began, as of now."""
        counters, links = self._core.counters, self._core.links.values()
        sent, received = sum([end.sent for end in links]), sum([end.received for end in links])
        return replace(counters, sent=counters.sent + sent, received=counters.received + received)

    def tapped(self, tap: Tap) -> None:
        """Have what becomes of messages written down from now on."""
        self._core.tap = tap
        self._core.stale()

    @property
    def stirred(self) -> bool:
        """Whether `take` may have something to give, or `records` something new."""
        return self._core.stirred or bool(self._core.actions)

    @property
    def unread(self) -> int:
        """Bytes that neighbours have sent of what they know of interest, and that are not taken yet."""
        return self._members.exchange.waiting

    @property
    def unsettled(self) -> bool:
        """Whether `take` has more to do than to give what is there: `next_deadline` may be new."""
        return self._core.stirred

    def links(self) -> list[LinkInfo]:
        """The live links, by peer."""
        return self._links.listed()

    def members(self) -> list[Member]:
        """All brokers that this one knows, itself included, by number."""
        return self._members.listed()

    def holders(self) -> Mapping[int, Identity]:
        """The live brokers by number, this one included: a view that follows what this node learns."""
        self._members.refresh()
        return self._members.holders

    def why_not(self, peer: Identity) -> str | None:
        """Why a peer that has proved its key must not have its number, as one line with what would be right; None: it may."""
        keys = self._core.keys
        if keys is None:
            return None
        self._members.refresh()
        return keys.why_not(peer.number, peer.name, peer.key, bool(self._states.live >> peer.number & 1))

    def status(self) -> dict[str, object]:
        """Members, links of the mesh, digest and counters, fit for JSON. digest: the same at all brokers that have the same link state and
        interest. graph: see `LinkStates.listed`."""
        members = [m._replace(uuid=m.uuid.hex())._asdict() for m in self.members()]  # type: ignore[arg-type]
        messages, size = self.custody()
        config = self._core.config
        return {
            "members": members,
            "graph": [list(link) for link in self._states.listed()],
            "digest": self.digest(),
            "custody": {
                "messages": messages,
                "bytes": size,
                "messages_limit": config.custody_messages,
                "bytes_limit": config.custody_bytes,
                **self._dispatch.away(),
            },
            "retained": self._retained.sync.status(),
            "counters": self.counters.as_dict(),
        }

    def digest(self) -> str:
        """Of what this node knows of the live brokers: their links and their interest."""
        return self._members.digest()

    @property
    def informed(self) -> bool:
        """Whether it is known what others want: from a neighbour, or from an earlier life. The event "informed" says when it becomes so."""
        return self._members.informed

    def interested(self, topic: str) -> int:
        """The brokers elsewhere with an ordinary subscription that matches, as a set (bit n: broker n): those that may have the topic."""
        self._members.refresh()
        return self._zones.match(topic).mask

    def wanted(self, topic: str) -> int:
        """The same by interest alone, whatever policies on the way say: the topic by its name here."""
        self._members.refresh()
        return self.interests.match(topic).mask

    def sharers(self, share: Share) -> int:
        """The brokers elsewhere that can be reached and have members of a shared subscription, as a set."""
        return mask_of([number for number, _ in self.interests.members(share)]) & self.live()

    def key_of(self, number: int) -> bytes | None:
        """The public key under which a broker is known, that it signs its statements with; None: none is known."""
        keys = self._core.keys
        pin = None if keys is None else keys.pins.get(number)
        return None if pin is None else pin.key

    def traffic(self, link: int) -> dict[str, int]:
        """Data frames that a live link has carried each way, and those that it was too full for."""
        end = self._core.links.get(link)
        return {} if end is None else {"messages_out": end.sent, "messages_in": end.received, "dropped": end.dropped}

    def held(self) -> list[Held]:
        """What is in custody here, by destination."""
        return [
            Held(
                d.name,
                d.number,
                self.reachable(d.number),
                d.held_messages,
                d.held_bytes,
                d.waits,
                d.paged_messages,
                d.flight_messages,
                d.dropped,
            )
            for d in self._dispatch.custody.destinations.values()
        ]

    def custody(self) -> tuple[int, int]:
        """Messages and bytes that this broker holds as an origin, in memory or on the disk only."""
        custody = self._dispatch.custody
        return custody.messages + custody.paged_messages, custody.bytes + custody.paged_bytes

    def custody_in_memory(self) -> tuple[int, int, int]:
        """Messages, bytes and runs of these that are in memory."""
        custody = self._dispatch.custody
        return custody.messages, custody.bytes, len(custody.entries)

    def tighten(self, size: int) -> None:
        """The store keeps nothing more. QoS 1 and 2 are taken only for brokers that can be sent to now, as long as no more than size bytes
        are on their way to one (FULL beyond), but for retained messages that are deleted. size: 0: it keeps what comes again."""
        self._dispatch.custody.tight = size
        self._core.stirred = True

    def reaches(self, route: MeshRoute) -> bool:
        """Whether all brokers that want a topic for subscriptions of their own can be reached now."""
        self._members.refresh()
        return not route.match.mask & ~self._states.live

    # ---- links

    def link_up(self, link: int, peer: Identity, incarnation: int, cost: int, now: float, policy: Policy | None = None) -> None:
        """A link's handshake has ended well.

        link: any number that is not in use. incarnation: 63 bits, the same at both ends, never used before. cost: at least 1.
        policy: checked, what this end lets out and in for the link's whole life; to change it, end the link.
        """
        self._core.enter(now)
        self._links.up(link, peer, incarnation, cost, policy)

    def link_down(self, link: int, now: float) -> None:
        """A link is over, for whatever reason. An unknown one is ignored."""
        self._core.enter(now)
        self._links.down(link)

    def gate(self, link: int) -> PolicyFilter | None:
        """This end's policy of a live link, to ask which topics may leave and come in, under which names; None: all, under their own."""
        return self._links.gate(link)

    def guarded(self, link: int) -> bool:
        """Whether a live link has a policy at either end, as far as is known: what is equal at both sides of others may differ here."""
        return self._links.guarded(link)

    def link_cost(self, link: int, cost: int, now: float) -> None:
        """The measured cost of a link has changed; call it for changes that are worth new trees only."""
        self._core.enter(now)
        self._links.cost(link, cost)

    def link_full(self, link: int, full: bool, now: float) -> None:
        """The shell's unsent bytes for a link passed its bound (True) or fell well below it again (False)."""
        self._core.enter(now)
        self._links.full(link, full)

    # ---- bytes

    def receive(self, link: int, data: bytes, now: float) -> None:
        """Whole MQTT packets that came over a link, as many as have come, in order.

        Raises `PeerError` when the peer breaks a rule: close the link and call `link_down`. Bytes of a link that is over are ignored.
        """
        core = self._core
        core.now = now
        end, position, stop = core.links.get(link), 0, len(data)
        try:
            while position < stop and end is not None:
                if data[position] != 0x30:
                    raise bad_frame(f"packet type and flags 0x{data[position]:02x}; a link carries PUBLISH with QoS 0")
                topic = position + 4 if data[position + 1] < 128 else known_length(data, position + 1)[1] + 2
                if data.startswith(PREFIX, topic):
                    core.stirred = True
                    position = self._signalling.receive(end, data, position, topic)
                    end = core.links.get(link)
                else:
                    position = self._relay.receive(end, data, position, stop)
        except IndexError:
            raise bad_frame("it is cut off") from None

    # ---- interest

    def subscribe(self, filter: str, group: str | None, weight: int, now: float) -> None:
        """This broker has subscribers of a filter. Call it for the first one, and when a shared subscription's weight changes.

        filter: well-formed, without ``$share/...``. group: name of the shared subscription. weight: its part beside those of other brokers.
        """
        self._core.enter(now)
        self._members.wants(filter, group, max(weight, 1))

    def unsubscribe(self, filter: str, group: str | None, now: float) -> None:
        """The last subscriber of a filter is gone."""
        self._core.enter(now)
        self._members.wants(filter, group, None)

    # ---- messages

    def reserve(self, prefixes: tuple[str, ...]) -> None:
        """Topics that begin so are wanted by those brokers alone whose filters begin so too."""
        self.interests.reserved = prefixes

    def route(self, topic: bytes, retain: bool = False) -> MeshRoute | None:
        """Who elsewhere wants a topic; None: nobody. Valid until a `FiltersChanged` that concerns it.

        topic: validated. retain: ask for a retained message, which goes to every other member and is kept for those that come later.
        """
        if topic.startswith(b"$"):
            return None
        self._members.refresh()
        text = topic.decode()
        match = self._zones.match(text)
        if match.mask or match.groups or retain or (self._core.config.mode == "flood" and self._core.links):
            return MeshRoute(topic, text, match, self.interests.generation)
        return None

    def publish(
        self,
        route: MeshRoute,
        run: Batch,
        now: float,
        local_groups: frozenset[Share] | None = None,
        keep: bool = True,
        hold: bool = False,
    ) -> Verdict:
        """Send messages to the other brokers that want them; of a run with RETAIN, each site keeps the last one.

        route: of `route` for the run's topic. local_groups: the shared subscriptions, (group, filter), that a
        member here serves; None: all that have members here. QoS 0 and flooded messages are TAKEN always. keep: False: no site keeps it
        though it has RETAIN. hold: where there is a store, QoS 1 leaves only behind the commit, as QoS 2 does.
        Raises ValueError for what no frame can hold (`check_travels`); then nothing was done.
        """
        core = self._core
        core.now = now
        if self._states.dirty:
            self._members.refresh()
        if route.generation != self.interests.generation:
            route.match = self._zones.match(route.text)
            route.generation = self.interests.generation
        if core.config.mode == "flood" and not run.qos:
            return self._origin.publish_flood(route, run, local_groups, keep)
        return self._origin.publish(route, run, local_groups, keep, hold)

    def handed(self, token: int, now: float, early: bool = False) -> None:
        """The shell has carried out a delivery with a token, and called `refuse` where it had to; `records` goes with it.

        Only where there is a store, in the order of the deliveries, before `delivered`. early: a post, while deliveries before it wait.
        """
        self._core.enter(now)
        here = self._here.get(token)
        if here is None:
            self._relay.handed(token, early)
        elif not here[1] and self._core.journal is not None:
            self._core.journal.drop(here[0])

    def publish_parts(self, mask: int, run: PartsBatch, now: float) -> Verdict | None:
        """Send messages of different topics that the same brokers want: `MeshRoute.mask` of all their routes is `mask`.

        None: routes are changing, or QoS 0 is flooded; nothing was done, publish each message by itself.
        """
        core = self._core
        core.now = now
        if self._states.dirty:
            self._members.refresh()
        if self.interests.changed is None or self.interests.changed or (core.config.mode == "flood" and not run.qos):
            core.stirred = True  # `take` says what has changed
            return None
        return self._origin.publish_parts(mask, run)

    def publish_one(
        self, mask: int, topic: bytes, qos: int, payload: bytes, now: float, asks: bool = False
    ) -> Sequence[tuple[int, bytes | bytearray]] | None:
        """`publish_parts` for one message by itself: (link, frame) of what must be sent now; None: nothing was done, go the general way.

        qos: 0 or 1. At QoS 1 `keep_one` must follow once the frames are written, before anything else. asks: the receipt is wanted at once
        (`SingleMessages.may_ask`).
        """
        core, changed = self._core, self.interests.changed
        if core.config.mode == "flood" or self._states.dirty or self._tree.due or core.actions or changed is None or changed:
            return None
        core.now = now
        return self._origin.publish_one(mask, topic, qos, payload, asks)

    def keep_one(self) -> bool:
        """Take the message of QoS 1 whose frames `publish_one` has given into custody: its neighbour has it all the sooner.

        Nothing else is due then but `records`. False: it went the general way, which has done so, and its frames do not ask.
        """
        direct = self._origin.keep_one()
        self._core.stirred = self._core.stirred or self._dispatch.wants_flush
        return direct

    def send_to_brokers(
        self, brokers: int, kind: str, body: bytes, now: float, must: bool = False, expiry: int | None = None, more: Sequence[bytes] = ()
    ) -> Verdict:
        """Send a message to other brokers themselves: each gets it once, as a `PeerMessage`, in order with all else from here.

        It is in custody as a QoS 2 message is: stored before it goes, kept until each of them has committed it, through route changes and
        restarts, and `Returned` when one of them is given up. brokers: numbers as a set (bit n: broker n), others than this one, known
        here, reachable or not (`known`). kind: what handles it there; letters, digits, '-', '/'. must: take it though custody is full; the
        caller bounds how much of that there is. expiry: seconds after which it is returned instead. more: messages of the same length that
        follow it. Raises UsageError for brokers that are not known, ValueError for a body that no frame can hold.
        """
        self._core.enter(now)
        strangers = brokers & ~self.known()
        if strangers or not brokers:
            raise UsageError(f"post to brokers {list(numbers(brokers))}: not known here are {list(numbers(strangers))}")
        run = Run(PEER_TOPICS + kind.encode(), 2, False, [body, *more], expiry=expiry, received=now)
        return self._origin.send_to_brokers(brokers, run, must)

    def position(self) -> tuple[int, int]:
        """Where this broker is as an origin of QoS 1 and 2 and of posts: the position of the last one, (epoch, sequence)."""
        return self._dispatch.position

    def settled(self, number: int) -> tuple[int, int]:
        """Up to which position a broker has all that it was sent, and will not forget it."""
        d = self._dispatch.custody.destinations.get(number)
        return d.settled if d is not None else (0, 0)

    def known(self) -> int:
        """The brokers that can be posted to, as a set: known and not forgotten, reachable or not, and not behind a link with a policy."""
        self._members.refresh()
        return mask_of(list(self.interests.active)) & ~mask_of(list(self._zones.of))

    def live(self) -> int:
        """The other brokers that can be reached now, as a set."""
        self._members.refresh()
        return self._states.live & ~(1 << self._core.number) & self.known()

    def interest_of(self, number: int) -> tuple[int, int]:
        """How new what is known here of a broker's interest is: (epoch, version); of this broker's own: with what it says next."""
        self._members.refresh()
        return self._members.exchange.version_of(number)

    # ---- who has it

    def watch(self, behind: Position, count: int) -> Watch | None:
        """Watch what `publish` took for others, None when that was nothing. behind: `position` before it. count: messages of the run.

        `Confirmed` follows when no broker that was reachable, and still is, owes the receipt. Its messages have the sequences
        `first`, `first` + 1, and so on; (origin, epoch, sequence) names a message of the mesh for good.
        """
        return self._dispatch.watch(behind, count)

    def standing(self, watch: Watch, index: int) -> Standing:
        """Which brokers have a message of a watch, counted from its first one, which are awaited, which will not get it."""
        return self._dispatch.standing(watch, index)

    def reachable(self, number: int) -> bool:
        """Whether there is a path to a broker now."""
        self._members.refresh()
        return bool(self._states.live >> number & 1)

    def name(self, number: int) -> str:
        """A broker's name, or its number in figures when it is not known."""
        uuid = self.interests.active.get(number)
        record = self._states.records.get((number, uuid)) if uuid is not None else None
        return record.name if record is not None else self._core.identity.name if number == self._core.number else str(number)

    def delivered(self, token: int, now: float) -> None:
        """A delivery with a token is committed: it will not be lost here. Each token once, in any order."""
        core = self._core
        core.now = now
        here = self._here.pop(token, None)
        if here is not None:
            core.stirred = True
            entry, refused = here
            for share in refused:
                self._dispatch.refused_here(entry, share)
            if refused and core.journal is not None:
                core.journal.drop(entry)
            return
        self._relay.delivered(token)

    def refuse(self, token: int, group: Share, now: float) -> None:
        """This broker has no member for a shared subscription that the delivery picked it for. Call it before `delivered`.

        group: (group, filter) as in `Deliver.picks`.
        """
        self._core.enter(now)
        here = self._here.get(token)
        if here is not None:
            here[1].append(group)
            return
        self._relay.tokens[token][1].refusals.append(group)

    def _serve_here(self, run: Batch, entry: Entry, share: Share) -> None:
        """A re-picked message for a member of this very broker."""
        if self._core.journal is not None and not entry.order:
            entry.here = True
            self._core.journal.put(entry)
        token = self._relay.new_token()
        self._here[token] = (entry, [])
        self._core.actions.append(Deliver(run, self._core.number, token, (share,), False, entry.repeated, entry.time))

    # ---- output and time

    def take(self) -> list[Action]:
        """What the shell must do since the last call, in order. Call it after each call or batch of calls."""
        core, interests = self._core, self.interests
        if core.stirred:
            core.stirred = False
            self._members.flush_links()
            self._members.refresh()
            self._members.exchange.flush()
            self._dispatch.flush()
            self._retained.flush()
            self._signalling.flush()
            if interests.changed is None or interests.changed:
                core.actions.append(FiltersChanged(None if interests.changed is None else tuple(sorted(interests.changed))))
                interests.changed = set()
            if core.journal is not None:
                core.journal.stir(core.now)
        actions, core.actions = core.actions, []
        return actions

    def next_deadline(self) -> float | None:
        """When `handle_timer` wants to be called, on the clock of `now`."""
        dispatch, journal = self._dispatch, self._core.journal
        dues = [self._relay.due, self._retained.deadline, dispatch.joins_due, self._members.next_deadline()]
        if journal is not None or dispatch.custody.timed:
            dues += [dispatch.custody.next_deadline(), dispatch.pager.next_deadline(), None if journal is None else journal.others.due]
        return min([one for one in dues if one is not None], default=None)

    def handle_timer(self, now: float) -> None:
        """Receipts go with the next `take`, what was learned of others with the next `records`; messages expire; brokers that are away
        for too long are forgotten."""
        self._core.enter(now)
        self._dispatch.expire()
        self._members.expire()
        self._orders.expire()
        self._retained.handle_timer()

    def forget(self, number: int, now: float) -> None:
        """A broker is gone for good: drop its interest and return what waits for it. A reachable one is left alone."""
        self._core.enter(now)
        self._members.forget(number)

    def order(self, what: str, number: int, now: float, key: bytes = b"", dry: bool = False) -> str:
        """Have the whole mesh "forget" a broker, "rekey" its number, or forget this one ("leave") once it is gone; see `orders.py`.

        What it does, as one line. dry: only say it. Raises UsageError with one line that says why not.
        """
        self._core.enter(now)
        return self._orders.give(what, number, key, dry)

    def gone(self, peer: Identity) -> bool:
        """Whether a broker that was linked once has left in order or was forgotten since."""
        return self._orders.gone(peer.number, peer.uuid.bytes)

    def renew(self, keys: Mapping[str, bytes], managers: Iterable[str] | None, brokers: Mapping[str, int] | None = None) -> None:
        """The configuration says these keys and numbers, by the broker's name, and whose orders count, from now on."""
        core = self._core
        if core.keys is not None:
            core.keys.give(keys, brokers)
        core.config = replace(core.config, managers=None if managers is None else tuple(managers))

    # ---- retained messages

    def restore_retained(self, state: bytes | None, records: Iterable[tuple[bytes, bytes]], complete: bool, now: float) -> None:
        """Keep from now on what `retained_changes` gives, and go on where an earlier life was; once, before anything else.

        state: the row `STATE_KEY` of the table `STATE`. records: all rows of the table `RECORDS`. complete: that life has ended in order
        and wrote all that it said. What `retained_changes` gives must be committed before the first link. Raises ValueError (one line).
        """
        self._core.enter(now)
        self._retained.restore(state, records, complete)

    def adopt_retained(self, run: Batch, now: float) -> None:
        """A message that this broker retained before it was in a mesh; behind `restore_retained`, before the first link."""
        self._core.enter(now)
        self._retained.adopt(run)

    def retained_changes(self, now: float) -> list[PutValue | DeleteValue]:
        """Rows to set and delete since the last call; they go into one batch with `records`."""
        self._core.now = now
        return self._retained.changes()

    @property
    def retained_changed(self) -> bool:
        """Whether there are `retained_changes`."""
        return bool(self._retained.sync.changed)

    @property
    def buried(self) -> int:
        """How many deletions of retained messages are remembered."""
        return self._retained.sync.buried

    def retained(self) -> list[Batch]:
        """All messages that are retained, for a broker that starts."""
        return self._retained.messages()

    # ---- what survives a restart

    def set_kept_offset(self, offset: float) -> None:
        """Seconds from the clock of `now` to that whose times are stored; once before `restore`, again when it has changed."""
        core = self._core
        core.kept_offset = offset
        self._retained.sync.set_kept_offset(offset)
        if core.journal is not None:
            core.journal.wall_offset = offset

    def restore(
        self, entries: Iterable[tuple[int, Batch, bytes]], values: dict[bytes, bytes], now: float, pages: Iterable[tuple[int, bytes]] = ()
    ) -> None:
        """Keep from now on what `records` gives, and go on where an earlier life of this broker was; once, before anything else.

        entries: (order, run, extra) in rising order, values: by key, pages: (order, description), all that is stored; all empty in the
        first life. `records` must be committed before the first link. Raises ValueError (one line) when the state is another broker's
        or of another version, or when this life's epoch is not above that of the state.
        """
        core = self._core
        core.enter(now)
        for entry in restore(core, self._members, self.interests, self._relay, self._dispatch, entries, values, pages):
            self._serve_here(entry.run, entry, entry.picks[0][0])

    def records(self) -> Records | None:
        """What must be written since the last call, None without a store or when there is nothing.

        All of it goes into one batch with the deliveries that were carried out (`handed`) up to now; `committed` says when it is kept.
        """
        return None if self._core.journal is None else self._core.journal.take(self._core.now)

    @property
    def remembering(self) -> bool:
        """Whether the last `records` held only a part of what was learned of others: more follows at once."""
        return self._core.journal is not None and self._core.journal.others.partly

    def page_read(self, order: int, body: bytes | None, now: float) -> None:
        """The shell has read what `ReadPage` asked for. body: as `Records.pages` gave it; None: it is damaged or not there."""
        self._core.enter(now)
        self._dispatch.page_read(order, body)

    @property
    def receipt_delay(self) -> float:
        """Seconds that a receipt may wait for more deliveries."""
        return self._core.config.receipt_delay

    def may_linger(self) -> bool:
        """Whether there are `records` now, nothing but receipts waits for their commit, and no deadline is over."""
        journal = self._core.journal
        if journal is None or journal.urgent or not journal.changed or journal.late(self._core.now):
            return False
        return not (self._relay.hurried or self._retained.sync.changed)

    def committed(self, mark: int, now: float) -> None:
        """The records up to this mark, and all before them, are in the store."""
        core = self._core
        core.now = now
        if core.journal is not None and mark > core.journal.committed:
            core.journal.committed = mark
            self._dispatch.committed(mark)
            self._retained.committed(mark)
            core.stirred = core.stirred or self._dispatch.wants_flush
