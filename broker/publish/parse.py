"""Received bytes become batches, and acknowledgements move blocks: the hot path in.

`parse` runs for each chunk of bytes. It makes one call for each batch or block of acknowledgements and never builds an object for a
single PUBLISH that has company. Every packet but PUBLISH and bare acknowledgements goes to the connection's handlers.

Two kinds of batches are found. A *run*: the frames after a PUBLISH that have the same size and the same bytes up to the packet identifier
(QoS 0: up to the payload); everything that was checked for the first one holds for them too. *Packets* (`find_packets.py`): frames of
different topics and sizes that have the same recipients.
"""

from __future__ import annotations

import re
import sys
from array import array
from struct import unpack
from typing import TYPE_CHECKING

from ...mqtt.batch.cutting import ENOUGH, alike_until, all_have
from ...mqtt.batch.run import PID_HIGH, PID_LOW, Run
from ...mqtt.errors import MalformedPacket, PeerError
from ...mqtt.length import read_length
from ...mqtt.reasons import Reason
from ...mqtt.session import PUBACKS, PUBCOMPS, PUBRECS, PUBRELS
from ..auth.permissions import identified
from ..ledger import ALIAS, ALIASES
from ..routing.publication import Publication
from ..routing.route import Route
from .accept import check_quota, publish, publish_run, serve_together
from .acknowledge import acknowledged
from .fan_out import wait_for
from .find_packets import PLAIN, alike, find_packets
from .find_posts import find_posts
from .find_puts import find_puts, may_be_put
from .handles import handle_of
from .posts import MOST
from .properties import read_properties
from .queueing import put, put_each

if TYPE_CHECKING:
    from ...mqtt.publish import PublishProperties
    from ..routing.publication import Numbers
    from ..session.session import Session
    from ..site import ClientConnection

CONNECT_MAX = 512 * 1024  # bytes of a first packet: memory for strangers is bounded before anything is known of them
NO_CONNECT = "the first packet is not CONNECT"
TLS = 0x16  # how a TLS handshake begins
NO_CONNECT_BUT_TLS = "the client speaks TLS, and this listener does not: an mqtts:// listener does"

FAR = 64  # acknowledgements with consecutive identifiers that are looked for at once
FEW = 4  # acknowledgements with consecutive identifiers, beyond which others in a row need not be sorted
SHUFFLED = re.compile(rb"(?:\x40\x02..){8,4096}", re.DOTALL)  # PUBACKs without reason codes
TABLES = {0x40: PUBACKS, 0x50: PUBRECS, 0x62: PUBRELS, 0x70: PUBCOMPS}


def parse(connection: ClientConnection, data: bytes) -> int:
    """Take as many whole packets as `data` holds: how many bytes were used.

    Sets ``connection.need`` to the size of the incomplete packet at the end (0 when unknown). Raises PeerError.
    """
    position = 0
    end = len(data)
    maximum = connection.largest if connection.session is not None else min(CONNECT_MAX, connection.largest)
    version5 = connection.version == 5
    restricted = connection.limits.maximum_qos < 2 or not connection.limits.retain_available
    connection.need = 0
    if connection.admitted_at != connection.site.router.changes:
        connection.review()
    turns = connection.context.turns
    clock, until = turns.clock, turns.until
    begun, runs_until = False, 0  # runs_until: before this position only runs are looked for
    while position + 2 <= end:
        first = data[position]
        length = data[position + 1]
        start = position + 2
        if length >= 128:
            length, start = read_length(data, position + 1, end)
            if length < 0:
                break
        stop = start + length
        session = connection.session
        if session is None and (first >> 4 != 1 or first == TLS):  # the flags are looked at with the body
            raise PeerError(Reason.PROTOCOL_ERROR, NO_CONNECT_BUT_TLS if first == TLS else NO_CONNECT, clause="MQTT-3.1.0-1")
        if stop - position > maximum:
            raise PeerError(Reason.PACKET_TOO_LARGE, f"a packet of {stop - position} bytes; the most is {maximum}", clause="MQTT-3.2.2-15")
        if stop > end:
            connection.need = stop - position
            break

        if begun and clock() > until:
            connection.wait_for_turn()
            return position
        begun = True
        turns.what = first
        kind = first & 0xF0
        if kind == 0x30 and session is not None:
            if first & 7 and restricted:
                _check_offer(connection, first)
            if first in PLAIN and length > 2 and position >= runs_until and not alike(data, position, start, stop, version5):
                after = take_packets(connection, session, data, position, start, end, maximum)
                if after > 0:
                    position = after
                    if connection.held:
                        return position
                    continue
                runs_until = -after
            after = take_run(connection, session, data, position, start, stop, end, version5)
            if after < 0:
                return position
            position = after
            if connection.closing:
                return end
            if connection.held:
                return position
        elif length == 2 and (kind == 0x40 or first == 0x62 or kind == 0x50 or kind == 0x70) and session is not None:
            position += take_acknowledgements(connection, data, position, start, end)
        else:
            connection.packet(first, data[start:stop])
            position = stop
            if connection.closing:
                return end
            if connection.handed_over or connection.held:
                return position
            version5 = connection.version == 5
    return position


def _check_offer(connection: ClientConnection, first: int) -> None:
    """Raise PeerError for a PUBLISH with a QoS or a retain flag that CONNACK said is not offered. first: its first byte."""
    limits, qos = connection.limits, first >> 1 & 3
    if connection.inside:
        return
    if limits.maximum_qos < qos < 3:  # 3 is malformed
        raise PeerError(Reason.QOS_NOT_SUPPORTED, f"PUBLISH with QoS {qos}; the most is {limits.maximum_qos}", "MQTT-3.2.2-11")
    if first & 1 and not limits.retain_available:
        raise PeerError(Reason.RETAIN_NOT_SUPPORTED, "PUBLISH with the retain flag; messages are not retained here", "MQTT-3.2.2-14")


def take_packets(connection: ClientConnection, session: Session, data: bytes, position: int, start: int, end: int, maximum: int) -> int:
    """Publish the packets of one kind that begin at `position`, a whole frame whose body begins at `start`, together.

    maximum: the largest packet allowed. Returns where they end. 0: there are none; -p: those up to p have to be taken as runs, because
    they cannot go together. Then nothing was done.
    """
    if may_be_put(data, start) and (after := take_puts(connection, session, data, position, end, maximum)):
        return after
    found = find_packets(connection, data, position, end, maximum)
    if found is None:
        return take_posts(connection, session, data, position, end, maximum)
    batch, recipients, numbers, after = found
    if recipients.queue is not None:
        if connection.receive_maximum and batch.qos:
            check_quota(connection, session, batch)
        put(Publication(connection, session.face, numbers), session, batch, recipients.queue)
        connection.received += batch.count
        connection.context.counters.publish_bytes_received += after - position
        return after
    if not publish(Publication(connection, session.face, numbers), session, batch, recipients):
        return -after
    connection.received += batch.count
    connection.context.counters.publish_bytes_received += after - position
    return after


def take_puts(connection: ClientConnection, session: Session, data: bytes, position: int, end: int, maximum: int) -> int:
    """The same for messages that go into one queue, whatever their properties."""
    puts = find_puts(connection, data, position, end, maximum)
    if puts is None:
        return 0
    taken = connection.taken
    if connection.receive_maximum and puts.qos:
        check_quota(connection, session, puts)
    if not put_each(connection, puts):
        connection.taken = taken  # each counts when it is taken
        return -puts.stop
    connection.received += puts.count
    connection.context.counters.publish_bytes_received += puts.stop - position
    return puts.stop


def take_posts(connection: ClientConnection, session: Session, data: bytes, position: int, end: int, maximum: int) -> int:
    """The same for messages that one service of the broker takes, whatever their properties."""
    posts = find_posts(connection, data, position, end, maximum)
    if posts is None:
        return 0
    serve_together(connection, session, posts)
    connection.received += posts.count
    connection.context.counters.publish_bytes_received += posts.stop - position
    return posts.stop


def take_run(
    connection: ClientConnection, session: Session, data: bytes, position: int, start: int, stop: int, end: int, version5: bool
) -> int:
    """Publish the run that begins at `position`, a whole packet whose body is data[start:stop]: where it ends; -1: it is held, or waits."""
    first = data[position]
    qos = (first >> 1) & 3
    if qos == 3 or (first & 0x0E) == 0x08:
        raise MalformedPacket(f"PUBLISH with flags {first & 15:#x}", clause="MQTT-3.3.1-4" if qos == 3 else "MQTT-3.3.1-2")
    topic_end = start + 2 + (data[start] << 8 | data[start + 1]) if stop - start >= 2 else stop + 1
    payload = topic_end
    properties: PublishProperties | None = None
    if qos:
        payload += 2
    if payload > stop:
        raise MalformedPacket("PUBLISH ends inside its topic or packet identifier", clause="MQTT-1.5.4")
    if version5:
        if payload >= stop:
            raise MalformedPacket("PUBLISH without a property length", clause="MQTT-3.3.2")
        if data[payload]:
            properties, payload = read_properties(data, payload, stop, connection.limits.packet_properties)
        else:
            payload += 1
    if properties is not None and properties.user_properties and handle_of(properties.user_properties) is not None:
        after = stop  # each message with a handle is one of its own, or a repeat
    else:
        after = _run_end(data, position, topic_end, payload, stop, qos)
    if after > end:
        after -= stop - position

    site = connection.site
    topic = data[start + 2 : topic_end]
    raw_version = 0 if first & 8 else connection.version  # of the recipients that may get these very frames
    expiry = None
    block = b""
    if properties is not None:
        block = properties.without_expiry
        expiry = properties.expiry
        if properties.topic_alias is not None:
            topic = resolve_alias(connection, topic, properties.topic_alias)
            raw_version = 0
        elif expiry is not None:
            raw_version = 0
    if not topic:
        raise PeerError(Reason.PROTOCOL_ERROR, "PUBLISH with an empty topic and no topic alias", "MQTT-4.7.3-1")
    route = site.router.routes.get(topic)
    if route is None:
        begun = site.router.route(topic) if connection.inside else site.router.begin_route(topic)
        if not isinstance(begun, Route):
            wait_for(connection, begun)  # the packet is read again when its route is there
            return -1
        route = begun
    if route.rights is not None and route.rights.identified:
        block = identified(properties, connection.client_id, site.guard.site if site.mesh is not None else "")
        raw_version = 0
    size = stop - position
    if route.service is not None:
        after = min(after, position + MOST * size)
    offset = payload - position
    chunk = data if after - position == len(data) else data[position:after]
    run = Run(topic, qos, first & 1 == 1, None, block, expiry, connection.context.now, (chunk, offset, size, size - offset), raw_version)
    numbers: Numbers = identifiers(chunk, size, topic_end - position) if qos else ()  # type: ignore[assignment]
    if not publish_run(connection, session, run, route, numbers, properties):
        return -1
    connection.received += run.count
    connection.context.counters.publish_bytes_received += after - position
    return after


def _run_end(data: bytes, position: int, topic_end: int, payload: int, stop: int, qos: int) -> int:
    """Where the frames end that are like the one at `position`; the last one may be incomplete."""
    size = stop - position
    after = stop
    head = data[position : topic_end if qos else payload]
    tail = data[topic_end + 2 : payload] if qos else b""
    tail_start = topic_end + 2 - position
    if len(data) - after >= ENOUGH * size and data.startswith(head, after):  # many together
        alike = alike_until(data, head, position, size, len(data))
        if not tail or all_have(data[after:alike], tail_start, tail, size):
            after = alike
    if tail:
        while data.startswith(head, after) and data.startswith(tail, after + tail_start):
            after += size
        return after
    while data.startswith(head, after):
        after += size
    return after


def resolve_alias(connection: ClientConnection, topic: bytes, alias: int) -> bytes:
    """The topic of a PUBLISH with a Topic Alias, which sets the alias when it names a topic (MQTT 5: 3.3.2.3.4)."""
    most = connection.limits.topic_alias_maximum
    if alias > most:
        raise PeerError(Reason.TOPIC_ALIAS_INVALID, f"topic alias {alias}; the most is {most}", "MQTT-3.3.2-9")
    if topic:
        old = connection.aliases_in.get(alias)
        if old != topic:
            connection.account.charge(ALIASES, len(topic) + ALIAS - (0 if old is None else len(old) + ALIAS))
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
    both = bytearray(2 * count)
    both[::2], both[1::2] = high, low
    numbers = list(unpack(f">{count}H", both))
    if 0 in numbers:
        raise MalformedPacket("packet identifier 0", "MQTT-2.2.1-2")
    return numbers


def take_acknowledgements(connection: ClientConnection, data: bytes, position: int, start: int, end: int) -> int:
    """Acknowledgements without reason code: as long a block of consecutive identifiers as there is; its size in bytes."""
    first = data[position]
    table = TABLES.get(first)
    if table is None:
        raise MalformedPacket(f"reserved flags {first & 15:#x} in an acknowledgement", clause="MQTT-2.1.3-1")
    packet_id = data[start] << 8 | data[start + 1]
    if not packet_id:
        raise MalformedPacket("packet identifier 0", clause="MQTT-2.2.1-3")
    count = 1
    most = min((end - position) // 4, 65536 - packet_id)
    if most > 1:
        # far at once where the next one is right, then twice as far each time, then back by halves: the longest stretch of the table
        at = 4 * packet_id
        ahead = 1
        growing = True
        while ahead and count < most:
            ahead = min(ahead, most - count)
            if data.startswith(table[at + 4 * count : at + 4 * (count + ahead)], position + 4 * count):
                count += ahead
            else:
                growing = False
            ahead = max(FAR, 2 * ahead) if growing else ahead // 2
    if first == 0x40 and count < FEW and (found := SHUFFLED.match(data, position, end)) is not None:
        return take_shuffled(connection, found.group())
    acknowledged(connection, first & 0xF0, packet_id, count)
    return 4 * count


def take_shuffled(connection: ClientConnection, block: bytes) -> int:
    """PUBACKs in a row, in any order, as blocks of consecutive identifiers: how many bytes. It is the same to all whose turn this is."""
    read = array("H", block)[1::2]
    if sys.byteorder == "little":
        read.byteswap()
    numbers = sorted(read)
    if not numbers[0]:
        raise MalformedPacket("packet identifier 0", clause="MQTT-2.2.1-3")
    begin = end = numbers[0]
    for number in numbers:
        if number != end:
            acknowledged(connection, 0x40, begin, end - begin)
            begin = number
        end = number + 1
    acknowledged(connection, 0x40, begin, end - begin)
    return len(block)
