"""What a client declares with SUBSCRIBE, what its rules of access allow an alternative, and what does not go together."""

from __future__ import annotations

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.applications import Application as Registered
from mqmesh.broker.config import parse
from mqmesh.broker.ledger import SESSIONS
from mqmesh.mqtt.errors import UsageError
from mqmesh.mqtt.packets import Connack, Connect, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site

from .test_overview import overview
from .test_recipients import application, served, site, state, users
from .test_registered import Book, Registrar, with_directory
from .test_restart import crashed, kept

ORDERS = "app/a/#"


async def subscribe_with(client: Client, topic_filter: str, alternatives: str) -> Suback:
    """SUBSCRIBE that names alternatives."""
    properties = {Property.USER_PROPERTY: [("mqmesh-alternatives", alternatives)]}
    client.send(Subscribe(client.next_id(), [Subscription(topic_filter, 1)], properties))
    return await client.expect(Suback)


async def test_f18_a_subscription_names_its_alternatives() -> None:
    """F18: the messages of that subscription fail over, those of others wait."""
    async with site(application=[application("backup")]) as at:
        till, backup, sender = await at.client("till"), await served(at, "backup"), await at.client("shop")
        assert (await subscribe_with(till, "shop/orders", "backup")).reasons == [1]
        await till.subscribe("shop/prices", qos=1)
        await sender.publish("shop/prices", b"1", 1)
        await sender.publish("shop/orders", b"2", 1)
        await till.messages(2, acknowledge=False)
        await at.later(1.1)
        (got,) = await backup.messages(1)
        assert (got.topic, got.payload, users(got)["mqmesh-failed-over"]) == ("shop/orders", b"2", "till")
        await backup.nothing()


async def test_a_second_subscription_with_the_same_alternatives_fails_over_too() -> None:
    async with site(message_interval=3, application=[application("backup")]) as at:
        till, backup, sender = await at.client("till"), await served(at, "backup"), await at.client("shop")
        await subscribe_with(till, "shop/orders", "backup")
        await subscribe_with(till, "$share/tills/shop/returns", "backup")
        await sender.publish("shop/orders", b"probe", 1)
        await till.messages(1, acknowledge=False)
        await at.later(3.1)
        await at.until(lambda: state(at, "till") == "fault")
        await sender.publish("shop/returns", b"1", 1)
        assert (await backup.messages(1))[0].payload == b"1"


@pytest.mark.parametrize(
    ("alternatives", "text"),
    [
        ("till", "an application is no alternative to itself"),
        ("backup,backup", "an alternative stands twice"),
        ("a/b", "give a name"),
        ("other", "a client has one list, and said 'backup' before"),
    ],
)
async def test_f18_alternatives_of_a_subscription_that_cannot_be_are_refused(alternatives: str, text: str) -> None:
    async with site() as at:
        till = await at.client("till")
        assert (await subscribe_with(till, "shop/orders", "backup")).reasons == [1]
        refused = await subscribe_with(till, "shop/returns", alternatives)
        assert refused.reasons == [0x83]
        assert text in refused.properties[Property.REASON_STRING]


EVERYTHING = {"allow": ["publish", "subscribe"], "topics": ["#"]}
NOT_B = [{"deny": ["subscribe"], "topics": [ORDERS], "clients": ["b"]}, EVERYTHING]


def guarded(*applications: dict[str, object], rules: list[dict[str, object]] = NOT_B) -> Site:
    """A broker with rules of access: they let `b` read nothing that is addressed to `a`, unless they are others."""
    table = {"message_interval": 1, "fault_interval": 3, "defunct_interval": 10, "application": list(applications)}
    settings = parse({"access": {"rule": rules}, "recipients": table})
    made = Site(access=settings.access)
    made.broker.config.recipients = settings.recipients
    return made


async def test_an_alternative_that_may_not_read_the_topic_is_passed_over() -> None:
    async with guarded(application("a", "b", "c"), application("b"), application("c")) as at:
        a, b, c = [await served(at, name) for name in "abc"]
        sender = await at.client("shop")
        await sender.publish("app/a/x", b"1", 1)
        await a.messages(1, acknowledge=False)
        await at.later(1.1)
        (got,) = await c.messages(1)
        assert users(got)["mqmesh-failed-over"] == "a,b"
        await b.nothing()


MINE = {"user_property": [("mqmesh-alternatives", "mine"), ("mqmesh-message-interval", "200ms")]}


async def test_who_has_a_recipients_name_for_its_identifier_does_not_serve_it() -> None:
    """Else it would say where the messages of `orders` go, and how soon."""
    async with site(application=[application("orders", "backup", clients=["till"]), application("backup")]) as at:
        stranger = await at.dial()
        stranger.send(Connect("orders", 5, properties={Property.USER_PROPERTY: MINE["user_property"]}))
        refused = await stranger.expect(Connack, reason=0x83)
        assert "'orders' is served by other clients" in refused.properties[Property.REASON_STRING]
        plain = await at.client("orders")  # declares nothing, and may be here
        again = await subscribe_with(plain, "shop/orders", "mine")
        assert again.reasons == [0x83]
        recipients = at.broker.site.recipients
        assert recipients is not None
        found = recipients.local["orders"].application
        assert (found.clients, found.alternatives, found.intervals.message) == (["till"], ["backup"], 1)
        till = await at.client("till", **MINE)  # one of its clients declares itself, under its own identifier
        await till.nothing()
        assert found.alternatives == ["backup"]


@pytest.mark.parametrize("names", [",".join(map(str, range(65))), "a/b", "x" * 300])
async def test_whose_messages_a_client_takes_is_bounded(names: str) -> None:
    async with site(application=[]) as at:
        client = await at.dial()
        client.send(Connect("c", 5, properties={Property.USER_PROPERTY: [("mqmesh-consents", names)]}))
        refused = await client.expect(Connack, reason=0x83)
        assert refused.properties[Property.REASON_STRING].startswith("mqmesh-consents: give ")
        for right in ("*", ",".join(map(str, range(64)))):
            await at.client(f"c{len(right)}", user_property=[("mqmesh-consents", right)])


async def test_what_clients_declare_counts_and_has_a_bound() -> None:
    """It stays when its client has gone: without a bound anybody who may connect fills the memory."""
    long = ",".join(f"{number:0200}" for number in range(64))
    async with site(application=[application("known")]) as at:
        ledger = at.broker.context.ledger
        before = ledger.total
        client = await at.client("first", user_property=[("mqmesh-alternatives", long)])
        await client.leave()
        await at.gone("first")
        assert ledger.total - before > 2 * len(long)
        again = await at.client("first", user_property=[("mqmesh-alternatives", "known")])
        await again.leave()
        await at.gone("first")
        assert ledger.total - before < len(long)
        ledger.limit = ledger.total  # nothing is free
        refused = await at.dial()
        refused.send(Connect("second", 5, properties={Property.USER_PROPERTY: [("mqmesh-alternatives", "known")]}))
        found = await refused.expect(Connack, reason=0x97)
        assert "no room for more recipients" in found.properties[Property.REASON_STRING]


@pytest.mark.parametrize("restarted", [False, True])
async def test_who_has_declared_itself_and_is_gone_is_forgotten_though_no_message_came(restarted: bool) -> None:
    """After the fault and the defunct interval; one that comes back meanwhile begins anew."""
    store = MemoryStore()
    async with site(store, application=[application("known")]) as at:
        ledger = at.broker.context.ledger
        before = ledger.held[SESSIONS]
        for _ in range(2):
            client = await at.client("first", user_property=[("mqmesh-alternatives", "known")])
            await at.later(5)  # longer than the fault interval
            await at.until(lambda: state(at, "first") == "operational")
            await client.leave()
            await at.gone("first")
            await at.later(1)
        if not restarted:
            await at.later(2.1)
            await at.until(lambda: state(at, "first") == "fault")
            assert state(at, "known") == "operational"
            await at.later(10.1)
            await at.until(lambda: "first" not in at.broker.site.recipients.local)
            assert ledger.held[SESSIONS] == before
    if restarted:
        async with site(store, application=[application("known")]) as at:
            assert state(at, "first") == "operational"
            await at.later(2.6)
            await at.until(lambda: state(at, "first") == "fault")
            await at.later(10.1)
            await at.until(lambda: "first" not in at.broker.site.recipients.local)


NAMED: list[list[dict[str, object]]] = [
    [{**EVERYTHING, "clients": ["a", "b", "shop"]}],
    [{"allow": ["subscribe"], "topics": ["app/%c/#"]}, {"allow": ["publish"], "topics": ["app/#"], "clients": ["shop"]}],
]


@pytest.mark.parametrize("begins", [*NAMED, [EVERYTHING]])
@pytest.mark.parametrize("rules", NAMED)
async def test_rules_that_name_who_may_do_what_lose_nothing(rules: list[dict[str, object]], begins: list[dict[str, object]]) -> None:
    """Where messages wait is the broker's own; no rule speaks of that. The rules become others while one waits."""
    async with guarded(application("a", "b"), application("b"), rules=begins) as at:
        sender = await at.client("shop")
        assert await sender.publish("app/a/x", b"1", 1) == 0
        access = parse({"access": {"rule": rules}}).access
        parts = at.broker.site
        parts.guard.renew(access, [], parts.sessions, parts.router.unsubscribe)
        parts.router.rules_changed(parts.sessions)
        assert await sender.publish("app/a/x", b"2", 1) == 0
        a = await served(at, "a")
        assert [one.payload for one in await a.messages(2)] == [b"1", b"2"]
        assert await sender.publish("app/a/x", b"3", 1) == 0
        assert [one.payload for one in await a.messages(1)] == [b"3"]


async def test_messages_are_not_moved_to_who_does_not_take_them() -> None:
    shy = application("shy", consents=["nobody"])
    async with guarded(application("a"), application("b"), application("c"), shy) as at:
        await served(at, "b")
        overview(at).defunct("c")
        for to, why in (
            ("b", "'b' does not take messages of 'a' now: its client may not read app/a/#"),
            ("c", "'c' does not take messages of 'a' now: it is known to be in DEFUNCT"),
            ("shy", "'shy' does not take messages of 'a' now: it does not consent to messages of a"),
        ):
            with pytest.raises(UsageError, match=why):
                overview(at).move("a", to)


def test_clients_that_roam_are_no_recipients() -> None:
    mesh = {"name": "m", "key": "0123456789abcdef", "clients": "roam"}
    with pytest.raises(ConfigError) as caught:
        parse({"name": "porto", "number": 1, "mesh": mesh, "recipients": {}})
    assert str(caught.value).startswith('command line: mesh.clients = "roam": give "site" where there is a table [recipients]')


async def test_what_is_registered_no_more_after_a_restart_is_dropped() -> None:
    book, store = Book(Registered("orders", "site0"), Registered("stock", "site0")), MemoryStore()
    async with with_directory(book, store=store) as at:
        book.changed()
        recipients = at.broker.site.recipients
        assert recipients is not None
        assert sorted(recipients.local) == ["orders", "stock"]
        await kept(at)
        copy = crashed(store)
    del book.records["orders"]
    made = site(copy)
    made.broker.site.registrar = Registrar(book)
    async with made as at:
        recipients = at.broker.site.recipients
        assert recipients is not None
        assert sorted(recipients.local) == ["orders", "stock"], "no listing has come yet"
        book.changed()
        await at.until(lambda: sorted(recipients.local) == ["stock"])
