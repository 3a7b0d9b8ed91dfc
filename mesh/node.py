"""`Node`: one broker's membership of one mesh, sans-IO.

It is fed with links that come and go, bytes from them, local interest and publishes, and it answers with actions (`take`). It holds no
socket, clock or task; time is what the caller passes as `now`.

    membership.py  who is there, how they are linked (linkstate.py), who wants what (interest.py)
    origin.py      this broker as a source: its tree (trees.py), custody (custody.py), receipts
    relay.py       this broker as relay and destination: frames (envelope.py, visited.py), windows (windows.py)
    keeper.py      retained messages, the same at every broker (retained/)
    node.py        links, control packets, and the order of all this

Rules are explained in docs/mesh-protocol.md.

Invariants
- all state that follows from others (routes, streams, trees) is recomputed at the next use after a change, or dropped with it;
- actions are in the order in which their causes came, control packets that a flush makes behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from ..mqtt.errors import PeerError, UsageError
from ..mqtt.loose import Loose
from ..mqtt.reasons import Reason
from ..mqtt.run import Run
from .actions import Action, Deliver, FiltersChanged, LinkInfo, Member, MeshRoute, Verdict
from .config import Counters, MeshConfig
from .control import PREFIX, Noted, Open, Position, decode, encode_mask
from .core import Core, LinkEnd
from .custody import Entry
from .envelope import POSTED, Share, bad_frame
from .identity import Identity
from .interest import Interests
from .keeper import KIND as RETAINED
from .keeper import Keeper
from .linkstate import LinkStates
from .membership import Membership
from .origin import Origin
from .policy import Gate, Policy
from .receipts import Standing, Watch
from .records import Journal, Records, decode_entry, decode_values
from .relay import Relay
from .remembered import Remembered
from .retained import DeleteValue, PutValue
from .trees import Child, Record, branches, check_open
from .visited import mask_of, numbers
from .zones import Zones

__all__ = ["Identity", "MeshConfig", "MeshRoute", "Node", "Verdict"]


class Node:
    """One broker in one mesh. See docs/contracts.md for the order of calls."""

    def __init__(self, identity: Identity, config: MeshConfig | None = None, wall_offset: float = 0.0) -> None:
        """identity: who this broker is in this life. wall_offset: seconds since 1970 minus the clock that `now` is of."""
        self._core = Core(identity, config or MeshConfig(), wall_offset)
        self._states = LinkStates((identity.number, identity.uuid.bytes))
        self._interests = Interests()
        own_groups: set[Share] = set()
        self._zones = Zones(identity.number, self._interests)
        self._origin = Origin(self._core, self._states, self._interests, self._zones, own_groups)
        self._origin.local = self._serve_here
        self._relay = Relay(self._core)
        self._members = Membership(self._core, self._states, self._interests, self._zones, self._origin, own_groups)
        self._core.on_drop = self._dropped
        self._keeper = Keeper(self._core)
        self._origin.keep, self._relay.keep = self._keeper.put, self._keeper.live
        self._relay.after_kept = self._keeper.collect
        self._members.on_known, self._members.on_forgotten = self._keeper.members, self._keeper.forget
        self._here: dict[int, tuple[Entry, list[Share]]] = {}  # tokens of messages re-picked for this broker: groups that refused
        self._handlers: dict[str, Callable[[LinkEnd, Any], None]] = {
            "summary": self._members.on_summary,
            "synced": self._on_synced,
            "linkstate": self._on_linkstate,
            "interest": self._members.on_interest,
            "want": self._members.on_want,
            "open": self._on_open,
            "receipts": self._on_receipts,
            "dropped": self._on_dropped,
            "noted": self._on_noted,
        }

    # ---- who and what

    @property
    def identity(self) -> Identity:
        """Who this broker is; its epoch rises when an earlier life of its number turns out to be ahead."""
        return self._core.identity

    @property
    def counters(self) -> Counters:
        """What was counted since the node began."""
        return self._core.counters

    def links(self) -> list[LinkInfo]:
        """The live links, by peer."""
        self._members.refresh()
        found = []
        for end in sorted(self._core.links.values(), key=lambda e: e.peer.number):
            other = self._states.records.get((end.peer.number, end.peer.uuid.bytes))
            used = other is not None and end.synced and any(entry.incarnation == end.incarnation for entry in other.links)
            policy = end.gate is not None
            found.append(LinkInfo(end.id, end.peer.number, end.peer.name, end.incarnation, end.cost, end.full, used, policy))
        return found

    def members(self) -> list[Member]:
        """All brokers that this one knows, itself included, by number."""
        self._members.refresh()
        states, core = self._states, self._core
        found = [Member(core.number, core.identity.name, core.uuid, core.identity.epoch, True, 0, 0, len(self._members.own.entries), 0)]
        for number, uuid in self._interests.active.items():
            record = states.records.get((number, uuid))
            if record is None:
                continue
            path = states.paths.get(number)
            interest = self._interests.sets.get((number, uuid))
            d = self._origin.custody.destinations.get(number)
            found.append(
                Member(
                    *(number, record.name, uuid, record.epoch, path is not None),
                    *((path.hops, path.cost) if path else (0, 0)),
                    len(interest.entries) if interest else 0,
                    d.held_messages if d else 0,
                )
            )
        return sorted(found)

    def holders(self) -> Mapping[int, Identity]:
        """The live brokers by number, this one included: a view that follows what this node learns."""
        self._members.refresh()
        return self._members.holders

    def status(self) -> dict[str, object]:
        """Members, digest and counters, fit for JSON. digest: the same at all brokers that have the same link state and interest."""
        members = [m._replace(uuid=m.uuid.hex())._asdict() for m in self.members()]  # type: ignore[arg-type]
        messages, size = self.custody()
        return {
            "members": members,
            "digest": self.digest(),
            "custody": {"messages": messages, "bytes": size},
            "retained": self._keeper.sync.status(),
            "counters": self._core.counters.as_dict(),
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

    def custody(self) -> tuple[int, int]:
        """Messages and bytes that this broker holds as an origin."""
        return self._origin.custody.messages, self._origin.custody.bytes

    # ---- links

    def link_up(self, link: int, peer: Identity, incarnation: int, cost: int, now: float, policy: Policy | None = None) -> None:
        """A link's handshake has ended well.

        link: any number that is not in use. incarnation: 63 bits, the same at both ends, never used before. cost: at least 1.
        policy: checked, what this end lets out and in for the link's whole life; to change it, end the link.
        """
        core = self._core
        core.now = now
        refusal = self._refusal(peer, incarnation)
        if refusal is not None:
            name, reason, text = refusal
            core.close(link, reason, text)
            core.event(name, link=link, peer=str(peer), text=text)
            return
        old = core.by_number.get(peer.number)
        if old is not None:
            self._core.drop(old)
            core.close(old.id, Reason.SESSION_TAKEN_OVER, f"{peer} has a new link")
        end = core.links[link] = core.by_number[peer.number] = LinkEnd(
            link, peer, incarnation, max(cost, 1), None if policy is None or policy.open else Gate(policy)
        )
        core.stale()  # a flooded stream has one more neighbour
        core.event("link_up", link=link, peer=str(peer), cost=end.cost)
        core.control(link, "summary", self._members.summary())
        if len(core.links) == 1 and core.config.mode == "flood":
            self._interests.all_stale()

    def _refusal(self, peer: Identity, incarnation: int) -> tuple[str, Reason, str] | None:
        """Why a link to this peer must not be: event, reason, text."""
        me = self._core.identity
        if peer.mesh != me.mesh:
            return "wrong_mesh", Reason.NOT_AUTHORIZED, f"{peer} is of mesh {peer.mesh!r}, this broker of mesh {me.mesh!r}"
        if peer.number == me.number:
            if peer.uuid == me.uuid:
                return "own_link", Reason.USE_ANOTHER_SERVER, f"{me} is linked to itself"
            text = f"{peer.name!r} ({peer.uuid}) and {me.name!r} ({me.uuid}) both have number {me.number}; give one of them another number"
            return "number_conflict", Reason.CLIENT_IDENTIFIER_NOT_VALID, text
        other = self._states.is_live(peer.number, peer.uuid.bytes)
        if other is not None:
            text = f"{peer.name!r} has number {peer.number}, which {other.name!r} holds; give one of them another number"
            return "number_conflict", Reason.CLIENT_IDENTIFIER_NOT_VALID, text
        old = self._core.by_number.get(peer.number)
        if old is not None and old.peer.epoch == peer.epoch and old.incarnation > incarnation:
            return "second_link", Reason.SESSION_TAKEN_OVER, f"there is a link to {peer} already"
        return None

    def link_down(self, link: int, now: float) -> None:
        """A link is over, for whatever reason. An unknown one is ignored."""
        self._core.now = now
        end = self._core.links.get(link)
        if end is not None:
            self._core.drop(end)
            self._members.say_links()

    def gate(self, link: int) -> Gate | None:
        """This end's policy of a live link, to ask which topics may leave and come in, under which names; None: all, under their own."""
        end = self._core.links.get(link)
        return None if end is None else end.gate

    def guarded(self, link: int) -> bool:
        """Whether a live link has a policy at either end, as far as is known: what is equal at both sides of others may differ here."""
        end = self._core.links.get(link)
        if end is None or end.gate is not None:
            return end is not None
        record = self._states.records.get((end.peer.number, end.peer.uuid.bytes))
        return record is not None and any(e.incarnation == end.incarnation and e.policy is not None for e in record.links)

    def link_cost(self, link: int, cost: int, now: float) -> None:
        """The measured cost of a link has changed; call it for changes that are worth new trees only."""
        self._core.now = now
        end = self._core.links.get(link)
        if end is not None and end.cost != max(cost, 1):
            end.cost = max(cost, 1)
            self._members.say_links()

    def link_full(self, link: int, full: bool, now: float) -> None:
        """The shell's unsent bytes for a link passed its bound (True) or fell well below it again (False)."""
        self._core.now = now
        end = self._core.links.get(link)
        if end is None or end.full == full:
            return
        end.full = full
        if not full:
            self._relay.has_space(link)
            self._origin.wake()

    def _dropped(self, end: LinkEnd) -> None:
        """A link is gone from the table; so is what rested on it."""
        self._relay.lose(end.id)
        self._origin.link_lost(end.id)
        self._keeper.lost(end)
        if not self._core.links and self._core.config.mode == "flood":
            self._interests.all_stale()

    # ---- bytes

    def receive(self, link: int, data: bytes, now: float) -> None:
        """Whole MQTT packets that came over a link, as many as have come, in order.

        Raises `PeerError` when the peer breaks a rule: close the link and call `link_down`. Bytes of a link that is over are ignored.
        """
        core = self._core
        core.now = now
        end = core.links.get(link)
        position, stop = 0, len(data)
        try:
            while position < stop and end is not None:
                if data[position] != 0x30:
                    raise bad_frame(f"packet type and flags 0x{data[position]:02x}; a link carries PUBLISH with QoS 0")
                topic = position + 4 if data[position + 1] < 128 else _topic_at(data, position)
                if data.startswith(PREFIX, topic):
                    position = self._control(end, data, position, topic)
                    end = core.links.get(link)
                else:
                    position = self._relay.receive(end, data, position, stop)
        except IndexError:
            raise bad_frame("it is cut off") from None

    def _control(self, end: LinkEnd, data: bytes, position: int, topic: int) -> int:
        """Handle one control packet; returns where it ends. topic: where its topic begins."""
        topic_end = topic + (data[topic - 2] << 8 | data[topic - 1])
        stop = _packet_end(data, position)
        if stop > len(data) or topic_end >= stop:
            raise bad_frame("a control packet is cut off")
        if data[topic_end] != 0:
            raise bad_frame("a control packet has properties")
        kind = data[topic + len(PREFIX) : topic_end].decode("ascii", "replace")
        self._core.counters.control_received += 1
        if kind == RETAINED:
            self._keeper.receive(end, data[topic_end + 1 : stop])
            return stop
        body = decode(kind, data[topic_end + 1 : stop])
        if body is not None:
            self._handlers[kind](end, body)
        return stop

    def _on_synced(self, end: LinkEnd, body: int) -> None:
        if not end.synced:
            self._members.on_synced(end, body)
            self._compare()

    def _on_linkstate(self, end: LinkEnd, records: tuple[Any, ...]) -> None:
        self._members.on_linkstate(end, records)
        self._compare()

    def _compare(self) -> None:
        """Retained messages are compared over links that both ends list and that have no policy at either."""
        for end in self._core.links.values():
            if end.synced and not end.compared:
                record = self._states.records.get((end.peer.number, end.peer.uuid.bytes))
                entry = None if record is None else next((e for e in record.links if e.incarnation == end.incarnation), None)
                if entry is not None:
                    end.compared = True
                    if end.gate is None and entry.policy is None:
                        self._keeper.linked(end)

    def _on_open(self, end: LinkEnd, message: Open) -> None:
        """An origin's tree: take it if it is newer and came over the link that it says, answer, pass it on."""
        core = self._core
        if message.origin == core.number:
            raise PeerError(Reason.PROTOCOL_ERROR, "$mesh/open: it came back to its origin")
        parent, incarnation = check_open(message, core.number)
        known = self._relay.records.get(message.origin)
        if known is not None and message.tree <= known.tree:
            return
        if parent != end.peer.number or incarnation != end.incarnation:
            return
        record = Record(message.origin, message.uuid, message.tree, end.id)
        links = {number: inc for number, par, inc in message.nodes if par == core.number}
        for number, mask in branches([(n, p) for n, p, _ in message.nodes], message.origin, core.number).items():
            child = core.by_number.get(number)
            if child is not None and child.incarnation == links[number]:
                record.children[child.id] = Child(child.id, mask)
                core.control(child.id, "open", message, urgent=False)
        self._relay.records[message.origin] = record
        core.stale()
        self._relay.owe(message.origin)

    def _on_receipts(self, end: LinkEnd, receipts: tuple[Any, ...]) -> None:
        for receipt in receipts:
            if receipt.origin == self._core.number:
                self._origin.receipt(receipt)
            else:
                self._relay.receipt(end.id, receipt)

    def _on_dropped(self, end: LinkEnd, drops: tuple[Any, ...]) -> None:
        for dropped in drops:
            if dropped.origin == self._core.number:
                self._origin.dropped(dropped.tree, dropped.brokers)
            else:
                self._relay.dropped(end.id, dropped)

    def _on_noted(self, end: LinkEnd, noted: Noted) -> None:
        record = self._relay.records.get(noted.origin)
        if record is None or record.tree != noted.tree or record.upstream != end.id:
            return
        if noted.destination == self._core.number:
            window = self._relay.window(noted.origin, record.uuid)
            window.noted(noted.position)
            if self._core.journal is not None:
                self._core.journal.window(window.owner, window)
            return
        for child in record.children.values():
            if child.mask >> noted.destination & 1:
                self._core.control(child.link, "noted", noted, urgent=False)

    # ---- interest

    def subscribe(self, filter: str, group: str | None, weight: int, now: float) -> None:
        """This broker has subscribers of a filter. Call it for the first one, and when a shared subscription's weight changes.

        filter: well-formed, without ``$share/...``. group: name of the shared subscription. weight: its part beside those of other brokers.
        """
        self._core.now = now
        self._members.wants(filter, group, max(weight, 1))

    def unsubscribe(self, filter: str, group: str | None, now: float) -> None:
        """The last subscriber of a filter is gone."""
        self._core.now = now
        self._members.wants(filter, group, None)

    # ---- messages

    def reserve(self, prefixes: tuple[str, ...]) -> None:
        """Topics that begin so are wanted by those brokers alone whose filters begin so too."""
        self._interests.reserved = prefixes

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
            return MeshRoute(topic, text, match, self._interests.generation)
        return None

    def publish(
        self,
        route: MeshRoute,
        run: Run,
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
        if route.generation != self._interests.generation:
            route.match = self._zones.match(route.text)
            route.generation = self._interests.generation
        if core.config.mode == "flood" and not run.qos:
            return self._origin.publish_flood(route, run, local_groups, keep)
        return self._origin.publish(route, run, local_groups, keep, hold)

    def handed(self, token: int, now: float) -> None:
        """The shell has carried out a delivery with a token, and called `refuse` where it had to; `records` goes with it.

        Only where there is a store, in the order of the deliveries, before `delivered`.
        """
        self._core.now = now
        here = self._here.get(token)
        if here is None:
            self._relay.handed(token)
        elif not here[1] and self._core.journal is not None:
            self._core.journal.drop(here[0])

    def publish_span(self, mask: int, run: Loose, now: float) -> Verdict | None:
        """Send messages of different topics that the same brokers want: `MeshRoute.mask` of all their routes is `mask`.

        None: routes are changing, or QoS 0 is flooded; nothing was done, publish each message by itself.
        """
        core = self._core
        core.now = now
        if self._states.dirty:
            self._members.refresh()
        if self._interests.changed is None or self._interests.changed or (core.config.mode == "flood" and not run.qos):
            return None
        return self._origin.publish_span(mask, run)

    def post(self, brokers: int, kind: str, body: bytes, now: float, must: bool = False) -> Verdict:
        """Send a message to other brokers themselves: each gets it once, as a `Posted`, in order with all else from here.

        It is in custody as a QoS 2 message is: stored before it goes, kept until each of them has committed it, through route
        changes, partitions and restarts, and `Returned` when one of them is given up. brokers: numbers as a set (bit n: broker n),
        others than this one, known here, reachable or not (`known`). kind: what handles it there; letters, digits, '-', '/'. must: take it
        though custody is full; the caller bounds how much of that there is. Raises UsageError for brokers that are not
        known, ValueError for a body that no frame can hold.
        """
        core = self._core
        core.now = now
        self._members.refresh()
        strangers = brokers & ~self.known()
        if strangers or not brokers:
            raise UsageError(f"post to brokers {list(numbers(brokers))}: not known here are {list(numbers(strangers))}")
        return self._origin.post(brokers, Run(POSTED + kind.encode(), 2, False, [body], received=now), must)

    def position(self) -> tuple[int, int]:
        """Where this broker is as an origin of QoS 1 and 2 and of posts: the position of the last one, (epoch, sequence)."""
        return self._origin.position

    def settled(self, number: int) -> tuple[int, int]:
        """Up to which position a broker has all that it was sent, and will not forget it."""
        d = self._origin.custody.destinations.get(number)
        return d.settled if d is not None else (0, 0)

    def known(self) -> int:
        """The brokers that can be posted to, as a set: known and not forgotten, reachable or not, and not behind a link with a policy."""
        self._members.refresh()
        return mask_of(list(self._interests.active)) & ~mask_of(list(self._zones.of))

    def live(self) -> int:
        """The other brokers that can be reached now, as a set."""
        self._members.refresh()
        return self._states.live & ~(1 << self._core.number) & self.known()

    def interest_of(self, number: int) -> tuple[int, int]:
        """How new what is known here of a broker's interest is: (epoch, version); of this broker's own: with what it says next."""
        self._members.refresh()
        return self._members.version_of(number)

    # ---- who has it

    def watch(self, behind: Position, count: int) -> Watch | None:
        """Watch what `publish` took for others, None when that was nothing. behind: `position` before it. count: messages of the run.

        `Confirmed` follows when no broker that was reachable, and still is, owes the receipt. Its messages have the sequences
        `first`, `first` + 1, and so on; (origin, epoch, sequence) names a message of the mesh for good.
        """
        return self._origin.watch(behind, count)

    def standing(self, watch: Watch, index: int) -> Standing:
        """Which brokers have a message of a watch, counted from its first one, which are awaited, which will not get it."""
        return self._origin.standing(watch, index)

    def reachable(self, number: int) -> bool:
        """Whether there is a path to a broker now."""
        self._members.refresh()
        return bool(self._states.live >> number & 1)

    def name(self, number: int) -> str:
        """A broker's name, or its number in figures when it is not known."""
        uuid = self._interests.active.get(number)
        record = self._states.records.get((number, uuid)) if uuid is not None else None
        return record.name if record is not None else self._core.identity.name if number == self._core.number else str(number)

    def delivered(self, token: int, now: float) -> None:
        """A delivery with a token is committed: it will not be lost here. Each token once, in any order."""
        self._core.now = now
        here = self._here.pop(token, None)
        if here is not None:
            entry, refused = here
            for share in refused:
                self._origin.refused_here(entry, share)
            if refused and self._core.journal is not None:
                self._core.journal.drop(entry)
            return
        self._relay.delivered(token)

    def refuse(self, token: int, group: Share, now: float) -> None:
        """This broker has no member for a shared subscription that the delivery picked it for. Call it before `delivered`.

        group: (group, filter) as in `Deliver.picks`.
        """
        self._core.now = now
        here = self._here.get(token)
        if here is not None:
            here[1].append(group)
            return
        self._relay.tokens[token][1].refusals.append(group)

    def _serve_here(self, run: Run, entry: Entry, share: Share) -> None:
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
        core, interests = self._core, self._interests
        self._members.refresh()
        self._members.flush_interest()
        self._origin.flush()
        self._keeper.flush()
        receipts, drops = self._relay.flush()
        for link, some in receipts.items():
            core.control(link, "receipts", some)
        for link, lost in drops.items():
            core.control(link, "dropped", [(d.origin, d.tree, encode_mask(d.brokers)) for d in lost])
        if interests.changed is None or interests.changed:
            filters = None if interests.changed is None else tuple(sorted(interests.changed))
            core.actions.append(FiltersChanged(filters))
            interests.changed = set()
        if core.journal is not None:
            core.journal.stir(core.now)
        actions = core.actions
        core.actions = []
        return actions

    def next_deadline(self) -> float | None:
        """When `handle_timer` wants to be called, on the clock of `now`."""
        journal = self._core.journal
        due = earliest(self._relay.due, self._keeper.deadline)
        own = earliest(self._origin.custody.next_deadline(), None if journal is None else journal.others.due)
        return earliest(own, earliest(due, self._members.next_deadline()))

    def handle_timer(self, now: float) -> None:
        """Receipts go with the next `take`, what was learned of others with the next `records`; messages expire; brokers that are away
        for too long are forgotten."""
        self._core.now = now
        self._origin.expire()
        self._members.expire()
        self._keeper.handle_timer()

    def forget(self, number: int, now: float) -> None:
        """A broker is gone for good: drop its interest and return what waits for it. A reachable one is left alone."""
        self._core.now = now
        self._members.forget(number)

    # ---- retained messages

    def restore_retained(self, state: bytes | None, records: Iterable[tuple[bytes, bytes]], complete: bool, now: float) -> None:
        """Keep from now on what `retained_changes` gives, and go on where an earlier life was; once, before anything else.

        state: the row `STATE_KEY` of the table `STATE`. records: all rows of the table `RECORDS`. complete: that life has ended in order
        and wrote all that it said. What `retained_changes` gives must be committed before the first link. Raises ValueError (one line).
        """
        self._core.now = now
        self._keeper.restore(state, records, complete)

    def adopt_retained(self, run: Run, now: float) -> None:
        """A message that this broker retained before it was in a mesh; behind `restore_retained`, before the first link."""
        self._core.now = now
        self._keeper.adopt(run)

    def retained_changes(self, now: float) -> list[PutValue | DeleteValue]:
        """Rows to set and delete since the last call; they go into one batch with `records`."""
        self._core.now = now
        return self._keeper.changes()

    @property
    def buried(self) -> int:
        """How many deletions of retained messages are remembered."""
        return self._keeper.sync.buried

    def retained(self) -> list[Run]:
        """All messages that are retained, for a broker that starts."""
        return self._keeper.messages()

    # ---- what survives a restart

    def restore(self, entries: Iterable[tuple[int, Run, bytes]], values: dict[bytes, bytes], now: float) -> None:
        """Keep from now on what `records` gives, and go on where an earlier life of this broker was; once, before anything else.

        entries: (order, run, extra) in rising order, values: by key, all that is stored; both empty in the first life. `records` must be
        committed before the first link. Raises ValueError (one line) when the state is another broker's or of another
        version, or when this life's epoch is not above that of the state.
        """
        core = self._core
        core.now = now
        stored = decode_values(values)
        journal = Journal(core.wall_offset, Remembered(core.config.remembered))
        if stored.node is not None:
            uuid, epoch, core.born = stored.node
            if uuid != core.uuid:
                raise ValueError(f"the mesh's state is that of the broker {UUID(bytes=uuid)}, not of {core.identity.uuid}")
            if epoch >= core.identity.epoch:
                raise ValueError(f"the epoch {core.identity.epoch} is not above that of the mesh's state, {epoch}")
        others = stored.others
        complete = all((n, known.uuid) in others.sets and not known.behind for n, known in others.members.items())
        self._members.restore(others.members, complete)
        self._interests.restore(others.sets, {n: known.uuid for n, known in others.members.items() if n != core.number})
        journal.others.restored(others)
        self._interests.memory = journal.others
        self._relay.windows.update(stored.windows)
        self._origin.restore(stored.destinations)
        served: list[Entry] = []
        found = [(decode_entry(run, extra, core.wall_offset), order) for order, run, extra in entries]
        found.sort(key=lambda one: (one[0].epoch, one[0].first))  # what was split has its place in the sequence, and later orders
        for entry, order in found:
            journal.restored(entry, order)
            if entry.here:
                served.append(entry)
            else:
                self._origin.hold(entry, journal)
        core.journal = self._origin.custody.journal = journal
        journal.node(core.uuid, core.identity.epoch, core.born)
        for entry in served:
            self._serve_here(entry.run, entry, entry.picks[0][0])

    def records(self) -> Records | None:
        """What must be written since the last call, None without a store or when there is nothing.

        All of it goes into one batch with the deliveries that were carried out (`handed`) up to now; `committed` says when it is kept.
        """
        return None if self._core.journal is None else self._core.journal.take(self._core.now)

    def committed(self, mark: int, now: float) -> None:
        """The records up to this mark, and all before them, are in the store."""
        core = self._core
        core.now = now
        if core.journal is not None and mark > core.journal.committed:
            core.journal.committed = mark
            self._origin.committed(mark)
            self._keeper.committed(mark)


def earliest(one: float | None, other: float | None) -> float | None:
    """The earlier of two deadlines."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _packet_end(data: bytes, position: int) -> int:
    """Where the packet at this position ends."""
    length = shift = 0
    at = position + 1
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 127) << shift
        if byte < 128:
            return at + length
        shift += 7


def _topic_at(data: bytes, position: int) -> int:
    """Where the topic of the PUBLISH at this position begins."""
    at = position + 1
    while data[at] > 127:
        at += 1
    return at + 3
