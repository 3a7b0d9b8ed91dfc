"""The hot path for one message at a time: a piece of bytes that is one QoS 1 PUBLISH, or one PUBACK, and nothing else.

What a broker adds to the latency of a single message is the Python that it runs, on a processor that has just woken up. So what
is most common then (one plain PUBLISH to one subscriber of the same version who waits for nothing) is done here with as few
steps as there are; everything else goes the general way, which does the same. A test holds the two against each other.

Invariant: `lone` does all or nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mqtt.batch.packets import PacketBatch
from ...mqtt.batch.run import PIDS, Run
from ...mqtt.session import PUBACKS, Delivery

if TYPE_CHECKING:
    from ..client.connection import Connection
    from ..session.session import Session

LARGEST = 129  # bytes of a packet whose Remaining Length is one byte


def lone(connection: Connection, session: Session, data: bytes) -> bool:
    """Take `data`, at most `LARGEST` bytes that came from a connected client with nothing before them. False: nothing was done."""
    size = len(data)
    if size < 4 or data[1] != size - 2:
        return False
    if data[0] == 0x32 or (data[0] == 0x30 and connection.broker.mesh is not None):
        return _publish(connection, session, data, size)
    if data[0] != 0x40 or size != 4:
        return False
    first = data[2] << 8 | data[3]
    if not first or session.stored:
        return False
    connection.broker.counters.packets_received += 1
    session.outbound.acknowledge(1, first, 1)
    if session.queue or session.resending or session.replays:
        session.pump()
    return True


def _publish(connection: Connection, session: Session, data: bytes, size: int) -> bool:
    """QoS 1, no DUP, no RETAIN."""
    broker = connection.broker
    end = 4 + (data[2] << 8 | data[3])
    fan = connection.fans.get(data[4:end])
    if connection.allowed is not None and data[4:end] not in connection.allowed:
        return False
    if fan is not None and fan.mask and not fan.members and not fan.receipts:
        return _into_mesh(connection, fan.mask, data, size, end)
    if data[0] == 0x30 or fan is None or fan.lone is None or connection.receive_maximum or connection.tracker is not None:
        return False
    payload = end + 2
    version = connection.version
    if payload > size or (version == 5 and (payload == size or data[payload])) or size > connection.limits.max_packet_size:
        return False
    number = data[end] << 8 | data[end + 1]
    recipient = fan.lone
    target = recipient.connection
    if not number or target is None or target.version != version or target.special or target.congested or target.sends:
        return False
    outbound = recipient.outbound
    if recipient.queue or recipient.resending or recipient.replays or outbound.in_flight >= outbound.limit:
        return False
    if outbound.bytes >= recipient.max_bytes and outbound.in_flight:
        return False
    if broker.durable is not None:
        broker.durable.begin()
    first = 2 * outbound.send_one(Delivery(PacketBatch(data, version, 1, 1, broker.now, [end]), 1))
    target.sent += 1
    target.send(data[:end] + PIDS[first : first + 2] + data[payload:])
    connection.received += 1
    counters = broker.counters
    counters.publish_bytes_received += size
    counters.publish_bytes_sent += size
    counters.packets_sent += 1
    connection.answer(PUBACKS[4 * number : 4 * number + 4])
    return True


def _into_mesh(connection: Connection, mask: int, data: bytes, size: int, end: int) -> bool:
    """QoS 0 or 1, of interest only to other brokers. end: of the topic."""
    broker = connection.broker
    qos = data[0] >> 1 & 1
    payload = end + 2 * qos
    if connection.version == 5:
        if payload >= size or data[payload]:
            return False
        payload += 1
    if payload > size or size > connection.limits.max_packet_size or broker.mesh is None:
        return False
    number = 0
    if qos:
        number = data[end] << 8 | data[end + 1]
        if not number or connection.receive_maximum or connection.tracker is not None or connection.ack:
            return False
        if broker.durable is not None:
            if broker.durable.closed:
                return False
            broker.durable.begin()
    if not broker.mesh.publish_one(mask, Run(data[4:end], qos, False, [data[payload:]], received=broker.now)):
        return False
    connection.received += 1
    counters = broker.counters
    counters.publish_bytes_received += size
    if qos:
        counters.packets_sent += 1
        connection.answer(PUBACKS[4 * number : 4 * number + 4])
    return True
