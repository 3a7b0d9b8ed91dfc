"""What comes into the queues of a broker: from clients here, from other sites, from subscriptions that a queue has, from the broker itself.

    PUBLISH to $queue/NAME                `check`, then `put`; many together, whatever their properties: `put_each`
    the same at another site              `put_parcel`
    PUBLISH to a topic of a bound queue   `put_published`
    the same at another site              `put_brought`
    a will, the broker's own program      `put_own`

What it does not know: the bytes of MQTT, files, members.
"""

from __future__ import annotations

import logging
from itertools import groupby
from typing import TYPE_CHECKING

from ...base.queues import HANDLE, PARENTS, TEMPORARY
from ...base.quoting import quoted
from ...base.refusals import Refusals
from ...mqtt.batch.run import Run
from ...mqtt.properties import Property, encode_properties
from ...mqtt.publish import strip
from ...mqtt.reasons import Reason
from .committer import Committer, Gate, Waiting
from .core.blocks import META_WEIGHT, Key, Meta
from .core.queue import Queue
from .handles import Pending, key_of
from .putting import How, Way, how_of, how_of_any, is_inside, properties_of, said_inside
from .refused import Refused
from .sites.wire import PutPost

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ...mqtt.publish import PublishProperties
    from .shell import Queues

log = logging.getLogger("mqmesh.broker")

STORE_CLOSED = "the store of this broker takes no more messages for now"
Lot = tuple[Key, list[bytes], list[Meta]]  # messages of one block


class Publishers:
    """See the module. queues: of this broker."""

    def __init__(self, queues: Queues) -> None:
        self._settings = queues.settings
        self._store = queues.store
        self._sites = queues.sites
        self._workflow = queues.workflow
        self._handles = queues.handles
        self._answers = queues.answers
        self._upkeep = queues.upkeep
        self._now = queues.now
        self.early: dict[Queue, None] = {}  # queues with messages that need not wait for the log
        self._clock = queues.context.loop.time
        self._drops = Refusals(log)

    def check(self, name: str, publisher: str, user: str | None, run: Batch, properties: PublishProperties | None) -> list[Refused | None]:
        """Why a queue here refuses messages, each by itself; an empty list: it refuses none. The home of a queue elsewhere looks itself."""
        if name not in self._settings.checks:  # then nobody takes the batch apart
            return []
        found = self._failures(name, publisher, user, run.payloads, properties)
        if found:
            self._store.queues[name].counts["refused"] += sum([one is not None for one in found])
        return found

    def _failures(
        self, name: str, publisher: str, user: str | None, payloads: list[bytes], properties: PublishProperties | None
    ) -> list[Refused | None]:
        checks = self._settings.checks.get(name)
        return checks.failures(payloads, properties, publisher, user) if checks is not None else []

    def put(
        self,
        name: str,
        publisher: str,
        user: str | None,
        run: Batch,
        properties: PublishProperties | None,
        by_store: bool = False,
        topic: bytes = b"",
    ) -> tuple[Gate | None, str]:
        """Put messages that pass `check`: the gate that their acknowledgement waits at (None: it may go), and what to call a repeated one.

        by_store: they go by the broker's store (`_put_by_store`). topic: b"": the queue's. Raises Refused.
        """
        try:
            how = how_of(properties)
        except ValueError as error:
            raise Refused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, str(error)) from None
        if not run.uniform:
            run = run.parts()
        if how.parents:
            self._workflow.check(publisher, how.parents)
        if name not in self._settings.rules:
            self._check_home(name)
            self._sites.put(name, publisher, user or "", run, properties)
            return None, ""
        if by_store:
            return self._put_by_store(name, publisher, user or "", how, run, properties, topic)
        size = run.count * run.length if isinstance(run, Run) else None
        return self._put(name, publisher, how, run.payloads, run.expiry, b"", topic, size=size)

    def _check_home(self, name: str) -> None:
        """Raise Refused if a queue that others are home of has no home now."""
        if name in self._settings.shared and self._sites.homes.home(name) is None:
            raise Refused(Reason.QUOTA_EXCEEDED, f"queue {name!r} has no home now: try again")

    def _put_by_store(
        self, name: str, publisher: str, user: str, how: How, run: Batch, properties: PublishProperties | None, topic: bytes = b""
    ) -> tuple[Gate | None, str]:
        """Put messages of QoS 2 whose packet identifiers the store of the broker keeps: as if they came from another site.

        They stand in the store's commit with their identifiers. With commits of their own, one of the two could survive without the other,
        and the publisher's repeat would be lost, or put twice. Raises Refused.
        """
        known = self._repeated(name, publisher, how)
        if known is not None:
            return known
        if self._answers.persistence is not None and self._answers.persistence.closed:
            raise Refused(Reason.QUOTA_EXCEEDED, STORE_CLOSED)
        payloads = [bytes(payload) for payload in run.payloads]
        self._check_room(self._store.queues[name], how, payloads, False)
        block = properties.without_expiry if properties is not None else b""
        self._sites.arrivals.keep(PutPost(self._sites.parcels.next(), name, publisher, user, block, run.expiry, payloads, topic))
        return None, ""

    def put_inside(self, name: str, publisher: str, payload: bytes, block: bytes, expiry: int | None) -> None:
        """Put a message that a part of the broker has made, by the broker's store as `_put_by_store` does. Raises Refused.

        publisher: `is_inside`. block: its encoded properties, which are for members only: they do not say how it is put.
        """
        if name not in self._settings.rules:
            self._check_home(name)
            self._sites.send(name, publisher, "", block, expiry, [payload], together=True)
            return
        queue = self._store.queues[name]
        if self._answers.persistence is not None and self._answers.persistence.closed:
            raise Refused(Reason.QUOTA_EXCEEDED, STORE_CLOSED)
        size = len(payload)
        text = self._store.of(queue).full or queue.refusal(1, size) or self._upkeep.no_room(size + len(block) + META_WEIGHT)
        if text is not None:
            raise Refused(Reason.QUOTA_EXCEEDED, text)
        self._sites.arrivals.keep(PutPost(self._sites.parcels.next(), name, publisher, "", block, expiry, [payload]))

    def put_parcel(self, post: PutPost) -> Gate | None:
        """Put messages of another site. The gate of their commit; None: they were put before. Raises Refused."""
        if post.name not in self._settings.rules and post.name.startswith(TEMPORARY):
            log.info("event=queue-temporary-gone queue=%s publisher=%s", quoted(post.name), quoted(post.publisher))
            return None
        if post.name not in self._settings.rules:
            text = f"there is no queue {post.name!r} any more: declare it, or its messages wait"
            if post.name in self._settings.shared:
                text = f"this broker is not the home of queue {post.name!r} now: they go to the one that is"
            raise Refused(Reason.TOPIC_NAME_INVALID, text)
        if post.parcel in self._store.of(self._store.queues[post.name]).parcels:
            return None
        if is_inside(post.publisher):
            return self._receive(post, How(post.properties), said_inside(post.properties), post.topic)
        properties = properties_of(post.properties)
        return self._receive(post, how_of_any(properties), properties, post.topic)

    def put_together(self, posts: list[PutPost]) -> Gate | None:
        """Put messages that parts of brokers have made into one queue, in order: the gate of their commit.

        None: nothing was done. They have to be put one by one, because of what `put_parcel` does with some of them.
        """
        name = posts[0].name
        if name not in self._settings.rules or name in self._settings.checks or not all(is_inside(post.publisher) for post in posts):
            return None
        queue, now = self._store.queues[name], self._now()
        committer, size = (
            self._store.committer(queue),
            sum([len(payload) + len(post.properties) for post in posts for payload in post.payloads]),
        )
        if not (queue.rules.early and isinstance(committer, Committer)) or committer.store.full is not None:
            return None
        if not committer.store.parcels.isdisjoint([post.parcel for post in posts]):
            return None
        count = sum([len(post.payloads) for post in posts])
        if queue.lacks_room(count, size) or self._upkeep.no_room(size + META_WEIGHT * count) is not None:
            return None
        for (expiry, topic), alike in groupby(posts, key=lambda post: (post.expiry, post.topic)):
            payloads: list[bytes] = []
            metas: list[Meta] = []
            for post in alike:
                payloads += post.payloads
                metas += [Meta(post.publisher, post.properties, "", "", post.parcel)] * len(post.payloads)
            queue.put_each(queue.key(now, topic, life=1000 * (expiry or 0), early=True), payloads, metas, now)
        self.early[queue] = None
        return committer.early

    def _receive(self, post: PutPost, how: How, properties: PublishProperties | None, topic: bytes = b"") -> Gate | None:
        """Put messages that cannot be refused for what they are: those that fail the checks are dead letters. The gate; None: they were put
        before, or dropped. topic: b"": the queue's. Raises Refused: there is no room.
        """
        queue, taken = self._store.queues[post.name], bool(post.parcel) or post.brought
        lost: list[Refused | None] = []
        if taken:  # what can never be put would hold what comes after it
            room, text = queue.room(post.payloads), "the queue is full"
            if not room and not post.brought:
                raise Refused(Reason.QUOTA_EXCEEDED, text)
            if post.brought and room < len(post.payloads):
                if queue.rules.dead_letters:
                    lost = [Refused(Reason.QUOTA_EXCEEDED, text)] * (len(post.payloads) - room)
                else:
                    self._drop(queue, post, len(post.payloads) - room, text)
                    post = post._replace(payloads=post.payloads[:room])
                if not post.payloads:
                    return None
            if how.plan is not None and queue.unknown(how.plan) is not None:
                how = how._replace(plan=None)
        fitting = post.payloads[: -len(lost)] if lost else post.payloads
        failures = self._failures(post.name, post.publisher, post.user or None, fitting, properties)
        failures = [*(failures or [None] * len(fitting)), *lost] if lost else failures
        good = [payload for payload, failure in zip(post.payloads, failures, strict=True) if failure is None] if failures else post.payloads
        gate = self._put(post.name, post.publisher, how, good, post.expiry, post.parcel, topic, taken)[0] if good else None
        return self._bury(queue, post, how, failures, topic) if failures else gate

    def _bury(self, queue: Queue, post: PutPost, how: How, failures: list[Refused | None], topic: bytes) -> Gate:
        """Make dead letters of messages that are not put. failures: why, each by itself; None: it is put. Raises Refused."""
        committer = self._store.committer(queue)
        if committer.store.full is not None and all(failures):
            raise Refused(Reason.QUOTA_EXCEEDED, committer.store.full)
        meta = Meta(post.publisher, how.properties, "", how.group, post.parcel)
        for payload, failure in zip(post.payloads, failures, strict=True):
            if failure is not None:
                letters, block, index = self._store.bury_failed(queue, payload, meta, failure.text, how.priority, topic, self._now())
                if how.parents:  # they end as those of any child do
                    self._workflow.put(letters, block, index, post.publisher, how.parents, committer.gate)
                log.warning(
                    "event=queue-check-failed queue=%s publisher=%s text=%s",
                    quoted(post.name),
                    quoted(post.publisher),
                    quoted(failure.text),
                )
        return committer.gate

    def _drop(self, queue: Queue, post: PutPost, count: int, text: str) -> None:
        """Nobody can be told that messages of another site find no room, and there is no queue of dead letters."""
        queue.counts["refused"] += count
        more = self._drops.due(self._clock(), (post.name, ""))
        if more is not None:
            words = quoted(post.name), quoted(post.publisher), more, quoted(text)
            log.warning("event=queue-dropped queue=%s publisher=%s more=%d text=%s", *words)

    def put_brought(self, name: str, site: str, run: Batch, waiting: Waiting | None) -> None:
        """Put messages of one topic, to which a queue here is bound, that the mesh brings from a site: its name is that of the publisher.

        At QoS 1 and 2 they stand in the store's commit with what says that they have come, and are put after it. Handles and parents count
        for nothing: the names of their publishers are not known here. waiting: goes when they are kept. Raises Refused, at QoS 0.
        """
        post = PutPost(b"", name, site, "", _brought(run.properties), run.expiry, [bytes(one) for one in run.payloads], run.topic, True)
        if run.qos:
            self._sites.arrivals.keep(post._replace(parcel=self._sites.parcels.next()))
            if waiting is not None:
                self._sites.keeping.when_kept(waiting.go)
            return
        properties = properties_of(post.properties)
        gate = self._receive(post, how_of_any(properties), properties, run.topic)
        if gate is not None and waiting is not None:
            gate.waiting.append(waiting)

    def put_published(
        self, name: str, publisher: str, user: str, run: Batch, properties: PublishProperties | None, by_store: bool
    ) -> Gate | None:
        """Put messages of one other topic, to which a queue here is bound: the gate of their commit. None: a repeat, or they go by the
        store of the broker (`_put_by_store`). Raises Refused.

        Those that fail the checks are dead letters, and user properties that are wrong count for nothing, because subscribers have them.
        """
        topic = run.topic if run.uniform else run.topics[0]
        if by_store:
            return self._put_by_store(name, publisher, user, how_of_any(properties), run, properties, bytes(topic))[0]
        payloads = [bytes(payload) for payload in run.payloads]
        block = properties.without_expiry if properties is not None else b""
        return self._receive(
            PutPost(b"", name, publisher, user, block, run.expiry, payloads), how_of_any(properties), properties, bytes(topic)
        )

    def _put(
        self,
        name: str,
        publisher: str,
        how: How,
        payloads: list[bytes],
        expiry: int | None,
        parcel: bytes,
        topic: bytes = b"",
        taken: bool = False,
        size: int | None = None,
    ) -> tuple[Gate | None, str]:
        """Put messages. taken: they cannot be refused any more. size: of their payloads, if it is known. Raises Refused."""
        known = self._repeated(name, publisher, how)
        if known is not None:
            return known
        queue, now = self._store.queues[name], self._now()
        committer = self._store.committer(queue)
        self._check_room(queue, how, payloads, taken, size)
        revealed = how.revealed if not how.parents else False
        life = 1000 * expiry if expiry else 0
        meta = Meta(publisher, how.properties, how.handle, how.group, parcel)
        if parcel and queue.rules.early and isinstance(committer, Committer) and not (how.handle or how.parents):
            queue.put(payloads, meta, now, topic, how.priority, how.delay, life, how.plan, revealed, early=True)
            self.early[queue] = None
            return committer.early, ""
        block, index = queue.put(payloads, meta, now, topic, how.priority, how.delay, life, how.plan, revealed)
        for at in range(index, index + len(payloads)) if how.parents else ():
            self._workflow.put(queue, block, at, publisher, how.parents, committer.gate)
        if how.handle:
            Pending(self._handles, key_of(name, publisher, how.handle), committer.gate, block, index)
        return committer.gate, ""

    def give_early(self) -> list[str]:
        """Have messages taken that need not wait for the log: the names of their queues."""
        early, self.early = list(self.early), {}
        for queue in early:
            queue.give_early(self._now())
        return [queue.name for queue in early]

    def put_each(self, name: str, publisher: str, payloads: list[bytes], ways: list[Way]) -> Gate | None:
        """Put messages without handles, parents and plans, as `put` does one by one: the gate of their commit.

        None: nothing was done, because there are checks, there is no room for all of them, or the queue is not here.
        """
        if name not in self._settings.rules or name in self._settings.checks:
            return None
        queue, now = self._store.queues[name], self._now()
        committer, size = self._store.committer(queue), sum(map(len, payloads))
        groups = _by_way(payloads, ways)
        said = sum([len(way.how.properties) * len(some) for way, some in groups.items()]) + len(ways) * META_WEIGHT
        if committer.store.full is not None or queue.lacks_room(len(payloads), size) or self._upkeep.no_room(size + said) is not None:
            return None
        places = {}
        for way in groups:
            how = way.how
            key = queue.key(now, b"", how.priority, how.delay, 1000 * (way.expiry or 0), None, how.revealed)
            places[way] = key, Meta(publisher, how.properties, "", how.group)
        if len(groups) == 1 or len({key.line for key, _ in places.values()}) == len(groups):  # those of each line are alike
            for way, some in groups.items():
                key, meta = places[way]
                queue.put_each(key, some, [meta], now)
            return committer.gate
        for key, some, metas in _lots(payloads, ways, places):
            queue.put_each(key, some, metas, now)
        return committer.gate

    def _repeated(self, name: str, publisher: str, how: How) -> tuple[Gate | None, str] | None:
        """What `put` says of a message whose handle is known; None: it is not."""
        known = self._handles.find(key_of(name, publisher, how.handle)) if how.handle else None
        if isinstance(known, int):
            return None, f"{name}:{known}"
        return (known, "") if known is not None else None

    def _check_room(self, queue: Queue, how: How, payloads: list[bytes], taken: bool, size: int | None = None) -> None:
        """Raise Refused if messages find no room. taken: the bounds of the queue are not asked. size: of all, if it is known."""
        text, size = self._store.of(queue).full, sum(map(len, payloads)) if size is None else size
        if text is None and not taken:
            text = queue.refusal(len(payloads), size) or (queue.unknown(how.plan) if how.plan is not None else None)
        text = text or self._upkeep.no_room(size + len(how.properties) + META_WEIGHT)
        if text is not None:
            raise Refused(Reason.QUOTA_EXCEEDED, text)

    def put_own(self, name: str, publisher: str, run: Batch) -> bool:
        """Put a message that no client waits for: a will, or one of the broker's program. False: there is no room."""
        block = run.properties if run.uniform else b""
        try:
            properties = properties_of(block)
            if name not in self._settings.rules:
                self._sites.put(name, publisher, "", run if run.uniform else run.parts(), properties)
            else:
                payloads = [bytes(payload) for payload in run.payloads]
                self._receive(PutPost(b"", name, publisher, "", block, run.expiry, payloads), how_of_any(properties), properties)
        except Refused:
            return False
        return True


def _by_way(payloads: list[bytes], ways: list[Way]) -> dict[Way, list[bytes]]:
    """The messages that are put in each way, in order."""
    if ways.count(ways[0]) == len(ways):
        return {ways[0]: payloads}
    groups: dict[Way, list[bytes]] = {}
    for payload, way in zip(payloads, ways, strict=True):
        found = groups.get(way)
        if found is None:
            groups[way] = [payload]
        else:
            found.append(payload)
    return groups


def _lots(payloads: list[bytes], ways: list[Way], places: dict[Way, tuple[Key, Meta]]) -> list[Lot]:
    """Messages block by block: those of one line stay in order."""
    lots: list[Lot] = []
    lines: dict[Key, list[Lot]] = {}
    line_of = {way: lines.setdefault(key.line, []) for way, (key, _) in places.items()}
    for payload, way in zip(payloads, ways, strict=True):
        line, (key, meta) = line_of[way], places[way]
        if not line or (line[-1][0] is not key and line[-1][0] != key):  # in turn with others of another expiry: in order
            line.append((key, [], []))
            lots.append(line[-1])
        _, some, metas = line[-1]
        some.append(payload)
        metas.append(meta)
    return lots


def _brought(block: bytes) -> bytes:
    """Encoded properties of a message of another site, without what says something to its publisher's broker only, and without expiry."""
    properties = properties_of(block)
    if properties is None:
        return b""
    pairs = [pair for pair in properties.user_properties if pair[0] not in (HANDLE, PARENTS)]
    if len(pairs) == len(properties.user_properties):
        return properties.without_expiry
    return strip(properties.without_expiry, Property.USER_PROPERTY) + encode_properties({Property.USER_PROPERTY: pairs})
