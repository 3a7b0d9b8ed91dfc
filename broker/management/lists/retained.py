"""Retained messages of a broker, and where a topic's messages go and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ....mesh.wire.visited import numbers
from ....mqtt.errors import PeerError
from ....mqtt.topics import check_topic
from ...routing.shared import ShareGroup
from ..errors import Refused
from ..listing import Field, Kind, Listing, Where

if TYPE_CHECKING:
    from ...site import Site

PIECE = 125  # retained messages
INTEREST, GROUP, ACCESS, AWAY, POLICY = "interest", "group", "access", "reach", "policy"  # why somebody gets a message, or not


def retained_of(site: Site) -> Listing:
    """Retained messages, also those of the broker itself below `$`."""
    context, retained = site.context, site.retained

    def scan(_: Where) -> Iterator[Sequence[Any]]:
        now = context.now
        for piece in retained.pieces(PIECE):
            yield [run for run in piece if run.expiry is None or not run.expired(now)]

    return Listing(
        "retained",
        "retained messages",
        (
            Field("topic", Kind.TOPIC, lambda run: run.topic.decode(), attrgetter("topic")),
            Field("bytes", Kind.NUMBER, attrgetter("length"), attrgetter("length")),
            Field("qos", Kind.NUMBER, attrgetter("qos"), attrgetter("qos")),
            Field("age", Kind.NUMBER, lambda run: max(0, round(context.now - run.received)), lambda run: -run.received),
            Field("expires", Kind.NUMBER, lambda run: _rest(run, context.now)),
        ),
        attrgetter("topic"),
        scan,
        topic=lambda run: run.topic.decode(),
        payload=lambda run: run.payload,
    )


def _rest(run: Any, now: float) -> int | None:
    return None if run.expiry is None else max(0, round(run.received + run.expiry - now))


def routes_of(site: Site) -> Listing:
    """Who gets a topic's messages that are published here, who does not, and why."""

    def scan(where: Where) -> Iterator[Sequence[dict[str, Any]]]:
        try:
            topic = check_topic(str(where["topic"]).encode())
        except PeerError as error:
            raise Refused(f"topic: {error.text}") from None
        yield [*_here(site, topic), *_elsewhere(site, topic)]

    return Listing(
        "routes",
        "who gets a topic's messages that are published at the site, and why",
        (
            Field("to", Kind.TEXT, lambda one: one["to"]),
            Field("kind", Kind.TEXT, lambda one: one["kind"]),
            Field("filter", Kind.TEXT, lambda one: one["filter"]),
            Field("qos", Kind.NUMBER, lambda one: one["qos"]),
            Field("gets", Kind.FLAG, lambda one: one["gets"]),
            Field("why", Kind.TEXT, lambda one: one["why"]),
            Field("text", Kind.TEXT, lambda one: one["text"]),
        ),
        lambda one: (one["to"], one["kind"], one["filter"] or ""),
        scan,
        needs=("topic",),
        extra=("topic",),
        topic=lambda one: one["topic"],
    )


def _step(
    topic: str, kind: str, to: str, why: str, gets: bool, text: str, full: str | None = None, qos: int | None = None
) -> dict[str, Any]:
    return {"topic": topic, "kind": kind, "to": to, "filter": full, "qos": qos, "gets": gets, "why": why, "text": text}


def _here(site: Site, topic: str) -> Iterator[dict[str, Any]]:
    """Sessions and shared subscriptions of this broker."""
    router = site.router
    rights = router.rights(topic)
    for value in router.tree.match(topic):
        if isinstance(value, ShareGroup) and not value.members:
            yield _step(topic, "queue", value.name, INTEREST, True, "it is bound to the topic", value.filter)
            continue
        if isinstance(value, ShareGroup):
            seen = rights is None or router.access.sees(topic, value.filter, None)
            text = (
                f"one of {len(value.members)} members here, or of those at other sites" if seen else "the rules of the metabroker's topics"
            )
            yield _step(topic, "group", value.name, GROUP if seen else ACCESS, seen, text, value.filter)
            continue
        session, full = value.session, value.subscription.filter
        if rights is not None and not router.access.sees(topic, full, session.client_id):
            why, gets, text = ACCESS, False, "the rules of the metabroker's topics"
        elif not router.reads(session, full, topic):
            why, gets, text = ACCESS, False, "access rules do not allow its user this topic"
        elif session.connection is None and not value.subscription.qos:
            why, gets, text = AWAY, False, "it is not connected, and QoS 0 is not kept"
        else:
            why, gets, text = INTEREST, True, "connected" if session.connection is not None else "kept until it is connected"
        yield _step(topic, "session", session.client_id, why, gets, text, full, value.subscription.qos)


def _elsewhere(site: Site, topic: str) -> Iterator[dict[str, Any]]:
    """Other sites."""
    mesh = site.mesh
    if mesh is None or topic.startswith("$"):
        return
    node = mesh.node
    route = node.route(topic.encode())
    admitted = node.interested(topic)
    for number in numbers(admitted):
        away = not node.reachable(number)
        text = "out of reach: QoS 1 and 2 wait here in custody" if away else "it has subscribers"
        yield _step(topic, "site", node.name(number), AWAY if away else INTEREST, not away, text)
    for number in numbers(node.wanted(topic) & ~admitted):
        yield _step(
            topic, "site", node.name(number), POLICY, False, "it has subscribers, and the policy of a link on the way keeps the topic back"
        )
    for group in () if route is None else route.match.groups:
        for number, weight in group.members:
            text = f"the group picks one site for each message; weight {weight}"
            yield _step(topic, "group at site", f"{node.name(number)} {group.share[0]}", GROUP, True, text, group.share[1])
