"""The wire mapping of docs/client-wire.md, seen by a plain MQTT client and written by one; and what brokers refuse."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import msgpack
import pytest
from mqmesh.client import BytesMessage, ConnectionFactory, Context, DeliveryMode, JMSError, JMSSecurityError, MapMessage, TextMessage, Topic
from support.brokers import RunningBroker
from support.certificates import Certificates
from support.command import start
from support.jms_client import PATIENCE
from support.paho_client import Paho
from support.services import free_port, require, wait_for_port


def test_what_a_plain_client_sees(broker: RunningBroker, context: Context, name: str) -> None:
    with Paho(broker.port) as plain:
        plain.subscribe(name, 2)
        producer = context.create_producer().set_property("weight", 2.5).set_property("color", "red").set_priority(9)
        producer.set_correlation_id("c1").set_reply_to(Topic("answers")).set_type("car").set_time_to_live(1_500_000)
        producer.send(Topic(name), "text")
        found = plain.next()
        assert (found.payload, found.qos) == (b"text", 1)
        values = dict(found.properties.UserProperty)
        assert values["JMSMessageID"].startswith(context.connection.prefix)
        expiration = str(int(values["JMSTimestamp"]) + 1_500_000)
        expected = {"JMSPriority": "9", "JMSType": "car", "JMSExpiration": expiration}
        assert expected.items() <= values.items()
        assert (values["color"], values["weight"], values["JMSTypes"]) == ("red", "2.5", "weight=double")
        assert (found.properties.PayloadFormatIndicator, found.properties.ResponseTopic) == (1, "answers")
        assert found.properties.CorrelationData == b"c1"
        assert 1400 <= found.properties.MessageExpiryInterval <= 1500

        message = MapMessage()
        message.set("n", 3, "short")
        context.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT).send(Topic(name), message)
        found = plain.next()
        assert (msgpack.unpackb(found.payload), found.qos) == ([["n", "short", 3]], 0)
        assert found.properties.ContentType == "application/msgpack"


def test_what_a_plain_client_sends(broker: RunningBroker, context: Context, name: str) -> None:
    consumer = context.create_consumer(Topic(name), "color = 'red'")
    with Paho(broker.port) as plain:
        plain.publish(name, "not selected", 1)
        plain.publish(name, b"\xff", 1, UserProperty=[("color", "red")])
        plain.publish(
            name, "text", 0, UserProperty=[("color", "red"), ("color", "blue")], PayloadFormatIndicator=1, CorrelationData=b"\xff"
        )
        first, second = consumer.receive(PATIENCE), consumer.receive(PATIENCE)
    assert isinstance(first, BytesMessage)
    assert (first.body, first.delivery_mode, first.message_id) == (b"\xff", DeliveryMode.PERSISTENT, None)
    assert isinstance(second, TextMessage)
    assert (second.text, second.delivery_mode, second.correlation_id) == ("text", DeliveryMode.NON_PERSISTENT, b"\xff")
    assert second.get_string_property("color") == "red"


@pytest.mark.service
def test_6_1_1_wrong_passwords_are_security_errors(tmp_path: Path) -> None:
    """Mosquitto with a password file; access to one topic is refused as well."""
    port, passwords, access = free_port(), tmp_path / "passwords", tmp_path / "access"
    subprocess.run([require("mosquitto_passwd"), "-b", "-c", passwords, "user", "right:@/"], check=True)
    access.write_text("topic readwrite open/#\n\nuser user\ntopic readwrite open/#\n")
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous false\npassword_file {passwords}\nacl_file {access}\nuser root\n")
    broker = subprocess.Popen([require("mosquitto"), "-c", config], stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port)
        with pytest.raises(JMSSecurityError, match="not authorized") as caught:
            ConnectionFactory(f"mqtt://user:wrong@127.0.0.1:{port}").create_connection()
        assert caught.value.error_code == "0x87"
        with ConnectionFactory(f"mqtt://127.0.0.1:{port}").create_context(user="user", password="right:@/") as context:
            context.create_producer().send(Topic("open/a"), "x")
            with pytest.raises(JMSSecurityError):
                context.create_producer().send(Topic("closed"), "x")
        with ConnectionFactory(f"mqtt://user:right%3A%40%2F@127.0.0.1:{port}").create_context() as context:
            context.create_producer().send(Topic("open/a"), "x")
    finally:
        broker.kill()
        broker.wait()


@pytest.mark.process
def test_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificates.broker("porto")
    broker = start("broker", "--listen", "mqtts://127.0.0.1:0", *certificates.options("porto", "none"), stderr=tmp_path / "log")
    try:
        url = broker.stdout.readline().split()[1]  # type: ignore[union-attr]
        with pytest.raises(JMSError, match="certificate"):
            ConnectionFactory(url).create_connection()
        with ConnectionFactory(url, tls=ssl.create_default_context(cafile=certificates.ca)).create_context() as context:
            consumer = context.create_consumer(Topic("a"))
            body = bytes(range(256)) * 1000
            for _ in range(3):
                context.create_producer().send(Topic("a"), body)
            assert [message.body for _ in range(3) if (message := consumer.receive(PATIENCE))] == [body] * 3
    finally:
        broker.terminate()
        broker.wait(PATIENCE)
