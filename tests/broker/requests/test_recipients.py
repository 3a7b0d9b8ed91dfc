"""What operators ask a broker about its recipients, and what they do with one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.config import parse
from mqmesh.broker.requests.recipients import DEEDS, NO_RECIPIENTS, RIGHT, TOPIC
from mqmesh.mqtt.errors import UsageError
from mqmesh.mqtt.packets import Puback, Publish
from support.broker_site import Client, Site

ANSWER = f"{TOPIC}/answer"


class Recipients:
    """An `Administration` of two recipients that notes what is done."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def describe(self) -> list[dict[str, Any]]:
        return [{"name": "orders", "state": "fault"}, {"name": "lyon", "state": "operational"}]

    def others(self) -> dict[str, Any]:
        return {"fault": 1, "clients": ["sensor-1"]}

    def explain(self, name: str) -> dict[str, Any]:
        self._known(name)
        return {"name": name, "steps": [{"recipient": name, "site": "porto", "state": "fault", "answer": "in fault"}], "goes_to": "lyon"}

    def hold(self, name: str) -> dict[str, Any]:
        return self._did("hold", name)

    def resume(self, name: str) -> dict[str, Any]:
        return self._did("resume", name)

    def defunct(self, name: str) -> dict[str, Any]:
        return self._did("defunct", name)

    def move(self, name: str, to: str | None) -> dict[str, Any]:
        return self._did("move", name, to)

    def _did(self, *what: Any) -> dict[str, Any]:
        self._known(what[1])
        self.done.append(what)
        return {"name": what[1], "state": "operational"}

    def _known(self, name: str) -> None:
        if name not in ("orders", "lyon"):
            raise UsageError(f"there is no recipient {name!r}")


@pytest.fixture
def home(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/socket"


async def asker(site: Site, name: str = "operator", **more: Any) -> Client:
    client = await site.client(name, **more)
    await client.subscribe(ANSWER, qos=1)
    return client


async def ask(client: Client, request: object) -> Any:
    payload = request if isinstance(request, bytes) else json.dumps(request).encode()
    client.send(Publish(TOPIC, payload, 1, packet_id=client.next_id()))
    found: list[Any] = [await client.receive(), await client.receive()]
    (answer,) = [one for one in found if isinstance(one, Publish)]
    client.send(Puback(answer.packet_id))
    return json.loads(answer.payload)


async def test_they_are_listed_shown_and_explained(home: str) -> None:
    async with Site(home) as site:
        site.broker.recipient_topic.administration = Recipients()
        client = await asker(site)
        answer = await ask(client, {"do": "list"})
        assert [one["name"] for one in answer["recipients"]] == ["orders", "lyon"]
        assert answer["others"] == {"fault": 1, "clients": ["sensor-1"]}
        assert await ask(client, {"do": "show", "name": "lyon"}) == {"recipients": [{"name": "lyon", "state": "operational"}]}
        assert (await ask(client, {"do": "explain", "name": "orders"}))["goes_to"] == "lyon"
        for do in ("show", "explain"):
            assert await ask(client, {"do": do, "name": "nobody"}) == {"error": "there is no recipient 'nobody'"}


async def test_an_operator_acts(home: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Site(home) as site:
        recipients = site.broker.recipient_topic.administration = Recipients()
        client = await asker(site)
        for do in DEEDS:
            assert (await ask(client, {"do": do, "name": "orders"}))["recipient"]["name"] == "orders"
        await ask(client, {"do": "move", "name": "orders", "to": "lyon"})
        expected = [("hold", "orders"), ("resume", "orders"), ("defunct", "orders"), ("move", "orders", None), ("move", "orders", "lyon")]
        assert recipients.done == expected
        assert caplog.text.count("event=recipient-changed") == 5
        assert "do=move name=orders to=lyon client=operator" in caplog.text
        assert await ask(client, {"do": "hold", "name": "nobody"}) == {"error": "there is no recipient 'nobody'"}


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        {"do": "what"},
        {"do": ["list"]},
        {"do": "show"},
        {"do": "show", "name": 3},
        {"do": "hold"},
        {"name": "orders"},
    ],
)
async def test_what_is_wrong_gets_one_line(home: str, request_: object) -> None:
    async with Site(home) as site:
        site.broker.recipient_topic.administration = Recipients()
        client = await asker(site)
        assert await ask(client, request_) == {"error": RIGHT}
        text = 'give "to" with "move" only: the name of a recipient'
        assert await ask(client, {"do": "hold", "name": "orders", "to": "lyon"}) == {"error": text}
        assert await ask(client, {"do": "move", "name": "orders", "to": 3}) == {"error": text}


async def test_a_broker_without_recipients_says_so(home: str) -> None:
    async with Site(home) as site:
        client = await asker(site)
        assert await ask(client, {"do": "list"}) == {"error": NO_RECIPIENTS}


async def test_others_may_look_where_everybody_may_read_but_not_act() -> None:
    async with Site() as site:
        recipients = site.broker.recipient_topic.administration = Recipients()
        client = await asker(site, "somebody")
        answer = await ask(client, {"do": "list"})
        assert (len(answer["recipients"]), "others" in answer) == (2, False), "no client identifiers for everybody"
        for do in DEEDS:
            assert "not permitted" in (await ask(client, {"do": do, "name": "orders"}))["error"]
        assert recipients.done == []


async def test_where_there_are_rules_only_operators_look() -> None:
    table = {"anonymous": True, "rule": [{"allow": ["subscribe", "publish"], "topics": ["shop/#"]}]}
    config = parse({"name": "porto", "listen": ["mqtt://127.0.0.1:0"], "access": table}, "b.toml")
    async with Site(access=config.access) as site:
        site.broker.recipient_topic.administration = Recipients()
        client = await asker(site, "somebody")
        assert "not permitted" in (await ask(client, {"do": "list"}))["error"]
