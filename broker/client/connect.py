"""CONNECT and CONNACK: who is it, does a session go on, what is granted (MQTT 5: 3.1, 3.2)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...base.clients import EXCLUSIVE, MAY_BE_EXCLUSIVE
from ...base.queues import HAS_DELAYS, HAS_QUEUES
from ...base.quoting import quoted
from ...base.refusals import source_of
from ...mesh.topology.listeners import CLIENTS, LINKS
from ...mesh.topology.settings import Limits
from ...mqtt import packets
from ...mqtt.bounds import check_bounds
from ...mqtt.codec import decode, encode
from ...mqtt.errors import PeerError
from ...mqtt.length import LARGEST_PACKET
from ...mqtt.properties import Property
from ...mqtt.reasons import CONNACK_REASONS, Reason
from ..auth.operators import operates
from ..ledger import IDENTIFIER, LOGINS, STEP
from ..mesh.receipts import WISH, WISHES, wish_of
from ..ports import HELD
from ..roaming.arrival import Arrival
from ..session.will import Will, will_of
from .rate_limit import Throttle

if TYPE_CHECKING:
    from ..auth.service import Outcome
    from ..roaming.shell import Roaming
    from ..session.session import Session
    from .connection import Connection

log = logging.getLogger("mqmesh.broker")

LINK_METHOD = "mqmesh-1"
NEVER = 0xFFFFFFFF  # Session Expiry Interval that does not expire (MQTT 5: 3.1.2.11.2)


def granted_expiry(limits: Limits, asked: int) -> float | None:
    """The session expiry in seconds that the broker grants; None: for ever."""
    most = limits.session_expiry_maximum
    if asked == NEVER:
        return None if most is None else float(most)
    return float(asked if most is None else min(asked, most))


def connect(connection: Connection, first: int, body: bytes) -> None:
    """The first packet of a connection. A refusal is answered with CONNACK and closes. Raises PeerError where there is no answer."""
    try:
        check_bounds(first, body, 5, connection.limits.packet_properties, connection.limits.packet_filters)
        packet = decode(first, body, 5)
    except PeerError as error:
        level = _level(body)
        if error.reason == Reason.UNSUPPORTED_PROTOCOL_VERSION and level >= 0:
            # to each in a form that it may know (MQTT-3.1.2-2): return code 1 up to level 4, else reason 0x84
            connection.refuse(error.reason, error.text, 5 if level > 4 else 4)
        elif level == 5:
            connection.refuse(error.reason if error.reason in CONNACK_REASONS else Reason.PROTOCOL_ERROR, error.text, 5)
        raise
    assert isinstance(packet, packets.Connect)
    connection.version = packet.version
    connection.mqisdp = packet.mqisdp
    connection.bridge = packet.bridge
    connection.named = packet.user_name
    connection.max_packet = packet.properties.get(Property.MAXIMUM_PACKET_SIZE, 0)  # also for a refusal
    connection.context.counters.connects += 1
    method = packet.properties.get(Property.AUTHENTICATION_METHOD)
    if (wrong := _not_served(connection.serves, method)) is not None:
        connection.context.counters.refused_connections += 1
        connection.refuse(*wrong, packet.version)
        return
    if method == LINK_METHOD and connection.site.mesh is not None:
        connection.handed_over = True
        connection.site.mesh.accept(connection, packet)
        return
    if not _room(connection, packet):
        return
    outcome = connection.site.guard.ask(connection, packet, partial(connection.admit, packet))
    if outcome is None:
        connection.held = True
        connection.pause_reading_for(HELD)
    else:
        known(connection, packet, outcome)
    if connection.held and connection.session is None and not connection.closing:  # for its login, the mesh, or its session elsewhere
        charge_login(connection, IDENTIFIER + len(body))


def charge_login(connection: Connection, size: int) -> None:
    """Charge a CONNECT that waits for an answer. size: bytes that it stands for."""
    connection.account.settle(LOGINS, size)
    if connection.account.overdrawn:
        connection.site.backpressure.evict(connection)


def known(connection: Connection, packet: packets.Connect, outcome: Outcome) -> None:
    """It is known who sent a CONNECT, or why that is nobody. Raises PeerError where there is no answer."""
    refusal = connection.site.guard.let_in(connection, packet, outcome)
    if refusal is not None:
        connection.client_id = packet.client_id
        connection.refuse(*refusal, packet.version)
        return
    if not _room(connection, packet):  # while a password was compared, others may have come
        return
    connection.site.admission.end(connection)
    if connection.site.guard.authenticator is not None and not connection.inside:
        connection.account.move(source_of(connection.address), connection.user)
    if connection.site.mesh is not None and connection.site.mesh.starting:
        connection.site.mesh.keep_waiting(connection, packet)
        return
    admit(connection, packet, packet.properties.get(Property.AUTHENTICATION_METHOD))


def _not_served(serves: str, method: object) -> tuple[Reason, str] | None:
    """Why a listener does not serve the sender of a CONNECT; None: it does."""
    if method == LINK_METHOD:
        return (Reason.BAD_AUTHENTICATION_METHOD, "this listener serves clients only, no links") if serves == CLIENTS else None
    return (Reason.NOT_AUTHORIZED, "this listener serves links only, no clients") if serves == LINKS else None


def _room(connection: Connection, packet: packets.Connect) -> bool:
    """Whether this broker offers what a client asks for, and has room for it; else it is refused."""
    refusal = None
    if not connection.inside:
        refusal = _unwelcome(connection.limits, packet) or connection.site.admission.refusal(connection, packet)
    if refusal is not None:
        connection.client_id = packet.client_id
        connection.refuse(*refusal, packet.version)
    return refusal is None


def admit(connection: Connection, packet: packets.Connect, method: object = None) -> None:
    """Answer a CONNECT of a client, at once or when the mesh is ready for it. Raises PeerError where there is no answer."""
    refusal = _refusal(connection, packet, method)
    if refusal is not None:
        connection.client_id = packet.client_id
        connection.refuse(*refusal, packet.version)
        return
    _accept(connection, packet)


def _unwelcome(limits: Limits, packet: packets.Connect) -> tuple[Reason, str] | None:
    """Why a CONNECT asks for what this broker does not offer; None: it does not."""
    version = "5" if packet.version == 5 else "3.1" if packet.mqisdp else "3.1.1"
    if version not in limits.versions:
        text = f"MQTT {version} is not offered here; use {' or '.join(limits.versions)} (limits.versions)"
        return Reason.UNSUPPORTED_PROTOCOL_VERSION, text
    if not packet.client_id and not limits.empty_client_ids:
        return Reason.CLIENT_IDENTIFIER_NOT_VALID, "give a client identifier (limits.empty_client_ids)"
    will = packet.will
    if will is not None and will.qos > limits.maximum_qos:
        return Reason.QOS_NOT_SUPPORTED, f"the will: QoS {will.qos}; the most is {limits.maximum_qos} (limits.maximum_qos)"
    if will is not None and will.retain and not limits.retain_available:
        return Reason.RETAIN_NOT_SUPPORTED, "the will: messages are not retained here (limits.retain_available)"
    return None


def _level(body: bytes) -> int:
    """The Protocol Version in a CONNECT that could not be read; -1 when it is none of MQTT's."""
    if body[:6] == b"\0\4MQTT" and len(body) > 6:
        return body[6]
    return 3 if body[:8] == b"\0\6MQIsdp" and len(body) > 8 else -1


def _refusal(connection: Connection, packet: packets.Connect, method: object) -> tuple[Reason, str] | None:
    if method is not None:
        text = "this broker is in no mesh" if method == LINK_METHOD else f"authentication method {method} is not offered"
        return Reason.BAD_AUTHENTICATION_METHOD, text
    if not packet.client_id and packet.version == 4 and (packet.mqisdp or not packet.clean_start):
        return Reason.CLIENT_IDENTIFIER_NOT_VALID, "an empty client identifier needs MQTT 3.1.1 and Clean Session 1 (MQTT-3.1.3-8)"
    if connection.context.stopping:
        return Reason.SERVER_UNAVAILABLE, "the broker is shutting down"
    if connection.context.draining and not connection.inside and not operates(connection.site.guard, connection):
        return Reason.USE_ANOTHER_SERVER, "the broker is drained"
    if (
        connection.site.mesh is not None
        and connection.site.mesh.fenced
        and not connection.inside
        and not operates(connection.site.guard, connection)
    ):
        return Reason.USE_ANOTHER_SERVER, "this broker is a copy of another one, and has stopped"
    access, will = connection.site.router.access, packet.will
    if (
        connection.site.recipients is not None
        and (wrong := connection.site.recipients.clients.refusal(packet.client_id, packet.properties, connection.account)) is not None
    ):
        return wrong
    refusal = access.login(packet.client_id, packet.password, connection.inside)
    if refusal is not None:
        return refusal
    rights = connection.site.router.rights(will.topic) if will is not None else None
    refused = access.will(packet.client_id, rights, will.retain) if will is not None else None
    if will is not None and refused is None:
        refused = connection.site.guard.will(connection.user, packet.client_id, connection.listener, will.topic)
    if refused is not None:
        return Reason.NOT_AUTHORIZED, f"the will: {refused}"
    if will is not None and will.properties.get(Property.PAYLOAD_FORMAT_INDICATOR):
        try:
            will.payload.decode()
        except UnicodeDecodeError:
            return Reason.PAYLOAD_FORMAT_INVALID, "the will's payload is not the UTF-8 that it says it is"
    return None


def _accept(connection: Connection, packet: packets.Connect) -> None:
    limits = connection.limits
    answer: dict[int, Any] = {}
    client_id = packet.client_id
    if not client_id:
        assigned = connection.site.guard.identifiers.assigned(connection.user)
        if assigned is None:
            text = "give a client identifier: access.client_ids has none that the broker could make up"
            connection.refuse(Reason.CLIENT_IDENTIFIER_NOT_VALID, text, packet.version)
            return
        client_id = answer[Property.ASSIGNED_CLIENT_IDENTIFIER] = assigned
    connection.client_id = client_id
    expiry = _expiry(limits, packet, answer)
    _note_wishes(connection, packet, answer)
    said = packet.properties.get(Property.USER_PROPERTY, ())
    if EXCLUSIVE in said or MAY_BE_EXCLUSIVE in said:
        answer.setdefault(Property.USER_PROPERTY, []).append(EXCLUSIVE)
    if packet.version == 5:
        _grant(answer, limits, connection.largest)
        if packet.properties.get(Property.REQUEST_RESPONSE_INFORMATION):
            answer[Property.RESPONSE_INFORMATION] = f"response/{client_id}"
    else:
        answer.clear()
    connack = packets.Connack(False, Reason.SUCCESS, answer)
    # left out before the client is (MQTT-3.2.2-20)
    for extra in (Property.RESPONSE_INFORMATION, Property.USER_PROPERTY, Property.TOPIC_ALIAS_MAXIMUM):
        if connection.max_packet and len(encode(connack, packet.version)) > connection.max_packet:
            answer.pop(extra, None)
    if connection.max_packet and len(encode(connack, packet.version)) > connection.max_packet:
        raise PeerError(
            Reason.PACKET_TOO_LARGE, f"a Maximum Packet Size of {connection.max_packet} does not let CONNACK through", "MQTT-3.1.2-24"
        )
    if EXCLUSIVE in said and (refusal := _in_use(connection, client_id)) is not None:
        connection.refuse(*refusal, packet.version)
        return
    roaming = connection.site.roaming
    go = partial(_open, connection, packet, connack, expiry)
    if roaming is None:
        go()
        return
    if roaming.crowded and connection.site.sessions.get(client_id) is None:
        roaming.stand(connection, partial(_arrive, connection, packet, roaming, go))
    else:
        _arrive(connection, packet, roaming, go)


def _arrive(connection: Connection, packet: packets.Connect, roaming: Roaming, go: Callable[[], None]) -> None:
    """Let a client of a mesh whose clients roam in, now or when its session is here."""
    client_id = connection.client_id
    refusal = connection.site.guard.may_open(connection, client_id, connection.site.sessions.get(client_id))
    if refusal is not None:
        connection.refuse(*refusal, packet.version)
        return
    arrival = roaming.arrive(connection, client_id, packet.clean_start, go)
    if arrival is Arrival.OPEN:
        go()
    elif arrival is not Arrival.WAITS:
        connection.refuse(Reason.SERVER_BUSY if arrival is Arrival.BUSY else Reason.NOT_AUTHORIZED, arrival.value, packet.version)


def _in_use(connection: Connection, client_id: str) -> tuple[Reason, str] | None:
    """Why a client that asks to be the only one with its identifier is refused; None: nobody is connected here with it."""
    known = connection.site.sessions.get(client_id)
    if known is None or known.connection is None:
        return None
    text = "another connection has this client identifier, and this one asked not to take it over (mqmesh-exclusive)"
    return connection.site.guard.may_open(connection, client_id, known) or (Reason.CLIENT_IDENTIFIER_NOT_VALID, text)


def _open(connection: Connection, packet: packets.Connect, connack: packets.Connack, expiry: float | None) -> None:
    """Nobody else has the client's session any more: take it up, or make one, and let the client in."""
    site, limits, client_id = connection.site, connection.limits, connection.client_id
    known = site.sessions.get(client_id)
    refusal = site.guard.may_open(connection, client_id, known)
    if refusal is not None:
        connection.refuse(*refusal, packet.version)
        return
    persistence = site.persistence
    unkept = _unkept(packet, known, expiry) if persistence is not None and persistence.error is not None else None
    if unkept is not None:
        assert persistence is not None
        connection.refuse(Reason.QUOTA_EXCEEDED, f"{unkept} cannot be kept: {persistence.error}", packet.version)
        return
    crowd = persistence.quota.refusal(known) if persistence is not None and expiry != 0 else None
    if crowd is not None:
        connection.refuse(Reason.QUOTA_EXCEEDED, f"a new session cannot be kept: {crowd}", packet.version)
        return
    will = will_of(packet)
    if _no_room(connection, known, will):
        site.context.counters.refused_holders += 1
        connection.refuse(Reason.QUOTA_EXCEEDED, connection.account.why, packet.version)
        return
    session, present = site.sessions.open(client_id, packet.clean_start, expiry)
    if not connection.inside:
        session.account.move(source_of(connection.address), connection.user if site.guard.authenticator is not None else None)
    session.expiry = expiry
    owner, listener = site.guard.owner_of(session), session.listener
    session.listener = connection.listener
    site.sessions.own(session, packet.user_name if site.guard.authenticator is None else connection.user)
    if present and (
        owner != site.guard.owner_of(session) or listener != session.listener
    ):  # it was nobody's, or other rules concern it now
        site.guard.review(session, site.router.unsubscribe)
        site.router.rules_changed([session])
    session.keep_will(will)
    session.outbound.limit = packet.properties.get(Property.RECEIVE_MAXIMUM, limits.in_flight)
    connection.session = session
    connection.account.settle(LOGINS, 0)
    if limits.message_rate is not None and not connection.inside and client_id != site.router.access.client:
        connection.throttle = Throttle(limits.message_rate, site.context.loop.time(), connection.received)
        connection.allowance = connection.throttle.allowance
    if site.roaming is not None:
        site.roaming.opened(session)
    if site.recipients is not None:
        site.recipients.clients.opening(session, packet.properties)
    if connection.inside and site.attachments is not None:
        site.attachments.opening(session)
    connack.session_present = present and not connection.mqisdp  # MQTT 3.1 has a reserved byte there
    wait = session.stored or (known is not None and known.stored and known is not session)  # what it says is in the store
    if wait and persistence is not None and persistence.error is None:
        connection.cork()
    connection.send_packet(connack)
    _begin(connection, session, present)
    if site.queues is not None:
        if present:
            site.queues.review(session, site.router.unsubscribe)
        site.queues.came(session)
    if connection.corked and persistence is not None:
        persistence.when(persistence.mark(), connection.uncork)


def _unkept(packet: packets.Connect, known: Session | None, expiry: float | None) -> str | None:
    """What CONNACK would promise that a store which fails does not keep; None: nothing.

    A client of a session that is kept already is let in, so that it takes its messages; only a will is new of it.
    """
    if expiry != 0 and (known is None or packet.clean_start):
        return "a new session"
    if known is None or not known.stored:
        return None
    if packet.clean_start:
        return "the end of the earlier session"
    return "the will" if packet.will is not None else None


def _no_room(connection: Connection, known: Session | None, will: Will | None) -> bool:
    """Whether there is no room for a client's session. A client that resumes its session is let in, unless its will is larger than STEP."""
    if connection.inside or not connection.account.full:
        return False
    return known is None or (will is not None and will.weight > STEP)


def _begin(connection: Connection, session: Session, present: bool) -> None:
    log.info(
        "event=connect client=%s user=%s address=%s version=%d session=%s",
        quoted(connection.client_id),
        quoted(session.user),
        connection.address,
        connection.version,
        "present" if present else "new",
    )
    journal = connection.context.journal
    if journal is not None:
        journal.connected(connection, session, present)
    session.resume(connection)
    counters = connection.context.counters
    counters.clients += 1
    counters.clients_maximum = max(counters.clients_maximum, counters.clients)
    opened = {"client": connection.client_id, "user": session.user, "address": connection.address, "resumed": present}
    connection.context.event("clients", {"event": "connected", **opened})
    hooks = connection.context.hooks
    if hooks is not None:
        hooks.session_opened(connection.client_id, session.user, connection.address, present)
    if present:
        connection.site.router.stir(session)
        for group in connection.site.router.shares_of(session):
            group.gather(session, connection.site.next_commit)


def _expiry(limits: Limits, packet: packets.Connect, answer: dict[int, Any]) -> float | None:
    """What the session outlives its connection by; said in `answer` when it is not what was asked for (MQTT-3.2.2-21 follows)."""
    if packet.version != 5:
        return 0.0 if packet.clean_start else granted_expiry(limits, NEVER)
    asked = packet.properties.get(Property.SESSION_EXPIRY_INTERVAL, 0)
    expiry = granted_expiry(limits, asked)
    if expiry is not None and expiry != asked:
        answer[Property.SESSION_EXPIRY_INTERVAL] = int(expiry)
    return expiry


def _note_wishes(connection: Connection, packet: packets.Connect, answer: dict[int, Any]) -> None:
    """What the client asks of this connection, and what of it the broker changes."""
    limits, properties = connection.limits, packet.properties
    connection.request_problem = bool(properties.get(Property.REQUEST_PROBLEM_INFORMATION, 1))
    connection.alias_maximum = properties.get(Property.TOPIC_ALIAS_MAXIMUM, 0)
    connection.special = bool(connection.max_packet or connection.alias_maximum)
    if connection.site.mesh is not None:
        connection.ack = wish_of(properties.get(Property.USER_PROPERTY))
        if connection.ack is not None:
            answer[Property.USER_PROPERTY] = [(WISH, name) for name, wish in WISHES.items() if wish is connection.ack]
    keep_alive = packet.keep_alive
    if packet.version == 5:
        if connection.site.queues is not None and connection.site.queues.known:
            answer[Property.USER_PROPERTY] = [*answer.get(Property.USER_PROPERTY, ()), HAS_QUEUES]
        if connection.site.queues is not None and connection.site.queues.due.name is not None:
            answer[Property.USER_PROPERTY] = [*answer.get(Property.USER_PROPERTY, ()), HAS_DELAYS]
        connection.receive_maximum = limits.receive_maximum % 65535
        most = limits.keep_alive_maximum
        if most and (not keep_alive or keep_alive > most):
            keep_alive = answer[Property.SERVER_KEEP_ALIVE] = most  # MQTT 3.1.1 has no way to say it
    connection.keep_alive = 1.5 * keep_alive


def _grant(answer: dict[int, Any], limits: Limits, largest: int) -> None:
    """What a client may do here, as far as it is not the default (MQTT 5: 3.2.2.3). largest: bytes of a packet that it may send."""
    if limits.receive_maximum < 65535:
        answer[Property.RECEIVE_MAXIMUM] = limits.receive_maximum
    if largest < LARGEST_PACKET:
        answer[Property.MAXIMUM_PACKET_SIZE] = largest
    if limits.maximum_qos < 2:
        answer[Property.MAXIMUM_QOS] = limits.maximum_qos
    if not limits.retain_available:
        answer[Property.RETAIN_AVAILABLE] = 0
    if limits.topic_alias_maximum:
        answer[Property.TOPIC_ALIAS_MAXIMUM] = limits.topic_alias_maximum
