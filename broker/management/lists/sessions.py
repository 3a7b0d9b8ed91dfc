"""Clients, sessions and subscriptions of a broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from ....mqtt.packets import Subscription
from ....mqtt.topics import split_share
from ..listing import Field, Kind, Listing, Where

if TYPE_CHECKING:
    from ...ports import Context
    from ...session.session import Session
    from ...site import Site

PIECE = 125  # rows
_ENDED = Subscription("ended", 0)
LEAVING = "\0"  # how the names of sessions begin that are on their way to another site


def pieces(rows: Sequence[Any], size: int = PIECE) -> Iterator[Sequence[Any]]:
    """The rows in pieces."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def sessions_of(site: Site) -> Listing:
    """Sessions, with or without a connection."""
    context = site.context

    def scan(_: Where) -> Iterator[Sequence[Session]]:
        for piece in site.sessions.pieces(PIECE):
            yield [one for one in piece if not one.client_id.startswith(LEAVING)]

    return Listing(
        "sessions",
        "what the broker keeps for client identifiers, connected or not",
        (
            Field("client", Kind.TEXT, attrgetter("client_id"), attrgetter("client_id")),
            Field("user", Kind.TEXT, attrgetter("user")),
            Field("connected", Kind.FLAG, lambda one: one.connection is not None),
            Field("stored", Kind.FLAG, attrgetter("stored")),
            Field("messages", Kind.NUMBER, lambda one: one.queued + one.outbound.in_flight),
            Field("in_flight", Kind.NUMBER, attrgetter("outbound.in_flight"), attrgetter("outbound.in_flight")),
            Field("bytes", Kind.NUMBER, lambda one: one.queued_bytes + one.outbound.bytes),
            Field("waits", Kind.TEXT, lambda one: one.waiting.value),
            Field("subscriptions", Kind.NUMBER, lambda one: len(one.subscriptions)),
            Field("away", Kind.NUMBER, lambda one: _away(context, one)),
            Field("expires", Kind.NUMBER, lambda one: None if one.ends_at is None else max(0, round(one.ends_at - context.now))),
            Field("will", Kind.TEXT, lambda one: None if one.will is None else one.will.topic.decode()),
        ),
        attrgetter("client_id"),
        scan,
    )


def _away(context: Context, session: Any) -> int | None:
    """Seconds since its connection ended; None: it is connected, or the broker does not note it."""
    left = getattr(session, "left_at", None)
    return None if left is None else max(0, round(context.steady() - left))


def clients_of(site: Site) -> Listing:
    """Clients that are connected."""
    context = site.context

    def scan(_: Where) -> Iterator[Sequence[Any]]:
        for piece in pieces(list(site.connections)):
            yield [one for one in piece if one.session is not None and not one.closing]

    return Listing(
        "clients",
        "clients that are connected",
        (
            Field("client", Kind.TEXT, attrgetter("client_id"), attrgetter("client_id")),
            Field("user", Kind.TEXT, attrgetter("user")),
            Field("address", Kind.TEXT, attrgetter("address"), attrgetter("address")),
            Field("version", Kind.NUMBER, attrgetter("version"), attrgetter("version")),
            Field("tls", Kind.TEXT, _tls),
            Field("connected", Kind.NUMBER, lambda one: max(0, round(context.now - one.opened))),
            Field("silent", Kind.NUMBER, lambda one: max(0, round(context.now - one.last_received))),
            Field("keep_alive", Kind.NUMBER, attrgetter("keep_alive")),
            Field("received", Kind.NUMBER, attrgetter("received"), attrgetter("received")),
            Field("sent", Kind.NUMBER, attrgetter("sent"), attrgetter("sent")),
            Field("unsent", Kind.NUMBER, attrgetter("unsent")),
            Field("denied", Kind.NUMBER, attrgetter("denied"), attrgetter("denied")),
            Field("slowed", Kind.FLAG, lambda one: bool(one.pauses)),
            Field("subscriptions", Kind.NUMBER, lambda one: 0 if one.session is None else len(one.session.subscriptions)),
        ),
        attrgetter("client_id"),
        scan,
    )


def _tls(connection: Any) -> str | None:
    layer = connection.transport.get_extra_info("tls")
    return None if layer is None else layer.version


Held = tuple[str, str, "Session"]  # client identifier, filter as subscribed, session


def subscriptions_of(site: Site) -> Listing:
    """Subscriptions of all sessions."""
    router = site.router

    def scan(where: Where) -> Iterator[Sequence[Held]]:
        client = where.get("client")
        found: Iterator[Sequence[Session]] = site.sessions.pieces(PIECE)
        if isinstance(client, str) and not set(client) & set("*?"):
            one = site.sessions.get(client)
            found = iter([] if one is None else [[one]])
        batch: list[Held] = []
        for session in chain.from_iterable(found):
            if session.client_id.startswith(LEAVING):
                continue
            held = session.subscriptions
            made = zip(repeat(session.client_id), list(held), repeat(session))
            if len(held) <= PIECE:
                batch.extend(made)
            else:
                while piece := list(islice(made, PIECE)):
                    yield piece
            if len(batch) >= PIECE:
                yield batch
                batch = []
            elif not batch:
                yield batch
        yield batch

    return Listing(
        "subscriptions",
        "subscriptions of sessions",
        (
            Field("client", Kind.TEXT, itemgetter(0), itemgetter(0)),
            Field("filter", Kind.TEXT, itemgetter(1), itemgetter(1)),
            Field("group", Kind.TEXT, _group),
            Field("qos", Kind.NUMBER, lambda one: _options(one).qos, lambda one: _options(one).qos),
            Field("no_local", Kind.FLAG, lambda one: _options(one).no_local),
            Field("retain_as_published", Kind.FLAG, lambda one: _options(one).retain_as_published),
            Field("retain_handling", Kind.NUMBER, lambda one: _options(one).retain_handling),
            Field("in_part", Kind.FLAG, lambda one: (one[2].face, one[1]) in router.filtered),
            Field("connected", Kind.FLAG, lambda one: one[2].connection is not None),
        ),
        itemgetter(0, 1),
        scan,
        topic=lambda one: share[1] if (share := split_share(one[1])) is not None else one[1],
    )


def _options(held: Held) -> Subscription:
    """How it is subscribed; it may have ended a moment ago."""
    found = held[2].subscriptions.get(held[1])
    return _ENDED if found is None else found


def _group(held: Held) -> str | None:
    share = split_share(held[1])
    return None if share is None else share[0]


def groups_of(site: Site) -> Listing:
    """Shared subscriptions with members here."""
    router = site.router
    return Listing(
        "groups",
        "shared subscriptions with members here",
        (
            Field("group", Kind.TEXT, attrgetter("name")),
            Field("filter", Kind.TEXT, attrgetter("filter")),
            Field("members", Kind.NUMBER, lambda one: len(one.members)),
            Field("connected", Kind.NUMBER, lambda one: sum(member.session.connection is not None for member in one.members)),
            Field("weight", Kind.NUMBER, attrgetter("weight")),
            Field("waiting", Kind.NUMBER, lambda one: sum([member.session.queued for member in one.members])),
            Field("clients", Kind.OTHER, lambda one: [member.session.client_id for member in one.members[:20]]),
        ),
        lambda one: (one.name, one.filter),
        lambda _: pieces(list(router.groups.values())),
        topic=attrgetter("filter"),
    )
