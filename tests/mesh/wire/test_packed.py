"""Trees as one deflated stream: what goes in comes out, trees that agree cost little, and damage is an error."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.wire import packed
from mqmesh.mesh.wire.control import Open, decode_packed, encode_packed
from mqmesh.mesh.wire.packed import Packer, Unpacker
from mqmesh.mqtt.errors import PeerError

PREFIX = len(b"\x30\x00\x00\x0c$mesh/packed\x00")


def tree(origin: int, seed: int = 1) -> Open:
    """A chain of 100 brokers."""
    chance = random.Random(seed)
    nodes = [(number, number - 1 if number > 1 else origin, chance.getrandbits(63)) for number in range(1, 101)]
    return Open(origin, bytes(16), 1, 65537, tuple(nodes))


@given(st.lists(st.binary(max_size=2000), max_size=20))
def test_bodies_come_out_as_they_went_in(bodies: list[bytes]) -> None:
    packer, unpacker = Packer(), Unpacker()
    assert [unpacker.unpack(packer.pack(body)) for body in bodies] == bodies


def test_the_tree_of_another_origin_costs_a_fraction() -> None:
    packer, unpacker = Packer(), Unpacker()
    first, second = (encode_packed("packed", tree(origin), packer) for origin in (101, 102))
    assert len(first) > 800
    assert len(second) < 60
    start = PREFIX + (len(first) > 130)
    assert decode_packed("packed", first[start:], unpacker) == tree(101)
    assert decode_packed("packed", second[PREFIX:], unpacker) == tree(102)


@pytest.mark.parametrize("damage", [b"", b"\xff\xff\xff", b"\x03\x00"], ids=["cut", "no block", "the end"])
def test_what_no_packer_made_is_the_peers_error(damage: bytes) -> None:
    with pytest.raises(PeerError, match=r"\$mesh/(packed|open)"):
        decode_packed("packed", damage, Unpacker())


def test_a_body_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "LONGEST", 1000)
    with pytest.raises(PeerError, match="too long"):
        decode_packed("packed", Packer().pack(bytes(2000)), Unpacker())
