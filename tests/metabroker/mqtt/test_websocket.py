"""Remotes and communities over WebSocket: ours, and Mosquitto's listener, which others wrote; with TLS, and what does not work."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.base.address import parse_address
from mqmesh.base.metabroker import Code
from support.brokers import running_broker
from support.certificates import Certificates
from support.command import start
from support.paho_client import Paho
from support.remotes import POLICY, Member, running_metabroker
from support.services import PATIENCE

pytestmark = pytest.mark.process

WEB = POLICY.replace('"mqtt://127.0.0.1:*"', '"ws://127.0.0.1:*/*", "wss://localhost:*/*"')


@pytest.mark.service
@pytest.mark.parametrize("kind", ["mosquitto", "mqmesh"])
def test_there_and_back_at_every_qos_and_size(tmp_path: Path, kind: str) -> None:
    """The metabroker reaches both brokers over WebSocket alone."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with (
        running_broker(here, "mqmesh", web=True) as community,
        running_broker(there, kind, web=True) as remote,
        running_metabroker(tmp_path, community.web_url, WEB) as log,
    ):
        member, far = Member(community.port, "gauge"), Paho(remote.port, 4).open()
        assert member.connect(remote.web_url)["code"] == Code.OK
        assert member.ask("subscribe", message=1, topics=["down/#"], qos=2)["code"] == Code.OK
        far.subscribe("up/#", 2)
        for qos in (0, 1, 2):
            for size in (0, 200, 100_000):
                payload = bytes([qos + 1]) * size
                assert member.ask("publish", message=f"{qos}-{size}", topic="up/x", payload=payload, qos=qos)["code"] == Code.OK
                message = far.next()
                assert (message.qos, message.payload) == (qos, payload)
                far.publish("down/x", payload, qos)
                verb, body = member.next()
                assert (verb, body["qos"], body["payload"]) == ("publish", qos, payload)
        member.send("disconnect")
        member.close()
        far.close()
        assert "event=community-up" in log.read_text()


def test_a_remote_with_tls_and_one_that_says_no(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificates.broker("porto")
    listen = ("--listen", "wss://127.0.0.1:0/far", "--listen", "mqtt://127.0.0.1:0")
    broker = start("broker", *listen, *certificates.options("porto"), stderr=tmp_path / "broker.log")
    assert broker.stdout is not None
    web, plain = (parse_address(word).port for word in broker.stdout.readline().split()[1:3])
    try:
        with running_metabroker(tmp_path, plain, WEB + f'ca = "{certificates.ca}"\n') as log:
            member = Member(plain, "gauge")
            assert member.connect(f"wss://localhost:{web}/far")["code"] == Code.OK
            assert member.ask("publish", message=1, topic="t", payload=b"x", qos=1)["code"] == Code.OK
            other = Member(plain, "other")
            assert other.connect(f"wss://localhost:{web}/near")["code"] != Code.OK
            assert f"wss://localhost:{web}/near: it refuses WebSocket: 404 Not Found" in log.read_text()
            member.close()
            other.close()
    finally:
        broker.terminate()
        assert broker.wait(PATIENCE) == 0
        broker.communicate()
