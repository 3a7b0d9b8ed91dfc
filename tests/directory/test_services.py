"""Services of the interchange in the directory: who registers, sees and changes them, their revisions, their audit, and UDDI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa
from mqmesh.directory.client import Client, ClientError
from mqmesh.directory.services import verify_audit
from mqmesh.directory.storage.accounts import add_account
from mqmesh.directory.storage.store import Store
from mqmesh.directory.storage.tables import audits
from mqmesh.directory.uddi.documents import RECORD
from support.directories import in_this_process
from support.peers import postgres
from support.peers.uddi_clients import fault, uddi_client
from support.services import PATIENCE

CREDIT = {"users": ["bank-*"], "description": "Says who gets credit.", "documentation": "https://bank.example.com/credit"}


class World:
    """A directory with three organisations and an interchange."""

    def __init__(self, store: Store, url: str) -> None:
        self.store, self.url = store, url
        organisations = {"bill": "bank", "betty": "bank", "sam": "shop", "max": "map"}
        self.secrets = {name: add_account(store, name, organisation) for name, organisation in organisations.items()}
        self.secrets["porto"] = add_account(store, "porto", "net", interchange=True)

    def client(self, account: str | None = None) -> Client:
        return Client(self.url, PATIENCE, (account, self.secrets[account]) if account else None)

    def seen(self, account: str | None) -> set[str]:
        return {one["service"] for one in self.client(account).services()}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.service)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as services:
        database = f"sqlite:///{tmp_path / 'directory.db'}"
        if request.param == "postgresql":
            database = services.enter_context(postgres.server()).url
        store = Store(database)
        yield World(store, services.enter_context(in_this_process(store)))


def test_accounts_of_an_organisation_register_its_services(world: World) -> None:
    made = world.client("bill").put_service("bank/credit", CREDIT)
    assert (made["revision"], made["owner"], made["whole"], made["profile"]) == (1, "bill", True, CREDIT)
    assert world.client("betty").put_service("bank/loans", {})["owner"] == "betty"
    for account, name, code in (("sam", "bank/new", "E_userMismatch"), ("betty", "bank/credit", "E_userMismatch")):
        with pytest.raises(ClientError) as refused:
            world.client(account).put_service(name, {})
        assert refused.value.code == code
    with pytest.raises(ClientError, match="token"):
        world.client().put_service("bank/credit", {})
    with pytest.raises(ClientError, match="owner"):
        world.client("betty").delete_service("bank/credit")
    world.client("bill").delete_service("bank/credit")
    assert world.seen(None) == {"bank/loans"}


def test_a_revision_is_written_over_only_by_who_has_read_it(world: World) -> None:
    bill = world.client("bill")
    assert bill.put_service("bank/credit", CREDIT, 0)["revision"] == 1
    assert bill.put_service("bank/credit", {**CREDIT, "suspended": True}, 1)["revision"] == 2
    with pytest.raises(ClientError, match="the revision is 2 by now, not 1"):
        bill.put_service("bank/credit", CREDIT, 1)
    key = bill.service("bank/credit")["key"]
    bill.delete_service("bank/credit")
    made = bill.put_service("bank/credit", CREDIT, 0)
    assert (made["revision"], made["key"] != key) == (3, True), "a service that comes back has no revision of before again"
    assert [(one["revision"], one["profile"] is None) for one in bill.service_history("bank/credit")] == [
        (1, False),
        (2, False),
        (2, True),
        (3, False),
    ]
    with pytest.raises(ClientError, match="for accounts of 'bank'"):
        world.client("sam").service_history("bank/credit")


def test_who_sees_what(world: World) -> None:
    bill = world.client("bill")
    bill.put_service("bank/credit", CREDIT)
    bill.put_service("bank/own", {"visibility": "organisation"})
    bill.put_service("bank/some", {"visibility": "list", "visible_to": ["shop"]})
    everything = {"bank/credit", "bank/own", "bank/some"}
    seen = {name: world.seen(name) for name in (None, "sam", "max", "betty", "porto")}
    assert seen == {
        None: {"bank/credit"},
        "sam": {"bank/credit", "bank/some"},
        "max": {"bank/credit"},
        "betty": everything,
        "porto": everything,
    }
    shown = world.client("sam").service("bank/credit")
    assert (shown["whole"], shown["profile"]) == (False, {key: CREDIT[key] for key in ("description", "documentation")})
    for name in ("bank/own", "bank/none"):
        with pytest.raises(ClientError) as refused:
            world.client("max").service(name)
        assert (refused.value.code, str(refused.value)) == ("E_invalidKeyPassed", f"there is no service '{name}'")
    assert world.client("porto").service("bank/own")["whole"]


def test_changes_are_told_to_who_may_know(world: World) -> None:
    after = world.client("porto").changes()["last"]
    world.client("bill").put_service("bank/own", {"visibility": "list", "visible_to": ["shop"]})
    told = {name: [one["name"] for one in world.client(name).changes(after)["changes"]] for name in ("porto", "betty", "max")}
    assert told == {"porto": ["bank", "own"], "betty": ["bank", "own"], "max": ["bank"]}


def test_profiles_are_checked(world: World) -> None:
    bill = world.client("bill")
    for profile, what in (
        ({"visibility": "secret"}, "visibility"),
        ({"visible_to": "shop"}, "visible_to"),
        ({"description": " x"}, "description"),
    ):
        with pytest.raises(ClientError, match=what):
            bill.put_service("bank/credit", profile)
    with pytest.raises(ClientError, match="printable"):
        bill.put_service("bank/ x", {})


def test_uddi_finds_services_and_may_not_take_an_organisation(world: World) -> None:
    world.client("bill").put_service("bank/credit", CREDIT)
    uddi = uddi_client(world.url, "own")
    category = {"keyedReference": [{"tModelKey": RECORD, "keyName": "", "keyValue": "interchange"}], "keyedReferenceGroup": []}
    [found] = uddi.find.find_service(categoryBag=category).serviceInfos.serviceInfo
    [detail] = uddi.find.get_serviceDetail(serviceKey=[found.serviceKey]).businessService
    binding = detail.bindingTemplates.bindingTemplate[0]
    assert binding.accessPoint._value_1 == "bank/credit"
    token = uddi.security.get_authToken(userID="sam", cred=world.secrets["sam"])
    business = {"name": [{"_value_1": "bank"}], "categoryBag": {**category, "keyedReference": [{**category["keyedReference"][0]}]}}
    business["categoryBag"]["keyedReference"][0]["keyValue"] = "organisation"
    fault("E_userMismatch", uddi.publish.save_business, authInfo=token, businessEntity=[business])


def test_the_audit_is_whole_or_says_where_it_is_not(world: World) -> None:
    bill = world.client("bill")
    for count in range(3):
        bill.put_service("bank/credit", {**CREDIT, "limit": count})
    with world.store.reading() as records:
        assert verify_audit(records) == (3, None)
    with world.store._engine.begin() as connection:
        connection.execute(sa.update(audits).where(audits.c.number == 2).values(account="sam"))
    with world.store.reading() as records:
        assert verify_audit(records)[1] == 2
    with world.store._engine.begin() as connection:
        connection.execute(sa.delete(audits).where(audits.c.number == 2))
    with world.store.reading() as records:
        assert verify_audit(records)[1] == 2
