"""What the broker does with each control packet but PUBLISH and bare acknowledgements.

One function a packet kind; the table is at the end. CONNECT has a module of its own (`handshake.py`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...base.quoting import quoted
from ...mqtt import packets
from ...mqtt.bounds import check_bounds
from ...mqtt.codec import decode
from ...mqtt.errors import PeerError
from ...mqtt.properties import Property
from ...mqtt.reasons import Reason
from ...mqtt.topics import check_filter, split_share, too_deep
from ..publish import acknowledge
from ..routing.route import Entry
from ..session.session import Replay
from . import connect as handshake

if TYPE_CHECKING:
    from ..session.session import Session
    from .connection import Connection


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


def subscribe(connection: Connection, packet: packets.Subscribe) -> None:
    """SUBACK first, then what is retained (MQTT-3.8.4-1, MQTT-3.3.1-9 to -11)."""
    session = _session(connection)
    site = connection.site
    identifiers = packet.properties.get(Property.SUBSCRIPTION_IDENTIFIER, [])
    identifier = identifiers[0] if identifiers else 0
    if session.replaying > session.max_messages:
        # it does not take the retained messages of its earlier subscriptions
        _suback(connection, packet, [Reason.QUOTA_EXCEEDED] * len(packet.subscriptions), answer=False)
        return
    persistence = site.persistence
    if persistence is not None:
        persistence.begin()
        if persistence.error is not None and session.stored:
            _suback(connection, packet, [Reason.QUOTA_EXCEEDED] * len(packet.subscriptions))
            return
    reasons = []
    wanted: list[Replay] = []
    for subscription in packet.subscriptions:
        if connection.version == 4 and subscription.filter.startswith("$share/"):
            check_filter(subscription.filter)
        if too_deep(subscription.filter):  # well-formed, but each level is a node here and at every other site
            reasons.append(Reason.TOPIC_FILTER_INVALID)
            continue
        refusal = site.router.refusal(connection.client_id, subscription.filter) or site.guard.subscription(
            connection.user, connection.client_id, subscription.filter
        )
        if refusal is not None:
            site.router.access.denied(connection.client_id, connection.user, subscription.filter, refusal)
            reasons.append(Reason.NOT_AUTHORIZED)
            continue
        if persistence is not None and persistence.quota.full and session.stored and subscription.filter not in session.subscriptions:
            _refused(connection, persistence.quota.full_text)
            reasons.append(Reason.QUOTA_EXCEEDED)
            continue
        most = connection.limits.subscriptions
        if most is not None and len(session.subscriptions) >= most and subscription.filter not in session.subscriptions:
            _refused(connection, f"a session has at most {most} subscriptions (limits.subscriptions)")
            reasons.append(Reason.QUOTA_EXCEEDED)
            continue
        is_new = site.router.subscribe(session, subscription, identifier)
        session.subscribed(subscription, identifier)
        shared = subscription.filter.startswith("$share/")
        if not shared and (subscription.retain_handling == 0 or (subscription.retain_handling == 1 and is_new)):
            # as of now: what is retained from now on comes as a message, whenever SUBACK goes
            runs = site.retained.for_client(subscription.filter, session.client_id, site.context.now)
            runs = [run for run in runs if site.router.access.sees(run.topic.decode(), subscription.filter, session.client_id)]
            if (session.face, subscription.filter) in site.router.filtered:
                runs = [run for run in runs if site.router.reads(session.face, subscription.filter, run.topic.decode())]
            if runs:
                wanted.append(Replay(site.retained, runs, subscription.qos, Entry(session, subscription, identifier).identifier))
        reasons.append(Reason(subscription.qos))
    _suback(connection, packet, reasons)
    for subscription in packet.subscriptions:
        share = split_share(subscription.filter)
        if share is not None and share in site.router.groups and subscription.filter in session.subscriptions:
            site.router.groups[share].gather(session, site.next_commit)
    ticket = session.mark()
    if ticket and persistence is not None:
        persistence.when(ticket, partial(_send_retained, connection, wanted))
    else:
        _send_retained(connection, wanted)


def _refused(connection: Connection, text: str) -> None:
    """Count and log a subscription that finds no room."""
    site = connection.site
    site.context.counters.refused_subscriptions += 1
    site.context.warnings.say(
        "subscriptions-full", site.context.loop.time(), connection.address, text, f" client={quoted(connection.client_id)}"
    )


def _suback(connection: Connection, packet: packets.Subscribe, reasons: list[Reason], answer: bool = True) -> None:
    """SUBACK. MQTT 3.1 has no word for failure in it: there each filter is answered with the QoS that was asked for."""
    if connection.mqisdp:
        reasons = [Reason(one.qos) for one in packet.subscriptions]
    connection.send_packet(packets.Suback(packet.packet_id, reasons), answer=answer)


def _send_retained(connection: Connection, wanted: list[Replay]) -> None:
    """Replay what is retained for new subscriptions, behind their SUBACK."""
    session = _session(connection)
    if session.connection is connection:
        for replay in wanted:
            session.replay(replay)


def unsubscribe(connection: Connection, packet: packets.Unsubscribe) -> None:
    session = _session(connection)
    router = connection.site.router
    reasons = []
    if connection.site.persistence is not None:
        connection.site.persistence.begin()
    for topic_filter in packet.filters:
        was_there = router.unsubscribe(session, topic_filter)
        session.unsubscribed(topic_filter)
        reasons.append(Reason.SUCCESS if was_there else Reason.NO_SUBSCRIPTION_EXISTED)
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
    packets.Subscribe: subscribe,
    packets.Unsubscribe: unsubscribe,
    packets.Pingreq: pingreq,
    packets.Disconnect: disconnect,
    packets.Auth: auth,
}
