"""What operators see of recipients, and do with them: the list, an explanation, actions, `$SYS`, metrics, events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mqmesh.broker.monitoring.metrics import registry
from mqmesh.broker.recipients.overview import Overview
from mqmesh.mqtt.errors import UsageError
from prometheus_client import generate_latest
from support.broker_site import Client, Site

from .test_recipients import application, served, site, state


def overview(at: Site) -> Overview:
    found = at.broker.site.overview
    assert found is not None
    return found


def shown(at: Site, name: str) -> dict[str, Any]:
    return next(one for one in overview(at).describe() if one["name"] == name)


async def hung(at: Site, sender: Client, name: str) -> Client:
    """A client of the application that takes a message and acknowledges nothing, until it is in FAULT."""
    client = await served(at, name)
    await sender.publish(f"app/{name}/new", b"probe", 1)
    await client.messages(1, acknowledge=False)
    await at.later(3.1)
    await at.until(lambda: state(at, name) == "fault")
    return client


async def test_a_recipient_is_shown_with_its_alternatives_and_history() -> None:
    chain = [application("orders", "backup", "typo"), application("backup", consents=[])]
    async with site(message_interval=3, application=chain) as at:
        sender = await at.client("shop")
        await hung(at, sender, "orders")
        assert [one["name"] for one in overview(at).describe()] == ["backup", "orders"]
        one = shown(at, "orders")
        assert (one["state"], one["site"], one["in_flight"], one["connected"], one["clients"]) == (
            "fault",
            "site0",
            1,
            ["orders"],
            ["orders"],
        )
        assert (one["message_interval"], one["fault_interval"], one["defunct_interval"]) == (3, 3, 10)
        assert one["alternatives"] == [
            {"name": "backup", "state": "operational", "site": "site0"},
            {"name": "typo", "state": "unknown", "site": None},
        ]
        (step,) = one["history"]
        assert (step["from"], step["to"]) == ("operational", "fault")
        assert step["at"] == one["since"]


async def test_an_explanation_names_each_that_was_looked_at() -> None:
    chain = [
        application("orders", "orders-shy", "typo", "orders-held", "backup"),
        application("orders-shy", consents=["somebody"]),
        application("orders-held"),
        application("backup"),
    ]
    async with site(message_interval=3, application=chain) as at:
        sender = await at.client("shop")
        assert overview(at).explain("backup")["goes_to"] == "backup"
        overview(at).hold("orders-held")
        await hung(at, sender, "orders")
        found = overview(at).explain("orders")
        assert found["goes_to"] == "backup"
        assert [(one["recipient"], one["answer"]) for one in found["steps"]] == [
            ("orders", "it is known to be in FAULT"),
            ("orders-shy", "it does not consent to messages of orders"),
            ("typo", "not registered"),
            ("orders-held", "an operator holds it"),
            ("backup", "takes it"),
        ]
        overview(at).defunct("backup")
        assert overview(at).explain("orders")["goes_to"] == "the originator"
        assert overview(at).explain("orders-held")["steps"][0]["answer"] == "an operator holds it: the message waits"


async def test_an_operator_holds_resumes_and_declares_defunct() -> None:
    async with site(application=[application("orders", "backup"), application("backup")]) as at:
        orders, backup, sender = await served(at, "orders"), await served(at, "backup"), await at.client("shop")
        assert overview(at).hold("orders")["held"] is True
        await sender.publish("app/orders/new", b"1", 1)
        await at.later(20)
        await orders.nothing()
        await backup.nothing()
        assert shown(at, "orders")["state"] == "operational"
        assert overview(at).resume("orders")["held"] is False
        assert (await orders.messages(1))[0].payload == b"1"
        await orders.nothing()  # its acknowledgement has come
        assert overview(at).defunct("orders")["state"] == "defunct"
        await orders.closed(0x98)
        await sender.publish("app/orders/new", b"2", 1)
        assert (await backup.messages(1))[0].payload == b"2"


async def test_an_operator_moves_what_waits() -> None:
    chain = [application("orders", "backup"), application("backup"), application("other")]
    async with site(message_interval=100, fault_interval=100, application=chain) as at:
        backup, other, sender = await served(at, "backup"), await served(at, "other"), await at.client("shop")
        await sender.publish("app/orders/new", b"1", 1)
        assert shown(at, "orders")["queue"] == 1
        overview(at).move("orders", "other")
        assert (await other.messages(1))[0].payload == b"1"
        await sender.publish("app/orders/new", b"2", 1)
        overview(at).move("orders", None)
        assert (await backup.messages(1))[0].payload == b"2"


async def test_what_cannot_be_done_says_why() -> None:
    async with site(application=[application("orders")]) as at:
        for deed in (overview(at).explain, overview(at).hold, overview(at).resume, overview(at).defunct):
            with pytest.raises(UsageError, match="there is no recipient 'nobody'"):
                deed("nobody")
        for name, to, says in (
            ("orders", "nobody", "there is no recipient 'nobody'"),
            ("orders", None, "no alternative of 'orders' takes its messages now: name one"),
            ("orders", "orders", "'orders' has its messages already"),
        ):
            with pytest.raises(UsageError, match=says):
                overview(at).move(name, to)


async def test_numbers_for_sys_and_metrics() -> None:
    async with site(message_interval=3, application=[application("orders", "backup"), application("backup")]) as at:
        backup, sender = await served(at, "backup"), await at.client("shop")
        await hung(at, sender, "orders")
        await sender.publish("app/orders/new", b"2", 1)
        await backup.messages(1)
        values = at.broker.sys_topics.values()
        assert {name: values[f"recipients/{name}"] for name in ("operational", "fault", "defunct", "failed-over", "returned", "dead")} == {
            "operational": "1",
            "fault": "1",
            "defunct": "0",
            "failed-over": "1",
            "returned": "0",
            "dead": '["orders"]',
        }
        text = generate_latest(registry(at.broker.site, at.broker.sys_topics.totals)).decode()
        assert 'mqmesh_recipients{state="fault"} 1.0' in text
        assert "mqmesh_failed_over_total 1.0" in text
    async with Site() as at:
        assert not [name for name in at.broker.sys_topics.values() if name.startswith("recipients/")]


async def test_each_change_is_an_event() -> None:
    """DEFUNCT too: what closes the connection moves the clock of the piece of work on."""
    async with site(application=[application("orders")]) as at:
        watcher, sender = await at.client("watcher"), await at.client("shop")
        await watcher.subscribe("$mqmesh/events/recipients")
        await hung(at, sender, "orders")
        await at.later(10.1)
        await at.until(lambda: state(at, "orders") == "defunct")
        await served(at, "orders")
        events = [json.loads(one.payload) for one in await watcher.messages(3)]
        assert [(one["from"], one["to"]) for one in events] == [("operational", "fault"), ("fault", "defunct"), ("defunct", "operational")]
        assert all(one["name"] == "orders" and one["site"] == "site0" and one["why"] and one["at"] for one in events)
