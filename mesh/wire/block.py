"""Blocks: the messages of a run under one envelope.

An envelope is longer than many a message, and to write and to read one for each is what a run costs between brokers. Where both ends of a
link know blocks (`identity.BLOCK`), a run travels as one packet:

    +---------+-------+-------------------+------------------+------------------------------+
    | PUBLISH | topic | envelope, its     | other properties | PUBLISH, PUBLISH, PUBLISH .. |
    |         |       | version is 4 or 5 | of the publisher | all of one size              |
    +---------+-------+-------------------+------------------+------------------------------+

The payload is what a client of MQTT 3.1.1 (4) or 5 (5) gets at the messages' own QoS, without DUP. Mostly these are the very bytes that the
publisher sent, and that subscribers get. The envelope is that of the first message; the sequences of the others follow. Packet
identifiers mean nothing.

Messages with retain flag make no block, nor do flooded ones, nor packets of MQTT 5 with Correlation Data, which travels in the envelope.

It does not know links, trees, windows or who wants what.
"""

from __future__ import annotations

from ...mqtt.batch.cutting import all_have
from ...mqtt.batch.run import Run
from ...mqtt.errors import MqttError
from ...mqtt.length import encode_length, read_length
from .envelope import bad_frame, split_properties

LEAST = 4  # messages; fewer go in frames of their own
LONGEST = 2**20  # bytes of the packets: what is urgent waits for no longer block


def block_of(run: Run, start: int) -> tuple[int, bytes] | None:
    """The messages from `start` on as the payload of a block, and the version of its envelope. None: they make none."""
    if run.count - start < LEAST or run.retain or (run.count - start) * run.length > LONGEST:
        return None
    version, (data, size, _) = run.packets()
    if len(data) - start * size > LONGEST:
        return None
    if version == 5 and run.properties and split_properties(run.properties)[0] is not None:
        return None
    return version, data[start * size :] if start else data


def packets_in(block: bytes, version: int, qos: int, name: bytes, properties: bytes, every: bool = True) -> tuple[int, int]:
    """Check the payload of a block: the size of each packet, and where its payload begins.

    name: the topic with its length in front. properties: of each message. every: check each packet; else the first one stands for all.
    Raises `PeerError`.
    """
    try:
        remaining, at = read_length(block, 1, len(block))
    except MqttError as error:
        raise bad_frame(str(error)) from None
    size = at + remaining
    front = bytes((0x30 | qos << 1,)) + block[1:at] + name
    tail = encode_length(len(properties)) + properties if version == 5 else b""
    tail_at = len(front) + (2 if qos else 0)
    if len(block) > LONGEST:
        raise bad_frame(f"a block of {len(block)} bytes, at most {LONGEST} are taken")
    if remaining < 0 or tail_at + len(tail) > size or len(block) % size:
        raise bad_frame("the packets of a block do not fill it")
    whole = block if every else block[:size]
    if not all_have(whole, 0, front, size) or not all_have(whole, tail_at, tail, size):
        raise bad_frame("the packets of a block are not alike")
    return size, tail_at + len(tail)
