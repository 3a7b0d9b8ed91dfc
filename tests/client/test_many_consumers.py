"""Many consumers of one program: one socket, and little memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from mqmesh.client import IllegalStateError, Topic
from support.brokers import RunningBroker
from support.jms_client import Collected, texts

PROGRAM = """
import os, sys
from mqmesh.client import ConnectionFactory, Topic

url, count = sys.argv[1], int(sys.argv[2])

def resident():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])

def sockets():
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            pass
    return sum(name.startswith("socket") for name in names)

with ConnectionFactory(url).create_context() as context:
    producer = context.create_producer()
    first = context.create_consumer(Topic("many/first"))
    producer.send(Topic("many/first"), "x")
    assert first.receive(60) is not None
    before, opened = resident(), sockets()
    consumers = [context.create_consumer(Topic(f"many/{number}")) for number in range(count)]
    for number in range(count):
        producer.send(Topic(f"many/{number}"), str(number))
    assert [consumer.receive(60).text for consumer in consumers] == [str(number) for number in range(count)]
    print(sockets() - opened, (resident() - before) / count)
"""


def test_a_thousand_consumers_share_one_socket_and_take_less_than_20_kib_each(broker: RunningBroker) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, broker.url, "1000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sockets, kibibytes = done.stdout.split()
    assert int(sockets) == 0
    assert float(kibibytes) <= 20, kibibytes


@pytest.mark.parametrize(("settings", "links"), [({}, 2), ({"own_links": True}, 4)])
def test_who_has_a_link_of_its_own(way: Any, name: str, settings: dict[str, bool], links: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with way.factory(**settings).create_context() as context:
        opened, real = [1], context.connection.transport.open
        monkeypatch.setattr(context.connection.transport, "open", lambda *given: opened.append(1) or real(*given))
        topics = [context.create_topic(f"{name}/{number}") for number in range(3)]
        consumers = [context.create_consumer(topic) for topic in topics]
        for topic in topics:
            context.create_producer().send(topic, topic.name)
        assert [texts(consumer, 1) for consumer in consumers] == [[topic.name] for topic in topics]
        assert len(opened) == links


def test_6_2_13_many_listeners_of_one_session_take_turns(way: Any, name: str) -> None:
    with way.factory().create_context() as context, context.create_context() as other:
        got: dict[int, Collected] = {number: Collected() for number in range(40)}
        consumers = [context.session.create_consumer(Topic(f"{name}/{number}")) for number in got]
        for number, consumer in enumerate(consumers):
            consumer.message_listener = got[number]
        producer = other.create_producer()
        for number in got:
            other.create_producer().set_delivery_delay(200).send(Topic(f"{name}/{number}"), "delayed")
        for text in ("a", "b"):
            for number in got:
                producer.send(Topic(f"{name}/{number}"), text)
        context.start()
        for collected in got.values():
            assert sorted(message.body for message in collected.wait(3)) == ["a", "b", "delayed"]
        consumers[0].message_listener = None
        producer.send(Topic(f"{name}/1"), "c")
        assert [message.body for message in got[1].wait(4)][3:] == ["c"]
        with pytest.raises(IllegalStateError):
            consumers[0].receive_no_wait()
        for consumer in consumers[1:]:
            consumer.close()
        producer.send(Topic(f"{name}/0"), "d")
        assert texts(consumers[0], 1) == ["d"]
