"""The queues of one broker as operators and publishers see them: lists, one queue, its messages, the history of one, and what may be done.

Nothing here changes anything but `purge`, `redrive`, `reveal`, `withdraw`, `again`, and what members say (`work`); each of these is a move
that is written and timed.

What may take long is a walk of short steps: between two of them the broker serves others, and the queue may have changed.

What it does not know: who asks and what that one may (`broker/requests/queues.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from ...base.queues import PREFIX
from ...base.selector.selector import SelectorError
from ...mqtt.errors import UsageError
from .core.blocks import CLEAN_BYTES, Block, Meta, Part, spans
from .core.queue import Queue
from .core.selection import Fits, cost
from .core.standing import publisher_of, standing
from .core.states import IllegalMove, Publisher, Step, Subscriber, name_of
from .core.stock import Member
from .core.timeline import timeline
from .kept import Kept, Replacement
from .log.dead import origin_of
from .log.format import Damaged
from .rows import content, iso
from .seats import fits
from .workflow.lineage import parents_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..session.session import Session
    from .committer import Waiting
    from .shell import Queues

MOST_PEEKED = 100  # messages of one answer
MOST_WHOLE = 262_144  # bytes of payloads in one answer of whole messages; a larger message goes by itself
MOST_LOOKED = 1000  # messages of one answer with a selector
MOST_REDRIVEN = 10_000  # messages of one request
MOST_SHOWN = 1000  # members of a queue in one answer
MOST_BYTES = 262_144  # of names in the rows of one answer
WORKED = 64  # messages of a member in one step

Walk = Generator[None, None, dict[str, Any]]


class Overview:
    """See the module. Methods raise UsageError, one line, for what is not there or not allowed. site: the broker's name. kept: what
    can be done with messages that are at an end too. temporary: queues of clients.
    """

    def __init__(self, queues: Queues, site: str) -> None:
        self._queues = queues
        self._site = site
        self.kept = Kept(queues, self.queue)
        self.temporary = queues.temporary

    def queue(self, name: str) -> Queue:
        """One that has its home here."""
        if name not in self._queues.settings.rules:
            if name in self._queues.settings.shared:
                raise UsageError(f"queue {name!r} has several homes, and none of them serves it now: ask again")
            raise UsageError(f"there is no queue {name[:200]!r} at {self._site}")
        return self._queues.store.queues[name]

    def list(self, shown: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
        """All queues that are shown. They may be gone between two of them."""
        rules = self._queues.settings.rules
        for name in sorted(rules):
            if name in rules and shown(name):
                yield self._row(self.queue(name))

    def _row(self, queue: Queue) -> dict[str, Any]:
        return {
            "name": queue.name,
            "site": self._site,
            "plan": str(queue.rules.plan),
            "waiting": queue.waiting,
            "in_flight": queue.held,
            "members": sum(member.active for member in queue.members.values()),
            "oldest": iso(queue.oldest),
            "bytes": queue.size,
            **queue.counts,
            "dead_letters": queue.rules.dead_letters or None,
            "paused": queue.name in self._queues.settings.paused,
        }

    def show(self, name: str) -> dict[str, Any]:
        """One queue, with its settings and its first members."""
        queue = self.queue(name)
        found = (one for one in queue.members.values() if one.active or one.held or one.name in queue.subscribers)
        members = [
            {"name": one.name, "active": one.active, "in_flight": one.held, "subscriber": one.name in queue.subscribers}
            for one in islice(found, MOST_SHOWN)
        ]
        rules = queue.rules
        keys = ("messages", "bytes", "age", "when_full", "deliveries", "backoff", "retention", "prefetch", "single", "explicit")
        return {
            **self._row(queue),
            "members": members,
            "next": queue.next,
            "declared": self._declared(name),
            "store": self._queues.store.kind_of(queue),
            "moving": self._queues.store.progress(queue),
            "homes": list(rules.homes),
            "settings": {key: getattr(rules, key) for key in keys},
        }

    def _declared(self, name: str) -> str:
        """Where a queue is declared."""
        if name in self.temporary:
            return "by a client, until its session ends"
        return "by a request" if name in self._queues.settings.declared else "in the file"

    def peek(self, name: str, begin: int, most: int, payloads: bool, whole: bool = False, selector: str = "") -> Walk:
        """Messages that are not at an end, from a position on. It changes nothing.

        payloads: with the first 4 KiB of each. whole: with all of each, and with its properties; fewer at a time where they are large.
        selector: only those that fit; a page is of what was found in `MOST_LOOKED`, and may be empty.
        """
        queue = self.queue(name)
        wanted = _fits(selector)
        found: list[dict[str, Any]] = []
        size = names = looked = 0
        block = queue.block_from(begin)
        while block is not None:
            with self._reading(queue, block):
                for at in [one for start, count in queue.open_runs(block) for one in range(max(start, begin - block.first), start + count)]:
                    full = names > MOST_BYTES or (whole and size + block.lengths[at] > MOST_WHOLE)
                    if len(found) == most or (found and full) or looked >= MOST_LOOKED:
                        return {"messages": found, "more": block.first + at}
                    looked += cost(selector, block.meta(at)) if selector else 0
                    if not wanted(block.meta(at), block.priority_of(at)):
                        continue
                    row = self._message(queue, block, at, payloads and not whole)
                    if whole:
                        row |= self._whole(queue, block, at)
                        size += block.lengths[at]
                    names += sum(map(len, row["subscribers"]))
                    found.append(row)
            yield
            block = queue.block_from(block.first + block.count)
        return {"messages": found, "more": None}

    def _whole(self, queue: Queue, block: Block, at: int) -> dict[str, Any]:
        """What a client makes the message of. waits: somebody may take it now, or as soon as its back-off is over."""
        revealed = publisher_of(queue, block, at) is Publisher.REVEALED and block.key.due <= self._queues.now()
        topic = block.key.topic or (PREFIX + queue.name).encode()
        waits = revealed and _waits(block, at)
        return {"waits": waits, **content(topic, block.meta(at).properties, self._bytes(queue, block, at))}

    def _message(self, queue: Queue, block: Block, at: int, payloads: bool) -> dict[str, Any]:
        now = standing(queue, block, at, MOST_PEEKED)
        meta = block.meta(at)
        message = {
            "position": block.first + at,
            "publisher": meta.publisher,
            "handle": meta.handle or None,
            "group": meta.group or None,
            "state": name_of(now.publisher),
            "subscribers": {name: name_of(state) for name, state in now.subscribers.items()},
            "priority": block.priority_of(at),
            "put": iso(block.at),
            "due": iso(block.key.due),
            "expires": iso(block.key.expires),
            "size": block.lengths[at],
            "deliveries": sum(part.tries(at) for part in block.parts),
        }
        if payloads:
            message["payload"] = self._payload(queue, block, at)
        return message

    def body(self, queue: Queue, block: Block, at: int) -> bytes:
        """The payload of a message. It changes nothing."""
        with self._reading(queue, block):
            return self._bytes(queue, block, at)

    def _payload(self, queue: Queue, block: Block, at: int) -> str:
        return self._bytes(queue, block, at)[:4096].decode("utf-8", "backslashreplace")

    def _bytes(self, queue: Queue, block: Block, at: int) -> bytes:
        try:
            return self._queues.store.payloads(queue, block)[at]
        except (Damaged, OSError) as error:
            raise UsageError(f"message {block.first + at} cannot be read: {error}") from None

    @contextmanager
    def _reading(self, queue: Queue, block: Block) -> Iterator[None]:
        """Payloads of a block are looked at: what is read from the log for that leaves memory afterwards."""
        resident = block.payloads is not None
        try:
            yield
        finally:
            if not resident:
                self._queues.store.forget(queue, block)

    def trace(self, name: str, position: int, payloads: bool) -> Walk:
        """The history of one message, as long as the log has it."""
        queue = self.queue(name)
        block, moves = yield from self._queues.store.history(queue, position)
        if block is None:
            raise UsageError(f"there is no message {position} in the log of queue {name!r}: it never was, or its retention is over")
        active = [member.name for member in queue.members.values() if member.active]
        found = timeline(block, moves, queue.names, active, queue.rules.explicit)
        at = position - block.first
        meta = block.meta(at)
        last = [state for states in found.subscribers.values() for state, _ in states[-1:]]
        answer = {
            "queue": name,
            "position": position,
            "parents": [f"{queue}:{number}" for queue, number in parents_in(meta.properties)],
            "publisher": meta.publisher,
            "handle": meta.handle or None,
            "plan": " > ".join(" | ".join(sorted(group)) for group in block.key.groups) if block.key.ordered else _groups(block),
            "priority": found.priorities[-1][0] if found.priorities else block.key.priority,
            "priorities": [{"priority": priority, "at": iso(when)} for priority, when in found.priorities],
            "size": block.lengths[at],
            "states": [{"who": meta.publisher, "state": name_of(state), "at": iso(when)} for state, when in found.publisher],
            "subscribers": {
                who: [
                    {"state": name_of(state), "at": iso(when)}
                    for state, when in states
                    if state is not Subscriber.CLEAN or len(states) == 1
                ]
                for who, states in found.subscribers.items()
            },
            "needed_by": [who for who, states in found.subscribers.items() if states[-1][0] is Subscriber.CLEAN]
            if found.publisher[-1][0] in (Publisher.REVEALED, Publisher.PUT) and last
            else [],
        }
        if payloads:
            with self._reading(queue, block):
                answer["payload"] = self._payload(queue, block, at)
        return answer

    # ---- deeds

    def purge(self, name: str, dry_run: bool) -> Walk:
        """Withdraw every message that is there now and that nobody has."""
        queue = self.queue(name)
        end, count = queue.next, 0
        block = queue.block_from(0)
        while block is not None and block.first < end:
            clean = block.clean
            count += len(clean)
            for start, length in spans(clean if not dry_run else []):
                queue.withdraw(block, start, length, self._queues.now())
            yield
            block = queue.block_from(block.first + block.count)
        self._queues.stir(name)
        return {"queue": name, "purged": count, "dry_run": dry_run}

    def recover(self, name: str, dry_run: bool) -> Walk:
        """The five recovery steps of the source for one queue."""
        return {"queue": name, **(yield from self._queues.workflow.recover(self.queue(name), dry_run)), "dry_run": dry_run}

    def parents(self, asked: dict[str, Any], answer: Callable[[bool], None]) -> None:
        """The home of a child asks about its parents here. answer: follows the commit of what it changes. Raises UsageError."""
        try:
            self._queues.workflow.asked(asked["parents"], str(asked["publisher"]), bool(asked["counts"]), answer)
        except (KeyError, TypeError, ValueError):
            raise UsageError("a question about parents that cannot be read") from None

    def redrive(self, name: str, to: str | None, position: int | None, dry_run: bool) -> Walk:
        """Put dead letters into the queue that they come from, or another; each in one commit with its end here."""
        queue = self.queue(name)
        end, count = queue.next, 0
        block = queue.block_from(position or 0)
        while block is not None and block.first < end:
            for at in block.clean if position is None else [position - block.first] if block.holds(position) else []:
                goal, again = self._goal(queue, block, at, to)
                if goal is None or not _waits(block, at):
                    continue
                if self._queues.store.committer(goal) is not self._queues.store.committer(queue):
                    raise UsageError(f"queue {goal.name!r} has another store: messages change their queue in one commit, so both have one")
                full = goal.refusal(1, block.lengths[at]) if not dry_run else None
                if full is not None and not count:
                    raise UsageError(f"{goal.name}: {full}")
                if full is not None or count == MOST_REDRIVEN:
                    return {"queue": name, "redriven": count, "dry_run": dry_run, "left": f"{goal.name}: {full}" if full else "ask again"}
                count += 1
                if not dry_run:
                    now = self._queues.now()
                    payload, key = [self._bytes(queue, block, at)], block.key
                    Replacement(self._queues, queue, partial(goal.put, payload, again, now, key.topic, block.priority_of(at)))
                    queue.withdraw(block, at, 1, now)
                yield
            self._queues.store.served(queue, block)
            yield
            block = queue.block_from(block.first + block.count) if position is None else None
        self._queues.stir(name)
        return {"queue": name, "redriven": count, "dry_run": dry_run}

    def _goal(self, queue: Queue, block: Block, at: int, to: str | None) -> tuple[Queue | None, Meta]:
        """Where a message of a queue goes back to, and as what; None: it stays."""
        meta = block.meta(at)
        origin, properties = origin_of(meta.properties)
        target = to or origin
        again = Meta(meta.publisher, properties, meta.handle, meta.group)
        return (None if target is None or target == queue.name else self.queue(target)), again

    def act(self, name: str, do: str, position: int, member: str, publisher: str | None, priority: int = 0) -> dict[str, Any]:
        """reveal, withdraw, expire, priority or again (to one member) for one message. publisher: whose it has to be; None: anybody's."""
        queue, now = self.queue(name), self._queues.now()
        block = queue.find(position)
        if block is None:
            raise UsageError(f"message {position} of queue {name!r} is at an end, or never was")
        at = position - block.first
        if publisher is not None and block.meta(at).publisher != publisher:
            raise UsageError(f"message {position} of queue {name!r} is not yours")
        try:
            if do == "reveal":
                queue.reveal(block, at, 1, now)
            elif do == "withdraw":
                queue.withdraw(block, at, 1, now)
            elif do == "expire":
                queue.expire_at_once(block, at, now)
            elif do == "priority":
                queue.prioritize(block, at, priority, now)
            else:
                queue.reveal_again(block, at, member, now)
        except IllegalMove as error:
            raise UsageError(str(error)) from None
        self._queues.stir(name)
        return {"message": self._message(queue, block, at, False)}

    def look_at(self, name: str, position: int) -> dict[str, Any]:
        """How one message is that is not at an end."""
        queue = self.queue(name)
        block = queue.find(position)
        if block is None:
            raise UsageError(f"message {position} of queue {name!r} is at an end, or never was")
        return {"message": self._message(queue, block, position - block.first, False)}

    def member(self, name: str, client: str, origin: int) -> str:
        """Under which name a client of another site is a member of a queue."""
        return self._queues.sites.member(name, client, origin)

    def after_commit(self, name: str, waiting: Waiting) -> None:
        """Have something go when everything of a queue so far is on the disk."""
        self._queues.after_commit(self.queue(name), waiting)

    def get(self, session: Session, name: str, most: int) -> dict[str, Any]:
        """Give a member that asks for messages at most so many of them."""
        given, waiting = self._queues.get(session, self.queue(name).name, most)
        return {"queue": name, "given": given, "waiting": waiting}

    def get_away(self, origin: int, client: str, name: str, most: int) -> dict[str, Any]:
        """The same for a member at another site."""
        given, waiting = self._queues.get_away(origin, client, self.queue(name).name, most)
        return {"queue": name, "given": given, "waiting": waiting}

    def is_members(self, name: str, position: int, client: str) -> bool:
        """Whether a message expires for a client as a member of the queue: it has the message, or is the only one to get it."""
        queue = self.queue(name)
        block, member = queue.find(position), queue.members.get(client)
        return block is not None and member is not None and _part_of(block, position - block.first, member, "expire") is not None

    def work(self, name: str, do: str, first: int, last: int, client: str) -> Walk:
        """A member says what becomes of messages that it has: processing, done, unusable, return, expire; journalled of those it had."""
        queue = self.queue(name)
        member = queue.members.get(client)
        if member is None:
            raise UsageError(f"{client[:200]!r} is no member of queue {name!r}")
        for position in range(first, last + 1):
            block = queue.find(position)
            at = position - block.first if block is not None else 0
            part = _part_of(block, at, member, do) if block is not None else None
            if part is None:
                raise UsageError(f"{client[:200]!r} does not have message {position} of queue {name!r}")
            try:
                _work(queue, member, part, at, do, self._queues.now())
            except IllegalMove as error:
                raise UsageError(str(error)) from None
            if position % WORKED == 0:
                yield
        self._queues.stir(name)
        return {"queue": name, "first": first, "last": last, "state": do}


def _part_of(block: Block, at: int, member: Member, do: str) -> Part | None:
    """The part of a message that a member has, or had; None: it has none. What waits for it alone can expire."""
    found = next((one for one in block.parts if one.takers[at] == member.number), None)
    if found is not None or do != "expire":
        return found
    return next((one for one in block.parts if one.lane.group == {member.name} and one.states[at] in CLEAN_BYTES), None)


def _work(queue: Queue, member: Member, part: Part, at: int, do: str, now: int) -> None:
    """One message. Raises IllegalMove."""
    if do == "processing":
        if part.states[at] == Subscriber.GET:
            queue.advance(member, part, at, 1, Step.FETCH, now)
        queue.advance(member, part, at, 1, Step.PROCESS, now)
    elif do == "return":
        queue.give_back(member, part, at, 1, now)
    elif do == "expire":
        queue.expire_alone(member, part, at, now)
    elif do == "journalled":
        queue.journal(member.name, part, at, 1, now)
    else:
        queue.settle(member, part, at, 1, Subscriber.DONE if do == "done" else Subscriber.UNUSABLE, now)


def _fits(selector: str) -> Fits:
    """What says whether a message is wanted. Raises UsageError."""
    try:
        return fits(selector)
    except SelectorError as error:
        raise UsageError(str(error)) from None


def _waits(block: Block, at: int) -> bool:
    """Whether somebody is still to get a message."""
    return any(part.states[at] in CLEAN_BYTES for part in block.parts)


def _groups(block: Block) -> str:
    groups = block.key.groups
    return ", ".join(" | ".join(sorted(group)) or "pool" for group in groups) or "nobody"
