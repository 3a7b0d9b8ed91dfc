"""The queues of a broker, their members and messages, and the history of one message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ....mqtt.errors import UsageError
from ...queues.core.standing import publisher_of, standing
from ...queues.core.states import name_of
from ...queues.overview import MOST_PEEKED
from ..errors import Refused
from ..listing import Field, Kind, Listing, Where
from .mesh import columns
from .sessions import pieces

if TYPE_CHECKING:
    from ...queues.core.blocks import Block, Meta
    from ...queues.core.queue import Queue
    from ...queues.core.stock import Member
    from ...queues.overview import Overview
    from ...site import Site

PIECE = 250  # messages
TEXT, NUMBER, FLAG, OTHER = Kind.TEXT, Kind.NUMBER, Kind.FLAG, Kind.OTHER
COUNTED = ("put", "done", "returned", "unusable", "expired", "dead", "refused", "withdrawn")
BOUNDS = ("messages", "bytes", "age", "when_full", "deliveries", "backoff", "retention", "prefetch", "single", "explicit")

Message = tuple["Queue", "Block", int]  # with the index in the block
Find = Callable[[], "Overview | None"]


def queues_of(site: Site) -> Listing:
    """Queues, with their counters since the start of the broker."""
    return Listing(
        "queues",
        "queues, with what became of their messages since the broker began; oldest in seconds",
        (
            Field("name", TEXT, attrgetter("name"), attrgetter("name")),
            Field("plan", TEXT, lambda one: str(one.rules.plan)),
            Field("waiting", NUMBER, attrgetter("waiting"), attrgetter("waiting")),
            Field("in_flight", NUMBER, attrgetter("held"), attrgetter("held")),
            Field("members", NUMBER, lambda one: sum(member.active for member in one.members.values())),
            Field("oldest", NUMBER, lambda one: _age(site, one.oldest)),
            Field("bytes", NUMBER, attrgetter("size"), attrgetter("size")),
            *(Field(name, NUMBER, _counter(name)) for name in COUNTED),
            Field("paused", FLAG, lambda one: site.queues is not None and one.name in site.queues.settings.paused),
            Field("dead_letters", TEXT, lambda one: one.rules.dead_letters or None),
            Field("store", TEXT, lambda one: _store_of(site, one)),
            Field("declared", TEXT, lambda one: "by a request" if _by_request(site, one.name) else "in the file"),
            Field("topics", OTHER, lambda one: list(one.rules.topics)),
            Field("bounds", OTHER, lambda one: {key: getattr(one.rules, key) for key in BOUNDS if getattr(one.rules, key)}),
        ),
        attrgetter("name"),
        lambda where: pieces(_queues(site, where.get("name"))),
        queue=attrgetter("name"),
    )


def _queues(site: Site, name: Any = None) -> list[Queue]:
    """The queues of a broker, or those of a name; a pattern stands for all."""
    queues = site.queues
    if queues is None:
        return []
    if isinstance(name, str) and not set(name) & set("*?"):
        return [queues.store.queues[name]] if name in queues.settings.rules else []
    return [queues.store.queues[one] for one in queues.settings.rules]


def _store_of(site: Site, queue: Queue) -> str:
    """The kind of store that has a queue."""
    assert site.queues is not None
    return site.queues.store.kind_of(queue)


def _by_request(site: Site, name: str) -> bool:
    return site.queues is not None and name in site.queues.settings.declared


def _age(site: Site, at: int) -> int | None:
    """Whole seconds since a time in milliseconds since 1970; None for 0."""
    return max(0, round(site.context.steady() - at / 1000)) if at else None


def _rest(site: Site, at: int) -> int | None:
    """Whole seconds until it; None for 0."""
    return max(0, round(at / 1000 - site.context.steady())) if at else None


def _counter(name: str) -> Callable[[Queue], int]:
    return lambda one: one.counts[name]


def members_of(site: Site) -> Listing:
    """Members of queues, connected or not."""

    def scan(where: Where) -> Iterator[Sequence[tuple[Queue, Member]]]:
        for queue in _queues(site, where.get("queue")):
            for piece in pieces(list(queue.members.values())):
                yield [(queue, one) for one in piece if one.active or one.held or one.name in queue.subscribers]

    return Listing(
        "queue-members",
        "who takes messages from queues, or is to have some",
        (
            Field("queue", TEXT, lambda one: one[0].name),
            Field("member", TEXT, lambda one: one[1].name),
            Field("active", FLAG, lambda one: one[1].active),
            Field("in_flight", NUMBER, lambda one: one[1].held),
            Field("subscriber", FLAG, lambda one: one[1].name in one[0].subscribers),
        ),
        lambda one: (one[0].name, one[1].name),
        scan,
        queue=lambda one: one[0].name,
    )


def messages_of(site: Site, find: Find) -> Listing:
    """Messages of one queue that are not at an end."""

    def scan(where: Where) -> Iterator[Sequence[Message]]:
        for queue in _queues(site, where["queue"])[:1]:
            block = queue.block_from(0)
            while block is not None:
                indexes = iter(range(block.count))
                while piece := [(queue, block, at) for at in islice(indexes, PIECE)]:
                    yield piece
                block = queue.block_from(block.first + block.count)

    def payload(one: Message) -> bytes:
        queue, block, at = one
        overview = find()
        if overview is None or not (block.first in queue.blocks or block.first in queue.kept):
            return b""  # it has come to its end since it was found
        try:
            return overview.body(queue, block, at)
        except UsageError as error:
            raise Refused(str(error)) from None

    return Listing(
        "queue-messages",
        "messages of a queue that are not at an end; age, due and expires in seconds",
        (
            Field("position", NUMBER, _position, _position),
            Field("state", TEXT, lambda one: name_of(publisher_of(*one))),
            Field("publisher", TEXT, lambda one: _meta(one).publisher),
            Field("handle", TEXT, lambda one: _meta(one).handle or None),
            Field("group", TEXT, lambda one: _meta(one).group or None),
            Field("age", NUMBER, lambda one: _age(site, one[1].at)),
            Field("due", NUMBER, lambda one: _rest(site, one[1].key.due)),
            Field("expires", NUMBER, lambda one: _rest(site, one[1].key.expires)),
            Field("priority", NUMBER, lambda one: one[1].priority_of(one[2])),
            Field("bytes", NUMBER, lambda one: one[1].lengths[one[2]]),
            Field("deliveries", NUMBER, lambda one: sum(part.tries(one[2]) for part in one[1].parts)),
            Field("subscribers", OTHER, _subscribers),
        ),
        _position,
        scan,
        needs=("queue",),
        extra=("queue",),
        queue=lambda one: one[0].name,
        payload=payload,
    )


def _position(one: Message) -> int:
    return one[1].first + one[2]


def _meta(one: Message) -> Meta:
    return one[1].meta(one[2])


def _subscribers(one: Message) -> dict[str, str]:
    queue, block, at = one
    return {who: name_of(state) for who, state in standing(queue, block, at, MOST_PEEKED).subscribers.items()}


def states_of(site: Site, find: Find) -> Listing:
    """The history of one message."""

    def scan(where: Where) -> Iterator[Sequence[dict[str, Any]]]:
        overview, name, position = find(), where["queue"], where["position"]
        if not str(position).isdecimal() or len(str(position)) > 18:
            raise Refused("position: give that of one message")
        if overview is None or not _queues(site, name):
            return
        walk = overview.trace(str(name), int(position), False)
        try:
            while True:
                next(walk)
                yield []
        except StopIteration as end:
            found = end.value
        except UsageError as error:
            raise Refused(str(error)) from None
        rows = [{"who": one["who"], "role": "publisher", **one} for one in found["states"]]
        for who, states in found["subscribers"].items():
            rows += [{"who": who, "role": "subscriber", **one} for one in states]
        needed = set(found["needed_by"])
        yield [
            {**row, "number": number, "queue": name, "needs": row["role"] == "subscriber" and row["who"] in needed}
            for number, row in enumerate(rows, 1)
        ]

    return Listing(
        "queue-states",
        "every state of one message, with its time, as long as the log of queues has it",
        columns(number=NUMBER, who=TEXT, role=TEXT, state=TEXT, at=TEXT, needs=FLAG),
        lambda one: one["number"],
        scan,
        needs=("queue", "position"),
        extra=("queue", "position"),
        queue=lambda one: str(one["queue"]),
    )
