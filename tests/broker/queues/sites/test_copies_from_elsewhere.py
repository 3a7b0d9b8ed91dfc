"""`distribute` of a queue elsewhere to a topic: its home reads, and the site of who asks publishes (docs/queues.md)."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.auth import rules as rules_of_access
from mqmesh.broker.auth.settings import AccessSettings
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.queues.shell import Queues
from mqmesh.broker.requests import copies
from mqmesh.broker.requests.copies import UNREADABLE, Copies
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.properties import Property
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until

KEY = "0123456789abcdef"
ANSWER = "$mqmesh/queues/answer"
SAID = {
    Property.PAYLOAD_FORMAT_INDICATOR: 0,
    Property.CONTENT_TYPE: "text/plain",
    Property.RESPONSE_TOPIC: "answers/1",
    Property.CORRELATION_DATA: b"\0\xff",
    Property.USER_PROPERTY: [("color", "red"), ("color", "blue")],
}


def shell(site: Site) -> Queues:
    queues = site.broker.site.queues
    assert queues is not None
    return queues


def allowing(*topics: str) -> rules_of_access.Rules:
    """Rules of access that let everybody publish there."""
    verbs = frozenset(("publish", "subscribe"))
    return rules_of_access.Rules((rules_of_access.Rule(1, True, verbs, (*topics, "$queue/#", "$mqmesh/#")),))


async def two(stack: AsyncExitStack, folder: Path, home: dict[str, Any] | None = None, **away: Any) -> tuple[Site, Site]:
    """The home of `orders`, and another site, where a client that comes over the socket is an operator of all sites."""
    settings = QueueSettings({"orders": Rules(retention=3600)}, folder=folder / "queues", durability="os")
    first = Site(mesh=(1, MeshSettings("m", KEY, silence=1000, start_wait=0.0)), store=MemoryStore(), queues=settings, **(home or {}))
    await stack.enter_async_context(first)
    mesh = MeshSettings("m", KEY, peers=[PeerSettings(first.broker.addresses[0])], silence=1000, start_wait=0.0)
    second = Site(**{"listen": f"unix://{folder}/socket"} | away, mesh=(2, mesh), store=MemoryStore())
    await stack.enter_async_context(second)
    await until(lambda: shell(second).name_of("$queue/orders") is not None)
    return first, second


async def put(home: Site, count: int, **more: Any) -> None:
    shop = await home.client("shop")
    for number in range(1, count + 1):
        assert await shop.publish("$queue/orders", b"\xff%d" % number, qos=1, **more) == 0


async def distribute(client: Client, to: str = "again/orders", **asked: Any) -> dict[str, Any]:
    body = {"do": "distribute", "name": "orders", "to": to, "last": 1000} | asked
    client.send(Publish("$mqmesh/queues", json.dumps(body).encode(), 0))
    found: dict[str, Any] = json.loads((await client.expect(Publish, topic=ANSWER)).payload)
    return found


async def operator(site: Site) -> Client:
    client = await site.client("operator")
    await client.subscribe(ANSWER, qos=0)
    return client


async def test_copies_of_messages_of_another_site_are_as_they_were_and_say_where_they_come_from(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        home, away = await two(stack, tmp_path)
        await put(home, 250, properties=SAID)
        here, there, asks = await away.client("here"), await home.client("there"), await operator(away)
        for reader in (here, there):
            await reader.subscribe("again/orders", qos=1)
        await until(lambda: bool(away.broker.site.router.route(b"again/orders").elsewhere))
        answer = await distribute(asks, **{"from": 7})
        assert answer == {"queue": "orders", "to": "again/orders", "distributed": 244, "more": None}
        for reader in (here, there):
            got = await reader.messages(244)
            assert [one.payload for one in got] == [b"\xff%d" % number for number in range(7, 251)]
            lineage = [("mqmesh-from-queue", "orders"), ("mqmesh-from-position", "7")]
            wanted = SAID | {Property.USER_PROPERTY: [*SAID[Property.USER_PROPERTY], *lineage]}  # type: ignore[misc]
            del wanted[Property.PAYLOAD_FORMAT_INDICATOR]  # 0 is what none means
            assert got[0].properties == wanted
        queue = shell(home).store.queues["orders"]
        assert (queue.waiting, queue.held) == (250, 0), "the messages stay where they are"


async def test_one_request_copies_so_many_and_says_where_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MOST_READ", 2)
    monkeypatch.setattr(copies, "MOST_DISTRIBUTED", 5)
    async with AsyncExitStack() as stack:
        home, away = await two(stack, tmp_path)
        await put(home, 7)
        reader, asks = await away.client("reader"), await operator(away)
        await reader.subscribe("again/orders", qos=1)
        answer = await distribute(asks)
        assert (answer["distributed"], answer["more"]) == (5, 6)
        answer = await distribute(asks, **{"from": answer["more"]})
        assert (answer["distributed"], answer["more"]) == (2, None)
        assert (await distribute(asks, last=3))["distributed"] == 3
        assert [one.payload[1:] for one in await reader.messages(10)] == [b"%d" % one for one in (1, 2, 3, 4, 5, 6, 7, 1, 2, 3)]
        assert await distribute(asks, dry_run=True) == {"queue": "orders"}
        await reader.nothing()


async def test_without_room_it_is_said_where_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        home, away = await two(stack, tmp_path)
        await put(home, 3)
        asks, taken = await operator(away), list[bytes]()

        def accept(run: Any, route: Any) -> bool:
            taken.extend(run.payloads)
            return len(taken) < 3

        monkeypatch.setattr(away.broker.queue_topic, "accept", accept)
        answer = await distribute(asks)
        assert (answer["distributed"], answer["more"], answer["refused"]) == (2, 3, "there is no room for more messages")


async def test_who_asks_may_publish_there_and_is_an_operator(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        home, away = await two(stack, tmp_path, access=AccessSettings(anonymous=True, rules=allowing("again/#", "others/x")))
        await put(home, 1)
        asks, reader = await operator(away), await away.client("reader")
        await reader.subscribe("again/#", qos=1)
        assert (await distribute(asks, "others/y"))["error"].startswith('"to": ')
        assert "wildcard" in (await distribute(asks, "again/#"))["error"]
        assert "belong to the broker" in (await distribute(asks, "$SYS/x"))["error"]
        assert "has its home at site1" in (await distribute(asks, "$queue/others"))["error"]
        assert (await distribute(asks, "again/orders"))["distributed"] == 1
        await reader.messages(1)
        await reader.nothing()


async def test_a_client_without_a_role_copies_nothing(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        home, away = await two(stack, tmp_path, listen="mqtt://127.0.0.1:0", access=AccessSettings(anonymous=True, rules=allowing("#")))
        await put(home, 1)
        assert (await distribute(await operator(away)))["error"].startswith("not permitted")


async def test_a_home_with_rules_has_to_believe_the_site(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        rules = {"access": AccessSettings(anonymous=True, rules=allowing("#"))}
        home, away = await two(stack, tmp_path, home=rules)
        await put(home, 1)
        assert (await distribute(await operator(away)))["error"].startswith("this site does not believe site2")


# ---- whatever a home answers


class Home:
    """Answers with these pages, one after the other. found: what has become of the request. wanted: for so many messages."""

    def __init__(self, *pages: object, wanted: int = 1 << 30) -> None:
        self.pages = list(pages)
        self.published: list[bytes] = []
        self.found: list[dict[str, Any]] = []
        asked = {"do": "distribute", "name": "orders", "to": "a", "last": 10}
        Copies(asked, self.read, self.publish, self.work, lambda: len(self.published) < wanted, self.found.append).begin()

    def read(self, asked: dict[str, Any], take: Callable[[bytes], None]) -> None:
        page = self.pages.pop(0)
        take(page if isinstance(page, bytes) else json.dumps(page).encode())

    def publish(self, run: Any) -> bool:
        self.published += run.payloads
        return True

    def work(self, steps: Iterator[None]) -> None:
        for _ in steps:
            pass


def row(position: object, **more: object) -> dict[str, object]:
    nothing = dict.fromkeys(("content_type", "response_topic", "correlation"))
    return {"position": position, "payload": b64encode(b"x").decode(), "text": False, "user": [], **nothing, **more}


@pytest.mark.parametrize(
    "page",
    [
        b"\xff",
        b"[" * 100_000,
        b"7",
        {},
        {"messages": [], "more": 1},
        {"messages": [], "more": "2"},
        {"messages": 7, "more": None},
        {"messages": [row("1")], "more": None},
        {"messages": [row(1, user=[["only a name"]])], "more": None},
        {"messages": [row(1, user=[["name", 7]])], "more": None},
        {"messages": [row(1, content_type=7)], "more": None},
        {"messages": [row(1, payload=7)], "more": None},
        {"messages": [{"position": 1}], "more": None},
    ],
)
def test_an_answer_that_is_no_page_ends_it(page: object) -> None:
    home = Home(page)
    assert home.found == [{"error": UNREADABLE}]
    assert not home.published


def test_what_was_published_before_an_error_is_told() -> None:
    home = Home({"messages": [row(1), row(2)], "more": 5}, {"error": "no answer"})
    assert home.found == [{"queue": "orders", "to": "a", "distributed": 2, "more": 5, "refused": "no answer"}]


def test_messages_beyond_the_last_are_not_published() -> None:
    home = Home({"messages": [row(10), row(11)], "more": 12})
    assert (home.published, home.found[0]["distributed"], home.found[0]["more"]) == ([b"x"], 1, None)


def test_it_ends_when_nobody_wants_the_answer() -> None:
    home = Home({"messages": [row(1), row(2), row(3)], "more": None}, wanted=2)
    assert (len(home.published), home.found) == (2, [])
