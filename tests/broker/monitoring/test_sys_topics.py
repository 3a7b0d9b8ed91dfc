"""`$SYS`: the names that Mosquitto's users know, with the right values."""

from __future__ import annotations

from mqmesh.mqtt.packets import Pingreq, Pingresp, Publish, Subscription
from support.broker_site import Client, Site

# What Mosquitto 2.0 says of itself, below $SYS/broker.
NAMES = """
bytes/received bytes/sent clients/connected clients/disconnected clients/expired clients/maximum clients/total clients/active
clients/inactive heap/current heap/maximum messages/received messages/sent messages/stored publish/bytes/received publish/bytes/sent
publish/messages/dropped publish/messages/received publish/messages/sent retained!messages/count store/messages/bytes
store/messages/count subscriptions/count shared_subscriptions/count uptime version
load/bytes/received/1min load/bytes/sent/5min load/connections/15min load/messages/received/1min load/messages/sent/1min
load/publish/dropped/1min load/publish/received/1min load/publish/sent/1min load/sockets/1min
""".replace("!", " ")


async def test_the_names():
    async with Site(sys_interval=1) as site:
        client = await site.client("c")
        await client.subscribe("$SYS/#")
        await site.later(2)
        said = {run.topic.decode().removeprefix("$SYS/broker/") for run in site.broker.site.retained.matching("$SYS/broker/#", 0.0)}
        wanted = {line.strip() for line in NAMES.replace("retained messages", "retained_messages").split()}
        assert {name.replace("retained_messages", "retained messages") for name in wanted} <= said


async def test_the_values():
    async with Site(sys_interval=1) as site:
        subscriber = await site.client("s", clean=False, expiry=100)
        await subscriber.subscribe("t", Subscription("$share/g/u"), "v", qos=1)
        publisher = await site.client("p")
        for qos in (0, 1, 2):
            await publisher.publish("t", bytes(100), qos)
        await subscriber.messages(3)
        await publisher.publish("r", b"x", retain=True)
        await subscriber.leave()
        await publisher.publish("v", bytes(100), 1)
        values = site.broker.sys_topics.values()
        assert (values["name"], values["state"]) == (site.broker.config.name, "ok")
        assert int(values["held/bytes"]) > 0
        assert int(values["held/bytes/limit"]) == site.broker.config.limits.broker_bytes
        assert abs(int(values["clock"]) - site.broker.context.wall()) <= 1
        assert values["clients/connected"] == "1"
        assert values["clients/disconnected"] == "1"
        assert values["clients/total"] == "2"
        assert values["subscriptions/count"] == "3"
        assert values["shared_subscriptions/count"] == "1"
        assert values["publish/messages/received"] == "5"
        assert values["publish/messages/sent"] == "3"
        assert int(values["publish/bytes/received"]) > 400
        assert int(values["publish/bytes/sent"]) > 300
        assert int(values["messages/received"]) >= 5 + 2 + 1 + 1  # CONNECTs, SUBSCRIBE, DISCONNECT, ...
        assert int(values["messages/sent"]) >= 3 + 2 + 1
        assert int(values["store/messages/count"]) >= 2
        assert int(values["bytes/received"]) > int(values["publish/bytes/received"])


async def test_what_the_broker_says_itself_is_not_counted() -> None:
    async with Site(sys_interval=1) as site:
        client = await site.client("c")
        await client.publish("r", b"x", retain=True)
        await site.later(3)
        values = site.broker.sys_topics.values()
        assert values["retained messages/count"] == values["messages/stored"] == values["store/messages/count"] == "1"
        assert int(values["store/messages/bytes"]) < 1000
        await client.publish("r", b"", retain=True)
        assert site.broker.sys_topics.values()["store/messages/bytes"] == "0"


async def test_the_most_clients_so_far_are_counted_when_they_connect() -> None:
    async with Site(sys_interval=0) as site:
        clients = [await site.client(name) for name in ("a", "b", "c")]
        await site.client("a")  # takes over
        for client in clients[1:]:
            await client.leave()
        values = site.broker.sys_topics.values()
        assert (values["clients/connected"], values["clients/maximum"]) == ("1", "3")


async def heard(client: Client) -> list[Publish]:
    """What has come, and what is on the way."""
    client.send(Pingreq())
    found = []
    while not isinstance(packet := await client.receive(), Pingresp):
        found.append(packet)
    return found


async def test_values_are_said_when_they_change():
    async with Site(sys_interval=10) as site:
        client = await site.client("c")
        await client.subscribe("$SYS/broker/clients/+", "$SYS/broker/version")
        await site.later(11)
        assert await heard(client)
        other = await site.client("other")
        await site.later(11)
        await other.nothing()
        messages = await heard(client)
        assert not any(message.retain for message in messages)
        said = {message.topic: message.payload for message in messages}
        assert said["$SYS/broker/clients/connected"] == b"2"
        assert "$SYS/broker/version" not in said
        late = await site.client("late")
        await late.subscribe("$SYS/broker/version")
        message = await late.expect(Publish, retain=True)
        assert message.payload.startswith(b"mqmesh version ")


async def test_no_sys_topics_at_interval_0():
    async with Site(sys_interval=0) as site:
        client = await site.client("c")
        await client.subscribe("$SYS/#")
        await site.later(100)
        await client.nothing()
