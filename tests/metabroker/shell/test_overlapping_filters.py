"""Remotes of MQTT 3.1.1, which send a copy for each filter that matches: sessions whose filters overlap get one each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.brokers import running_broker
from support.paho_client import Paho
from support.remotes import POLICY, Kept, Member, running_amqtt

pytestmark = pytest.mark.service
OLD = POLICY + 'version = "3.1.1"\n'
NARROW = OLD.replace('subscribe = ["#"]', 'subscribe = ["rain/+/north", "rain/berne/+"]')


@pytest.fixture(scope="module", params=["mosquitto", "amqtt"])
def there(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The remote: what it is, and its port."""
    folder = tmp_path_factory.mktemp("remote")
    with ExitStack() as stack:
        if request.param == "amqtt":
            yield "amqtt", stack.enter_context(running_amqtt(folder))
        else:
            yield "mosquitto", stack.enter_context(running_broker(folder, "mosquitto")).port


@pytest.fixture(scope="module")
def community(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_broker(tmp_path_factory.mktemp("community"), "mqmesh") as running:
        yield running.port


def copies(members: list[Member], far: Paho, topic: str, name: str) -> list[int]:
    """How often each gets a message. All copies of it come before the next message of its publisher."""
    last = f"{name} end".encode()
    far.publish(topic, name.encode(), 1)
    far.publish(topic, last, 1)
    found = []
    for member in members:
        payloads = [b""]
        while payloads[-1] != last:
            verb, body = member.next()
            if verb == "publish":
                payloads.append(body["payload"])
        found.append(payloads.count(name.encode()))
    return found


def test_each_session_gets_one_copy(there: tuple[str, int], community: int, tmp_path: Path) -> None:
    kind, port = there
    kept = Kept(tmp_path, community, OLD)
    near, wide, far = Member(community, "near"), Member(community, "wide"), Paho(port, 4).open()
    for member in (near, wide):
        assert member.connect(f"mqtt://127.0.0.1:{port}")["code"] == 0
    assert near.ask("subscribe", message=1, topics=["rain/+/north", "rain/berne/north", "wind"], qos=1)["codes"] == [1, 1, 1]
    assert wide.ask("subscribe", message=1, topics=["rain/berne/+"], qos=1)["code"] == 0
    assert copies([near, wide], far, "rain/berne/north", "a") == [1, 1]
    assert copies([wide], far, "rain/berne/south", "b") == [1]
    if kind == "mosquitto":  # amqtt 0.12 keeps no session
        kept.kill()
        kept.start()
        assert copies([near, wide], far, "rain/berne/north", "c") == [1, 1]
    wide.send("unsubscribe", message=2, topics=["rain/berne/+"])
    while wide.next()[0] != "unsuback":
        pass
    assert copies([near], far, "rain/berne/north", "d") == [1]
    assert copies([near], far, "wind", "e") == [1]
    for client in (near, wide, far):
        client.close()
    kept.stop()


def test_what_the_policy_does_not_allow_is_no_cover(there: tuple[str, int], community: int, tmp_path: Path) -> None:
    _, port = there
    kept = Kept(tmp_path, community, NARROW)
    member, far = Member(community, "narrow"), Paho(port, 4).open()
    assert member.connect(f"mqtt://127.0.0.1:{port}")["code"] == 0
    assert member.ask("subscribe", message=1, topics=["rain/+/north", "rain/berne/+"], qos=1)["codes"] == [1, 1]
    far.publish("rain/rome/south", b"not asked for", 1)
    [found] = copies([member], far, "rain/berne/north", "a")
    assert found >= 1, "the page says that it may come for each of them"
    member.close()
    far.close()
    kept.stop()
