"""The direct lane: a chunk of bytes that is one PUBLISH or one PUBACK, and nothing else.

What a broker adds to the latency of a single message is the Python that it runs, on a processor that has just woken up. So the most common
case, one plain PUBLISH of QoS 0 or 1 for one recipient that waits for nothing, takes as few steps as there are. The recipient is a
subscriber of the publisher's version, the metabroker in this process, or the mesh where only other brokers want the message. Everything
else goes the general way (`parse.py`), which has the same effect. A test holds the two against each other.

Only what the general way has admitted goes here: `Connection.admitted` has the topic then, with its recipients.

Most of it changes nothing but what connections are to be sent. `take_single` says so (`WRITES`), and the piece of work ends with
`Context.write`: what else may be due at the end of a piece of work (`Context.flush`) is not asked for.

Invariant: `take_single` does everything or nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mqtt.batch.packets import PacketBatch
from ...mqtt.batch.run import PIDS
from ...mqtt.errors import PeerError
from ...mqtt.framing import single_body
from ...mqtt.session import PUBACKS, Delivery
from ..journal.tally import ONE
from ..mesh.direct import count_given, publish_one

if TYPE_CHECKING:
    from ..routing.route import Recipients, Target
    from ..session.session import Session
    from ..site import ClientConnection

NOT_TAKEN, WRITES, WORK = range(3)  # what `take_single` has done: nothing; something that only has to be written; something else too
LARGEST = 16_386 + 2  # bytes of a packet whose Remaining Length is two bytes, and what another version adds


def take_single(connection: ClientConnection, session: Session, data: bytes) -> int:
    """Take `data`, which came from a connected client with nothing before it: `NOT_TAKEN`, `WRITES` or `WORK`.

    session: the client's. data: 4 to `LARGEST` bytes.
    """
    first = data[0]
    if first == 0x40:
        return _acknowledged(connection, session, data) if len(data) == 4 else NOT_TAKEN
    if first != 0x30 and (first != 0x32 or not connection.limits.maximum_qos):
        return NOT_TAKEN
    size = len(data)
    start = 2 if data[1] < 128 and data[1] + 2 == size > 4 else single_body(data)
    if not start:
        return NOT_TAKEN
    end = start + 2 + (data[start] << 8 | data[start + 1])
    topic = data[start + 2 : end]
    site = connection.site
    if connection.admitted_at != site.router.changes:
        connection.review()
    recipients = connection.admitted.get(topic)
    if recipients is None or size > connection.largest or connection.context.hooks is not None:
        return NOT_TAKEN
    sole = recipients.sole
    if sole is None:
        return _publish_elsewhere(connection, recipients, topic, data, end) if recipients.far else NOT_TAKEN
    if first == 0x32:
        return _publish_acknowledged(connection, recipients, sole, data, end)
    target = sole.session.connection
    if target is None:
        return NOT_TAKEN
    if target is site.within:
        if site.direct is None or not site.direct.request(connection, topic, data, start, end):
            return NOT_TAKEN
        if connection.context.journal is not None:
            count_one(connection, recipients, size - end - (connection.version == 5))
        return WORK
    version = connection.version
    if version == 5:
        if end >= size or data[end]:
            return NOT_TAKEN
    elif end > size:
        return NOT_TAKEN
    if target.version != version or target.special or target.congested:
        return NOT_TAKEN
    target.sent += 1
    target.send(data)
    connection.received += 1
    counters = connection.context.counters
    counters.publish_bytes_received += size
    counters.publish_bytes_sent += size
    if connection.context.journal is not None:
        count_one(connection, recipients, size - end - (version == 5))
    return WRITES


def _publish_acknowledged(connection: ClientConnection, recipients: Recipients, sole: Target, data: bytes, end: int) -> int:
    """A PUBLISH of QoS 1 without DUP and RETAIN. end: of its topic."""
    recipient: Session = sole.session  # type: ignore[assignment]  # what stands for a session while it moves is no sole recipient
    target = recipient.connection
    if target is None or not sole.qos or recipient.stored or connection.receive_maximum or connection.tracker is not None:
        return NOT_TAKEN
    version = connection.version
    size = len(data)
    payload = end + 2
    if payload > size or (version == 5 and (payload == size or data[payload])):
        return NOT_TAKEN
    number = data[end] << 8 | data[end + 1]
    if not number or target.version != version or target.special or target.congested or target.sends:
        return NOT_TAKEN
    outbound = recipient.outbound
    if recipient.queue or recipient.resending or recipient.replays or outbound.in_flight >= outbound.limit:
        return NOT_TAKEN
    if outbound.bytes >= recipient.max_bytes and outbound.in_flight:
        return NOT_TAKEN
    site = connection.site
    if site.persistence is not None:
        site.persistence.begin()
    first = 2 * outbound.send_one(Delivery(PacketBatch(data, version, 1, 1, connection.context.now, [end]), 1))
    target.sent += 1
    target.send(data[:end] + PIDS[first : first + 2] + data[payload:])
    connection.received += 1
    counters = connection.context.counters
    counters.publish_bytes_received += size
    counters.publish_bytes_sent += size
    counters.packets_sent += 1
    connection.answer(PUBACKS[4 * number : 4 * number + 4])
    if connection.context.journal is not None:
        count_one(connection, recipients, size - payload - (version == 5))
    return WRITES


def _publish_elsewhere(connection: ClientConnection, recipients: Recipients, topic: bytes, data: bytes, end: int) -> int:
    """A PUBLISH of QoS 0 or 1 that only other brokers want. end: of its topic."""
    site = connection.site
    qos = data[0] >> 1 & 1
    size = len(data)
    payload = end + 2 * qos
    if connection.version == 5:
        if payload >= size or data[payload]:
            return NOT_TAKEN
        payload += 1
    mesh = site.mesh
    if payload > size or mesh is None:
        return NOT_TAKEN
    number = 0
    if qos:
        number = data[end] << 8 | data[end + 1]
        if not number or connection.receive_maximum or connection.tracker is not None or connection.ack:
            return NOT_TAKEN
        if site.persistence is not None:
            if site.persistence.closed:
                return NOT_TAKEN
            site.persistence.begin()
    held = publish_one(mesh, recipients.mask, topic, qos, data[payload:], site.rounds if site.rounds.gathers(size) else None)
    if held is None:
        return NOT_TAKEN
    connection.received += 1
    counters = connection.context.counters
    counters.publish_bytes_received += size
    if qos:
        counters.packets_sent += 1
        answer = PUBACKS[4 * number : 4 * number + 4]
        if held:
            mesh.hold_back(held, connection, answer)
        else:
            connection.answer(answer)
    if connection.context.journal is not None:
        count_one(connection, recipients, size - payload)
    if mesh.node.stirred or (qos and not held and site.persistence is not None):
        return WORK
    return WRITES  # what is held back is not to be committed yet


def count_one(connection: ClientConnection, recipients: Recipients, size: int) -> None:
    """Count a message for its publisher and for those that it goes to here. size: of its payload."""
    amount = ONE + size
    tally = connection.tally
    if tally is None:
        tally = connection.tally = {}
    dimension = recipients.dimension
    tally[dimension] = tally.get(dimension, 0) + amount
    if recipients.targets:
        count_given(connection.context, recipients, amount)


def _acknowledged(connection: ClientConnection, session: Session, data: bytes) -> int:
    """A PUBACK without reason code."""
    number = data[2] << 8 | data[3]
    if data[1] != 2 or not number or session.stored:
        return NOT_TAKEN
    outbound = session.outbound
    try:
        outbound.acknowledge(1, number, 1)
    except PeerError:
        return NOT_TAKEN  # the general way says it
    connection.context.counters.packets_received += 1
    if session.queue or session.resending or session.replays:
        session.pump()
        return WORK
    return WRITES if outbound.observer is None else WORK
