"""Mosquitto as community broker with the access rules in docs/metabroker.md: what its clients get, send, and do not."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
from mqmesh.base.metabroker import Code
from mqmesh.client import MetabrokerConnectionFactory
from support.brokers import RunningBroker, running_broker
from support.paho_client import Paho
from support.remotes import POLICY, Member, running_metabroker
from support.services import free_port, require, wait_for_port

pytestmark = pytest.mark.service
PAGE = Path(__file__).parents[3] / "docs" / "metabroker.md"
SECRET = "a secret of the two of them"
WIDE = ["#", "+/#", "metabroker/#", "metabroker/request/#", "metabroker/response/+/#", "+/+/+/+/+", "$share/g/metabroker/#", "$share/h/#"]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("remote"), "mosquitto") as running:
        yield running


@pytest.fixture(scope="module")
def community(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("community")
    rules = re.search(r"```\n(# everybody.*?)```", PAGE.read_text(), re.DOTALL)
    assert rules is not None
    (folder / "acl").write_text(rules[1])
    (folder / "password").write_text(SECRET)
    subprocess.run([require("mosquitto_passwd"), "-b", "-c", folder / "passwords", "metabroker", SECRET], check=True, capture_output=True)
    for name in ("acl", "passwords"):
        (folder / name).chmod(0o644)
    port = free_port()
    lines = [
        "user root",
        f"listener {port} 127.0.0.1",
        "allow_anonymous true",
        f"password_file {folder}/passwords",
        f"acl_file {folder}/acl",
    ]
    (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
    with (folder / "mosquitto.log").open("w") as log:
        process = subprocess.Popen([require("mosquitto"), "-c", folder / "mosquitto.conf"], stdout=log, stderr=log)
    try:
        wait_for_port(port)
        options = ("--password-file", str(folder / "password"), "--by-client")
        with running_metabroker(folder, f"mqtt://metabroker@127.0.0.1:{port}", POLICY, "", *options):
            yield port
    finally:
        process.terminate()
        process.wait()


def quiet(client: Paho) -> None:
    """No message has come, and none is on the way: the answer to what it asks now comes behind."""
    client.subscribe("plant/end", 1)
    while not client.messages.empty():
        topic = client.messages.get().topic
        assert topic.startswith("metabroker/status/"), topic  # how the metabroker is, everybody may know


@pytest.mark.parametrize("version", [4, 5])
def test_clients_work_and_are_kept_apart(community: int, remote: RunningBroker, version: int) -> None:
    spy = Paho(community, version, "spy").open()
    granted = [spy.subscribe(topic_filter, 1) for topic_filter in (WIDE if version == 5 else WIDE[:6])]
    assert granted == [1] * len(granted), "it is not asked at SUBSCRIBE"
    near, far = Member(community, f"near{version}", version), Paho(remote.port).open()
    assert near.connect(remote.url, username="u", password="secret")["code"] == Code.OK
    assert re.fullmatch(rf"near{version}/[0-9a-f]{{32}}", near.session)
    assert near.ask("subscribe", message=1, topics=["down"], qos=1)["code"] == Code.OK
    far.publish("down", b"news", 1)
    assert near.next()[1]["payload"] == b"news"
    far.subscribe("up", 1)
    assert near.ask("publish", message=2, topic="up", payload=b"1", qos=1)["code"] == Code.OK
    assert far.next().payload == b"1"

    spy.subscribe(f"metabroker/response/{near.session}/#", 1)
    spy.subscribe(f"metabroker/response/near{version}/connack", 1)
    refused = 0x87 if version == 5 else 0  # MQTT 3.1.1 cannot say it
    body = msgpack.packb({"message": 3, "topic": "up", "payload": b"forged", "qos": 1})
    assert spy.publish(f"metabroker/request/{near.session}/publish", body, 1) == refused, "another's session"
    assert spy.publish(f"metabroker/request/{near.session}/disconnect", b"", 1) == refused
    assert spy.publish(f"metabroker/response/{near.session}/publish", msgpack.packb({"payload": b"forged"}), 1) == refused
    assert spy.publish(f"metabroker/response/near{version}/connack", msgpack.packb({"code": 0, "session": "x"}), 1) == refused
    assert near.ask("publish", message=4, topic="up", payload=b"2", qos=1)["code"] == Code.OK
    assert far.next().payload == b"2"
    assert near.ask("disconnect") == {"code": 0}
    quiet(spy)
    for client in (spy, near, far):
        client.close()


def test_identifiers_with_wildcards_are_no_way_in(community: int, remote: RunningBroker) -> None:
    """`%c` stands for a client identifier as it is: Mosquitto lets none with a wildcard read or write by such a rule."""
    near = Member(community, "near")
    odd = [Paho(community, 5, client_id).open() for client_id in ("+", "#", "near/+", "+/+", "connect")]
    for client in odd:
        client.subscribe("metabroker/#", 1)
        client.subscribe("#", 1)
    assert near.connect(remote.url)["code"] == Code.OK
    assert near.ask("publish", message=1, topic="up", qos=1)["code"] == Code.OK
    for client in odd:
        quiet(client)
        client.close()
    near.close()


def test_the_python_client_and_the_script_work_under_the_rules(community: int, remote: RunningBroker) -> None:
    far = Paho(remote.port).open()
    far.subscribe("demo/#", 1)
    script = ["sh", str(PAGE.parents[1] / "examples" / "metabroker.sh"), "127.0.0.1", str(community), remote.url]
    done = subprocess.run(script, capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stderr) == (0, "")
    assert "session demo/" in done.stdout
    assert far.next().topic == "demo/temperature"
    with MetabrokerConnectionFactory(f"mqtt://127.0.0.1:{community}", remote.url, client_id="office").create_context() as context:
        consumer = context.create_consumer(context.create_topic("rain/#"))
        context.create_producer().send(context.create_topic("rain/rhine"), "7 mm")
        message = consumer.receive(60)
        assert message is not None
        assert message.body == "7 mm"
    look = Paho(community, 5, "look").open()
    look.subscribe("metabroker/status/#", 1)
    assert look.next().topic == "metabroker/status/metabroker"
    for client in (far, look):
        client.close()
