"""Requests to management and to queues that mean no good: always one clear answer, and nobody else suffers."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mqmesh.broker.auth.roles import ALL, ManagementSettings
from mqmesh.broker.management.service import EACH, YOURS
from mqmesh.broker.management.wire import Asker
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.mqtt.packets import Publish
from support.broker_site import Site
from support.examples import examples
from support.management import BELIEVING, EVERYBODY

from .test_sites import linked
from .test_sites import settings as mesh


async def test_who_asks_a_site_that_does_not_answer_keeps_nobody_else_out() -> None:
    async with Site(mesh=(1, mesh()), management=EVERYBODY) as one, Site(mesh=(2, mesh(one)), management=BELIEVING) as two:
        await linked(one, two)
        management = one.broker.management
        two.broker.management.questioned = lambda origin, body: None  # type: ignore[method-assign]
        answers: list[dict[str, Any]] = []
        payload = json.dumps({"list": "clients", "at": "site2", "within": 0.1}).encode()
        for _ in range(EACH + 5):
            management.ask(payload, Asker("c", "alice", "127.0.0.1:1", ALL), answers.append)
        assert answers == [{"error": YOURS}] * 5
        management.ask(payload, Asker("d", "bob", "127.0.0.1:1", ALL), answers.append)
        management.ask(payload, Asker("e", None, "127.0.0.1:1", ALL), answers.append)
        assert len(answers) == 5
        await one.until(lambda: len(answers) == EACH + 7)
        assert all("no answer within" in found["error"] for found in answers[5:])
        assert not management._asking
        management.ask(b'{"list": "clients"}', Asker("c", "alice", "127.0.0.1:1", ALL), answers.append)
        await one.until(lambda: len(answers) == EACH + 8)
        assert "rows" in answers[-1]


async def test_a_site_counts_what_others_ask_it() -> None:
    async with Site(mesh=(1, mesh()), management=EVERYBODY) as one, Site(mesh=(2, mesh(one)), management=BELIEVING) as two:
        await linked(one, two)
        far = two.broker.management
        far._asking["site1", "alice", ""] = EACH
        answers: list[dict[str, Any]] = []
        for user in ("alice", "bob"):
            one.broker.management.ask(b'{"list": "clients", "at": "site2"}', Asker("c", user, "127.0.0.1:1", ALL), answers.append)
        await one.until(lambda: len(answers) == 2)
        assert {"error": f"site2: {YOURS}"} in answers
        assert sum("rows" in found for found in answers) == 1


NUMBERS = st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=True, allow_infinity=True)
PLAIN = st.none() | st.booleans() | NUMBERS | st.text(max_size=20)
ANYTHING = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4))
VERBS = ("list", "show", "peek", "trace", "redrive", "purge", "reveal", "withdraw", "again", "expire", "priority", "processing", "done")
VERBS += ("unusable", "return", "journalled", "declare", "delete", "needed", "read", "edit", "distribute")
KEYS = (
    "name",
    "from",
    "most",
    "position",
    "last",
    "to",
    "member",
    "dry_run",
    "whole",
    "priority",
    "since",
    "payload",
    "properties",
    "settings",
)
MANAGED = ("at", "within", "where", "sort", "limit", "cursor", "payload", "dry_run", "client", "clients", "topic", "level", "name", "to")
LISTS = ("sessions", "clients", "queues", "queue-messages", "queue-states", "queue-members", "retained", "routes", "log", "nothing")
SMALL = st.integers(-1, 4)
OF_QUEUES = st.fixed_dictionaries(
    {"do": st.sampled_from(VERBS) | ANYTHING},
    optional={key: st.sampled_from(["orders", "dead", "o", ""]) | SMALL | ANYTHING for key in KEYS},
)
OF_MANAGEMENT = st.fixed_dictionaries(
    {}, optional={"list": st.sampled_from(LISTS) | ANYTHING, "show": ANYTHING, **dict.fromkeys(MANAGED, ANYTHING | SMALL)}
)
BYTES = st.binary(max_size=60) | st.sampled_from(
    [b"[" * 20_000, b'{"do":' * 5000, b"9" * 10_000, b'{"do":"peek","from":1e999}', b"\xff", b""]
)
TOPICS = ("$mqmesh/queues", "$mqmesh/manage")
REQUESTS = st.one_of(
    st.tuples(st.just(TOPICS[0]), OF_QUEUES.map(lambda one: json.dumps(one).encode())),
    st.tuples(st.just(TOPICS[1]), OF_MANAGEMENT.map(lambda one: json.dumps(one).encode())),
    st.tuples(st.sampled_from(TOPICS), BYTES),
)


class Errors(logging.Handler):
    """What the broker calls its own error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage() + repr(record.exc_info))


@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(REQUESTS, min_size=20, max_size=40))
def test_any_request_has_one_clear_answer(requests: list[tuple[str, bytes]]) -> None:
    errors = Errors()
    logging.getLogger("mqmesh.broker").addHandler(errors)
    try:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(_asked(Path(folder), requests))
    finally:
        logging.getLogger("mqmesh.broker").removeHandler(errors)
    assert not errors.said


async def _asked(folder: Path, requests: list[tuple[str, bytes]]) -> None:
    rules = {"orders": Rules(deliveries=3, dead_letters="dead"), "dead": Rules()}
    async with Site(
        queues=QueueSettings(rules, folder=folder / "queues", durability="os"), management=ManagementSettings(("*",), ALL.grants)
    ) as site:
        shop, member, hostile = await site.client("shop"), await site.client("member"), await site.client("hostile")
        await hostile.subscribe("$mqmesh/queues/answer", "$mqmesh/manage/answer", qos=0)
        await member.subscribe("$queue/orders", qos=1)
        await shop.publish("$queue/orders", b"1", qos=1)
        await shop.publish("$queue/dead", b"2", qos=1)
        for topic, payload in requests:
            hostile.send(Publish(topic, payload, 0))
            answer = json.loads((await hostile.expect(Publish, topic=f"{topic}/answer")).payload)
            assert isinstance(answer, dict)
            if "error" in answer:
                text = answer["error"]
                assert isinstance(text, str)
                assert 0 < len(text) < 1000
                assert "\n" not in text
                assert "internal error" not in text
        await hostile.nothing()
        site.broker.site.queues.store.queues["orders"].check()  # type: ignore[union-attr]
        assert await shop.publish("plant/1", b"3", qos=1) in (0, 0x10)
