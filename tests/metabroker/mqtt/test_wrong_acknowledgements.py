"""A remote broker that acknowledges in the wrong way ends the connection: ignored, it would block a part of Receive Maximum for ever."""

from __future__ import annotations

import pytest
from mqmesh.metabroker.mqtt.client import ClientMachine
from mqmesh.metabroker.mqtt.login import Login
from mqmesh.metabroker.protocol.events import Published
from mqmesh.metabroker.protocol.messages import PublishHeader
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.packets import Connack, Puback, Pubcomp, Publish, Pubrec


def up(version: int) -> ClientMachine:
    machine = ClientMachine(Login("gateway", version))
    machine.begin(0.0)
    machine.receive(encode(Connack(), version), 0.0)
    return machine


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("qos", "wrong"), [(1, Pubrec), (1, Pubcomp), (2, Puback), (2, Pubcomp)])
def test_of_a_message_by_itself(version: int, qos: int, wrong: type) -> None:
    machine = up(version)
    machine.publish(Publish("t", b"x", qos), 7, 0.0)
    with pytest.raises(PeerError, match="for packet identifier 1, which awaits another one"):
        machine.receive(encode(wrong(1), version), 0.0)


@pytest.mark.parametrize("wrong", [Pubrec, Pubcomp])
def test_of_a_message_of_a_batch(wrong: type) -> None:
    machine = up(5)
    header = PublishHeader("t", 1, False, 5)
    machine.publish_batch([(header, b"a"), (header, b"b")], 1, 7, 0.0)
    with pytest.raises(PeerError, match="for packet identifier 2, which awaits another one"):
        machine.receive(encode(wrong(2), 5), 0.0)


def test_the_right_ones_settle_it() -> None:
    machine = up(5)
    machine.publish(Publish("t", b"x", 2), 7, 0.0)
    assert machine.receive(encode(Pubrec(1), 5) + encode(Pubrec(1), 5), 0.0) == []
    assert machine.receive(encode(Pubcomp(1), 5) + encode(Pubcomp(1), 5), 0.0) == [Published(7, 0)]
