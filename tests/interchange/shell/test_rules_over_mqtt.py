"""Rules of services at work in a broker: who gets a message, over plain MQTT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.auth.passwords import change
from mqmesh.mqtt.properties import Property
from support.interchange_http import JSON, Web
from support.interchange_site import SERVICES, InterchangeSite

RULES = """
[[services."shop/orders".rules]]
name = "the bank's numbers"
role = "out"
when = {header = "recipients", equals = "bank/credit"}
then = [{include = "map/ids", arguments = {to = "bank"}}]

[[services."bank/credit".rules]]
name = "large ones are scored first"
when = {and = [{header = "kind", equals = "request"}, {json = "$.amount", greaterThan = 1000}]}
then = [{set = {model = "b"}}, {include = "score/credit", visible = ["body"]}, {topic = "large"}]

[[services."bank/credit".rules]]
name = "nothing below one"
when = {json = "$.amount", lessThan = 1}
then = [{reject = "give an amount of at least 1"}]

[services."score/credit"]
users = ["*"]
[services."bank/front"]
users = ["*"]
[[services."bank/front".rules]]
when = {header = "kind", exists = true}
then = [{redirect = "old/one"}]
[services."late/late"]
users = ["*"]
routing = "dynamic"
[[services."late/late".rules]]
when = {json = "$.amount", greaterThan = 1000}
then = [{include = "score/credit"}]
"""


def amount(many: int) -> bytes:
    return json.dumps({"amount": many}).encode()


async def test_rules_make_the_route(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, SERVICES + RULES) as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        ids, score = await site.service("map/ids"), await site.service("score/credit")
        await shop.post("request", amount(5000), recipient="bank/credit")
        _, header = await ids.take()
        assert json.loads(header["arguments"]) == {"to": "bank"}
        await ids.post("response", amount(5001), hop=header["hop"])
        body, header = await score.take()
        assert (body, header["topic"], json.loads(header["context"])) == (amount(5001), "large", {"model": "b"})
        await score.post("response", amount(5002), hop=header["hop"])
        body, header = await bank.take()
        assert (body, header["topic"]) == (amount(5002), "large")
        await bank.post("response", b"yes", call=header["call"])
        body, header = await shop.take()
        assert (body, header["sender"]) == (b"yes", "bank/credit")

        await shop.post("request", amount(5), recipient="bank/credit")
        await ids.post("response", amount(5), hop=(await ids.take())[1]["hop"])
        assert (await bank.take())[0] == amount(5)
        await score.client.nothing()


async def test_a_rule_rejects_a_post_with_its_reason(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, SERVICES + RULES) as site:
        shop = await site.service("shop/orders")
        answer = await shop.post("request", amount(0), recipient="bank/credit")
        assert (answer["code"], answer["what"]) == ("rejected", "bank/credit: give an amount of at least 1")


async def test_a_virtual_service_stands_for_another_one_in_responses_too(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, SERVICES + RULES) as site:
        shop, ids = await site.service("map/ids"), await site.service("old/one")
        await shop.post("request", b"?", recipient="bank/front")
        payload, _ = await ids.take()
        call = json.loads(payload)["call"]
        assert (await ids.post("response", b"!", call=call))["call"] == call
        body, header = await shop.take()
        assert (body, header["sender"]) == (b"!", "bank/front")


async def test_a_dynamic_service_looks_at_what_comes_to_it(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, SERVICES + RULES) as site:
        shop, ids = await site.service("bank/credit"), await site.service("map/ids")
        late, score = await site.service("late/late"), await site.service("score/credit")
        await shop.post("request", amount(5), recipient="late/late", service="map/ids")
        await ids.post("response", amount(5000), hop=(await ids.take())[1]["hop"])
        _, header = await score.take()
        await score.post("response", amount(5000), hop=header["hop"])
        _, header = await late.take()
        await late.post("response", b"yes", hop=header["hop"])
        assert (await shop.take())[0] == b"yes"
        await shop.post("request", amount(5), recipient="late/late")
        assert (await late.take())[0] == amount(5)


async def test_a_body_that_is_too_large_for_rules_is_refused(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, SERVICES + RULES) as site:
        shop = await site.service("map/ids")
        large = json.dumps({"filler": "x" * 600_000, "amount": 5}).encode()
        answer = await shop.post("request", large, {Property.CONTENT_TYPE: "application/json"}, recipient="bank/credit")
        assert answer["code"] == "too-large"
        assert "call" in await shop.post("request", large, recipient="old/one"), "nobody looks into it"


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ('when = {header = "kind", like = "x"}\nthen = [{end = true}]', ("rules", "like")),
        ('when = {json = "$..a", exists = true}\nthen = [{end = true}]', ("rules", "RFC 9535")),
        ("then = [{end = true}]", ("rules", "at least one condition")),
        ('when = {header = "kind", exists = true}\nthen = [{include = "nobody"}]', ("rules", "organisation/name")),
    ],
)
def test_a_rule_that_is_wrong_is_named(tmp_path: Path, rules: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        InterchangeSite(tmp_path, f'{SERVICES}\n[[services."old/one".rules]]\n{rules}\n')
    assert all(word in str(caught.value) for word in ("services.toml", "old/one", *words)), caught.value


async def test_what_would_become_of_a_message_is_told(tmp_path: Path) -> None:
    """Nothing is posted; of the rules of others only their services are shown (l. 130-158)."""
    services = (SERVICES + RULES).replace('["*"]', '["shop"]', 1).replace('["*"]', '["bank"]', 1).replace('["*"]', '["others"]')
    (tmp_path / "users").touch()
    for user in ("shop", "bank"):
        change(tmp_path / "users", user, "secret")
    access, http = '[access]\nusers = "../users"\n', 'http = "http://127.0.0.1:0"'
    async with InterchangeSite(tmp_path / "site", services, access, interchange=http) as site:
        assert site.inside.faces is not None
        shop, bank = (Web(site.inside.faces.url, user, "secret") for user in ("shop", "bank"))

        async def explained(web: Web, **message: Any) -> Any:
            body = json.dumps({"content_type": "application/json", "body": '{"amount": 5000}'} | message).encode()
            return (await web.ask("POST", "/v1/explain", body, Content_Type=JSON)).body

        found = await explained(shop, kind="request", sender="shop/orders", recipients=["bank/credit"])
        mine, others, *_ = found["services"]
        assert (mine["service"], [(one["name"], one["holds"]) for one in mine["rules"]]) == ("shop/orders", [("the bank's numbers", True)])
        assert others == {"service": "map/ids", "role": "in", "chain": ["shop/orders", "map/ids"]}
        (route,) = found["routes"]
        assert route["deliveries"] == [{"service": one} for one in ("map/ids", "score/credit", "bank/credit")]
        small = await explained(shop, kind="request", sender="shop/orders", recipients=["bank/credit"], body='{"amount": 0}')
        assert small["routes"][0]["refusal"]["code"] == "rejected"

        back = await explained(bank, kind="response", hop="0" * 16, recipients=["shop/orders"], sender="bank/credit")
        assert [one["name"] for one in back["services"][0]["rules"]] == []
        assert (await explained(bank, kind="request", sender="shop/orders", recipients=["bank/credit"]))["code"] == "not-the-sender"
        assert (await explained(bank, kind="cancel", sender="bank/credit", call="0" * 16))["code"] == "not-well-formed"
        assert await bank.poll("bank/credit", wait=0) == []
        assert not site.inside.exchange.calls
