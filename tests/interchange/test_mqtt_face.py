"""Posts over MQTT whose user properties are the same are read once; what is of one message is its own."""

from __future__ import annotations

from typing import Any

import pytest
from mqmesh.interchange.faces import mqtt
from mqmesh.interchange.message import Kind, Message
from mqmesh.interchange.refusals import Code, Refusal
from mqmesh.mqtt.length import encode_length
from mqmesh.mqtt.properties import Property, encode_properties
from mqmesh.mqtt.publish import publish_properties

NOW = 1_800_000_000_000
REQUEST = [("kind", "request"), ("sender", "shop/orders"), ("recipient", "bank/credit")]
ANSWER = [("sender", "bank/credit")]


def read(pairs: list[tuple[str, str]], now: int = NOW, sender: str = "", **found: Any) -> Message:
    """What is read of user properties, and of other ones by their names."""
    properties: dict[int, Any] = {Property[name]: value for name, value in found.items()}
    block = encode_properties(properties | {Property.USER_PROPERTY: pairs})
    data = encode_length(len(block)) + block
    return mqtt.read(b"body", publish_properties(data, 0, len(data)), 5, lambda said: sender or str(said), now)


def test_each_answer_names_its_own_hop() -> None:
    hops = [f"{number:016x}" for number in (1, 2, 0)]
    found = [read(ANSWER, CORRELATION_DATA=hop.encode()).header for hop in hops]
    assert [one.hop for one in found] == hops
    assert {one.kind for one in found} == {Kind.RESPONSE}


def test_each_message_has_its_own_expiry() -> None:
    assert read(REQUEST).header.expires is None
    assert read(REQUEST, MESSAGE_EXPIRY_INTERVAL=5).header.expires == NOW + 5000
    assert read(REQUEST, NOW + 1, MESSAGE_EXPIRY_INTERVAL=5).header.expires == NOW + 5001
    assert read([*REQUEST, ("expires", str(NOW + 7))], MESSAGE_EXPIRY_INTERVAL=5).header.expires == NOW + 7
    assert read(REQUEST).header.expires is None


def test_what_is_wrong_is_refused_whatever_was_read_before() -> None:
    read(ANSWER, CORRELATION_DATA=b"0" * 16)
    expires: dict[str, Any] = {"MESSAGE_EXPIRY_INTERVAL": 5}
    for pairs, more in ((ANSWER, expires), ([*ANSWER, ("number", "1"), ("number", "2")], {})):
        for _ in range(2):
            with pytest.raises(Refusal) as caught:
                read(pairs, CORRELATION_DATA=b"0" * 16, **more)
            assert caught.value.code is Code.NOT_WELL_FORMED


def test_the_sender_is_who_posts() -> None:
    assert [read(REQUEST, sender=one).header.sender for one in ("shop/orders", "shop/other")] == ["shop/orders", "shop/other"]
