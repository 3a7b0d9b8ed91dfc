"""Different clients at different sites of one mesh: what goes in at one comes out at the others, unchanged and once."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import aiomqtt
import pytest
from amqtt.client import MQTTClient
from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet.process import Fleet
from support.paho_client import Paho
from support.services import PATIENCE, require

pytestmark = pytest.mark.slow
SETTLE = 90.0
NAMES = ("porto", "lyon", "turin")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    topology = ring(NAMES)
    topology.mesh = replace(topology.mesh, silence=60.0)  # a link that a busy machine gives up loses messages of QoS 0
    with Fleet(topology, tmp_path_factory.mktemp("fleet")) as running:
        running.wait_settled(SETTLE)
        yield running


def port(fleet: Fleet, name: str) -> int:
    return fleet.members[name].address.port


@pytest.mark.parametrize("qos", [1, 2])
def test_five_kinds_of_clients(fleet: Fleet, name: str, qos: int) -> None:
    count = 50
    with Paho(port(fleet, "lyon"), 5) as v5, Paho(port(fleet, "turin"), 4) as v4, Paho(port(fleet, "porto"), 5) as publisher:
        v5.subscribe(f"{name}/#", qos)
        v4.subscribe(f"{name}/#", qos)
        where = ["-p", str(port(fleet, "turin")), "-t", f"{name}/#", "-q", str(qos)]
        command = ["stdbuf", "-oL", require("mosquitto_sub"), "-d", *where, "-C", str(count), "-W", "90", "-F", "got %p"]
        tool = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        while "Subscribed" not in tool.stdout.readline():
            assert tool.poll() is None

        async def others() -> tuple[list[int], list[int]]:
            amqtt = MQTTClient(config={"auto_reconnect": False})
            await amqtt.connect(f"mqtt://127.0.0.1:{port(fleet, 'lyon')}")
            await amqtt.subscribe([(f"{name}/#", qos)])
            async with aiomqtt.Client("127.0.0.1", port(fleet, "turin"), timeout=PATIENCE) as asynchronous:
                await asynchronous.subscribe(f"{name}/#", qos)
                await asyncio.to_thread(fleet.wait_settled, SETTLE)
                for number in range(count):
                    publisher.client.publish(f"{name}/x", str(number), qos)
                first = []
                async with asyncio.timeout(PATIENCE):
                    async for message in asynchronous.messages:
                        first.append(int(message.payload))
                        if len(first) == count:
                            break
            second = [int((await amqtt.deliver_message(timeout_duration=PATIENCE)).data) for _ in range(count)]
            await amqtt.disconnect()
            return first, second

        expected = list(range(count))
        assert asyncio.run(others()) == (expected, expected)
        for subscriber in (v5, v4):
            got = [subscriber.next() for _ in range(count)]
            assert [int(message.payload) for message in got] == expected
            assert {message.qos for message in got} == {qos}
            subscriber.nothing_until(f"marker/{name}")
        assert [int(line[4:]) for line in tool.stdout if line.startswith("got ")] == expected
        assert tool.wait(PATIENCE) == 0
        tool.stdout.close()


def test_application_properties_cross_the_mesh_untouched(fleet: Fleet, name: str) -> None:
    sent = {
        "PayloadFormatIndicator": 1,
        "ContentType": "text/plain",
        "ResponseTopic": f"{name}/answer",
        "CorrelationData": bytes(range(200)),
        "UserProperty": [("b", "1"), ("a", "2"), ("b", "1")],
    }
    with Paho(port(fleet, "turin")) as subscriber, Paho(port(fleet, "porto")) as publisher:
        subscriber.subscribe(f"{name}/#", 2, identifier=9)
        fleet.wait_settled(SETTLE)
        for qos in (0, 1, 2):
            publisher.publish(f"{name}/x", "text", qos, MessageExpiryInterval=1000, **sent)
            message = subscriber.next()
            assert message.qos == qos
            assert {key: getattr(message.properties, key) for key in sent} == sent
            assert 990 <= message.properties.MessageExpiryInterval <= 1000
            assert message.properties.SubscriptionIdentifier == [9]


def test_request_at_one_site_and_answer_from_another(fleet: Fleet, name: str) -> None:
    with Paho(port(fleet, "porto")) as caller, Paho(port(fleet, "turin")) as service:
        service.subscribe(f"{name}/request", 1)
        caller.subscribe(f"{name}/answer", 1)
        fleet.wait_settled(SETTLE)
        caller.publish(f"{name}/request", b"2+2", 1, ResponseTopic=f"{name}/answer", CorrelationData=b"7")
        request = service.next()
        service.publish(request.properties.ResponseTopic, b"4", 1, CorrelationData=request.properties.CorrelationData)
        answer = caller.next()
        assert (answer.payload, answer.properties.CorrelationData) == (b"4", b"7")


def test_retained_messages_and_wills_cross_the_mesh(fleet: Fleet, name: str) -> None:
    with Paho(port(fleet, "lyon")) as watcher:
        watcher.subscribe(f"{name}/#", 1)
        fleet.wait_settled(SETTLE)
        with Paho(port(fleet, "porto")) as publisher:
            publisher.publish(f"{name}/state", b"kept", 1, retain=True)
        assert watcher.next().payload == b"kept"
        Paho(port(fleet, "turin"), will={"topic": f"{name}/will", "payload": b"gone", "qos": 1}).__enter__().vanish()
        assert watcher.next().payload == b"gone"
    for site in NAMES:
        with Paho(port(fleet, site)) as later:
            later.subscribe(f"{name}/state", 1)
            message = later.next()
            assert (message.payload, message.retain) == (b"kept", True)


def test_a_shared_subscription_has_one_group_over_all_sites(fleet: Fleet, name: str) -> None:
    with Paho(port(fleet, "lyon")) as a, Paho(port(fleet, "turin")) as b, Paho(port(fleet, "porto")) as publisher:
        for member in (a, b):
            member.subscribe(f"$share/g/{name}/#", 1)
            member.subscribe(f"end/{name}", 1)
        fleet.wait_settled(SETTLE)
        for number in range(100):
            publisher.publish(f"{name}/{number}", str(number), 1)
        publisher.publish(f"end/{name}", b"end", 1)
        got = []
        for member in (a, b):
            share = []
            while (message := member.next()).payload != b"end":
                share.append(int(message.payload))
            assert share
            got += share
        assert sorted(got) == list(range(100))
