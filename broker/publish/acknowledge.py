"""Acknowledgements in both directions: what a publisher is answered, and what subscribers answer."""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING

from ...mqtt import packets
from ...mqtt.length import encode_length
from ...mqtt.properties import Property, encode_properties
from ...mqtt.reasons import Reason
from ...mqtt.session import PUBACKS, PUBCOMPS, PUBRECS, PUBRELS
from ..mesh.receipts import wish_of

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ..mesh.receipts import Receipts
    from ..routing.publication import Numbers, Publication
    from ..routing.route import Recipients, Route
    from ..session.session import Session
    from ..site import ClientConnection
    from .posts import Posts

TEXTS = {
    Reason.PAYLOAD_FORMAT_INVALID: "the payload is not the UTF-8 that its Payload Format Indicator says it is",
    Reason.QUOTA_EXCEEDED: "no room: the queue of a subscriber is full",
    Reason.NOT_AUTHORIZED: "topics that begin with $SYS/ or $mqmesh/ belong to the broker",
    Reason.IMPLEMENTATION_SPECIFIC_ERROR: "the message cannot be carried to another site",
}


def receipts_of(publication: Publication, to: Route | Recipients) -> Receipts | None:
    """What the acknowledgement waits for, if its publisher or the configuration wants that."""
    connection, properties = publication.connection, publication.properties
    mesh = connection.site.mesh
    if mesh is None:
        return None
    wish = wish_of(properties.user_properties) if properties is not None and properties.user_properties else None
    if wish is None:
        wish = to.receipts if connection.ack is None else connection.ack
    return mesh.receipts if wish else None


def acknowledge(connection: ClientConnection, qos: int, numbers: Numbers, reason: int = 0) -> None:
    """PUBACK or PUBREC for each of the identifiers. reason: below 0x80."""
    count = len(numbers)
    connection.context.counters.packets_sent += count
    if reason and connection.version == 5:
        connection.confirm(qos, answers(0x40 if qos == 1 else 0x50, numbers, bytes((reason,))), count)
        return
    table = PUBACKS if qos == 1 else PUBRECS
    if isinstance(numbers, range):
        first = 4 * numbers.start
        connection.confirm(qos, table[first : first + 4 * count], count)
    else:
        written = pack(f">{count}H", *numbers)
        block = bytearray(table[:4] * count)
        block[2::4], block[3::4] = written[::2], written[1::2]
        connection.confirm(qos, bytes(block), count)


def refuse(
    connection: ClientConnection, session: Session, batch: Batch | Posts, numbers: Numbers, reason: int, text: str | None = None
) -> None:
    """PUBACK or PUBREC with a reason of 0x80 or above; a plain one where the version has no reasons (MQTT-3.3.5-2 of 3.1.1)."""
    if batch.qos == 2:
        if connection.version == 5:
            session.inbound.release(numbers)
        else:
            session.inbound.new(numbers)  # the handshake goes on to its end
    if connection.version != 5:
        acknowledge(connection, batch.qos, numbers)
        return
    if connection.site.persistence is not None:
        connection.site.persistence.begin()  # a refusal promises nothing that must be kept first
    rest = bytes((reason,))
    text = (text or TEXTS.get(Reason(reason))) if connection.request_problem else None
    if text is not None:
        block = encode_properties({Property.REASON_STRING: text})
        longer = rest + encode_length(len(block)) + block
        if not connection.max_packet or len(longer) + 4 <= connection.max_packet:
            rest = longer
    connection.context.counters.packets_sent += len(numbers)
    connection.confirm(batch.qos, answers(0x40 if batch.qos == 1 else 0x50, numbers, rest), len(numbers))


def answers(first: int, numbers: Numbers, rest: bytes) -> bytes:
    """Acknowledgements of one kind for these identifiers. rest: reason code and what follows it."""
    head = bytes((first,)) + encode_length(2 + len(rest))
    return b"".join([head + number.to_bytes(2, "big") + rest for number in numbers])


def acknowledged(connection: ClientConnection, kind: int, first: int, count: int) -> None:
    """A block of PUBACK (kind 0x40), PUBREC (0x50), PUBREL (0x60) or PUBCOMP (0x70) without reason codes."""
    session = connection.session
    assert session is not None
    connection.context.counters.packets_received += count
    if kind == 0x40:
        session.outbound.acknowledge(1, first, count)
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


def received(connection: ClientConnection, session: Session, first: int, count: int) -> None:
    """PUBREC: PUBREL for each; MQTT 5 says so when the identifier is unknown (MQTT 5: 3.6.2.1)."""
    connection.context.counters.packets_sent += count
    settled = session.outbound.receive(first, count)
    ticket = session.mark()
    for start, number, known in settled:
        if known or connection.version != 5:
            connection.send_after(ticket, PUBRELS[4 * start : 4 * (start + number)])
        else:
            rest = bytes((Reason.PACKET_IDENTIFIER_NOT_FOUND,))
            connection.send_after(ticket, answers(0x62, range(start, start + number), rest))


def released(connection: ClientConnection, session: Session, first: int, count: int) -> None:
    """PUBREL: PUBCOMP for each; MQTT 5 says so when the identifier is unknown (MQTT 5: 3.7.2.1)."""
    numbers = range(first, first + count)
    persistence = connection.site.persistence
    if persistence is not None:
        persistence.begin()
        if session.stored:
            persistence.received(session)
    before = session.inbound.open.issuperset(numbers)
    if before or connection.version != 5:
        session.inbound.release(numbers)
        connection.context.counters.packets_sent += count
        connection.answer(PUBCOMPS[4 * first : 4 * (first + count)])
        return
    for number in numbers:
        known = session.inbound.release([number])
        connection.send_packet(packets.Pubcomp(number, Reason.SUCCESS if known else Reason.PACKET_IDENTIFIER_NOT_FOUND), answer=True)
