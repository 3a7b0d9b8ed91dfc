"""A message beyond the broker's Maximum Packet Size is refused by the client; the connection stays [MQTT-3.2.2-15]."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from mqmesh.client import BytesMessage, ConnectionFactory, DeliveryMode, Topic
from mqmesh.client.core.errors import ResourceAllocationError
from mqmesh.client.core.transport import Publication
from mqmesh.client.paho.link import LARGEST_PACKET, _Sending
from support.brokers import running_broker
from support.jms_client import PATIENCE

pytestmark = pytest.mark.process


@pytest.mark.parametrize("kind", ["mqmesh", pytest.param("mosquitto", marks=pytest.mark.service)])
@pytest.mark.parametrize("mode", list(DeliveryMode))
def test_it_is_refused_and_others_go_on(tmp_path: Path, kind: str, mode: DeliveryMode, name: str) -> None:
    def message(size: int) -> BytesMessage:
        made = BytesMessage()
        made.write_bytes(bytes(size))
        return made

    with running_broker(tmp_path, kind, largest=2000) as broker, ConnectionFactory(broker.url).create_context() as context:
        consumer, producer = context.create_consumer(Topic(name)), context.create_producer()
        producer.set_delivery_mode(mode)
        with pytest.raises(ResourceAllocationError, match=r"takes 2000 at most"):
            producer.send(Topic(name), message(2000))
        producer.send(Topic(name), message(1500))
        received = consumer.receive(PATIENCE)
        assert received is not None
        assert len(received.get_body(bytes)) == 1500
        links = list(context.connection.transport._links)  # type: ignore[attr-defined]
        assert [link._connection for link in links] == [1] * len(links), "no link has connected again"


def test_the_size_of_what_no_packet_can_hold_is_above_every_limit() -> None:
    publication = Publication("a", bytes(LARGEST_PACKET), 1)
    assert _Sending(publication, SimpleNamespace(block=b"\0"), print).size > LARGEST_PACKET  # type: ignore[arg-type]
