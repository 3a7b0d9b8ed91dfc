"""Frames under another topic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.wire.envelope import Template, encode_head
from mqmesh.mesh.wire.policy import Policy, PolicyFilter
from mqmesh.mesh.wire.rename import renamed, renamed_parts
from mqmesh.mqtt.batch.parts import PartsBatch


def block(topic: bytes, payloads: list[bytes]) -> tuple[bytes, Template]:
    template = Template(topic, encode_head(1, 2, 3, 4, 1), 1, b"\0\0", b"\x08\0\1r", len(payloads[0]))
    return bytes(template.block(b"\x0f", b"\0" * 6, 7, payloads)), template


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 300), st.integers(1, 20))
def test_a_renamed_run_is_the_run_of_the_other_name(before: int, after: int, length: int, count: int) -> None:
    payloads = [bytes([i]) * length for i in range(count)]
    data, old = block(b"t" * before, payloads)
    expected, template = block(b"u" * after, payloads)
    found = renamed(data, old.size, b"t" * before, b"u" * after)
    assert found is not None
    assert (found.topic, bytes(found.block), found.size) == (b"u" * after, expected, template.size)
    assert old.bits_offset + found.shift == template.bits_offset
    assert old.sequence_offset + found.shift == template.sequence_offset


def test_the_same_name_costs_nothing() -> None:
    data, old = block(b"t", [b"1"])
    found = renamed(data, old.size, b"t", b"t")
    assert found is not None
    assert found.block is data
    assert renamed(data, old.size, b"t", None) is None


def test_spans() -> None:
    gate = PolicyFilter(Policy(out=("a/#", "b/#"), prefixes=(("a/", "far/a/"),)))
    run = PartsBatch([b"\0\3a/1", b"\0\3b/1"], [b"x", b"y"], 1, 0.0)
    found = renamed_parts(run, gate)
    assert found is not None
    assert found.messages() == [(b"far/a/1", b"x"), (b"b/1", b"y")]
    assert renamed_parts(PartsBatch([b"\0\3a/1", b"\0\1c"], [b"x", b"y"], 1, 0.0), gate) is None
