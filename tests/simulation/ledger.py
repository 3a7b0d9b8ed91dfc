"""What was published and what arrived, and what must hold between the two.

At each step
- a broker's subscribers get each message at most once, over all lives of the broker; QoS 1 at a site whose sessions end with the broker
  once in each life;
- a shared subscription's members get each message at most once over the whole mesh, unless it says that it is repeated;
- messages of one origin arrive at one broker in the order of publishing, QoS 1/2 and QoS 0 apart, and those apart that an origin sends
  under another identity than before (docs/copies.md);
- what arrives is what was published, at brokers and under names that the policies on some path allow;
- what an origin returns as forbidden is forbidden on its path;
- a post arrives at each broker at most once, in the order of sending, and only if its sender keeps it;
- a broker's subscribers are told each retained message at most once, as a message or by a comparison with a neighbour.
At the end (`missing`, `check_last`)
- each post that an origin kept has arrived or was returned;
- each QoS 1/2 message that an origin took, and kept, is at each broker whose interest was known at publish time, real, and stayed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from mqmesh.mesh.retained import Key, Kind, Record
from mqmesh.mesh.retained.record import unpack_key
from mqmesh.mesh.wire.envelope import peer_message_kind
from mqmesh.mesh.wire.visited import numbers
from mqmesh.mqtt.topics import matches

if TYPE_CHECKING:
    from mqmesh.mesh.node.actions import Deliver, PeerMessage, Retained, Returned
    from mqmesh.mqtt.batch.run import Run

    from .site import Site


class Message:
    """One published message. wanted: brokers that want it and whose interest the origin knew. shares: the same for (group, filter)."""

    __slots__ = (
        "acknowledged",
        "at",
        "given_up",
        "names",
        "origin",
        "payload",
        "place",
        "qos",
        "refused",
        "returned",
        "shares",
        "topic",
        "wanted",
    )

    def __init__(self, payload: bytes, origin: int, place: int, qos: int, topic: str, at: float) -> None:
        self.payload = payload
        self.origin = origin
        self.place = place  # in the origin's order
        self.qos = qos
        self.topic = topic
        self.at = at
        self.wanted: set[int] = set()
        self.shares: set[tuple[str, str]] = set()
        self.names: dict[int, str] = {}  # broker -> what it is called there, as the origin saw it
        self.returned: set[int] = set()
        self.given_up: set[int] = set()  # expired, or the broker was away for too long
        self.refused = False
        self.acknowledged = False  # its publisher was told


class PostEntry:
    """One post. wanted: the brokers that it is for. kept: its sender's disk had it. came: who has committed it."""

    __slots__ = ("at", "came", "kept", "origin", "place", "returned", "wanted")

    def __init__(self, origin: int, place: int, wanted: int, at: float) -> None:
        self.origin = origin
        self.place = place
        self.wanted = wanted
        self.at = at
        self.kept = False
        self.came: set[int] = set()
        self.returned: set[int] = set()


class Write:
    """A message with RETAIN, the last of its run; an empty payload deletes. committed: its origin kept it."""

    __slots__ = ("at", "committed", "expires", "key", "payload", "site")

    def __init__(self, site: int, key: Key, payload: bytes, expires: bool, at: float) -> None:
        self.site = site
        self.key = key
        self.payload = payload
        self.expires = expires
        self.at = at
        self.committed = False


class Ledger:
    """The books of one run."""

    def __init__(self, world: object) -> None:
        self.world = world
        self.messages: dict[bytes, Message] = {}
        self.got: dict[tuple[bytes, int], int] = {}  # (payload, broker) -> times, ordinary
        self.compared: dict[int, set[bytes]] = {}  # broker -> what came to it by a comparison of retained messages
        self.got_names: dict[tuple[bytes, int], str] = {}
        self.got_share: dict[tuple[bytes, tuple[str, str]], int] = {}
        self.came: dict[tuple[int, int, int, bool, int], list[int]] = {}  # origin, its number then, broker, custody, life -> sorted places
        self.got_in: dict[tuple[bytes, int], int] = {}  # (payload, broker) -> life
        self.forgotten: dict[int, list[float]] = {}  # broker -> when it lost its disk
        self.left: dict[int, list[tuple[float, str]]] = {}  # broker -> (when, filter) unsubscribed
        self.refusals = 0
        self.places = 0
        self.repeated: set[bytes] = set()
        self.moved: dict[tuple[str, str], float] = {}  # shared subscription -> when its members last changed
        self.flood = False
        self.posts: dict[bytes, PostEntry] = {}
        self.writes: dict[bytes, list[Write]] = {}  # by topic
        self.shown: dict[tuple[int, bytes], tuple[bytes, bool]] = {}  # (broker, topic) -> the highest key it was told, whether as gone
        self.told: set[tuple[int, bytes, bytes, bool]] = set()  # broker, topic, key, as gone
        self.announcements: dict[tuple[bytes, int], float] = {}  # (payload, broker) -> when a comparison brought it

    # ---- entries

    def published(self, site: Site, run: Run, wanted: int, shares: set[tuple[str, str]]) -> None:
        """An origin took these."""
        sites = self.world.sites
        for raw, payload in run.messages():
            topic = raw.decode()
            self.places += 1
            if not payload:
                continue  # a deletion: see `written`
            message = Message(payload, site.uid, self.places, run.qos, topic, self.world.clock.now)
            self.messages[payload] = message
            for number, other in sites.items():
                zone = site.node._zones.of.get(number)
                name = raw if zone is None else zone.name(raw)
                if name is None:
                    continue
                name = message.names[number] = name.decode()
                for f, g in other.subscriptions:
                    if g is not None and number != site.number and (g, f) in shares and matches(f, name):
                        message.shares.add((g, f))
                if wanted >> number & 1 and (run.retain or any(g is None and matches(f, name) for f, g in other.subscriptions)):
                    message.wanted.add(number)

    def posted(self, site: Site, brokers: int, body: bytes) -> None:
        """A broker posts to brokers. The same body again: the batch with the first one was lost."""
        self.places += 1
        assert body not in self.posts or not self.posts[body].kept, body
        self.posts[body] = PostEntry(site.uid, self.places, brokers, self.world.clock.now)

    def post_kept(self, body: bytes) -> None:
        """Its sender will not forget it."""
        self.posts[body].kept = True

    def post_came(self, site: Site, action: PeerMessage) -> None:
        """A broker has committed what a post caused."""
        post = self.posts[action.body]
        assert post.origin == action.origin, action
        assert post.wanted >> site.uid & 1, f"site {site.uid} got {action.body!r}, which is not for it"
        assert site.uid not in post.came, f"site {site.uid} got the post {action.body!r} twice"
        assert post.kept or not self.world.sites[post.origin].durable, f"the post {action.body!r} left before it was kept"
        post.came.add(site.uid)
        key = (post.origin, action.origin, site.uid, True, site.life if site.clean else 0)
        came = self.came.setdefault(key, [])
        assert not came or post.place > came[-1], f"site {site.uid} got the post {action.body!r} behind a later message"
        came.append(post.place)

    def written(self, site: Site, run: Run, key: Key) -> Write:
        """An origin retains the last message of a run."""
        write = Write(site.uid, key, run.payloads[-1], run.expiry is not None, self.world.clock.now)
        self.writes.setdefault(bytes(run.topic), []).append(write)
        return write

    def committed(self, site: Site, topic: bytes, write: Write) -> None:
        """It is on its origin's disk, and subscribers there have it."""
        write.committed = True
        self._show(site, topic, write.key.pack(), not write.payload)

    def _show(self, site: Site, topic: bytes, key: bytes, gone: bool) -> None:
        """Subscribers of a broker hear of a retained message or its deletion."""
        what = (site.uid, topic, key, gone)
        assert what not in self.told or self.forgotten.get(site.uid), f"site {site.uid} is told {topic!r} {key.hex()} twice"
        self.told.add(what)
        shown = self.shown.get((site.uid, topic))
        if shown is None or (key, gone) > shown:
            self.shown[site.uid, topic] = (key, gone)

    def announced(self, site: Site, action: Retained) -> None:
        """A comparison brought it."""
        payload = action.run.payloads[-1]
        self._show(site, bytes(action.run.topic), action.key, not payload)
        if payload:
            self._check_name(self.messages[payload], site, action.run.topic.decode())
            times = self.got[payload, site.uid] = self.got.get((payload, site.uid), 0) + 1
            assert times == 1 or self.forgotten.get(site.uid), f"site {site.uid} is told {payload!r}, which it has"
            self.compared.setdefault(site.uid, set()).add(payload)
            self.announcements[payload, site.uid] = self.world.clock.now

    def acknowledged(self, payloads: list[bytes]) -> None:
        """Their publisher was told that they are kept."""
        for payload in payloads:
            if payload:
                self.messages[payload].acknowledged = True

    def subscribed(self, site: Site, filter_: str, group: str | None) -> None:
        """Nothing is promised for the past."""
        if group is not None:
            self.moved[group, filter_] = self.world.clock.now

    def unsubscribed(self, site: Site, filter_: str, group: str | None) -> None:
        """From here back, nothing is promised."""
        if group is not None:
            self.moved[group, filter_] = self.world.clock.now
        self.left.setdefault(site.uid, []).append((self.world.clock.now, filter_))

    def forgot(self, site: Site) -> None:
        """A broker lost its disk. What it had from a comparison its origin does not know of, and may send it now."""
        self.forgotten.setdefault(site.uid, []).append(self.world.clock.now)
        for payload in self.compared.pop(site.uid, ()):
            self.got.pop((payload, site.uid), None)

    def handed(self, site: Site, action: Deliver) -> None:
        """The shell has a delivery; nothing is committed."""

    def delivered(self, site: Site, action: Deliver) -> None:
        """A broker committed a run for its ordinary subscribers."""
        run = action.run
        custody = run.qos > 0
        if action.key:
            self._show(site, bytes(run.topic), action.key, not run.payloads[-1])
        for topic, payload in run.messages():
            if not payload:
                continue
            message = self.messages.get(payload)
            assert message is not None, f"site {site.uid} got {payload!r}, which nobody published"
            assert action.origin in self.world.everybody[message.origin].numbers, payload
            assert message.qos == run.qos, payload
            self._check_name(message, site, topic.decode())
            self.got_names[payload, site.uid] = topic.decode()
            if site.clean and run.qos == 1 and self.got_in.get((payload, site.uid), site.life) != site.life:
                self.got[payload, site.uid] = 0
            self.got_in[payload, site.uid] = site.life
            times = self.got[payload, site.uid] = self.got.get((payload, site.uid), 0) + 1
            again = self._after(self.forgotten.get(site.uid, ()), self.announcements.get((payload, site.uid), float("inf")))
            assert times == 1 or (again and times == 2), f"site {site.uid} got {payload!r} (QoS {run.qos}) {times} times"
            if self.flood and not custody:
                continue
            key = (message.origin, action.origin, site.uid, custody, site.life if site.clean else 0)
            came = self.came.setdefault(key, [])
            later = came[bisect_left(came, message.place) :]
            assert not later or self._sent_by_copy(message, site, later[0]), f"site {site.uid} got {payload!r} behind a later one"
            insort(came, message.place)

    def _sent_by_copy(self, message: Message, site: Site, next_: int) -> bool:
        """Whether a message may come late (docs/copies.md): all of this holds.

        Only a copy of its origin has sent it here, and an operator has given that copy the identity: no seed shows it of a copy without a
        claim, which serves only out of reach of its original. The message was published before the copy was made, and what came before it
        (the oldest of that: next_) after that. The original was done with it: it has returned it, or another copy of the destination has
        it.
        """
        senders = self.world.senders(site, message.payload)
        for one in senders:
            if one.uid < 1000 or one.uid % 1000 != message.origin or not one.claim or not message.place <= one.copied < next_:
                return False
        family = [one for one in self.world.everybody.values() if one is not site and one.uid % 1000 == site.uid % 1000]
        done = site.number in message.returned or any((message.payload, one.uid) in self.got for one in family)
        return bool(senders) and done

    def _check_name(self, message: Message, site: Site, name: str) -> None:
        if self.world.guarded:
            found = f"{message.topic!r} of site {message.origin}"
            assert self.world.borders.possible(message, site.uid, name), f"{found} came to {site.uid} as {name!r}: no policies allow that"
        else:
            assert name == message.topic, message.payload

    def served(self, site: Site, action: Deliver, share: tuple[str, str]) -> None:
        """A shared subscription's member got a run."""
        for payload in action.run.payloads:
            if not payload:
                continue
            assert payload in self.messages, payload
            self._check_name(self.messages[payload], site, action.run.topic.decode())
            assert matches(share[1], action.run.topic.decode()), (share, action.run.topic)
            times = self.got_share[payload, share] = self.got_share.get((payload, share), 0) + 1
            if action.repeated:
                self.repeated.add(payload)
            assert times == 1 or payload in self.repeated, f"{share} got {payload!r} {times} times, now at site {site.uid}"

    def returned(self, site: Site, action: Returned) -> None:
        """An origin gave up."""
        assert action.reason in ("expired", "replaced", "absent", "cleared", "refused", "forbidden"), action.reason
        if peer_message_kind(action.run.topic) is not None:
            for body in action.run.payloads:
                self.posts[body].returned.add(action.destination)
            return
        if action.reason == "forbidden":
            for topic, _ in action.run.messages():
                name = self.world.borders.name_at(site, action.destination, topic.decode())
                assert name is None, f"site {site.uid} returned {topic!r}, which is {name!r} at {action.destination}"
        for payload in action.run.payloads:
            if not payload:
                continue
            message = self.messages[payload]
            assert action.reason != "expired" or action.run.expiry is not None
            if action.reason == "refused":
                message.refused = True
            elif action.reason in ("expired", "absent", "forbidden"):
                message.returned.add(action.destination)
                message.given_up.add(action.destination)
            else:
                message.returned.add(action.destination)

    # ---- the end

    def missing(self) -> list[str]:
        """What was promised and did not come."""
        found = []
        for body, post in self.posts.items():
            if not post.kept or self._after(self.forgotten.get(post.origin, ()), post.at):
                continue
            for number in numbers(post.wanted):
                if number not in post.came | post.returned and not self._after(self.forgotten.get(number, ()), post.at):
                    found.append(f"the post {body!r} (sent at {post.at:.3f}) never came to site {number}")
        for message in self.messages.values():
            if not message.qos or not message.acknowledged or self._after(self.forgotten.get(message.origin, ()), message.at):
                continue
            for number in sorted(message.wanted):
                family = [site.uid for site in self.world.everybody.values() if number in site.numbers]  # copies of one data folder
                if any((message.payload, uid) in self.got for uid in family) or self._after(self.forgotten.get(number, ()), message.at):
                    continue
                if number in message.given_up:
                    continue
                if number in message.returned and number in self.forgotten:
                    continue  # sent to a life that was gone already: the origin said that it cannot know
                if any(t >= message.at and matches(f, message.names[number]) for uid in family for t, f in self.left.get(uid, ())):
                    continue
                found.append(f"{message.payload!r} (QoS {message.qos}, published at {message.at:.3f}) never came to site {number}")
            if not (message.refused or message.returned or any(self.forgotten.values())):
                for share in sorted(message.shares):
                    if (message.payload, share) not in self.got_share and self.moved.get(share, 0.0) < message.at - 3.0:
                        found.append(f"{message.payload!r} (QoS {message.qos}, published at {message.at:.3f}) never came to {share}")
        return found

    def check_last(self, topic: bytes, records: dict[int, Record | None], *, given_up: bool) -> None:
        """What all sites have of a topic is the last that was written, and their subscribers know. given_up: sites may be missing."""
        writes = self.writes.get(topic, [])
        kept = [w for w in writes if w.committed and not self._after(self.forgotten.get(w.site, ()), w.at)]
        least = max((w.key for w in kept), default=Key(0, 0, 0))
        record = next(iter(records.values()))
        alive = record is not None and record.kind is Kind.VALUE
        if alive:
            assert record is not None
            # a life that found its name taken has another one
            same = [w for w in writes if w.key[:2] == record.key[:2] and w.payload == record.payload]
            assert same, f"{topic!r}: nobody wrote {record.key}"
            assert record.key >= least or given_up, f"{topic!r}: {record.key} stands, {least} was written"
        elif kept:
            ends = [w for w in writes if w.key >= least and (not w.payload or w.expires)]
            assert ends or given_up, f"{topic!r}: {least} was written and is nowhere"
        if given_up or any(self.forgotten.values()):
            return  # what only an origin held for others went with its disk
        for number in records:
            shown = self.shown.get((number, topic))
            if alive:
                assert record is not None
                told = shown is not None and not shown[1] and unpack_key(shown[0])[:2] == record.key[:2]
                assert told, f"subscribers of {number} know {shown} of {topic!r}, not {record.key}"
            elif shown is not None and not shown[1]:
                ended = [w for w in writes if w.key.pack() >= shown[0] and w.expires]
                assert ended, f"subscribers of {number} were never told that {topic!r} is gone"

    @staticmethod
    def _after(times: object, at: float) -> bool:
        return any(t >= at for t in times)
