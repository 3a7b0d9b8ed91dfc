"""What `ingest` hands over: runs of PUBLISH, blocks of acknowledgements.

A run of QoS 1 or 2 is acknowledged once everything that the acknowledgement promises has been done (`Broker.accept`). Of a run
that finds room for its first messages only, these are acknowledged and the others are refused (MQTT 5: reason code; MQTT 3.1.1 has
no way to say it and gets a plain acknowledgement; all are counted).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mqtt import packets
from ...mqtt.batch.run import PID_HIGH, PID_LOW, Run
from ...mqtt.errors import MalformedPacket, PeerError
from ...mqtt.length import encode_length
from ...mqtt.properties import Property, encode_properties
from ...mqtt.publish import PublishProperties
from ...mqtt.reasons import Reason
from ...mqtt.session import PUBACKS, PUBCOMPS, PUBRECS, PUBRELS, Sent
from ..auth.permissions import identified
from ..mesh.receipts import Numbers, wish_of

if TYPE_CHECKING:
    from ..client.connection import Connection
    from ..routing.route import Route, Service
    from ..session.session import Session

TEXTS = {
    Reason.PAYLOAD_FORMAT_INVALID: "the payload is not the UTF-8 that its Payload Format Indicator says it is",
    Reason.QUOTA_EXCEEDED: "no room: the queue of a subscriber is full",
    Reason.NOT_AUTHORIZED: "topics that begin with $SYS/ or $mqmesh/ belong to the broker",
    Reason.IMPLEMENTATION_SPECIFIC_ERROR: "the message cannot be carried to another site",
}


def publish(
    connection: Connection,
    data: bytes,
    position: int,
    after: int,
    size: int,
    qos: int,
    first: int,
    topic_start: int,
    topic_end: int,
    payload: int,
    properties: PublishProperties | None,
) -> bool:
    """The frames data[position:after], each `size` bytes, are one run. False: held, to be given again after `release`."""
    session = connection.session
    assert session is not None
    broker = connection.broker
    topic = data[topic_start:topic_end]
    version = 0 if first & 8 else connection.version  # of the recipients that may get these very frames
    expiry = None
    block = b""
    if properties is not None:
        block = properties.without_expiry
        expiry = properties.expiry
        if properties.topic_alias is not None:
            topic = resolve_alias(connection, topic, properties.topic_alias)
            version = 0
        elif expiry is not None:
            version = 0
    if not topic:
        raise PeerError(Reason.PROTOCOL_ERROR, "PUBLISH with an empty topic and no topic alias", "MQTT-4.7.3-1")
    route = broker.router.routes.get(topic) or broker.router.route(topic)
    rights = route.rights
    if rights is not None and rights.identified:
        block = identified(properties, connection.client_id)
        version = 0
    offset = payload - position
    chunk = data if after - position == len(data) else data[position:after]
    retain = first & 1 == 1
    run = Run(topic, qos, retain, None, block, expiry, broker.now, (chunk, offset, size, size - offset))
    if version:
        run.as_received(version)
    ill_formed = properties is not None and properties.payload_format == 1 and not all_utf8(run.payloads)
    if ill_formed and not (qos and route.writable):
        raise PeerError(Reason.PAYLOAD_FORMAT_INVALID, TEXTS[Reason.PAYLOAD_FORMAT_INVALID], "3.3.2.3.2")
    connection.received += run.count
    broker.counters.publish_bytes_received += after - position
    return hand_on(connection, session, run, route, properties, ill_formed, chunk, size, topic_end - position)


def hand_on(
    connection: Connection,
    session: Session,
    run: Run,
    route: Route,
    properties: PublishProperties | None,
    ill_formed: bool,
    chunk: bytes,
    size: int,
    offset: int,
) -> bool:
    """Give a run to subscribers, the mesh and the retained messages, or refuse it. False: held, to be given again after `release`.

    ill_formed: some payload is not the UTF-8 that it says. chunk, size, offset: the frames, and where in each the packet identifier stands.
    """
    broker = connection.broker
    qos, retain, topic, count, rights = run.qos, run.retain, run.topic, run.count, route.rights
    if not route.writable:
        if route.service is not None:
            serve(connection, session, run, route.service, properties, identifiers(chunk, size, offset) if qos else [])
            return True
        broker.counters.dropped += count
        if qos:
            refuse(connection, session, run, identifiers(chunk, size, offset), Reason.NOT_AUTHORIZED)
    elif (
        connection.allowed is not None
        and topic not in connection.allowed
        and (text := broker.guard.topic(connection, route.topic, run)) is not None
    ):
        broker.router.access.dropped(connection, run, text)
        if qos:
            refuse(connection, session, run, identifiers(chunk, size, offset), Reason.NOT_AUTHORIZED, text)
    elif rights is not None and rights.refuses(connection.client_id, retain):
        broker.router.access.dropped(connection, run, rights.text)
        if qos:
            refuse(connection, session, run, identifiers(chunk, size, offset), Reason.NOT_AUTHORIZED, rights.text)
    elif qos:
        ack = wish_of(properties.user_properties) if properties is not None and properties.user_properties else None
        take = acknowledged_run if not ill_formed else well_formed_part
        if not take(connection, session, run, route, identifiers(chunk, size, offset), ack):
            connection.received -= count
            connection.hold()
            return False
    else:
        broker.router.deliver(run, route, session.face)
        if broker.mesh is not None and (route.mesh is not None or retain):
            broker.mesh.publish(route, run)
        if retain:
            broker.retain(run)
    return True


def all_utf8(payloads: list[bytes]) -> bool:
    """Payload Format Indicator 1: the payload has to be UTF-8 (MQTT 5: 3.3.2.3.2)."""
    try:
        b"\n".join(payloads).decode()
    except UnicodeDecodeError:
        return False
    return True


def well_formed_part(connection: Connection, session: Session, run: Run, route: Route, numbers: Numbers, ack: bool | None = None) -> bool:
    """`acknowledged_run` for those whose payloads are the UTF-8 that they say; the others are refused.

    Their publisher is not disconnected: a client that comes back sends what is unacknowledged again, and would be for ever.
    """
    good = [index for index, payload in enumerate(run.payloads) if all_utf8([payload])]
    if good and not acknowledged_run(connection, session, run.chosen(good), route, [numbers[index] for index in good], ack):
        return False
    taken = set(good)
    connection.broker.counters.dropped += run.count - len(good)
    bad = [number for index, number in enumerate(numbers) if index not in taken]
    refuse(connection, session, run, bad, Reason.PAYLOAD_FORMAT_INVALID)
    return True


def resolve_alias(connection: Connection, topic: bytes, alias: int) -> bytes:
    """The topic of a PUBLISH with a Topic Alias, which sets the alias when it names a topic (MQTT 5: 3.3.2.3.4)."""
    most = connection.limits.topic_alias_maximum
    if alias > most:
        raise PeerError(Reason.TOPIC_ALIAS_INVALID, f"topic alias {alias}; the most is {most}", "MQTT-3.3.2-9")
    if topic:
        connection.aliases_in[alias] = topic
        return topic
    known = connection.aliases_in.get(alias)
    if known is None:
        raise PeerError(Reason.PROTOCOL_ERROR, f"topic alias {alias} was never set", "MQTT-3.3.2-7")
    return known


def identifiers(chunk: bytes, size: int, offset: int) -> Numbers:
    """The packet identifiers of a run's frames, each at `offset`: a range when consecutive."""
    first = chunk[offset] << 8 | chunk[offset + 1]
    count = len(chunk) // size
    if count == 1:
        if not first:
            raise MalformedPacket("packet identifier 0", "MQTT-2.2.1-2")
        return range(first, first + 1)
    high = chunk[offset::size]
    low = chunk[offset + 1 :: size]
    if first and high == PID_HIGH[first : first + count] and low == PID_LOW[first : first + count]:
        return range(first, first + count)
    numbers = [upper << 8 | lower for upper, lower in zip(high, low, strict=True)]
    if 0 in numbers:
        raise MalformedPacket("packet identifier 0", "MQTT-2.2.1-2")
    return numbers


def serve(
    connection: Connection, session: Session, run: Run, service: Service, properties: PublishProperties | None, numbers: Numbers
) -> None:
    """A request to the broker itself: its answers, then the acknowledgement."""
    durable = connection.broker.durable
    if durable is not None:
        durable.begin()
        if run.qos == 2 and session.stored:
            durable.received(session)
    fresh: Run | None = run
    if run.qos == 2:
        new = session.inbound.new(numbers)
        if new is not None:
            fresh = run.chosen(new) if new else None
    if connection.receive_maximum and run.qos:
        check_quota(connection, session, run)
    answered = fresh is None or service(connection, fresh, properties)
    if run.qos:
        acknowledge(connection, run.qos, numbers, 0 if answered else Reason.NO_MATCHING_SUBSCRIBERS)


def acknowledged_run(connection: Connection, session: Session, run: Run, route: Route, numbers: Numbers, ack: bool | None = None) -> bool:
    """QoS 1 and 2: deliver what is new, acknowledge all. False: the mesh has no room, nothing was done.

    ack: whether these want to be acknowledged behind receipts, None when they do not say.
    """
    fresh: Run | None = run
    fresh_numbers = numbers
    durable = connection.broker.durable
    wanted = ack if ack is not None else route.receipts if connection.ack is None else connection.ack
    receipts = connection.broker.mesh.receipts if wanted and connection.broker.mesh is not None else None
    if durable is not None:
        durable.begin()
        if run.qos == 2 and session.stored:
            durable.received(session)
    if run.qos == 2:
        new = session.inbound.new(numbers)
        if new is not None:
            fresh = run.chosen(new) if new else None
            fresh_numbers = [numbers[index] for index in new]
    if connection.receive_maximum:
        check_quota(connection, session, run)
    behind = receipts.node.position() if receipts is not None else (0, 0)
    if fresh is None:
        if receipts is None:
            acknowledge(connection, run.qos, numbers)
        else:
            receipts.acknowledge(connection, run, numbers, [], behind, 0)
        return True
    if run.qos == 2 and durable is not None and session.stored:  # it may come again until its identifier is kept
        connection.broker.behind = durable.next_commit
    answer = connection.broker.accept(connection, fresh, route, session.face)
    connection.broker.behind = 0
    if answer == 0 or answer == Reason.NO_MATCHING_SUBSCRIBERS:
        if receipts is None:
            acknowledge(connection, run.qos, numbers, answer)
        else:
            receipts.acknowledge(connection, run, numbers, fresh_numbers, behind, answer)
        return True
    if answer is None:
        if not connection.refuse_when_full:
            if run.qos == 2:
                session.inbound.release(fresh_numbers)
            return False
        connection.broker.counters.dropped += fresh.count
        refused, answer = fresh.count, int(Reason.QUOTA_EXCEEDED)
    else:
        refused = connection.broker.router.refused or fresh.count
    rejected = fresh_numbers[len(fresh_numbers) - refused :]
    kept = numbers[: len(numbers) - refused] if fresh is run else [number for number in numbers if number not in set(rejected)]
    if kept and receipts is None:
        acknowledge(connection, run.qos, kept)
    elif kept:
        assert receipts is not None
        receipts.acknowledge(connection, run, kept, fresh_numbers, behind, 0)
    text = durable.why() if durable is not None and durable.closed and answer == Reason.QUOTA_EXCEEDED else None
    refuse(connection, session, run, rejected, answer, text)
    return True


def check_quota(connection: Connection, session: Session, run: Run) -> None:
    """Our Receive Maximum (MQTT-3.3.4-7): what came in one piece was sent before any of it was acknowledged."""
    if run.qos == 1:
        connection.taken += run.count
    waiting = connection.tracker.waiting_1 if connection.tracker is not None else 0
    if connection.taken + waiting + len(session.inbound.open) > connection.receive_maximum:
        text = f"more than {connection.receive_maximum} unacknowledged QoS 1 and 2 messages"
        raise PeerError(Reason.RECEIVE_MAXIMUM_EXCEEDED, text, "MQTT-3.3.4-7")


def acknowledge(connection: Connection, qos: int, numbers: Numbers, reason: int = 0) -> None:
    """PUBACK or PUBREC for each of the identifiers. reason: below 0x80."""
    count = len(numbers)
    connection.broker.counters.packets_sent += count
    if reason and connection.version == 5:
        connection.confirm(qos, answers(0x40 if qos == 1 else 0x50, numbers, bytes((reason,))), count)
        return
    table = PUBACKS if qos == 1 else PUBRECS
    if isinstance(numbers, range):
        first = 4 * numbers.start
        connection.confirm(qos, table[first : first + 4 * count], count)
    else:
        connection.confirm(qos, b"".join([table[4 * number : 4 * number + 4] for number in numbers]), count)


def refuse(connection: Connection, session: Session, run: Run, numbers: Numbers, reason: int, text: str | None = None) -> None:
    """PUBACK or PUBREC with a reason of 0x80 or above; a plain one where the version has no reasons (MQTT-3.3.5-2 of 3.1.1)."""
    if run.qos == 2:
        if connection.version == 5:
            session.inbound.release(numbers)
        else:
            session.inbound.new(numbers)  # the handshake goes on to its end
    if connection.version != 5:
        acknowledge(connection, run.qos, numbers)
        return
    if connection.broker.durable is not None:
        connection.broker.durable.begin()  # a refusal promises nothing that must be kept first
    rest = bytes((reason,))
    text = (text or TEXTS.get(Reason(reason))) if connection.request_problem else None
    if text is not None:
        block = encode_properties({Property.REASON_STRING: text})
        longer = rest + encode_length(len(block)) + block
        if not connection.max_packet or len(longer) + 4 <= connection.max_packet:
            rest = longer
    connection.broker.counters.packets_sent += len(numbers)
    connection.confirm(run.qos, answers(0x40 if run.qos == 1 else 0x50, numbers, rest), len(numbers))


def answers(first: int, numbers: Numbers, rest: bytes) -> bytes:
    """Acknowledgements of one kind for these identifiers. rest: reason code and what follows it."""
    head = bytes((first,)) + encode_length(2 + len(rest))
    return b"".join([head + number.to_bytes(2, "big") + rest for number in numbers])


def acknowledged(connection: Connection, kind: int, first: int, count: int) -> None:
    """A block of PUBACK (kind 0x40), PUBREC (0x50), PUBREL (0x60) or PUBCOMP (0x70) without reason codes."""
    session = connection.session
    assert session is not None
    connection.broker.counters.packets_received += count
    if kind == 0x40:
        session.outbound.acknowledge(Sent.PUBLISHED_1.value, first, count)
    elif kind == 0x70:
        session.outbound.complete(first, count)
    elif kind == 0x50:
        received(connection, session, first, count)
        return
    else:
        released(connection, session, first, count)
        return
    if session.queue or session.resending or session.replays:
        session.pump()


def received(connection: Connection, session: Session, first: int, count: int) -> None:
    """PUBREC: PUBREL for each; MQTT 5 says so when the identifier is unknown (MQTT 5: 3.6.2.1)."""
    connection.broker.counters.packets_sent += count
    settled = session.outbound.receive(first, count)
    ticket = session.mark()
    for start, number, known in settled:
        if known or connection.version != 5:
            connection.send_after(ticket, PUBRELS[4 * start : 4 * (start + number)])
        else:
            rest = bytes((Reason.PACKET_IDENTIFIER_NOT_FOUND,))
            connection.send_after(ticket, answers(0x62, range(start, start + number), rest))


def released(connection: Connection, session: Session, first: int, count: int) -> None:
    """PUBREL: PUBCOMP for each; MQTT 5 says so when the identifier is unknown (MQTT 5: 3.7.2.1)."""
    numbers = range(first, first + count)
    durable = connection.broker.durable
    if durable is not None:
        durable.begin()
        if session.stored:
            durable.received(session)
    before = session.inbound.open.issuperset(numbers)
    if before or connection.version != 5:
        session.inbound.release(numbers)
        connection.broker.counters.packets_sent += count
        connection.answer(PUBCOMPS[4 * first : 4 * (first + count)])
        return
    for number in numbers:
        known = session.inbound.release([number])
        connection.send_packet(packets.Pubcomp(number, Reason.SUCCESS if known else Reason.PACKET_IDENTIFIER_NOT_FOUND), answer=True)
