"""Brokers with an interchange inside, in the test's own loop, and clients that post and take as services."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Self

from mqmesh.base.interchange import ANSWER, INBOX, POST
from mqmesh.broker.config import parse
from mqmesh.broker.server import Broker
from mqmesh.interchange.shell.embedded import Interchange
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property

from support.broker_site import Client, Site

SERVICES = """
[services."shop/orders"]
users = ["*"]
[services."bank/credit"]
users = ["*"]
[services."map/ids"]
users = ["*"]
[services."bank/prices"]
users = ["*"]
responses = 3
[services."old/one"]
users = ["*"]
form = "json"
"""


class InterchangeSite(Site):
    """A broker with an interchange. services: the file; None: none. broker: more of the broker's file. interchange: more of its table."""

    def __init__(
        self, folder: Path, services: str | None = SERVICES, broker: str = "", listen: str = "mqtt://127.0.0.1:0", interchange: str = ""
    ) -> None:
        folder.mkdir(exist_ok=True)
        if services is not None:
            (folder / "services.toml").write_text(services)
        named = "" if services is None else 'services = "services.toml"\n'
        text = f'listen = ["{listen}"]\ndata = "data"\n{broker}\n[interchange]\n{named}{interchange}\n'
        self.config = parse(tomllib.loads(text), "test", folder)
        self.inside = Interchange(self.config)
        self.broker = Broker(self.config)
        self.clients: list[Client] = []
        self.context = None

    async def __aenter__(self) -> Self:
        await self.broker.start(lambda: self.inside.prepare(self.broker))
        await self.inside.begin(self.broker)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.inside.end()
        await super().__aexit__(*error)

    async def service(self, name: str, client: str = "", version: int = 5, password: bytes | None = None) -> Service:
        """A client that acts as a service. client: its identifier, or user name where it has a password."""
        made = await self.client(client or name, version, password=password)
        service = Service(made, name)
        suback = await made.subscribe("$queue/" + INBOX + name, ANSWER, qos=1)
        assert max(suback.reasons) < 0x80, suback
        return service


class Service:
    """A client that posts as a service, and takes from its inbox."""

    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name = client, name
        self._inbox: list[Publish] = []  # what came while an answer was waited for

    async def post(self, kind: str, body: bytes = b"", properties: dict[int, Any] | None = None, **fields: Any) -> dict[str, Any]:
        """Post a message: what the answer says. Lists are several user properties."""
        pairs = [("kind", kind)] if kind else []
        pairs.append(("sender", self.name))
        for name, value in fields.items():
            pairs += [(name, one) for one in (value if isinstance(value, list) else [value])]
        return await self.send(body, {Property.USER_PROPERTY: pairs, **(properties or {})})

    async def send(self, payload: bytes, properties: dict[int, Any] | None = None) -> dict[str, Any]:
        """PUBLISH to the interchange: what the answer says; PUBACK says the same."""
        number = self.client.next_id()
        self.client.send(Publish(POST, payload, 1, packet_id=number, properties=properties or {}))
        answer, puback = None, None
        while answer is None or puback is None:
            packet = await self.client.receive()
            if isinstance(packet, Puback):
                puback = packet
            else:
                assert isinstance(packet, Publish), packet
                self.client.send(Puback(packet.packet_id))
                if packet.topic == ANSWER:
                    answer = packet
                else:
                    self._inbox.append(packet)
        found: dict[str, Any] = json.loads(answer.payload)
        assert puback.reason < 0x80 or "code" in found, (puback, found)  # another home refuses later
        return found

    async def take(self) -> tuple[bytes, dict[str, Any]]:
        """The next message of the inbox: its body and its header; `properties` has the packet's own."""
        if self._inbox:
            packet = self._inbox.pop(0)
        else:
            packet = await self.client.expect(Publish, topic="$queue/" + INBOX + self.name)
            self.client.send(Puback(packet.packet_id))
        if self.client.version != 5:
            return packet.payload, json.loads(packet.payload)
        header: dict[str, Any] = dict(packet.properties.get(Property.USER_PROPERTY, []))
        return packet.payload, header | {"properties": packet.properties}
