"""Services at one broker over plain MQTT: requests and responses, identifiers, refusals, who is who, restarts (docs/interchange.md)."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from mqmesh.base.interchange import ANSWER, ENVELOPE, INBOX, POST
from mqmesh.base.standing import OVERDUE, Standing, Standings
from mqmesh.broker.auth.passwords import change
from mqmesh.broker.queues.committer import Committer
from mqmesh.broker.server import Broker
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property
from mqmesh.store.base import Kind
from mqmesh.store.memory import MemoryStore
from support.broker_site import until
from support.interchange_site import SERVICES, InterchangeSite, Service
from support.storage.failing_store import FailingStore

NEW = '[services."new/one"]\nusers = ["*"]\n'


async def test_request_and_response(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path) as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        told = await shop.post("request", b"order 17", {Property.CONTENT_TYPE: "text/plain"}, recipient="bank/credit", handle="h-1")
        body, header = await bank.take()
        assert (body, header["kind"], header["sender"]) == (b"order 17", "request", "shop/orders")
        assert {"session": header["session"], "call": header["call"]} == told
        assert header["properties"][Property.CONTENT_TYPE] == "text/plain"
        assert header["traceparent"] == f"00-{told['session']}-{header['hop']}-01"
        assert 172_000 < header["properties"][Property.MESSAGE_EXPIRY_INTERVAL] <= 172_800

        assert await bank.post("response", b"yes", call=header["call"]) == told
        body, response = await shop.take()
        assert (body, response["kind"], response["sender"], response["handle"]) == (b"yes", "response", "bank/credit", "h-1")
        assert (response["session"], response["call"]) == (told["session"], told["call"])
        assert Property.RESPONSE_TOPIC not in response["properties"]
        assert 172_000 < response["properties"][Property.MESSAGE_EXPIRY_INTERVAL] <= 172_800, "nobody has to take it, for ever"


async def test_a_client_that_answers_as_mqtt_5_says_is_a_service(tmp_path: Path) -> None:
    """It copies Correlation Data to the Response Topic, and knows nothing of us."""
    async with InterchangeSite(tmp_path) as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        told = await shop.post("request", b"?", recipient="bank/credit")
        request = (await bank.take())[1]["properties"]
        assert request[Property.RESPONSE_TOPIC] == POST
        correlation = {Property.CORRELATION_DATA: request[Property.CORRELATION_DATA]}
        assert "not-the-sender" in str(await bank.send(b"!", correlation)), "this user has several services, and has to say which"
        assert await bank.post("", b"!", correlation) == told
        assert (await shop.take())[0] == b"!"


async def test_an_expiry_that_mqtt_cannot_say(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path) as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        told = await shop.post("request", b"?", recipient="bank/credit", expires=str((1 << 53) - 1))
        header = (await bank.take())[1]
        assert header["properties"][Property.MESSAGE_EXPIRY_INTERVAL] == 0xFFFF_FFFF
        assert await bank.post("response", b"!", hop=header["hop"]) == told
        assert (await shop.take())[0] == b"!"


async def test_refusals(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path) as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        told = await shop.post("request", recipient="bank/credit", handle="h-1")
        await bank.take()
        refused = await shop.post("request", recipient="bank/credit", handle="h-1", possible_duplicate="true")
        assert (refused["code"], told["call"] in refused["what"]) == ("duplicate", True)
        for code, answer in {
            "unknown-service": await shop.post("request", recipient="bank/none"),
            "not-well-formed": await shop.post("request"),
            "no-request": await shop.post("response", call="0000ffffffffffff"),
            "unknown-session": await shop.post("request", recipient="bank/credit", session="0" * 32),
        }.items():
            assert answer["code"] == code
            assert answer["what"]
        assert (await shop.post("response", call=told["call"]))["code"] == "not-a-recipient"
        assert (await bank.post("response", call=told["call"]))["call"] == told["call"]
        assert (await bank.post("response", call=told["call"]))["code"] == "already-answered"
        assert (await shop.take())[1]["kind"] == "response"
        await shop.client.nothing()
        await bank.client.nothing()


async def test_expiry_gives_an_error(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path) as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        told = await shop.post("request", properties={Property.MESSAGE_EXPIRY_INTERVAL: 30}, recipient="bank/credit")
        await bank.take()
        await site.later(31)
        error = (await shop.take())[1]
        assert (error["kind"], error["code"], error["call"]) == ("error", "expired", told["call"])
        assert (await bank.post("response", call=told["call"]))["code"] == "expired"


async def test_cancel(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path) as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        told = await shop.post("request", recipient="bank/credit")
        answer = await shop.post("cancel", call=told["call"], reason="sold out")
        assert answer["came"] == [{"recipient": "bank/credit", "state": "out", "at": "bank/credit"}]
        assert [(await bank.take())[1]["kind"] for _ in range(2)] == ["request", "cancel"]


async def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path) as site:
        shop = await site.service("shop/orders")
        told = await shop.post("request", b"?", recipient="bank/credit", handle="h-1")
    async with InterchangeSite(tmp_path) as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        assert (await shop.post("request", recipient="bank/credit", handle="h-1"))["code"] == "duplicate"
        body, header = await bank.take()
        assert (body, header["call"]) == (b"?", told["call"])
        assert await bank.post("response", b"!", call=header["call"]) == told
    async with InterchangeSite(tmp_path) as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        assert (await bank.post("response", call=told["call"]))["code"] == "already-answered"
        assert (await shop.take())[0] == b"!"


async def test_messages_are_delivered_before_the_log_of_the_queues_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand in the broker's store. What a crash leaves there and not in the log is delivered again, and answered once."""
    async with InterchangeSite(tmp_path / "one") as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        queues = site.broker.site.queues
        assert queues is not None
        with monkeypatch.context() as patch:
            patch.setattr(Committer, "begin", lambda self: None)
            told = await shop.post("request", b"?", recipient="bank/credit")
            assert (await bank.take())[1]["call"] == told["call"]
            assert await bank.post("response", b"!", call=told["call"]) == told
            assert (await shop.take())[0] == b"!"
            shutil.copytree(tmp_path / "one", tmp_path / "two")  # as a crash would leave it
        await queues.settled(10)
        assert not queues.store.dirty
    async with InterchangeSite(tmp_path / "one") as site:
        await (await site.service("bank/credit")).client.nothing()
    async with InterchangeSite(tmp_path / "two") as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        assert (await bank.take())[1]["call"] == told["call"]
        assert (await bank.post("response", call=told["call"]))["code"] == "already-answered"
        assert (await shop.take())[0] == b"!"


async def test_mqtt_3_posts_and_gets_json(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path) as site:
        old, bank = await site.service("old/one", version=4), await site.service("bank/credit")
        posted = {"kind": "request", "sender": "old/one", "recipients": ["bank/credit"], "body": "hé"}
        told = await old.send(json.dumps(posted).encode())
        assert set(told) == {"session", "call"}
        assert (await bank.take())[0].decode() == "hé"
        await bank.post("response", b"\xff", call=told["call"])
        found = (await old.take())[1]
        assert (found["kind"], found["base64"], found["call"]) == ("response", "/w==", told["call"])
        assert (await old.send(b"no json"))["code"] == "not-well-formed"


async def test_attachments_travel_as_json(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path) as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        posted = {
            "kind": "notification",
            "sender": "shop/orders",
            "recipients": ["bank/credit"],
            "attachments": [{"name": "invoice", "content_type": "application/pdf", "base64": "AAE="}],
        }
        assert "call" in await shop.send(json.dumps(posted).encode(), {Property.CONTENT_TYPE: ENVELOPE})
        body, header = await bank.take()
        assert header["properties"][Property.CONTENT_TYPE] == ENVELOPE
        (attachment,) = json.loads(body)["attachments"]
        assert attachment == {"name": "invoice", "content_type": "application/pdf", "body": "\x00\x01"}


async def test_services_on_the_way(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path) as site:
        shop, bank, ids = await site.service("shop/orders"), await site.service("bank/credit"), await site.service("map/ids")
        told = await shop.post("request", b"17", recipient="bank/credit", service='{"service": "map/ids", "arguments": {"to": "bank"}}')
        body, header = await ids.take()
        assert (body, json.loads(header["arguments"])) == (b"17", {"to": "bank"})
        await ids.post("response", b"B-17", hop=header["hop"])
        body, header = await bank.take()
        assert (body, header["sender"], header["call"]) == (b"B-17", "shop/orders", told["call"])
        await bank.post("error", code="no-account", call=told["call"])
        assert (await shop.take())[1]["code"] == "no-account"


async def test_inboxes_are_for_their_users_only(tmp_path: Path) -> None:
    """By the proven user name; nobody but the interchange puts into them."""
    services = """
        [services."shop/orders"]
        users = ["shop-*"]
        [services."bank/credit"]
        users = ["bank"]
        callers = ["shop/*"]
        [services."bank/inner"]
        users = ["bank"]
        callers = ["bank/*"]
    """
    for user in ("shop-1", "bank", "thief"):
        change(tmp_path / "users", user, user.encode())
    async with InterchangeSite(tmp_path, services, '[access]\nusers = "users"') as site:
        shop = await site.service("shop/orders", "shop-1", password=b"shop-1")
        bank = await site.service("bank/credit", "bank", password=b"bank")
        thief = await site.client("thief", password=b"thief")
        inbox = "$queue/" + INBOX + "bank/credit"
        for filter_ in (inbox, inbox + "/alerts", "$queue/" + INBOX + "none/such"):
            assert (await thief.subscribe(filter_, qos=1)).reasons[0] >= 0x80
        for client in (thief, bank.client, shop.client):
            assert await client.publish(inbox, b"forged", 1) == 0x87
            assert await client.publish(inbox, b"forged") == 0

        await thief.subscribe(ANSWER, qos=1)
        assert (await Service(thief, "shop/orders").post("request", recipient="bank/credit"))["code"] == "not-the-sender"
        assert (await shop.post("request", sender="bank/credit", recipient="bank/credit"))["code"] == "not-well-formed"
        assert (await shop.post("request", recipient="bank/inner"))["code"] == "unknown-service", "as one that does not exist"
        told = await shop.post("request", b"?", recipient="bank/credit")
        body, header = await bank.take()
        assert (body, header["call"]) == (b"?", told["call"])
        await bank.client.nothing()


async def test_suspended_services_neither_send_nor_get(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path) as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        told = await shop.post("request", b"?", recipient="bank/credit")
        (tmp_path / "services.toml").write_text(SERVICES.replace('"bank/credit"]', '"bank/credit"]\nsuspended = true') + '["new/one"]\n')
        site.inside.renew(site.config)
        assert "call" in await shop.post("notification", recipient="map/ids"), "a mistake in the file changes nothing"
        (tmp_path / "services.toml").write_text(SERVICES.replace('"bank/credit"]', '"bank/credit"]\nsuspended = true') + NEW)
        site.inside.renew(site.config)
        assert (await shop.post("request", recipient="bank/credit"))["code"] == "suspended"
        assert (await bank.post("request", recipient="shop/orders"))["code"] == "suspended"
        assert "call" in await bank.post("response", call=told["call"]), "what was begun goes to its end"
        fresh = await site.service("new/one")
        await shop.take()
        await shop.post("notification", b"hello", recipient="new/one")
        assert (await fresh.take())[0] == b"hello"


async def test_who_has_not_paid_posts_nothing(tmp_path: Path) -> None:
    change(tmp_path / "users", "alice", b"alice")
    (tmp_path / "standing.json").write_text(
        Standings("2026-12-16", {"alice": Standing(OVERDUE, "2026-12-16", "30.75 EUR", ("INV-2026-11",))}).dumped()
    )
    async with InterchangeSite(tmp_path, broker='[access]\nusers = "users"\nstanding = "standing.json"') as site:
        shop = await site.service("shop/orders", "alice", password=b"alice")
        assert (await shop.post("request", recipient="bank/credit"))["code"] == "suspended"


async def test_many_in_one_piece(tmp_path: Path) -> None:
    """More than a millisecond has identifiers for; and refused ones among those that are taken."""
    async with InterchangeSite(tmp_path) as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        pairs = [("kind", "notification"), ("sender", "shop/orders")]
        for number in range(1, 401):
            to = "bank/none" if number % 100 == 0 else "bank/credit"
            found = {Property.USER_PROPERTY: [*pairs, ("recipient", to)]}
            shop.client.send(Publish(POST, b"%d" % number, 1, packet_id=number, properties=found))
        acks, answers = [], []
        while len(acks) < 400 or len(answers) < 400:
            packet = await shop.client.receive()
            (acks if isinstance(packet, Puback) else answers).append(packet)
        assert [one.packet_id for one in acks] == list(range(1, 401))
        assert [one.packet_id for one in acks if one.reason >= 0x80] == [100, 200, 300, 400]
        assert sum("code" in json.loads(one.payload) for one in answers) == 4
        assert [int((await bank.take())[0]) for _ in range(396)] == [one for one in range(1, 401) if one % 100]


async def test_responses_in_one_piece(tmp_path: Path) -> None:
    """Each has a hop of its own, and so its own answer; a second response among them is refused by itself."""
    async with InterchangeSite(tmp_path) as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        for number in range(40):
            await shop.post("request", b"%d" % number, recipient="bank/credit")
        hops = [(body, header["hop"].encode()) for body, header in [await bank.take() for _ in range(40)]]
        hops.insert(20, (b"once more", hops[10][1]))
        said = {Property.USER_PROPERTY: [("sender", "bank/credit")], Property.RESPONSE_TOPIC: ANSWER}
        posts = [
            Publish(POST, body, 1, packet_id=number, properties=said | {Property.CORRELATION_DATA: hop})
            for number, (body, hop) in enumerate(hops, 1)
        ]
        bank.client.send(*posts)
        acks, answers = [], []
        while len(acks) < 41 or len(answers) < 41:
            packet = await bank.client.receive()
            (acks if isinstance(packet, Puback) else answers).append(packet)
        assert [(one.packet_id, one.reason >= 0x80) for one in acks] == [(number, number == 21) for number in range(1, 42)]
        assert [one.properties[Property.CORRELATION_DATA] for one in answers] == [hop for _, hop in hops]
        assert [json.loads(one.payload).get("code") for one in answers if one.properties[Property.CORRELATION_DATA] == hops[10][1]] == [
            None,
            "already-answered",
        ]
        found = [await shop.take() for _ in range(40)]
        assert [body for body, header in found if header["kind"] == "response"] == [b"%d" % number for number in range(40)]


async def test_a_store_that_takes_nothing_refuses_posts_at_once(tmp_path: Path) -> None:
    site, store = InterchangeSite(tmp_path), FailingStore(MemoryStore())
    site.broker = Broker(site.config, store)
    async with site:
        shop, other, bank = await site.service("shop/orders"), await site.service("map/ids"), await site.service("bank/credit")
        store.fail_next(Kind.FULL, times=1000)
        first = asyncio.create_task(shop.post("request", b"kept in the end", recipient="bank/credit"))
        await until(lambda: site.broker.site.persistence.error is not None)
        assert not first.done(), "what is not kept is not confirmed"
        refused = await other.post("request", b"refused", recipient="bank/credit")
        assert (refused["code"], refused["right"]) == ("unavailable", "post it again later")
        assert "the broker's store refuses (full)" in refused["what"]
        store.recover()
        told = await first
        body, header = await bank.take()
        assert (body, header["call"]) == (b"kept in the end", told["call"])
        assert "call" in await other.post("request", b"taken", recipient="bank/credit")
