"""Every fault code of the directory, as a stock client with the WSDL of OASIS gets it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from mqmesh.directory.storage import rows, store
from mqmesh.directory.storage.accounts import add_account
from mqmesh.directory.storage.errors import CODES
from mqmesh.directory.storage.store import Store
from mqmesh.directory.uddi import operations as uddi
from mqmesh.directory.uddi import soap
from mqmesh.directory.uddi.documents import NUMBER, RECORD, VISIBILITY
from support.directories import in_this_process
from support.peers.uddi_clients import fault, uddi_client

SEEN: set[str] = set()


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A directory with two accounts, and a business of alice's."""
    monkeypatch.setattr(store, "BUSY", 0.1)
    database = Store(f"sqlite:///{tmp_path / 'd.db'}")
    secrets = {name: add_account(database, name, name) for name in ("alice", "bob")}
    with in_this_process(database) as url:
        client = uddi_client(url, "oasis")
        client.store, client.secrets = database, secrets
        client.token, client.bob = (client.security.get_authToken(userID=name, cred=secrets[name]) for name in secrets)
        [client.business] = client.publish.save_business(authInfo=client.token, businessEntity=[{"name": name("b")}]).businessEntity
        yield client


def name(text: str) -> list[dict[str, str]]:
    return [{"_value_1": text}]


def service(made: SimpleNamespace, called: str, **categories: str) -> dict[str, Any]:
    keys = {"record": RECORD, "number": NUMBER, "visibility": VISIBILITY}
    bag = [{"tModelKey": keys[key], "keyName": "", "keyValue": value} for key, value in categories.items()]
    category = {"categoryBag": {"keyedReference": bag, "keyedReferenceGroup": []}} if bag else {}
    return {"businessKey": made.business.businessKey, "name": name(called), **category}


def refused(code: str, call: Any, **arguments: Any) -> None:
    fault(code, call, **arguments)
    SEEN.add(code)


def codes_of_tokens_and_owners(made: SimpleNamespace) -> None:
    save, key = made.publish.save_business, made.business.businessKey
    refused("E_unknownUser", made.security.get_authToken, userID="alice", cred="wrong")
    refused("E_authTokenRequired", save, businessEntity=[{"name": name("x")}])
    refused("E_authTokenRequired", save, authInfo="guessed", businessEntity=[{"name": name("x")}])
    refused("E_userMismatch", made.publish.delete_business, authInfo=made.bob, businessKey=[key])
    made.security.discard_authToken(authInfo=made.bob)
    refused("E_authTokenExpired", made.publish.get_registeredInfo, authInfo=made.bob, infoSelection="all")


def codes_of_what_is_asked_for(made: SimpleNamespace) -> None:
    find, save = made.find.find_business, made.publish.save_service
    refused("E_unsupported", made.publish.get_publisherAssertions, authInfo=made.token)
    refused("E_invalidKeyPassed", made.find.get_tModelDetail, tModelKey=["uddi:no:such"])
    refused("E_fatalError", find, name=name("x" * 256))
    refused("E_invalidCombination", find, findQualifiers={"findQualifier": ["exactMatch", "approximateMatch"]}, name=name("x"))
    refused("E_invalidValue", save, authInfo=made.token, businessService=[service(made, "x", visibility="all")])
    tmodel = {"tModelKey": made.business.businessKey, "name": {"_value_1": "t"}}
    refused("E_keyUnavailable", made.publish.save_tModel, authInfo=made.token, tModel=[tmodel])
    made.publish.save_service(authInfo=made.token, businessService=[service(made, "a", record="broker", number="1")])
    for called, number in (("a", "2"), ("b", "1")):
        again = service(made, called, record="broker", number=number)
        refused("E_valueNotAllowed", save, authInfo=made.token, businessService=[again])


def codes_of_limits(made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = {"businessKey": [made.business.businessKey]}
    monkeypatch.setattr(made.store, "account_limit", 2)  # a business and a service
    refused("E_accountLimitExceeded", made.publish.save_service, authInfo=made.token, businessService=[service(made, "third")])
    monkeypatch.setattr(made.store, "account_limit", 100)
    monkeypatch.setattr(rows, "AT_MOST", 2)
    three = [service(made, called) for called in ("c", "d", "e")]
    refused("E_messageTooLarge", made.publish.save_service, authInfo=made.token, businessService=three)
    monkeypatch.setattr(soap, "LARGEST", 200)
    refused("E_resultSetTooLarge", made.find.get_businessDetail, **ask)
    monkeypatch.setattr(soap, "LARGEST", 10_000)
    with made.store._engine.connect().execution_options(writes=True) as other, other.begin():
        other.execute(sa.select(1))  # another writer, who takes his time
        refused("E_busy", made.publish.save_service, authInfo=made.token, businessService=[service(made, "late")])
        assert made.find.get_businessDetail(**ask).businessEntity[0].name[0]._value_1 == "b", "readers do not wait"


def test_a_failure_of_the_directory_itself(made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr(uddi, "_inquire", broken)
    refused("E_fatalError", made.find.find_business, name=name("x"))


def test_every_code(made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    SEEN.clear()
    codes_of_tokens_and_owners(made)
    codes_of_what_is_asked_for(made)
    codes_of_limits(made, monkeypatch)
    assert set(CODES) == SEEN
