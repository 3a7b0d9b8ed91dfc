"""A broker inside a program: `from mqmesh import Broker`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mqmesh import Broker, BrokerConfig, StartError
from mqmesh.mqtt.packets import Publish, Suback, Subscribe, Subscription
from paho.mqtt.client import CallbackAPIVersion
from paho.mqtt.client import Client as PahoClient
from support.broker_site import Site
from support.paho_client import Paho
from support.services import PATIENCE, free_port

ROOT = Path(__file__).parents[2]
ANY = "mqtt://127.0.0.1:0"


@pytest.mark.process
def test_the_package_is_light() -> None:
    """`import mqmesh` imports nothing else of ours."""
    code = "import sys, mqmesh; print([name for name in sys.modules if name.startswith('mqmesh.')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_name_that_is_not_there() -> None:
    import mqmesh

    with pytest.raises(AttributeError, match="Bröker"):
        _ = mqmesh.Bröker


async def test_it_listens_inside_the_block() -> None:
    async with Broker(BrokerConfig(listen=[ANY])) as broker:
        assert re.fullmatch(r"mqtt://127.0.0.1:\d+", broker.addresses[0])
    address = f"mqtt://127.0.0.1:{free_port()}"
    async with Broker(BrokerConfig(listen=[address])):
        with pytest.raises(StartError, match="the address is taken"):
            await Broker(BrokerConfig(listen=[address])).start()
    async with Broker(BrokerConfig(listen=[address])):
        pass  # the address is free again


async def test_it_publishes() -> None:
    async with Site() as site:
        client = await site.client("porto")
        client.send(Subscribe(1, [Subscription("site/#", 1)]))
        await client.expect(Suback)
        site.broker.publish("site/notice", b"hello", 1)
        found = await client.expect(Publish)
        assert (found.topic, found.payload, found.qos) == ("site/notice", b"hello", 1)
        site.broker.publish("site/kept", b"stays", retain=True)
        assert len(site.broker.site.retained) == 1


@pytest.mark.parametrize("topic", ["a/+/b", "", "$SYS/broker/name", "$mqmesh/sessions"])
async def test_topics_that_it_may_not_publish_to(topic: str) -> None:
    async with Site() as site:
        with pytest.raises(ValueError, match=re.escape(repr(topic))):
            site.broker.publish(topic, b"x")


@pytest.mark.process
def test_the_example() -> None:
    command = [sys.executable, "examples/embedded.py", ANY]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        port = int(program.stdout.readline().rpartition(":")[2])
        client = PahoClient(CallbackAPIVersion.VERSION2, "porto")
        client.connect("127.0.0.1", port)
        client.loop_start()
        assert re.fullmatch(r"porto is connected from 127.0.0.1:\d+\n", program.stdout.readline())
        client.publish("plant/3/temperature", "21.5", qos=1).wait_for_publish(PATIENCE)
        client.disconnect()
        client.loop_stop()
        assert program.stdout.readline() == "porto is gone, its session has ended\n"
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=PATIENCE)
        assert (out, program.returncode) == ("porto published 4 bytes\n", 0), err


@pytest.mark.process
def test_the_example_of_translations(tmp_path: Path) -> None:
    command = [sys.executable, "examples/translate.py", ANY, str(tmp_path / "data")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        port = int(program.stdout.readline().rpartition(":")[2])
        with Paho(port, client_id="clerk") as clerk, Paho(port, client_id="shop") as shop:
            clerk.subscribe("$queue/billing", 1)
            for order in ("", "3 cranes"):
                shop.publish("$queue/orders", order, 1)
            assert clerk.next().payload == b"invoice: 3 cranes"
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=PATIENCE)
        assert (out, program.returncode) == ("", 0), err
