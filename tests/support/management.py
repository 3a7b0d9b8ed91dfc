"""Management requests of raw clients in tests."""

from __future__ import annotations

import json
from typing import Any

from mqmesh.broker.auth.guard import MANAGE_ANSWER
from mqmesh.broker.auth.roles import Grant, ManagementSettings, Role
from mqmesh.broker.management.service import TOPIC
from mqmesh.mqtt.packets import Puback, Publish

from support.broker_site import Client, Site

EVERYBODY = ManagementSettings(("*",), (Grant(Role.ADMINISTRATOR), Grant(Role.PAYLOAD_READER)))  # also without a name
BELIEVING = ManagementSettings(("*",))


def role(name: str, **where: tuple[str, ...]) -> ManagementSettings:
    """Everybody has one role. where: `sites`, `topics`, `queues`, `users`."""
    return ManagementSettings(("*",), (Grant(Role(name), **where),))


async def manager(site: Site, name: str = "manager", **more: Any) -> Client:
    """A client that hears answers."""
    client = await site.client(name, **more)
    await client.subscribe(MANAGE_ANSWER, qos=1)
    return client


async def ask(asker: Client, /, **request: Any) -> dict[str, Any]:
    """The answer to a request. The request's key `do_` stands for "do"."""
    number = asker.next_id()
    asker.send(Publish(TOPIC, json.dumps({key.rstrip("_"): value for key, value in request.items()}).encode(), 1, packet_id=number))
    found: list[Any] = [await asker.receive(), await asker.receive()]
    (answer,) = [one for one in found if isinstance(one, Publish)]
    assert [one.packet_id for one in found if isinstance(one, Puback)] == [number]
    asker.send(Puback(answer.packet_id))
    return json.loads(answer.payload)  # type: ignore[no-any-return]
