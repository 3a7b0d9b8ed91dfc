"""The JMS-like client and the commands `pub` and `sub` over ws and wss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.base.address import parse_address
from mqmesh.client import BytesMessage, ConnectionFactory, JMSError, Topic
from support.brokers import RunningBroker, running_broker
from support.certificates import Certificates
from support.command import run, start
from support.jms_client import PATIENCE, texts
from support.paho_client import Paho

pytestmark = pytest.mark.process


@pytest.fixture(scope="module", params=["mqmesh", pytest.param("mosquitto", marks=pytest.mark.service)])
def web(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("broker"), request.param, web=True) as running:
        yield running


def there_and_back(factory: ConnectionFactory, name: str) -> None:
    with factory.create_context() as context:
        consumer, producer = context.create_consumer(Topic(name)), context.create_producer()
        for number in range(300):
            producer.send(Topic(name), f"message {number}")
        large = BytesMessage()
        large.write_bytes(b"x" * 100_000)
        producer.send(Topic(name), large)
        assert texts(consumer, 300) == [f"message {number}" for number in range(300)]
        assert consumer.receive(PATIENCE).get_body(bytes) == b"x" * 100_000


def test_the_client_over_ws(web: RunningBroker, name: str) -> None:
    there_and_back(ConnectionFactory(web.web_url), name)


def test_a_connection_that_breaks_comes_back(web: RunningBroker, name: str) -> None:
    with ConnectionFactory(web.web_url, client_id=name).create_context() as context:
        consumer = context.create_durable_consumer(Topic(name), "kept")
        context.create_producer().send(Topic(name), "before")
        assert texts(consumer, 1) == ["before"]
        for link in list(context.connection.transport._links):  # type: ignore[attr-defined]
            link._client.socket()._socket.shutdown(2)
        context.create_producer().send(Topic(name), "behind")
        assert texts(consumer, 1) == ["behind"]


def test_pub_and_sub_over_ws(web: RunningBroker, name: str) -> None:
    with Paho(web.port) as other:
        other.subscribe(name, 2)
        done = run("pub", "-h", web.web_url, "-t", name, "-l", "-q", 2, stdin=b"".join(b"line %d\n" % n for n in range(200)))
        assert done.returncode == 0, done.stderr
        assert [other.next().payload for _ in range(200)] == [b"line %d" % n for n in range(200)]
        other.publish(f"{name}/kept", b"hello", 1, retain=True)
        heard = run("sub", "-h", web.web_url, "-t", f"{name}/kept", "-q", 1, "-C", 1, "-W", 90)
        assert (heard.returncode, heard.stdout) == (0, b"hello\n")


def test_wss_and_what_is_wrong(tmp_path: Path, name: str) -> None:
    certificates = Certificates(tmp_path)
    certificates.broker("porto")
    broker = start("broker", "--listen", "wss://127.0.0.1:0/plant", *certificates.options("porto"), stderr=tmp_path / "log")
    assert broker.stdout is not None
    port = parse_address(broker.stdout.readline().split()[1]).port
    url = f"wss://localhost:{port}/plant"
    try:
        there_and_back(ConnectionFactory(url, tls=certificates.context()), name)
        assert run("pub", "-h", url, "--cafile", certificates.ca, "-t", name, "-m", "x", "-q", 1).returncode == 0
        done = run("pub", "-h", f"wss://localhost:{port}/mqtt", "--cafile", certificates.ca, "-t", name, "-m", "x")
        assert done.returncode == 1
        assert f"cannot connect to wss://localhost:{port}/mqtt: the server opens no WebSocket there. Are path".encode() in done.stderr
        with pytest.raises(JMSError, match="WebSocket"):
            ConnectionFactory(f"wss://localhost:{port}/mqtt", tls=certificates.context()).create_connection()
    finally:
        broker.terminate()
        assert broker.wait(PATIENCE) == 0
        broker.communicate()


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("ws://", "write .*ws://HOST:PORT/PATH"),
        ("http://h", "write .*ws://HOST:PORT/PATH"),
        ("ws://h/a?b", r"write a path without \? and #, as ws://h/mqtt"),
        ("wss://h:x", "write .*ws://HOST:PORT/PATH"),
    ],
)
def test_addresses_that_are_wrong(url: str, right: str) -> None:
    with pytest.raises(JMSError, match=right):
        ConnectionFactory(url)
