"""Who gets the addresses of a service: accounts of several organisations, over REST and UDDI."""

from __future__ import annotations

import uuid

import pytest
from mqmesh.directory.client import ClientError
from mqmesh.directory.uddi.documents import TRANSPORT
from support.directories import ACCOUNTS, Directory
from support.peers.uddi_clients import fault, uddi_client

pytestmark = pytest.mark.process

ADDRESS = ["mqtt://10.0.0.9:1883"]
OTHER = ACCOUNTS["bob"]


def reached(directory: Directory, mesh: str, account: str | None, name: str) -> bool:
    """Whether an account gets the addresses; all ways to find the service agree, and each says so."""
    client = directory.client(account)
    records = [
        client.get("service", name, mesh),
        *client.find("service", mesh, name),
        *client.find("service", None, name),
        *client.find("service", mesh, name[:-1] + "*"),
        *client.find("service", mesh, f"*{name[1:]}"),
    ]
    assert len(records) == 5
    given = {(tuple(one["addresses"]), one["permitted"]) for one in records}
    assert len(given) == 1
    [(addresses, permitted)] = given
    assert addresses == (tuple(ADDRESS) if permitted else ())
    return bool(permitted)


@pytest.mark.parametrize(
    ("permissions", "may"),
    [
        ([], {"alice", "anna", "bob", None}),
        (["*"], {"alice", "anna", "bob", None}),
        (["third", "*"], {"alice", "anna", "bob", None}),
        (["third"], {"alice", "anna"}),
        ([OTHER], {"alice", "anna", "bob"}),
        (["bob"], {"alice", "anna", "bob"}),
        (["Bob", OTHER.upper(), f" {OTHER}x".strip()], {"alice", "anna"}),
    ],
)
def test_who_gets_the_addresses(directory: Directory, mesh: str, permissions: list[str], may: set[str | None]) -> None:
    directory.client("alice").put("service", "weather", mesh, addresses=ADDRESS, permissions=permissions)
    assert {one for one in (*ACCOUNTS, None) if reached(directory, mesh, one, "weather")} == may
    shown = directory.client().get("service", "weather", mesh)
    assert shown["permissions"] == permissions  # so that one knows whom to ask


def test_editors_and_the_owner_of_the_mesh_get_them(directory: Directory, mesh: str) -> None:
    alice, bob = directory.client("alice"), directory.client("bob")
    alice.put("service", "hers", mesh, addresses=ADDRESS, permissions=["third"], editors=[OTHER])
    assert reached(directory, mesh, "bob", "hers")
    alice.put("service", "hers", mesh, addresses=ADDRESS, permissions=["third"])
    assert not reached(directory, mesh, "bob", "hers")
    alice.put("mesh", mesh, editors=[OTHER])
    assert reached(directory, mesh, "bob", "hers")
    alice.put("mesh", mesh, publishers=[OTHER])
    assert not reached(directory, mesh, "bob", "hers")
    bob.put("service", "his", mesh, addresses=ADDRESS, permissions=["third"])
    assert {one for one in (*ACCOUNTS, None) if reached(directory, mesh, one, "his")} == {*ACCOUNTS}


def test_only_the_owner_says_who_gets_them(directory: Directory, mesh: str) -> None:
    alice, bob = directory.client("alice"), directory.client("bob")
    alice.put("service", "hers", mesh, addresses=ADDRESS, permissions=["third"], editors=[OTHER])
    with pytest.raises(ClientError) as caught:
        bob.put("service", "hers", mesh, addresses=ADDRESS, editors=[OTHER])
    assert caught.value.status == 403
    bob.put("service", "hers", mesh, addresses=["mqtt://10.0.0.8:1883"], permissions=["third"], editors=[OTHER])
    assert alice.get("service", "hers", mesh)["addresses"] == ["mqtt://10.0.0.8:1883"]


def test_services_of_a_lease_have_permissions_too(directory: Directory, mesh: str) -> None:
    alice, holder = directory.client("alice"), str(uuid.uuid4())
    services = [{"name": "leased", "addresses": ADDRESS, "permissions": [OTHER]}]
    alice.claim(mesh, holder, "lyon", 60, addresses=ADDRESS, services=services)
    assert reached(directory, mesh, "bob", "leased")
    assert not reached(directory, mesh, None, "leased")
    services[0]["permissions"] = []
    alice.claim(mesh, holder, "lyon", 60, addresses=ADDRESS, services=services)
    assert reached(directory, mesh, None, "leased")


def test_a_change_of_permissions_is_told(directory: Directory, mesh: str) -> None:
    alice, bob = directory.client("alice"), directory.client("bob")
    alice.put("service", "hers", mesh, addresses=ADDRESS)
    last = bob.changes()["last"]
    alice.put("service", "hers", mesh, addresses=ADDRESS, permissions=["third"])
    assert bob.changes(last, 10)["changes"] == [{"sort": "service", "mesh": mesh, "name": "hers"}]


def test_uddi_gives_no_binding_to_others(directory: Directory, mesh: str) -> None:
    alice = directory.client("alice")
    alice.put("service", "hers", mesh, addresses=ADDRESS, permissions=["third"])
    service, business = alice.get("service", "hers", mesh)["key"], alice.get("mesh", mesh)["key"]
    made = uddi_client(directory.url, "own")
    tokens = {name: made.security.get_authToken(userID=name, cred=directory.secrets[name]) for name in ("anna", "bob")}

    def bindings(token: object) -> list[str]:
        given = {} if token is None else {"authInfo": token}
        found = made.find.find_binding(serviceKey=service, tModelBag={"tModelKey": [TRANSPORT]}, **given)
        detail = made.find.get_serviceDetail(serviceKey=[service], **given)
        whole = made.find.get_businessDetail(businessKey=[business], **given)
        answers = [
            [one.bindingKey for one in found.bindingTemplate or ()],
            [one.bindingKey for one in getattr(detail.businessService[0].bindingTemplates, "bindingTemplate", None) or ()],
            [
                one.bindingKey
                for part in whole.businessEntity[0].businessServices.businessService
                for one in getattr(part.bindingTemplates, "bindingTemplate", None) or ()
            ],
        ]
        assert answers[0] == answers[1] == answers[2]
        return [str(one) for one in answers[0]]

    [key] = bindings(tokens["anna"])
    assert bindings(tokens["bob"]) == []
    assert bindings(None) == []
    fault("E_invalidKeyPassed", made.find.get_bindingDetail, bindingKey=[key])
    fault("E_invalidKeyPassed", made.find.get_bindingDetail, authInfo=tokens["bob"], bindingKey=[key])
    template = {"serviceKey": service, "bindingKey": key, "accessPoint": {"_value_1": "mqtt://10.0.0.7:1883"}}
    fault("E_userMismatch", made.publish.save_binding, authInfo=tokens["bob"], bindingTemplate=[template])
    assert made.find.get_bindingDetail(authInfo=tokens["anna"], bindingKey=[key]).bindingTemplate[0].accessPoint._value_1 == ADDRESS[0]
