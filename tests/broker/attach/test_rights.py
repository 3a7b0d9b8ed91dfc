"""The session of an attached broker is nobody else's, with users and without."""

from __future__ import annotations

import asyncio

import pytest
from mqmesh.base.address import parse_address
from mqmesh.broker.config import BrokerConfig
from mqmesh.broker.server import Broker
from mqmesh.broker.settings.attach import AttachSettings
from mqmesh.mqtt.packets import Connack, Connect
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Client


@pytest.mark.parametrize("version", [4, 5])
async def test_no_client_comes_in_with_its_identifier(version: int) -> None:
    attached = AttachSettings("plant", parse_address("mqtt://127.0.0.1:9"), client_id="x")
    async with Broker(BrokerConfig(listen=["mqtt://127.0.0.1:0"], attach=[attached])) as broker:
        client = Client(version)
        port = parse_address(broker.addresses[0]).port
        await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", port)
        client.send(Connect("attach-plant", version))
        answer = await client.expect(Connack)
        assert answer.reason == (Reason.NOT_AUTHORIZED if version == 5 else 5)
