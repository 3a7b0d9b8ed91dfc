"""What the broker does with each control packet but PUBLISH and bare acknowledgements.

One function a packet kind; the table is at the end. CONNECT has a module of its own (`handshake.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ...base.queues import ALERTS, PREFIX
from ...base.quoting import quoted
from ...mqtt import packets
from ...mqtt.bounds import check_bounds
from ...mqtt.codec import decode, decode_in_steps
from ...mqtt.errors import PeerError
from ...mqtt.properties import Property
from ...mqtt.reasons import Reason
from ...mqtt.topics import check_filter, has_wildcard, split_share, too_deep
from ..publish import acknowledge
from ..routing.route import Entry
from ..session.session import Replay
from . import connect as handshake

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ..session.session import Session
    from ..site import Site
    from .connection import Connection


REPLAYS = 10_000  # subscriptions of a session that may wait for what is retained
AT_ONCE = 32  # filters of a packet that are taken at once
FILTERS = (0x80, 0xA0)  # SUBSCRIBE and UNSUBSCRIBE, as the upper half of a first byte
OLD_DUP = (0x68, 0x88, 0xA8)  # PUBREL, SUBSCRIBE and UNSUBSCRIBE with the DUP flag, which MQTT 3.1 sets when it sends them again


def handle(connection: Connection, first: int, body: bytes) -> None:
    """Decode and dispatch one packet. Raises PeerError for a peer that breaks a rule."""
    if connection.session is None:
        if first >> 4 != 1:
            raise PeerError(Reason.PROTOCOL_ERROR, "the first packet is not CONNECT", "MQTT-3.1.0-1")
        handshake.connect(connection, first, body)
        return
    if connection.mqisdp and first & 0xF8 in OLD_DUP:
        first &= 0xF7
    limits = connection.limits
    check_bounds(first, body, connection.version, limits.packet_properties, limits.packet_filters)
    if first & 0xF0 in FILTERS:
        connection.work(_filters(connection, first, body))
        return
    packet = decode(first, body, connection.version)
    handler = HANDLERS.get(type(packet))
    if handler is None:
        raise PeerError(Reason.PROTOCOL_ERROR, f"{type(packet).__name__.upper()} is not for a client to send", "MQTT-4.13.1-1")
    handler(connection, packet)


def _session(connection: Connection) -> Session:
    assert connection.session is not None
    return connection.session


def second_connect(connection: Connection, packet: packets.Connect) -> None:
    raise PeerError(Reason.PROTOCOL_ERROR, "a second CONNECT", "MQTT-3.1.0-2")


def puback(connection: Connection, packet: packets.Puback) -> None:
    session = _session(connection)
    if packet.reason >= 0x80 and connection.site.queues is not None:
        connection.site.queues.refused(session, packet.packet_id, packet.reason)
    session.outbound.acknowledge(1, packet.packet_id, 1)
    session.pump()


def pubrec(connection: Connection, packet: packets.Pubrec) -> None:
    session = _session(connection)
    if packet.reason >= 0x80:
        session.outbound.acknowledge(2, packet.packet_id, 1)
        session.pump()
    else:
        acknowledge.received(connection, session, packet.packet_id, 1)


def pubrel(connection: Connection, packet: packets.Pubrel) -> None:
    acknowledge.released(connection, _session(connection), packet.packet_id, 1)


def pubcomp(connection: Connection, packet: packets.Pubcomp) -> None:
    session = _session(connection)
    session.outbound.complete(packet.packet_id, 1)
    session.pump()


def _filters(connection: Connection, first: int, body: bytes) -> Iterator[None]:
    """Take a SUBSCRIBE or UNSUBSCRIBE: first all of it is read, then its filters are taken: few at once, many one in each step."""
    session = _session(connection)
    packet, steps = decode_in_steps(first, body, connection.version)
    yield from steps
    if session.connection is not connection:
        return  # another one has taken the session up meanwhile
    if isinstance(packet, packets.Subscribe):
        taken, count = subscribe(connection, session, packet), len(packet.subscriptions)
    else:
        taken, count = unsubscribe(connection, session, packet), len(packet.filters)
    if count > AT_ONCE:
        yield from taken
    else:
        for _ in taken:  # else a queue or a publisher could give something before SUBACK
            pass


def subscribe(connection: Connection, session: Session, packet: packets.Subscribe) -> Iterator[None]:
    """SUBACK first, then what is retained (MQTT-3.8.4-1, MQTT-3.3.1-9 to -11)."""
    persistence = connection.site.persistence
    if len(session.replays) > REPLAYS:
        # it does not take the retained messages of its earlier subscriptions
        _suback(connection, packet, [Reason.QUOTA_EXCEEDED] * len(packet.subscriptions), answer=False)
        return
    if persistence is not None and persistence.error is not None and session.stored:
        persistence.begin()
        _suback(connection, packet, [Reason.QUOTA_EXCEEDED] * len(packet.subscriptions))
        return
    recipients = connection.site.recipients
    if recipients is not None and Property.USER_PROPERTY in packet.properties:
        wrong = recipients.clients.subscribing(session, packet.properties, packet.subscriptions)
        if wrong is not None:
            _suback(connection, packet, [Reason.IMPLEMENTATION_SPECIFIC_ERROR] * len(packet.subscriptions), answer=False, text=wrong)
            return
    queues = connection.site.queues
    if queues is not None and Property.USER_PROPERTY in packet.properties:
        wrong = queues.read(packet)
        if wrong is not None:
            _suback(connection, packet, [Reason.IMPLEMENTATION_SPECIFIC_ERROR] * len(packet.subscriptions), answer=False, text=wrong)
            return
    yield from _subscribe(connection, session, packet)


def _subscribe(connection: Connection, session: Session, packet: packets.Subscribe) -> Iterator[None]:
    """Take the subscriptions of a SUBSCRIBE one by one, then answer."""
    site = connection.site
    identifiers = packet.properties.get(Property.SUBSCRIPTION_IDENTIFIER, [])
    identifier = identifiers[0] if identifiers else 0
    persistence = site.persistence
    if persistence is not None:
        persistence.begin()
    reasons = []
    wanted: dict[str, Replay] = {}
    shares = []
    for subscription in packet.subscriptions:
        subscription.qos = min(subscription.qos, connection.limits.maximum_qos)
        if site.queues is not None and subscription.filter.startswith(PREFIX) and site.queues.owns(subscription.filter):
            subscription.qos = min(subscription.qos, 1)  # what was sent at QoS 2 may not be given to another [MQTT-4.8.2]
        shared = subscription.filter.startswith("$share/")
        if shared and connection.version == 4:
            check_filter(subscription.filter)
        if connection.bridge and not shared:
            subscription.no_local = subscription.retain_as_published = True
        reason = _refusal(connection, session, subscription)
        if reason is None:
            is_new = site.router.subscribe(session, subscription, identifier)
            session.subscribed(subscription, identifier)
            if site.context.journal is not None:
                site.context.journal.subscribed(session, subscription.filter, subscription.qos)
            if not shared and (subscription.retain_handling == 0 or (subscription.retain_handling == 1 and is_new)):
                # as of now: what is retained from now on comes as a message, whenever SUBACK goes
                suffix = Entry(session, subscription, identifier).identifier
                found = site.retained.replay(subscription.filter, session.client_id)
                runs = _seen(site, session, found, subscription.filter)
                wanted[subscription.filter] = Replay(subscription.filter, runs, subscription.qos, suffix)
            if shared:
                shares.append(subscription.filter)
            reason = Reason(subscription.qos)
        reasons.append(reason)
        yield
        if session.connection is not connection:
            return
    if persistence is not None and session.stored:
        persistence.need_commit()  # others may have begun meanwhile
    _suback(connection, packet, reasons)
    for topic_filter in shares:
        share = split_share(topic_filter)
        if share is not None and share in site.router.groups and topic_filter in session.subscriptions:
            site.router.groups[share].gather(session, site.next_commit)
    ticket = session.mark()
    if ticket and persistence is not None:
        persistence.when(ticket, partial(_send_retained, connection, list(wanted.values())))
    else:
        _send_retained(connection, list(wanted.values()))


def _seen(site: Site, session: Session, found: Iterator[Batch | None], topic_filter: str) -> Iterator[Batch | None]:
    """The retained messages that a subscription may see, one by one."""
    router = site.router
    for run in found:
        if run is not None:
            topic = run.topic.decode()
            ruled = (session.face, topic_filter) in router.filtered
            if not router.access.sees(topic, topic_filter, session.client_id) or (
                ruled and not router.reads(session.face, topic_filter, topic)
            ):
                run = None
        yield run


def _refusal(connection: Connection, session: Session, subscription: packets.Subscription) -> Reason | None:
    """Why a subscription is refused, counted and logged; None: it is not."""
    site = connection.site
    topic_filter = subscription.filter
    if has_wildcard(topic_filter) and too_deep(topic_filter, connection.limits.topic_levels):
        # well-formed, but each of its levels is a node here and at every other site
        return Reason.TOPIC_FILTER_INVALID
    if PREFIX in topic_filter and _misuses_queue(site, topic_filter):
        return Reason.TOPIC_FILTER_INVALID
    refusal = site.router.refusal(connection.client_id, topic_filter) or site.guard.subscription(
        connection.user, connection.client_id, connection.listener, topic_filter
    )
    if refusal is None and topic_filter.startswith(PREFIX) and topic_filter.endswith(ALERTS):  # a member of the queue
        queue = topic_filter.removesuffix(ALERTS)
        refusal = site.guard.subscription(connection.user, connection.client_id, connection.listener, queue)
    queues = site.queues if topic_filter.startswith(PREFIX) else None
    if refusal is None and queues is not None and not queues.may_consume(session, subscription):
        refusal = "only the client that made a temporary queue consumes from it, and only a service's users from its inbox"
    if refusal is not None:
        site.router.access.denied(connection.client_id, connection.user, topic_filter, refusal)
        return Reason.NOT_AUTHORIZED
    if subscription.selector and queues is not None and queues.no_room_for(subscription):
        return Reason.QUOTA_EXCEEDED
    if topic_filter in session.subscriptions:
        return None
    persistence = site.persistence
    if persistence is not None and persistence.quota.full and session.stored:
        _refused(connection, persistence.quota.full_text)
        return Reason.QUOTA_EXCEEDED
    most = connection.limits.subscriptions
    if most is not None and len(session.subscriptions) >= most:
        _refused(connection, f"a session has at most {most} subscriptions (limits.subscriptions)")
        return Reason.QUOTA_EXCEEDED
    if session.account.full and not connection.inside:
        site.context.counters.refused_holders += 1
        _refused(connection, session.account.why)
        return Reason.QUOTA_EXCEEDED
    return None


def _misuses_queue(site: Site, topic_filter: str) -> bool:
    """Whether a filter is for queues, and for none that there is."""
    share = split_share(topic_filter)
    full = topic_filter if share is None else share[1]
    if site.queues is None or not full.startswith(PREFIX) or not site.queues.owns(full):
        return False
    return share is not None or not site.queues.may_subscribe(full)


def _refused(connection: Connection, text: str) -> None:
    """Count and log a subscription that finds no room."""
    site = connection.site
    site.context.counters.refused_subscriptions += 1
    site.context.warnings.say(
        "subscriptions-full", site.context.loop.time(), connection.address, text, f" client={quoted(connection.client_id)}"
    )


def _suback(connection: Connection, packet: packets.Subscribe, reasons: list[Reason], answer: bool = True, text: str = "") -> None:
    """SUBACK. MQTT 3.1 has no word for failure in it: there each filter is answered with the QoS that was asked for.

    text: why all of it is refused, for a client that wants to know.
    """
    if connection.mqisdp:
        reasons = [Reason(one.qos) for one in packet.subscriptions]
    properties: dict[int, Any] = {Property.REASON_STRING: text} if text and connection.request_problem else {}
    connection.send_packet(packets.Suback(packet.packet_id, reasons, properties), answer=answer)


def _send_retained(connection: Connection, wanted: list[Replay]) -> None:
    """Replay what is retained for new subscriptions, behind their SUBACK."""
    session = _session(connection)
    if session.connection is connection and wanted:
        session.replay(wanted)


def unsubscribe(connection: Connection, session: Session, packet: packets.Unsubscribe) -> Iterator[None]:
    """End the subscriptions of an UNSUBSCRIBE one by one, then answer."""
    router = connection.site.router
    reasons = []
    persistence = connection.site.persistence
    if persistence is not None:
        persistence.begin()
    for topic_filter in packet.filters:
        was_there = router.unsubscribe(session, topic_filter)
        session.unsubscribed(topic_filter)
        if was_there and connection.context.journal is not None:
            connection.context.journal.subscribed(session, topic_filter, 0, gone=True)
        reasons.append(Reason.SUCCESS if was_there else Reason.NO_SUBSCRIPTION_EXISTED)
        yield
        if session.connection is not connection:
            return
    if persistence is not None and session.stored:
        persistence.need_commit()  # others may have begun meanwhile
    connection.send_packet(packets.Unsuback(packet.packet_id, reasons if connection.version == 5 else []), answer=True)


def pingreq(connection: Connection, packet: packets.Pingreq) -> None:
    connection.send(b"\xd0\x00")


def disconnect(connection: Connection, packet: packets.Disconnect) -> None:
    """A clean end: no will, unless the client asks for it (MQTT-3.14.4-3)."""
    session = _session(connection)
    expiry: Any = packet.properties.get(Property.SESSION_EXPIRY_INTERVAL)
    if expiry is not None:
        if session.expiry == 0 and expiry:
            raise PeerError(Reason.PROTOCOL_ERROR, "session expiry raised from 0 in DISCONNECT", "MQTT-3.14.2-2")
        session.expiry = handshake.granted_expiry(connection.limits, expiry)
    connection.clean_end = packet.reason == Reason.NORMAL_DISCONNECTION
    connection.leave()


def auth(connection: Connection, packet: packets.Auth) -> None:
    raise PeerError(Reason.PROTOCOL_ERROR, "AUTH without an authentication method in CONNECT", "MQTT-4.12.0-1")


HANDLERS: dict[type, Any] = {
    packets.Connect: second_connect,
    packets.Puback: puback,
    packets.Pubrec: pubrec,
    packets.Pubrel: pubrel,
    packets.Pubcomp: pubcomp,
    packets.Pingreq: pingreq,
    packets.Disconnect: disconnect,
    packets.Auth: auth,
}
