"""Recipients: probes, several applications and clients, groups, operators, directories (rows F5, F7, F12, F15, F17, F18, F20, F21)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqmesh.broker.recipients.directory import Answer
from mqmesh.broker.recipients.settings import Application, Intervals
from mqmesh.broker.recipients.shell import Recipients
from mqmesh.mqtt.packets import Connack, Connect, Puback
from mqmesh.mqtt.properties import Property
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site

from .test_recipients import application, served, site, state, users


def of(at: Site) -> Recipients:
    recipients = at.broker.site.recipients
    assert recipients is not None
    return recipients


def properties(**values: str) -> list[tuple[str, str]]:
    return [(f"mqmesh-{name.replace('_', '-')}", value) for name, value in values.items()]


async def in_fault(at: Site, sender: Client, name: str, client: Client) -> Any:
    """A recipient is in FAULT, with one message as its probe, which is the answer."""
    await sender.publish(f"app/{name}/x", b"probe", 1)
    (got,) = await client.messages(1, acknowledge=False)
    await at.later(3.1)
    await at.until(lambda: state(at, name) == "fault")
    return got


async def test_f5_an_expired_probe_makes_room_for_the_next_message() -> None:
    async with site(MemoryStore(), message_interval=3, application=[application("a", "b"), application("b")]) as at:
        b = await served(at, "b")
        sender = await at.client("shop")
        await sender.publish("app/a/x", b"1", 1, properties={Property.MESSAGE_EXPIRY_INTERVAL: 5})
        await at.later(3.1)
        await at.until(lambda: state(at, "a") == "fault")
        await sender.publish("app/a/x", b"2", 1)
        assert (await b.messages(1))[0].payload == b"2"
        a = await served(at, "a")
        assert state(at, "a") == "operational"
        assert (await a.messages(1))[0].payload == b"1"


async def test_f5_an_empty_probe_for_who_takes_one() -> None:
    async with site(application=[application("a", "b", probe=True), application("b")]) as at:
        a, b = await served(at, "a"), await served(at, "b")
        sender = await at.client("shop")
        await sender.publish("app/a/x", b"1", 1)
        await a.messages(1, acknowledge=False)
        await at.later(1.1)
        assert (await b.messages(1))[0].payload == b"1"
        await at.later(2.1)
        (probe,) = await a.messages(1, acknowledge=False)
        assert (probe.topic, probe.payload, probe.qos) == ("app/a/probe", b"", 1)
        assert state(at, "a") == "fault"
        a.send(Puback(probe.packet_id))
        await at.until(lambda: state(at, "a") == "operational")


async def test_f5_without_a_probe_the_next_message_is_one() -> None:
    async with site(application=[application("a", "b"), application("b")]) as at:
        a, b = await served(at, "a"), await served(at, "b")
        sender = await at.client("shop")
        await sender.publish("app/a/x", b"1", 1)
        await a.messages(1, acknowledge=False)
        await at.later(1.1)
        await b.messages(1)
        await at.later(2.1)
        await at.until(lambda: state(at, "a") == "fault")
        for number in range(2, 5):
            await sender.publish("app/a/x", b"%d" % number, 1)
        (probe,) = await a.messages(1, acknowledge=False)
        assert probe.payload == b"2"
        assert [one.payload for one in await b.messages(2)] == [b"3", b"4"]
        a.send(Puback(probe.packet_id))
        await at.until(lambda: state(at, "a") == "operational")


async def test_f17_a_delivery_to_an_alternative_counts_for_its_own_surveillance() -> None:
    async with site(message_interval=3, application=[application("a", "b", "c"), application("b"), application("c")]) as at:
        a, b, c = await served(at, "a"), await served(at, "b"), await served(at, "c")
        sender = await at.client("shop")
        await in_fault(at, sender, "a", a)
        await sender.publish("app/a/x", b"1", 1)
        await b.messages(1, acknowledge=False)
        await at.later(3.1)
        await at.until(lambda: state(at, "b") == "fault")
        await sender.publish("app/a/x", b"2", 1)
        assert users((await c.messages(1))[0])["mqmesh-failed-over"] == "a,b"


async def test_f20_intervals_of_their_own() -> None:
    slow = application("slow", message_interval=100, fault_interval=100)
    async with site(message_interval=3, application=[application("a"), slow]) as at:
        a, other = await served(at, "a"), await served(at, "slow")
        sender = await at.client("shop")
        await sender.publish("app/slow/x", b"1", 1)
        await other.messages(1, acknowledge=False)
        await in_fault(at, sender, "a", a)
        assert state(at, "slow") == "operational"


async def test_f21_several_applications_on_one_client() -> None:
    apps = [application("a", "z", client="both"), application("b", "z", client="both"), application("z")]
    async with site(message_interval=3, application=apps) as at:
        both, z = await at.client("both"), await served(at, "z")
        await both.subscribe("app/a/#", "app/b/#", qos=1)
        sender = await at.client("shop")
        await in_fault(at, sender, "a", both)
        await sender.publish("app/b/x", b"b", 1)
        assert (await both.messages(1))[0].payload == b"b"
        await sender.publish("app/a/x", b"a", 1)
        assert (await z.messages(1))[0].payload == b"a"
        assert (state(at, "a"), state(at, "b")) == ("fault", "operational")


async def test_f21_one_application_on_several_clients() -> None:
    async with site(application=[application("a", clients=["one", "two"])]) as at:
        one, two = await at.client("one"), await at.client("two")
        for client in (one, two):
            await client.subscribe("app/a/#", qos=1)
        sender = await at.client("shop")
        for number in range(4):
            await sender.publish("app/a/x", b"%d" % number, 1)
        assert len(await one.messages(2)) == len(await two.messages(2)) == 2
        await one.cut()
        await at.gone("one")
        await sender.publish("app/a/x", b"4", 1)
        assert (await two.messages(1))[0].payload == b"4"


async def test_f18_a_client_declares_itself_in_connect() -> None:
    async with site(application=[application("b")]) as at:
        mine = properties(alternatives="b", message_interval="1", fault_interval="2s", consents="*")
        a = await at.client("a", user_property=mine)
        await a.subscribe("orders/#", "app/a/#", qos=1)
        b = await served(at, "b")
        found = of(at).local["a"].application
        assert (found.alternatives, found.intervals, found.consents) == (["b"], Intervals(1, 2, 10), ["*"])
        sender = await at.client("shop")
        await sender.publish("orders/new", b"1", 1)
        await a.messages(1, acknowledge=False)
        await at.later(1.1)
        assert users((await b.messages(1))[0])["mqmesh-failed-over"] == "a"
        await sender.publish("app/a/x", b"2", 1)
        assert (await a.messages(1))[0].payload == b"2"


async def test_f18_what_contradicts_itself_is_refused() -> None:
    wrong = [
        properties(fault_interval="1", message_interval="5"),
        properties(alternatives="a"),
        properties(recipient="somebody-else"),
        properties(alternatives=",".join(f"b{number}" for number in range(10_000))),
        properties(message_interval="soon"),
    ]
    async with site() as at:
        for found in wrong:
            client = await at.dial()
            client.send(Connect("a", 5, True, 0, None, None, None, {Property.USER_PROPERTY: found}))
            connack = await client.expect(Connack, reason=0x83)
            assert "mqmesh-" in connack.properties[Property.REASON_STRING]
        assert "a" not in of(at).local


async def test_a_member_of_a_group_in_fault_gives_its_messages_back_to_the_group() -> None:
    async with site(message_interval=3, application=[application("a", "b"), application("b")]) as at:
        a, other, b = await at.client("a"), await at.client("other"), await served(at, "b")
        await a.subscribe("$share/g/orders", qos=1)
        sender = await at.client("shop")
        for number in range(3):
            await sender.publish("orders", b"%d" % number, 1)
        await a.messages(3, acknowledge=False)
        await other.subscribe("$share/g/orders", qos=1)
        await at.later(3.1)
        await at.until(lambda: state(at, "a") == "fault")
        assert sorted(one.payload for one in await other.messages(2)) == [b"1", b"2"]
        await sender.publish("orders", b"3", 1)
        assert (await other.messages(1))[0].payload == b"3"
        await b.nothing()


async def test_operators_hold_resume_move_and_declare() -> None:
    async with site(MemoryStore(), application=[application("a", "b"), application("b")]) as at:
        a, b = await served(at, "a"), await served(at, "b")
        sender = await at.client("shop")
        assert of(at).operating.hold("a")
        await sender.publish("app/a/x", b"1", 1)
        await at.later(20)
        await a.nothing()
        assert of(at).describe("a")[0]["queue"] == 1
        assert of(at).operating.resume("a")
        at.broker.context.flush()
        assert (await a.messages(1))[0].payload == b"1"
        of(at).operating.hold("a")
        await sender.publish("app/a/x", b"2", 1)
        assert of(at).operating.move("a", "b")
        at.broker.context.flush()
        assert (await b.messages(1))[0].payload == b"2"
        of(at).operating.resume("a")
        assert of(at).operating.defunct("a")
        at.broker.context.flush()
        await a.closed(0x98)
        await sender.publish("app/a/x", b"3", 1)
        assert (await b.messages(1))[0].payload == b"3"
        assert not of(at).operating.defunct("nobody")


class Directory:
    """Answers when the test lets it."""

    def __init__(self, **known: Application) -> None:
        self.known = known
        self.away = True

    def cached(self, name: str) -> Application | None:
        return None if self.away else self.known.get(name)

    def resume(self, kept: list[Application]) -> None:
        """Nothing is at home here."""

    def opened(self, client_id: str) -> None:
        """Nothing is at home where a client comes."""

    def declare(self, application: Application) -> None:
        """It is not asked for."""

    def withdraw(self, name: str) -> None:
        """It is not asked for."""

    def ask(self, name: str, answer: Callable[[Application | Answer], None]) -> None:
        answer(Answer.AWAY if self.away else self.known.get(name, Answer.UNKNOWN))


async def test_f7_f15_messages_wait_for_a_directory_that_is_away() -> None:
    async with site(MemoryStore()) as at:
        directory = of(at).directory = Directory(a=Application("a", ["a"]))
        sender = await at.client("shop")
        await sender.subscribe("app/shop/returned", qos=1)
        assert await sender.publish("app/a/x", b"1", 1) == 0
        assert await sender.publish("app/nobody/x", b"2", 1) == 0
        directory.away = False
        of(at).tick()
        at.broker.context.flush()
        (back,) = await sender.messages(1)
        assert (back.payload, users(back)["mqmesh-returned"]) == (b"2", "unknown")
        a = await served(at, "a")
        assert (await a.messages(1))[0].payload == b"1"
        assert await sender.publish("app/nobody/x", b"3", 1) == 0x90
        assert await sender.publish("app/a/x", b"4", 1) == 0
