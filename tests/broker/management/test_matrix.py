"""Every request x role x site: who may what, at the site that is asked and at another one, as docs/management.md says."""

from __future__ import annotations

from typing import Any

import pytest
from mqmesh.broker.auth.roles import NAMES, Grant, ManagementSettings, Role
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.management.queue_deeds import DEEDS
from mqmesh.broker.recipients.settings import RecipientSettings
from support.broker_site import Client, Site, until
from support.management import ask

KEY = "a key of sixteen bytes"
LISTS = {
    *("brokers", "clients", "configuration", "custody", "groups", "links", "log", "recipients", "retained"),
    *("routes", "sessions", "subscriptions", "queues", "queue-members", "queue-messages", "queue-states"),
}
NEEDED = {"routes": {"topic": "a"}, "queue-messages": {"queue": "a"}, "queue-states": {"queue": "a", "position": 1}}
ACTIONS = {  # action -> role that it takes
    **dict.fromkeys(("disconnect", "end-session", "drain", "resume"), "operator"),
    **dict.fromkeys(("hold-recipient", "resume-recipient", "defunct-recipient", "move-recipient"), "operator"),
    **dict.fromkeys((deed.name for deed in DEEDS if deed.name not in ("move-queue", "edit-message")), "operator"),
    **dict.fromkeys(("move-queue", "edit-message"), "administrator"),
    **dict.fromkeys(("delete-retained", "set-log-level", "reload"), "administrator"),
    **dict.fromkeys(("forget", "rekey", "leave", "add-peer", "remove-peer", "set-cost"), "administrator"),
}
INCLUDES = {  # role of a user -> roles whose actions it may do, and whether it sees payloads
    "viewer": (set(), False),
    "operator": ({"operator"}, False),
    "administrator": ({"operator", "administrator"}, False),
    "payload-reader": (set(), True),
}
BELIEVERS = {  # what the other site says -> whether the role that the first one gives counts there
    "believes": (ManagementSettings(("site1",)), True),
    "does not": (ManagementSettings(("site3",)), False),
}


async def pair(role: str, other: ManagementSettings) -> tuple[Site, Site]:
    here = ManagementSettings((), (Grant(Role(role)),))
    one = await Site(mesh=(1, MeshSettings("m", KEY)), management=here).__aenter__()
    peers = [PeerSettings(one.broker.addresses[0])]
    two = Site(mesh=(2, MeshSettings("m", KEY, peers=peers)), management=other)
    two.broker.config.recipients = RecipientSettings()
    await two.__aenter__()
    await until(lambda: all(sum(m.live for m in site.broker.site.mesh.node.members()) == 2 for site in (one, two)))
    return one, two


async def allowed(asker: Client, at: str, /, **request: Any) -> bool:
    """Whether a request is not refused for want of a role."""
    text = str((await ask(asker, at=at, **request)).get("error", ""))
    return "not permitted" not in text and "does not believe" not in text


@pytest.mark.parametrize("believes", BELIEVERS)
@pytest.mark.parametrize("role", NAMES)
async def test_every_request(role: str, believes: str) -> None:
    other, counts = BELIEVERS[believes]
    one, two = await pair(role, other)
    try:
        client = await one.client("manager")
        await client.subscribe("$mqmesh/manage/answer", qos=1)
        does, reads = INCLUDES[role]
        described = {entry["do"]: entry for entry in (await ask(client, show="actions"))["actions"]}
        assert {entry["list"] for entry in (await ask(client, show="lists"))["lists"]} == LISTS
        assert {name: entry["role"] for name, entry in described.items()} == {
            name: takes for name, takes in ACTIONS.items() if not name.endswith("-recipient")
        }, "an action that is new belongs into this table"
        for site, here in (("site1", True), ("site2", counts)):
            for name in LISTS:
                assert await allowed(client, site, list=name, where=NEEDED.get(name, {})) is here, (site, name)
            assert await allowed(client, site, list="retained", payload=True) is (here and reads), site
            for name, takes in ACTIONS.items():
                if site == "site1" and name.endswith("-recipient"):
                    continue  # it watches none
                values = {"name": "x", "client": "x", "topic": "x", "queue": "x", "to": "x"}
                answer = await allowed(client, site, do_=name, dry_run=True, **values)
                assert answer is (here and takes in does), (site, name)
    finally:
        await two.__aexit__(None, None, None)
        await one.__aexit__(None, None, None)


async def test_without_a_role_no_request_at_any_site() -> None:
    one, two = await pair("viewer", ManagementSettings(("*",), (Grant(Role.ADMINISTRATOR),)))
    try:
        one.broker.site.guard.management = ManagementSettings()
        client = await one.client("manager")
        await client.subscribe("$mqmesh/manage/answer", qos=1)
        for site in ("site1", "site2"):
            assert not await allowed(client, site, list="clients"), "who has no role where it asks is not passed on"
    finally:
        await two.__aexit__(None, None, None)
        await one.__aexit__(None, None, None)
