"""Retained messages across sites: bad input is the peer's error, and costs nobody else anything."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.mesh.retained import Kind
from mqmesh.mesh.retained.record import read_mark
from mqmesh.mesh.retained.wire import PIECE, Say, encode
from mqmesh.mqtt.errors import PeerError
from support.examples import examples
from support.models.retained_sites import WALL, message, put, site


def begin(*values: Any) -> bytes:
    return encode(Say.BEGIN, 1, *values)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb(5),
        msgpack.packb([]),
        msgpack.packb([99, 1]),
        msgpack.packb([0, 1]),
        msgpack.packb([0, -1, 1, 0, 0, [], []]),
        begin(2, 0, 0, [], []),
        begin(1, 0, 0, [[1, 2]], []),
        begin(1, 0, 0, [[70_000, 2, 3]], []),
        begin(1, 0, 2**48, [], []),
        begin(1, "0", 0, [], []),
        encode(Say.ASK, 1, 4, b"\0\0"),
        encode(Say.ASK, 1, 0, b"\0"),
        encode(Say.NODES, 1, 0, b"\0\0", b"\0" * 8),
        encode(Say.LIST, 1, [[0, b"", b"", b"\0" * 27]]),
        encode(Say.LIST, 1, [[70_000, b"", b"", b""]]),
        encode(Say.ANSWER, 1, b"\0" * 13, b""),
        encode(Say.DATA, 1, b"\0" * (PIECE + 1)),
        encode(Say.MORE, 1, 1),
    ],
)
def test_a_malformed_message_is_the_peers_error(data: bytes) -> None:
    sync = site(2)
    sync.link_up(1, 0.0)
    with pytest.raises(PeerError, match=r"\$mesh/retained"):
        sync.receive(1, data, 0.0)


@pytest.mark.parametrize(
    "data",
    [
        encode(Say.STATE, 1, 0, 0, [], []),
        encode(Say.ANSWER, 1, b"", b""),
        encode(Say.FINISHED, 1),
        encode(Say.MORE, 1),
        encode(Say.ASK, 2, 0, b"\0\0"),
        encode(Say.ASK, 1, 1, b"\0\x10"),
        encode(Say.DATA, 1, msgpack.packb([b"t"])),
        encode(Say.DATA, 1, b"\xc1"),
        encode(Say.DATA, 1, msgpack.packb([b"$x", 1, 1, 1, 0, 0, b"", b"x", 1, None, b"", []])),
        encode(Say.DATA, 1, msgpack.packb([b"a/#", 1, 1, 1, 0, 0, b"", b"x", 1, None, b"", []])),
        encode(Say.DATA, 1, msgpack.packb([b"t", 1, 1, 1, 0, 0, b"", b"", 1, None, b"", []])),
        encode(Say.DATA, 1, msgpack.packb([b"t", 1, 1, 1, 1, 0, b"", b"x", 1, None, b"", []])),
        encode(Say.DATA, 1, msgpack.packb([b"t", 1, 1, 1, 0, 3, b"", b"x", 1, None, b"", []])),
        encode(Say.DATA, 1, msgpack.packb([b"t", 1, 1, 1, 0, 0, b"\x0b\x01", b"x", 1, None, b"", []])),
        encode(Say.DATA, 1, msgpack.packb([b"t", 1, 1, 1, 0, 0, b"\x26\0", b"x", 1, None, b"", []])),
    ],
)
def test_a_message_out_of_place_is_the_peers_error(data: bytes) -> None:
    sync = site(2)
    sync.link_up(1, 0.0)
    sync.receive(1, begin(1, 5, 0, [], []), 0.0)
    with pytest.raises(PeerError):
        sync.receive(1, data, 0.0)


def test_a_cut_record_at_the_end_is_the_peers_error() -> None:
    sync = site(2)
    sync.link_up(1, 0.0)
    sync.receive(1, begin(1, 5, 0, [], []), 0.0)
    sync.receive(1, encode(Say.DATA, 1, msgpack.packb([b"t", 1])[:-1]), 0.0)
    with pytest.raises(PeerError, match="cut off"):
        sync.receive(1, encode(Say.FINISH, 1), 0.0)


@given(st.data())
@settings(max_examples=examples(150))
def test_damaged_messages_end_in_a_peer_error_or_are_accepted(data: st.DataObject) -> None:
    a, b = site(1), site(2)
    for number in range(30):
        put(a, f"a/{number}", "x", 1.0)
        put(b, f"b/{number}", "x", 1.0)
    b.link_up(1, 2.0)
    a.link_up(2, 2.0)
    for _ in range(data.draw(st.integers(0, 12))):
        for sync in (a, b):
            for send in sync.take()[0]:
                (a, b)[send.peer - 1].receive(3 - send.peer, send.data, 2.0)
    sends = [*a.take()[0], *b.take()[0]] or [*site_begin()]
    send = data.draw(st.sampled_from(sends))
    raw = bytearray(send.data)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(PeerError):
        (a, b)[send.peer - 1].receive(3 - send.peer, bytes(raw), 2.0)


def site_begin() -> Iterable[Any]:
    sync = site(1)
    sync.link_up(2, 0.0)
    return sync.take()[0]


@pytest.mark.parametrize("mark", [b"", msgpack.packb([1, 2, 3]), msgpack.packb([1, 70_000, 3, b"", []]), msgpack.packb([1, 2, 3, "", []])])
def test_a_bad_mark_is_the_peers_error(mark: bytes) -> None:
    with pytest.raises(PeerError):
        site(1).apply(message("t", "x", 1.0), mark, 1.0)


def test_topics_that_stay_at_their_broker() -> None:
    with pytest.raises(ValueError, match="not shared"):
        put(site(1), "$SYS/x", "x", 1.0)


def test_the_mark_says_the_key() -> None:
    a = site(1)
    key, mask, over = read_mark(put(a, "t", "x", 1.0, custody=0b101, qos=1))
    record = a.get(b"t")
    assert record is not None
    assert (key, mask, over) == (record.key, 0b101, ())
    assert record.kind is Kind.VALUE
    assert key.time == int((WALL + 1.0) * 1000)
