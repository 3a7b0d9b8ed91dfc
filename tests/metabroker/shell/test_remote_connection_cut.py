"""The connection to the remote is cut under load, again and again: QoS 2 loses and doubles nothing, either way; QoS 1 loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
from mqmesh.cli.fleet.proxy import Proxy
from support.brokers import RunningBroker, running_broker
from support.paho_client import Paho
from support.remotes import Member, running_metabroker

pytestmark = pytest.mark.service
CUTS, BETWEEN = 3, 60


@pytest.fixture(scope="module", params=["mosquitto", "mqmesh"])
def remote(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("remote"), request.param) as running:
        yield running


@pytest.mark.parametrize("qos", [1, 2])
def test_cuts(tmp_path: Path, remote: RunningBroker, qos: int) -> None:
    (tmp_path / "community").mkdir()
    proxy = Proxy("127.0.0.1", remote.port)
    try:
        with (
            running_broker(tmp_path / "community", "mqmesh") as here,
            running_metabroker(tmp_path, here.port),
            Paho(remote.port) as far,
        ):
            member = Member(here.port, "cut")
            assert member.connect(proxy.url)["code"] == 0
            assert member.ask("subscribe", message="s", topics=[f"down{qos}"], qos=qos)["code"] == 0
            far.subscribe(f"up{qos}", 2)
            answered: set[int] = set()
            came: list[int] = []
            numbers: list[int] = []

            def read() -> None:
                verb, body = member.next()
                if verb == "puback":
                    assert body["code"] == 0
                    answered.add(body["message"])
                elif verb == "publish":
                    came.append(int(body["payload"]))
                    numbers.append(body["id"])

            sent = 0
            for _ in range(CUTS):
                for _ in range(BETWEEN):
                    request = msgpack.packb({"message": sent, "topic": f"up{qos}", "payload": str(sent), "qos": qos})
                    member.paho.client.publish(f"metabroker/request/{member.session}/publish", request, 1)
                    far.client.publish(f"down{qos}", str(sent), qos)
                    sent += 1
                while len(came) < sent - BETWEEN // 2:  # half of them may be on their way
                    read()
                proxy.cut()
                proxy.mend()
            while len(answered) < sent or len(set(came)) < sent:
                read()
            got: list[int] = []
            while len(set(got)) < sent:
                got.append(int(far.next().payload))
            assert numbers == list(range(1, len(numbers) + 1))
            assert list(dict.fromkeys(came)) == list(range(sent))
            assert list(dict.fromkeys(got)) == list(range(sent))
            if qos == 2:
                far.nothing_until(f"end/{remote.kind}")
                assert (len(came), len(got)) == (sent, sent)
            member.close()
    finally:
        proxy.close()
