"""Who may publish in a mesh and change a record, beside its owner: by REST, leases and UDDI."""

from __future__ import annotations

import uuid

import pytest
from mqmesh.directory.client import Client, ClientError
from mqmesh.directory.uddi.documents import RECORD
from support.directories import ACCOUNTS, Directory
from support.peers.uddi_clients import fault, uddi_client

pytestmark = pytest.mark.process

OTHERS = ACCOUNTS["bob"]
ADDRESS = ["mqtt://10.0.0.9:1883"]


def refused(status: int, call: object, *arguments: object, **more: object) -> None:
    with pytest.raises(ClientError) as caught:
        call(*arguments, **more)  # type: ignore[operator]
    assert caught.value.status == status


def claim(client: Client, mesh: str, holder: str) -> dict[str, object]:
    return client.claim(mesh, holder, "lyon", 60, addresses=ADDRESS, services=[{"name": "rain", "addresses": ADDRESS}])


def test_a_publisher_puts_its_own_records_into_a_mesh(directory: Directory, mesh: str) -> None:
    alice, bob = directory.client("alice"), directory.client("bob")
    alice.put("service", "hers", mesh)
    refused(403, bob.put, "service", "wind", mesh)
    refused(403, claim, bob, mesh, str(uuid.uuid4()))
    alice.put("mesh", mesh, publishers=["nobody's", OTHERS])
    assert bob.get("mesh", mesh)["publishers"] == ["nobody's", OTHERS]
    assert bob.put("service", "wind", mesh)["owner"] == "bob"
    bob.put_all([{"sort": "application", "mesh": mesh, "name": "gauge"}])
    holder = str(uuid.uuid4())
    assert claim(bob, mesh, holder)["refused"] == []
    assert claim(bob, mesh, holder)["number"] == 1, "the lease is renewed"
    for call in (bob.put, bob.delete):
        refused(403, call, "service", "hers", mesh)
    refused(403, bob.put, "mesh", mesh, publishers=[OTHERS])
    refused(403, bob.delete, "mesh", mesh)
    refused(403, bob.leases, mesh)
    refused(403, directory.client("anna").put, "service", "calm", mesh)
    alice.put("mesh", mesh)
    refused(403, bob.put, "service", "snow", mesh)
    refused(403, claim, bob, mesh, holder)
    bob.put("service", "wind", mesh, description="his own, all the same")
    alice.put("service", "wind", mesh, description="in her mesh")
    assert alice.get("service", "wind", mesh)["owner"] == "bob"
    alice.delete("service", "wind", mesh)


def test_an_editor_changes_and_deletes_a_record_and_its_rights_stay_the_owners(directory: Directory, mesh: str) -> None:
    alice, bob = directory.client("alice"), directory.client("bob")
    alice.put("service", "shared", mesh, addresses=ADDRESS, editors=[OTHERS])
    alice.put("service", "hers", mesh)
    changed = bob.put("service", "shared", mesh, addresses=["mqtt://10.0.0.8:1883", *ADDRESS], editors=[OTHERS])
    assert (changed["owner"], changed["addresses"][0]) == ("alice", "mqtt://10.0.0.8:1883")
    found = directory.client(None).get("service", "shared", mesh)
    assert (found["owner"], found["addresses"], found["editors"]) == ("alice", changed["addresses"], [OTHERS])
    for rights in ({}, {"editors": [OTHERS, "more"]}, {"editors": [OTHERS], "visibility": "organisation"}):
        refused(403, bob.put, "service", "shared", mesh, addresses=ADDRESS, **rights)
    refused(403, bob.put, "service", "hers", mesh)
    refused(403, bob.put, "service", "new", mesh, editors=[OTHERS])
    bob.delete("service", "shared", mesh)
    refused(404, alice.get, "service", "shared", mesh)


def test_an_editor_of_a_mesh_changes_all_that_is_in_it(directory: Directory, mesh: str) -> None:
    alice, bob = directory.client("alice"), directory.client("bob")
    alice.put("mesh", mesh, editors=[OTHERS])
    alice.put("service", "hers", mesh)
    assert bob.put("service", "hers", mesh, description="his words")["owner"] == "alice"
    assert bob.put("service", "new", mesh)["owner"] == "bob"
    assert bob.leases(mesh) == []
    bob.put("mesh", mesh, description="a mesh", editors=[OTHERS])
    refused(403, bob.put, "mesh", mesh, description="a mesh")


def test_uddi_has_the_same_rights(directory: Directory, mesh: str) -> None:
    alice, bob = directory.client("alice"), directory.client("bob")
    alice.put("mesh", mesh, publishers=[OTHERS])
    alice.put("service", "shared", mesh, addresses=ADDRESS, editors=[OTHERS])
    alice.put("service", "hers", mesh, addresses=ADDRESS)
    made = uddi_client(directory.url, "own")
    token = made.security.get_authToken(userID="bob", cred=directory.secrets["bob"])
    business = alice.get("mesh", mesh)["key"]
    record = {"keyedReference": [{"tModelKey": RECORD, "keyName": "", "keyValue": "service"}], "keyedReferenceGroup": []}
    new = {"businessKey": business, "name": [{"_value_1": "by-uddi"}], "categoryBag": record}
    made.publish.save_service(authInfo=token, businessService=[new])
    assert bob.get("service", "by-uddi", mesh)["owner"] == "bob"
    for name in ("shared", "hers"):
        template = {"serviceKey": alice.get("service", name, mesh)["key"], "accessPoint": {"_value_1": "mqtt://10.0.0.7:1883"}}
        if name == "hers":
            fault("E_userMismatch", made.publish.save_binding, authInfo=token, bindingTemplate=[template])
        else:
            made.publish.save_binding(authInfo=token, bindingTemplate=[template])
    assert len(alice.get("service", "shared", mesh)["addresses"]) == 2
    own = f"mesh-{uuid.uuid4()}"
    bob.put("mesh", own)
    moved = {"businessKey": bob.get("mesh", own)["key"], "serviceKey": alice.get("service", "shared", mesh)["key"], "name": new["name"]}
    fault("E_userMismatch", made.publish.save_service, authInfo=token, businessService=[moved])
    fault("E_userMismatch", made.publish.delete_business, authInfo=token, businessKey=[business])
