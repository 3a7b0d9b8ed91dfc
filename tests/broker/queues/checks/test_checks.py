"""What a queue checks on receipt (row Q11; docs/queues.md, "Checks on receipt"): each check, over MQTT, and across sites."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.settings import ConfigError
from mqmesh.broker.config import parse
from mqmesh.broker.queues.checks.checks import DIGESTS, OPTIONAL, REQUIRED, Checks
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.putting import properties_of
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.mqtt.packets import Puback, Publish, Pubrec, Will
from mqmesh.mqtt.properties import Property, encode_properties
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Client, Site, until

KEY = b"a key of sixteen bytes or more"
ORDER = {
    "type": "object",
    "properties": {"pieces": {"type": "integer", "minimum": 1}},
    "required": ["pieces"],
    "additionalProperties": False,
}


def user(**pairs: str) -> dict[int, object]:
    return {Property.USER_PROPERTY: [(f"mqmesh-{name}", value) for name, value in pairs.items()]}


def signed(payload: bytes, key: bytes = KEY) -> str:
    return "sha256:" + hmac.new(key, payload, hashlib.sha256).hexdigest()


def failure(checks: Checks, payload: bytes, **pairs: str) -> str | None:
    """What a queue says of one message; None: it takes it."""
    found = checks.failures([payload], properties_of(encode_properties(user(**pairs)) if pairs else b""), "shop", None)
    return found[0].text if found and found[0] is not None else None


def test_q11_a_checksum_finds_a_changed_payload() -> None:
    required, optional = Checks(checksum=REQUIRED), Checks(checksum=OPTIONAL)
    right = "sha256:" + hashlib.sha256(b"17").hexdigest()
    for text in (right, right.upper().replace("SHA", "sha"), f"crc32:{crc32(b'17'):08x}"):
        assert failure(required, b"17", checksum=text) is None
        assert "the payload that came has" in str(failure(optional, b"71", checksum=text))
    assert failure(optional, b"17") is None
    assert "mqmesh-checksum is missing" in str(failure(required, b"17"))
    for text in ("", "sha256", "md5:00", "crc32:"):
        assert "mqmesh-checksum" in str(failure(optional, b"17", checksum=text))


@given(st.binary(max_size=50), st.data(), st.sampled_from(sorted(DIGESTS)))
def test_q11_any_one_changed_bit_is_found(payload: bytes, data: st.DataObject, kind: str) -> None:
    said = f"{kind}:{DIGESTS[kind](payload)}"
    assert failure(Checks(checksum=OPTIONAL), payload, checksum=said) is None
    if payload:
        bit = data.draw(st.integers(0, 8 * len(payload) - 1))
        changed = bytearray(payload)
        changed[bit // 8] ^= 1 << bit % 8
        assert failure(Checks(checksum=OPTIONAL), bytes(changed), checksum=said) is not None


def test_q11_an_hmac_proves_who_sent_it() -> None:
    checks = Checks(key=KEY)
    assert failure(checks, b"17", hmac=signed(b"17")) is None
    assert "missing" in str(failure(checks, b"17"))
    for wrong in (signed(b"71"), signed(b"17", b"another key of sixteen bytes"), "", "\u20ac"):
        assert "not that of the payload" in str(failure(checks, b"17", hmac=wrong))
    assert KEY.decode() not in repr(checks)


def test_q11_publishers_are_users_or_else_clients() -> None:
    checks = Checks(publishers=("shop-*", "till"))
    for client, name, taken in (
        ("x", "shop-1", True),
        ("x", "till", True),
        ("shop-1", None, True),
        ("shop-1", "mallory", False),
        ("x", None, False),
    ):
        found = checks.failures([b"1", b"2"], None, client, name)
        assert [one.reason for one in found if one] == [] if taken else [Reason.NOT_AUTHORIZED] * 2


@pytest.fixture
def order_schema(tmp_path: Path) -> Path:
    pytest.importorskip("fastjsonschema")
    path = tmp_path / "order.schema.json"
    path.write_text(json.dumps(ORDER))
    return path


def checks_in(folder: Path, **table: Any) -> Checks:
    queues = {"orders": {"dead_letters": "dead", **table}, "dead": {}}
    config = parse({"data": str(folder), "queues": queues}, folder=folder)
    assert config.queues is not None
    return config.queues.checks["orders"]


def test_q11_a_schema_counts_for_its_content_type(tmp_path: Path, order_schema: Path) -> None:
    one = checks_in(tmp_path, schema={"application/json": order_schema.name})
    every = checks_in(tmp_path, schema={"*": order_schema.name})

    def wrong(checks: Checks, payload: bytes, content_type: str | None) -> str | None:
        block = encode_properties({Property.CONTENT_TYPE: content_type}) if content_type else b""
        found = checks.failures([payload], properties_of(block), "shop", None)
        return found[0].text if found and found[0] is not None else None

    for content_type in ("application/json", "Application/JSON; charset=utf-8"):
        assert wrong(one, b'{"pieces": 3}', content_type) is None
        assert "data.pieces must be bigger than or equal to 1" in str(wrong(one, b'{"pieces": 0}', content_type))
    for content_type in (None, "text/plain"):
        assert wrong(one, b"anything", content_type) is None
        assert "is not JSON" in str(wrong(every, b"anything", content_type))


@pytest.mark.parametrize(
    "payload", [b"", b"{", b'{"pieces": NaN}', b"\xff", b"[" * 200_000, b'{"pieces": 1, "\\u0000\\ud800": 1}', b"1" * 10_000]
)
def test_q11_what_no_schema_can_look_at_is_told_in_one_line(tmp_path: Path, order_schema: Path, payload: bytes) -> None:
    text = failure(checks_in(tmp_path, schema={"*": order_schema.name}), payload)
    assert text is not None
    assert text.isprintable()
    assert len(text) < 400
    text.encode()


@pytest.mark.parametrize("payload", [b"1e400", b"-1e400", b"1" + b"0" * 400])
@pytest.mark.parametrize("step", [2, 0.1])
def test_q11_a_number_that_is_too_large_is_checked_or_refused(tmp_path: Path, payload: bytes, step: float) -> None:
    pytest.importorskip("fastjsonschema")
    (tmp_path / "even.json").write_text(json.dumps({"multipleOf": step}))
    text = failure(checks_in(tmp_path, schema={"*": "even.json"}), payload)
    assert text in (None, "the payload has a number that is too large to be checked")
    assert text is not None or (step, payload[:3]) == (2, b"100")


@pytest.mark.parametrize(
    ("table", "key", "text"),
    [
        ({"largest": "many"}, "queues.orders.largest", "give bytes"),
        ({"checksum": "yes"}, "queues.orders.checksum", 'give "required" or "optional"'),
        ({"publishers": []}, "queues.orders.publishers", "give patterns of names"),
        ({"hmac_key": "none.key"}, "queues.orders.hmac_key", "No such file"),
        ({"hmac_key": "short.key"}, "queues.orders.hmac_key", "16 to"),
        ({"schema": {"a/b": "none.json"}}, "queues.orders.schema.a/b", "No such file"),
        ({"schema": {"a/b": "short.key"}}, "queues.orders.schema.a/b", "is no JSON Schema"),
        ({"schema": {"a/b": "away.json"}}, "queues.orders.schema.a/b", "put all of it into one file"),
        ({"largest": 5, "dead_letters": None}, "queues.orders.dead_letters", "name a queue for messages that fail"),
    ],
)
def test_wrong_checks_are_told_in_one_line(tmp_path: Path, table: dict[str, Any], key: str, text: str) -> None:
    if "schema" in table:
        pytest.importorskip("fastjsonschema")
    (tmp_path / "short.key").write_text("short secret")
    (tmp_path / "away.json").write_text('{"$ref": "http://127.0.0.1:9/schema.json"}')
    orders = {name: value for name, value in {"dead_letters": "dead", **table}.items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        parse({"data": "/tmp/porto", "queues": {"orders": orders, "dead": {}}}, folder=tmp_path)
    line = str(caught.value)
    assert key in line
    assert text in line
    assert "\n" not in line
    assert "short secret" not in line


# Over MQTT


def settings(folder: Path, **checks: Any) -> QueueSettings:
    rules = {"orders": Rules(dead_letters="dead"), "dead": Rules()}
    return QueueSettings(rules, checks={"orders": Checks(**checks)}, folder=folder / "queues", durability="os")


def counts(site: Site, name: str = "orders") -> dict[str, int]:
    return site.broker.site.queues.store.queues[name].counts  # type: ignore[union-attr]


async def puback(client: Client, payload: bytes, number: int = 9, **pairs: str) -> Puback:
    client.send(Publish("$queue/orders", payload, 1, packet_id=number, properties=user(**pairs)))
    answer: Puback = await client.expect(Puback, packet_id=number)
    return answer


async def test_q11_what_fails_is_refused_with_a_reason_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with Site(queues=settings(tmp_path, largest=10, checksum=OPTIONAL, key=KEY)) as site:
        shop, worker = await site.client("shop"), await site.client("worker")
        await worker.subscribe("$queue/orders", "$queue/dead", qos=1)
        answer = await puback(shop, b"17", hmac=signed(b"18"))
        assert (answer.reason, answer.properties[Property.REASON_STRING]) == (
            0x99,
            "mqmesh-hmac is not that of the payload with the key of this queue",
        )
        assert (await puback(shop, b"17", hmac=signed(b"17"), checksum="crc32:00000000")).reason == 0x99
        answer = await puback(shop, b"x" * 11)
        assert (answer.reason, answer.properties[Property.REASON_STRING]) == (
            0x97,
            "the payload has 11 bytes, and this queue takes 10 at most",
        )
        shop.send(Publish("$queue/orders", b"17", 2, packet_id=5, properties=user(hmac="no")))
        assert (await shop.expect(Pubrec, packet_id=5)).reason == 0x99
        await worker.nothing()
        assert counts(site)["refused"] == 4
        assert (await puback(shop, b"17", hmac=signed(b"17"))).reason == 0
        (one,) = await worker.messages(1)
        assert (one.payload, one.properties[Property.USER_PROPERTY]) == (b"17", [("mqmesh-hmac", signed(b"17"))])
    assert KEY.decode() not in caplog.text


async def test_q11_each_message_of_one_read_is_looked_at_by_itself(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path, largest=3)) as site:
        shop, worker = await site.client("shop"), await site.client("worker")
        await worker.subscribe("$queue/orders", qos=1)
        sizes = [1, 5, 1, 1, 9, 2, 4, 4]
        shop.send(*[Publish("$queue/orders", b"x" * size, 1, packet_id=number) for number, size in enumerate(sizes, 1)])
        answers = [await shop.expect(Puback) for _ in sizes]
        assert [(one.packet_id, one.reason) for one in answers] == [(at, 0x97 if size > 3 else 0) for at, size in enumerate(sizes, 1)]
        assert [len(one.payload) for one in await worker.messages(4)] == [1, 1, 1, 2]
        await worker.nothing()


async def test_q11_a_client_without_reason_codes_is_disconnected(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path, publishers=("till",))) as site:
        till, shop = await site.client("till", version=4), await site.client("shop", version=4)
        assert await till.publish("$queue/orders", b"1", qos=1) == 0
        shop.send(Publish("$queue/orders", b"1", 1, packet_id=1))
        await until(lambda: shop.lost)
        assert counts(site)["refused"] == 1


async def test_q11_a_will_that_fails_is_a_dead_letter(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path, largest=3)) as site:
        worker = await site.client("worker")
        await worker.subscribe("$queue/orders", "$queue/dead", qos=1)
        for payload in (b"123", b"1234"):
            shop = await site.client("shop", will=Will("$queue/orders", payload, 1, properties={Property.CONTENT_TYPE: "text/plain"}))
            await shop.cut()
            (one,) = await worker.messages(1)
            assert (one.topic, one.payload) == ("$queue/orders" if len(payload) == 3 else "$queue/dead", payload)
            assert one.properties[Property.CONTENT_TYPE] == "text/plain"
        said = dict(one.properties[Property.USER_PROPERTY])
        assert said["mqmesh-dead-queue"] == "orders"
        assert said["mqmesh-dead-reason"] == "the payload has 4 bytes, and this queue takes 3 at most"
        assert (counts(site)["refused"], counts(site)["dead"]) == (1, 1)


async def test_q11_a_message_of_a_bound_topic_that_fails_is_a_dead_letter(tmp_path: Path) -> None:
    rules = {"orders": Rules(dead_letters="dead", topics=("orders/#",)), "dead": Rules()}
    async with Site(queues=QueueSettings(rules, checks={"orders": Checks(largest=3)}, folder=tmp_path / "queues", durability="os")) as site:
        shop, worker = await site.client("shop"), await site.client("worker")
        await worker.subscribe("$queue/orders", "$queue/dead", qos=1)
        for payload in (b"123", b"1234"):
            assert await shop.publish("orders/new", payload, qos=1) in (0, 0x10)
        got = await worker.messages(2)
        assert [(one.topic, one.payload) for one in got] == [("orders/new", b"123"), ("orders/new", b"1234")]
        assert ("mqmesh-dead-queue", "orders") in got[1].properties[Property.USER_PROPERTY]
