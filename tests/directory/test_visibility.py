"""What is for one organisation, by every operation of both faces that could show, change or name it to others."""

from __future__ import annotations

import json
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from mqmesh.directory.client import ClientError
from mqmesh.directory.uddi.documents import RECORD, TRANSPORT, VISIBILITY
from support.directories import ACCOUNTS, Directory
from support.peers.uddi_clients import fault, uddi_client

pytestmark = pytest.mark.process

HIDDEN = [{"tModelKey": VISIBILITY, "keyName": "", "keyValue": "organisation"}]


@pytest.fixture(scope="module")
def world(directory: Directory) -> SimpleNamespace:
    """A mesh for alice's organisation with a broker in it, and a public mesh with a hidden service; all readers."""
    alice = directory.client("alice")
    alice.put("mesh", "secret", visibility="organisation")
    alice.put("broker", "hidden", "secret", number=1, addresses=["mqtt://10.0.0.1:1883"])
    holder = str(uuid.uuid4())
    alice.claim("secret", holder, "leased", 600, addresses=["mqtt://10.0.0.2:1883"])
    alice.put("mesh", "open")
    alice.put("service", "shy", "open", addresses=["mqtt://10.0.0.3:1883"], visibility="organisation")
    made = uddi_client(directory.url, "own")
    tokens = {name: made.security.get_authToken(userID=name, cred=directory.secrets[name]) for name in directory.secrets}
    tmodel = {"name": {"_value_1": "secret-tmodel"}, "categoryBag": {"keyedReference": HIDDEN, "keyedReferenceGroup": []}}
    [saved] = made.publish.save_tModel(authInfo=tokens["alice"], tModel=[tmodel]).tModel
    key = alice.get("mesh", "secret")["key"]
    [broker, *_] = (
        made.find.get_businessDetail(authInfo=tokens["alice"], businessKey=[key]).businessEntity[0].businessServices.businessService
    )
    keys = {"business": key, "service": broker.serviceKey, "tModel": saved.tModelKey}
    keys["binding"] = broker.bindingTemplates.bindingTemplate[0].bindingKey
    return SimpleNamespace(uddi=made, tokens=tokens, keys=keys, holder=holder, shy=alice.get("service", "shy", "open")["key"])


@pytest.mark.parametrize("reader", [None, "bob"])
def test_others_find_nothing_of_it_by_uddi(world: SimpleNamespace, reader: str | None) -> None:
    find, keys, token = world.uddi.find, world.keys, world.tokens.get(reader)
    every = {"authInfo": token, "findQualifiers": {"findQualifier": ["approximateMatch"]}}
    mqtt = {"tModelKey": [TRANSPORT]}
    broker = {"keyedReference": [{"tModelKey": RECORD, "keyName": "", "keyValue": "broker"}], "keyedReferenceGroup": []}
    texts = [
        find.find_business(**every, name=[{"_value_1": "%"}]),
        find.find_business(**every, tModelBag=mqtt),
        find.find_service(**every, name=[{"_value_1": "%"}]),
        find.find_service(**every, categoryBag=broker),
        find.find_binding(**every, tModelBag=mqtt),
        find.find_tModel(**every, name={"_value_1": "%"}),
    ]
    for text in texts:
        assert "10.0.0" not in str(text)
        for word in ("secret", "hidden", "leased", "shy", *keys.values(), world.shy):
            assert word not in str(text), text
    fault("E_invalidKeyPassed", find.find_service, authInfo=token, businessKey=keys["business"])
    fault("E_invalidKeyPassed", find.find_binding, authInfo=token, serviceKey=keys["service"], tModelBag=mqtt)
    fault("E_invalidKeyPassed", find.find_relatedBusinesses, authInfo=token, businessKey=keys["business"])
    for kind, key in keys.items():
        fault("E_invalidKeyPassed", find[f"get_{kind}Detail"], authInfo=token, **{f"{kind}Key": [key]})
        fault("E_invalidKeyPassed", find.get_operationalInfo, authInfo=token, entityKey=[key])
    fault("E_invalidKeyPassed", find.get_serviceDetail, authInfo=token, serviceKey=[world.shy])


def test_others_change_nothing_of_it_by_uddi(world: SimpleNamespace) -> None:
    publish, keys, bob = world.uddi.publish, world.keys, world.tokens["bob"]
    name = [{"_value_1": "taken"}]
    for kind, key in keys.items():
        fault("E_invalidKeyPassed", publish[f"delete_{kind}"], authInfo=bob, **{f"{kind}Key": [key]})
    fault("E_invalidKeyPassed", publish.save_service, authInfo=bob, businessService=[{"businessKey": keys["business"], "name": name}])
    template = {"serviceKey": keys["service"], "accessPoint": {"_value_1": "mqtt://evil"}}
    fault("E_invalidKeyPassed", publish.save_binding, authInfo=bob, bindingTemplate=[template])
    own = {"businessKey": keys["business"], "name": name}
    fault("E_userMismatch", publish.save_business, authInfo=bob, businessEntity=[own])
    fault("E_userMismatch", publish.save_tModel, authInfo=bob, tModel=[{"tModelKey": keys["tModel"], "name": name[0]}])
    refers = {"tModelKey": keys["tModel"], "keyName": "", "keyValue": "x"}
    bag = {"keyedReference": [refers], "keyedReferenceGroup": []}
    fault("E_invalidKeyPassed", publish.save_business, authInfo=bob, businessEntity=[{"name": name, "categoryBag": bag}])
    registered = publish.get_registeredInfo(authInfo=bob, infoSelection="all")
    assert "secret" not in str(registered)
    assert world.uddi.find.get_serviceDetail(authInfo=world.tokens["anna"], serviceKey=[keys["service"]]).businessService[0].name


@pytest.mark.parametrize("reader", [None, "bob"])
def test_others_find_and_change_nothing_of_it_by_rest(directory: Directory, world: SimpleNamespace, reader: str | None) -> None:
    other = directory.client(reader)
    for sort in ("mesh", "broker", "service", "application"):
        for arguments in ({}, {"mesh": "secret"}, {"name": "*"}):
            if sort == "mesh" and "mesh" in arguments:
                continue
            text = json.dumps(other.find(sort, **arguments))
            assert not any(word in text for word in ("secret", "hidden", "leased", "shy", "10.0.0"))
    hidden: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("get", ("mesh", "secret"), {}),
        ("get", ("broker", "hidden", "secret"), {}),
        ("get", ("broker", "leased", "secret"), {}),
        ("get", ("service", "shy", "open"), {}),
        ("put", ("broker", "intruder", "secret"), {}),
        ("put", ("mesh", "secret"), {}),
        ("delete", ("mesh", "secret"), {}),
        ("delete", ("broker", "hidden", "secret"), {}),
        ("put_all", ([{"sort": "broker", "mesh": "secret", "name": "x"}],), {}),
        ("claim", ("secret", world.holder, "leased", 60), {}),
        ("claim", ("secret", str(uuid.uuid4()), "other", 60), {}),
        ("leave", ("secret", world.holder), {}),
        ("leases", ("secret",), {}),
        ("forget", ("secret", 2), {}),
    ]
    for call, arguments, more in hidden:
        with pytest.raises(ClientError) as caught:
            getattr(other, call)(*arguments, **more)
        assert caught.value.status in ((404, 409) if reader or call == "get" else (401, 404)), (call, arguments)
    anna = directory.client("anna")
    assert [one["name"] for one in anna.find("broker", "secret")] == ["hidden", "leased"]
    assert anna.get("service", "shy", "open")["addresses"] == ["mqtt://10.0.0.3:1883"]


def test_a_list_of_organisations_finds_it_and_others_do_not(directory: Directory) -> None:
    """Of a record, and of all that is in a mesh; who finds it changes nothing there."""
    alice, bob = directory.client("alice"), directory.client("bob")
    with pytest.raises(ClientError) as caught:
        alice.put("mesh", "some", visible_to=["bob's"])
    assert caught.value.status == 400, "nobody is to take it for a list that counts"
    alice.put("mesh", "some", visibility="list", visible_to=["nobody's"])
    alice.put("service", "chosen", "some")
    assert bob.find("service", "some") == []
    organisation = ACCOUNTS["bob"]
    alice.put("mesh", "some", visibility="list", visible_to=["nobody's", organisation])
    assert [one["name"] for one in bob.find("service", "some")] == ["chosen"]
    assert bob.get("mesh", "some")["visible_to"] == ["nobody's", organisation]
    alice.put("service", "chosen", "some", visibility="organisation")
    assert bob.find("service", "some") == []
    assert directory.client(None).find("mesh", name="some") == []
    with pytest.raises(ClientError) as refused:
        bob.put("service", "intruder", "some")
    assert refused.value.status == 403
