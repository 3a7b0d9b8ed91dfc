"""The UDDI face by zeep, a stock SOAP client, with the WSDL that OASIS published and with the one that the directory serves."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from mqmesh.directory.uddi.documents import NUMBER, RECORD, TRANSPORT, VISIBILITY
from support.directories import Directory
from support.peers.uddi_clients import fault, uddi_client

pytestmark = pytest.mark.process

GEO = "uddi:example.org:geo"
_names = itertools.count(1)


@pytest.fixture(scope="module", params=["oasis", "own"])
def uddi(request: pytest.FixtureRequest, directory: Directory) -> SimpleNamespace:
    made = uddi_client(directory.url, request.param)
    made.token = made.security.get_authToken(userID="alice", cred=directory.secrets["alice"])
    made.bob = made.security.get_authToken(userID="bob", cred=directory.secrets["bob"])
    made.publish.save_tModel(authInfo=made.token, tModel=[{"tModelKey": GEO, "name": {"_value_1": "geo"}}])
    return made


@pytest.fixture
def word() -> str:
    return f"w{next(_names)}"


def refers(key: str, value: str, name: str = "") -> dict[str, str]:
    return {"tModelKey": key, "keyName": name, "keyValue": value}


def bag(*references: dict[str, str]) -> dict[str, Any]:
    return {"keyedReference": list(references), "keyedReferenceGroup": []}


def named(*names: str) -> list[dict[str, str]]:
    return [{"_value_1": name} for name in names]


def broker(name: str, address: str, *references: dict[str, str]) -> dict[str, Any]:
    binding = {
        "accessPoint": {"_value_1": address, "useType": "endPoint"},
        "tModelInstanceDetails": {"tModelInstanceInfo": [{"tModelKey": TRANSPORT}]},
    }
    return {
        "name": named(name),
        "bindingTemplates": {"bindingTemplate": [binding]},
        **({"categoryBag": bag(*references)} if references else {}),
    }


def business(name: str, *services: dict[str, Any], references: tuple[dict[str, str], ...] = ()) -> dict[str, Any]:
    inside = {"businessServices": {"businessService": list(services)}} if services else {}
    return {"name": named(name), **inside, **({"categoryBag": bag(*references)} if references else {})}


def save(uddi: SimpleNamespace, *businesses: dict[str, Any]) -> list[Any]:
    return uddi.publish.save_business(authInfo=uddi.token, businessEntity=list(businesses)).businessEntity


def qualifiers(*names: str) -> dict[str, list[str]]:
    return {"findQualifier": list(names)}


def found(answer: Any, infos: str, info: str) -> list[str]:
    container = getattr(answer, infos)
    return (
        []
        if container is None
        else [(one.name[0] if isinstance(one.name, list) else one.name)._value_1 for one in getattr(container, info)]
    )


def businesses(answer: Any) -> list[str]:
    return found(answer, "businessInfos", "businessInfo")


def services(answer: Any) -> list[str]:
    return found(answer, "serviceInfos", "serviceInfo")


def test_a_mesh_is_registered_and_read_back(uddi: SimpleNamespace, directory: Directory, word: str) -> None:
    porto = broker("porto", "mqtt://127.0.0.1:1883", refers(RECORD, "broker"), refers(NUMBER, "3"))
    [saved] = save(uddi, business(word, porto, references=(refers(RECORD, "mesh"),)))
    key = saved.businessServices.businessService[0].serviceKey
    [service] = uddi.find.get_serviceDetail(serviceKey=[key]).businessService
    [binding] = service.bindingTemplates.bindingTemplate
    assert (service.businessKey, binding.serviceKey) == (saved.businessKey, key)
    assert (binding.accessPoint._value_1, binding.accessPoint.useType) == ("mqtt://127.0.0.1:1883", "endPoint")
    record = directory.client().get("broker", "porto", word)
    assert (record["number"], record["addresses"], record["key"]) == (3, ["mqtt://127.0.0.1:1883"], key)


def test_what_rest_registers_uddi_finds(uddi: SimpleNamespace, directory: Directory, word: str) -> None:
    alice = directory.client("alice")
    alice.put("mesh", word)
    alice.put("broker", f"{word}-a", word, addresses=["mqtt://a:1", "mqtt://a:2"])
    answer = uddi.find.find_service(name=named(f"{word}-a"), tModelBag={"tModelKey": [TRANSPORT]})
    assert services(answer) == [f"{word}-a"]
    [info] = answer.serviceInfos.serviceInfo
    bindings = uddi.find.find_binding(serviceKey=info.serviceKey, tModelBag={"tModelKey": [TRANSPORT]}).bindingTemplate
    assert [one.accessPoint._value_1 for one in bindings] == ["mqtt://a:1", "mqtt://a:2"]


def test_names_are_compared_as_the_qualifiers_say(uddi: SimpleNamespace, word: str) -> None:
    save(uddi, *(business(f"{word} {name}") for name in ("Porto", "porto", "São", "10% off", "10x off")))

    def find(name: str, *given: str) -> list[str]:
        answer = uddi.find.find_business(findQualifiers=qualifiers(*given) if given else None, name=named(f"{word} {name}"))
        return [one.removeprefix(f"{word} ") for one in businesses(answer)]

    assert find("Porto") == ["Porto"]
    assert find("%orto") == []
    assert find("%orto", "approximateMatch") == ["Porto", "porto"]
    assert find("_orto", "uddi:uddi.org:findqualifier:approximatematch", "sortByNameDesc") == ["porto", "Porto"]
    assert find("PORTO", "caseInsensitiveMatch") == ["Porto", "porto"]
    assert find("Sao", "diacriticInsensitiveMatch") == ["São"]
    assert find("10\\% off", "approximateMatch") == ["10% off"]
    assert find("10% off", "approximateMatch") == ["10% off", "10x off"]


def test_categories_are_all_or_one_as_the_qualifiers_say(uddi: SimpleNamespace, word: str) -> None:
    north, warm = refers(GEO, f"{word}north"), refers(GEO, f"{word}warm")
    save(
        uddi,
        business("both", references=(north, warm)),
        business("one", references=(north,)),
        business("in", broker("x", "mqtt://x", warm)),
    )

    def find(*given: str, wanted: tuple[dict[str, str], ...] = (north, warm)) -> list[str]:
        return businesses(uddi.find.find_business(findQualifiers=qualifiers(*given), categoryBag=bag(*wanted)))

    assert find("andAllKeys") == find("exactMatch") == ["both"]
    assert find("orAllKeys") == ["both", "one"]
    assert find("orLikeKeys") == ["both", "one"]
    assert find("combineCategoryBags", wanted=(warm,)) == ["both", "in"]
    assert find("serviceSubset", wanted=(warm,)) == ["in"]
    assert find("approximateMatch", wanted=(refers(GEO, f"{word}n%"),)) == ["both", "one"]


def test_lists_come_in_parts(uddi: SimpleNamespace, word: str) -> None:
    save(uddi, *(business(f"{word} {number}") for number in range(5)))
    arguments = {"findQualifiers": qualifiers("approximateMatch"), "name": named(f"{word}%")}
    answer = uddi.find.find_business(**arguments, maxRows=2, listHead=3)
    told = answer.listDescription
    assert businesses(answer) == [f"{word} 2", f"{word} 3"]
    assert (told.includeCount, told.actualCount, told.listHead, answer.truncated) == (2, 5, 3, True)
    assert not uddi.find.find_business(**arguments, listHead=3).truncated
    assert businesses(uddi.find.find_business()) == []
    fault("E_invalidValue", uddi.find.find_business, **arguments, listHead=0)


def test_saving_anew_replaces_and_deleting_takes_along(uddi: SimpleNamespace, word: str) -> None:
    [saved] = save(uddi, business(word, broker("a", "mqtt://a"), broker("b", "mqtt://b")))
    first, second = saved.businessServices.businessService
    kept = {"serviceKey": second.serviceKey, **broker("b2", "mqtt://b2")}
    [saved] = save(uddi, {"businessKey": saved.businessKey, **business(word, kept)})
    fault("E_invalidKeyPassed", uddi.find.get_serviceDetail, serviceKey=[first.serviceKey])
    [extra] = uddi.publish.save_service(
        authInfo=uddi.token, businessService=[{"businessKey": saved.businessKey, "name": named("c")}]
    ).businessService
    template = {"serviceKey": extra.serviceKey, "accessPoint": {"_value_1": "mqtt://c"}}
    [binding] = uddi.publish.save_binding(authInfo=uddi.token, bindingTemplate=[template]).bindingTemplate
    assert services(uddi.find.find_service(businessKey=saved.businessKey)) == ["b2", "c"]
    [info] = uddi.find.get_operationalInfo(entityKey=[binding.bindingKey]).operationalInfo
    assert info.authorizedName == "alice"
    uddi.publish.delete_binding(authInfo=uddi.token, bindingKey=[binding.bindingKey])
    fault("E_invalidKeyPassed", uddi.find.get_bindingDetail, bindingKey=[binding.bindingKey])
    uddi.publish.delete_service(authInfo=uddi.token, serviceKey=[extra.serviceKey])
    uddi.publish.delete_business(authInfo=uddi.token, businessKey=[saved.businessKey])
    fault("E_invalidKeyPassed", uddi.find.get_serviceDetail, serviceKey=[second.serviceKey])
    fault("E_invalidKeyPassed", uddi.find.get_businessDetail, businessKey=[saved.businessKey])


def test_a_deleted_tmodel_is_hidden_not_gone(uddi: SimpleNamespace, word: str) -> None:
    [saved] = uddi.publish.save_tModel(authInfo=uddi.token, tModel=[{"name": {"_value_1": word}}]).tModel
    assert found(uddi.find.find_tModel(name={"_value_1": word}), "tModelInfos", "tModelInfo") == [word]
    uddi.publish.delete_tModel(authInfo=uddi.token, tModelKey=[saved.tModelKey])
    assert found(uddi.find.find_tModel(name={"_value_1": word}), "tModelInfos", "tModelInfo") == []
    assert uddi.find.get_tModelDetail(tModelKey=[saved.tModelKey]).tModel[0].deleted is True
    for selection, there in (("all", True), ("hidden", True), ("visible", False)):
        info = uddi.publish.get_registeredInfo(authInfo=uddi.token, infoSelection=selection)
        assert (word in found(info, "tModelInfos", "tModelInfo")) is there


def test_each_refusal_has_its_code(uddi: SimpleNamespace, word: str) -> None:
    fault("E_unknownUser", uddi.security.get_authToken, userID="alice", cred="wrong")
    fault("E_authTokenRequired", uddi.publish.save_business, businessEntity=[business(word)])
    fault("E_authTokenRequired", uddi.publish.save_business, authInfo="guessed", businessEntity=[business(word)])
    [saved] = save(uddi, business(word, broker("a", "mqtt://a")))
    fault("E_userMismatch", uddi.publish.delete_business, authInfo=uddi.bob, businessKey=[saved.businessKey])
    fault(
        "E_userMismatch",
        uddi.publish.save_business,
        authInfo=uddi.bob,
        businessEntity=[{"businessKey": saved.businessKey, **business("taken")}],
    )
    [service] = saved.businessServices.businessService
    intruder = {"serviceKey": service.serviceKey, "accessPoint": {"_value_1": "mqtt://evil"}}
    fault("E_userMismatch", uddi.publish.save_binding, authInfo=uddi.bob, bindingTemplate=[intruder])
    fault(
        "E_keyUnavailable",
        uddi.publish.save_tModel,
        authInfo=uddi.token,
        tModel=[{"tModelKey": saved.businessKey, "name": {"_value_1": "t"}}],
    )
    unknown = business(word, references=(refers("uddi:nowhere:else", "x"),))
    fault("E_invalidKeyPassed", uddi.publish.save_business, authInfo=uddi.token, businessEntity=[unknown])
    wrong = business(word, references=(refers(VISIBILITY, "all"),))
    fault("E_invalidValue", uddi.publish.save_business, authInfo=uddi.token, businessEntity=[wrong])
    find = uddi.find.find_business
    fault("E_invalidCombination", find, findQualifiers=qualifiers("exactMatch", "approximateMatch"), name=named("x"))
    fault("E_unsupported", find, findQualifiers=qualifiers("byMagic"), name=named("x"))
    fault("E_fatalError", uddi.find.find_business, name=named("x" * 256))
    fault("E_invalidKeyPassed", uddi.find.find_relatedBusinesses, businessKey="uddi:no:business")
    assert uddi.find.find_relatedBusinesses(businessKey=saved.businessKey).relatedBusinessInfos is None


def test_a_discarded_token_is_over(uddi: SimpleNamespace, directory: Directory, word: str) -> None:
    token = uddi.security.get_authToken(userID="bob", cred=directory.secrets["bob"])
    uddi.security.discard_authToken(authInfo=token)
    fault("E_authTokenExpired", uddi.publish.save_business, authInfo=token, businessEntity=[business(word)])
    fault("E_authTokenExpired", uddi.security.discard_authToken, authInfo=token)


def test_what_is_for_an_organisation_needs_its_token(uddi: SimpleNamespace, word: str) -> None:
    hidden = (refers(VISIBILITY, "organisation"),)
    [saved] = save(uddi, business(word, broker("a", "mqtt://a"), references=hidden))
    [service] = saved.businessServices.businessService
    for token in (None, uddi.bob):
        assert businesses(uddi.find.find_business(authInfo=token, name=named(word))) == []
        fault("E_invalidKeyPassed", uddi.find.get_serviceDetail, authInfo=token, serviceKey=[service.serviceKey])
        key = service.bindingTemplates.bindingTemplate[0].bindingKey
        fault("E_invalidKeyPassed", uddi.find.get_bindingDetail, authInfo=token, bindingKey=[key])
    assert businesses(uddi.find.find_business(authInfo=uddi.token, name=named(word))) == [word]


def test_assertions_are_not_supported(directory: Directory) -> None:
    uddi = uddi_client(directory.url, "oasis")
    fault("E_unsupported", uddi.publish.get_publisherAssertions, authInfo="x")
