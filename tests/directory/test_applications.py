"""Applications: what the directory keeps of their surveillance, as REST and as UDDI, and for how long."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from mqmesh.directory import leases
from mqmesh.directory import records as all_records
from mqmesh.directory.client import ClientError
from mqmesh.directory.records import Record, read_body
from mqmesh.directory.storage.errors import DirectoryError
from mqmesh.directory.storage.store import Store
from mqmesh.directory.storage.tables import Account, entities
from mqmesh.directory.uddi.saving import prepare
from support.directories import Directory

ALICE, BOB = Account("alice", "acme"), Account("bob", "other")
FULL: dict[str, Any] = {
    "alternatives": ["orders-lyon", "orders-backup"],
    "broker": "porto",
    "clients": ["orders-1", "orders-2"],
    "message_interval": 1.5,
    "fault_interval": 3,
    "defunct_interval": 10,
    "consents": ["invoices", "*"],
    "probe": True,
}


class World:
    """A directory in memory with a clock that tests set, and a mesh of Alice's."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.store = Store("sqlite://", lambda: self.now)
        prepare(self.store)
        with self.store.writing(ALICE) as records:
            all_records.put(records, ALICE, Record("mesh", "ring"))

    def hold(self, name: str, seconds: object, owner: Account = ALICE, **fields: Any) -> dict[str, Any]:
        with self.store.writing(owner) as records:
            return leases.hold(records, owner, read_body("application", name, "ring", fields), seconds)

    def claim(self, holder: int, broker: str, *applications: str) -> leases.Granted:
        body = {"name": broker, "seconds": 30, "applications": [{"name": one, "broker": broker} for one in applications]}
        with self.store.writing(ALICE) as records:
            return leases.claim(records, ALICE, leases.read_claim("ring", str(uuid.UUID(int=holder)), body))

    def found(self) -> dict[str, Record]:
        with self.store.reading() as records:
            return {one.name: one for one in all_records.find(records, "application", "ring")}


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.store.close()


@pytest.mark.process
def test_f12_what_is_registered_is_found(directory: Directory) -> None:
    """F12: the application table; F20: intervals for each."""
    alice = directory.client("alice")
    alice.put("mesh", "told")
    alice.put("application", "orders", "told", **FULL)
    shown = directory.client().get("application", "orders", "told")
    assert {key: shown[key] for key in FULL} == FULL
    alice.put("application", "plain", "told")
    shown = directory.client().get("application", "plain", "told")
    assert (shown["broker"], shown["clients"], shown["fault_interval"], shown["probe"]) == ("", [], None, False)
    with pytest.raises(ClientError, match="a service has"):
        alice.put("service", "orders", "told", clients=["a"])


@pytest.mark.process
def test_the_description_of_the_interface_has_every_field(directory: Directory) -> None:
    import json
    from urllib.request import urlopen

    with urlopen(f"{directory.url}/openapi.json", timeout=30) as answer:
        schemas = json.load(answer)["components"]["schemas"]
    assert FULL.keys() < schemas["application"]["properties"].keys()
    assert schemas["application_body"]["properties"].keys() > {*FULL, "lease"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"message_interval": 10, "fault_interval": 9.5}, r"fault_interval = '9.5': not less than message_interval = 10"),
        ({"message_interval": 0}, "message_interval = '0': seconds, more than 0"),
        ({"defunct_interval": -1}, "defunct_interval"),
        ({"fault_interval": float("nan")}, "fault_interval"),
        ({"fault_interval": True}, "fault_interval"),
        ({"alternatives": ["lyon", "orders"]}, "alternatives = 'orders': an application is no alternative of its own"),
        ({"alternatives": ["lyon", "graz", "lyon"]}, "alternatives = 'lyon': each application once"),
        ({"alternatives": [str(one) for one in range(10_000)]}, "a list of at most 64 texts"),
        ({"alternatives": "lyon"}, "a list of at most 64 texts"),
        ({"alternatives": ["lyon,graz"]}, "alternatives = 'lyon,graz': give a name of 1 to"),
        ({"alternatives": ["a/b"]}, "alternatives = 'a/b': give a name of 1 to"),
        ({"clients": [""]}, "1 to 255 characters"),
        ({"probe": 1}, "probe = '1': true or false"),
        ({"broker": ["a"]}, "broker"),
        ({"consents": [1]}, "consents"),
    ],
)
def test_f02_what_contradicts_is_refused(body: dict[str, Any], says: str) -> None:
    """F2: a fault interval below the message interval is refused; so is an application among its own alternatives (F16)."""
    with pytest.raises(DirectoryError, match=says, check=lambda error: error.code == "E_invalidValue"):
        read_body("application", "orders", "ring", body)


@pytest.mark.parametrize("name", ["a,b", "a/b", "a+", "#", "$a"])
def test_a_name_that_is_no_level_of_a_topic_is_refused(name: str) -> None:
    with pytest.raises(DirectoryError, match=r"name = .*: give a name of 1 to", check=lambda error: error.code == "E_invalidValue"):
        read_body("application", name, "ring", {})


def test_records_of_before_go_on(world: World) -> None:
    """A record as earlier versions wrote it: alternatives under the old name of the category, nothing of surveillance."""
    with world.store.writing(ALICE) as records:
        all_records.put(records, ALICE, Record("application", "gauges", "ring", alternatives=["lyon", "gauges"], interval=2.5))
    with world.store._engine.begin() as connection:
        statement = sa.select(entities.c.document).where(entities.c.name == "gauges")
        document = connection.scalar(statement).replace('keyName="application"', 'keyName="broker"')
        connection.execute(sa.update(entities).where(entities.c.name == "gauges").values(document=document))
    gauges = world.found()["gauges"]
    assert (gauges.alternatives, gauges.interval, gauges.clients, gauges.fault_interval) == (["lyon", "gauges"], 2.5, [], None)


def test_f18_an_application_holds_its_record_for_a_time(world: World) -> None:
    """F18: what an application says through the API is there while it renews."""
    shown = world.hold("orders", 30, **FULL)
    assert (shown["static"], shown["expires_in"], shown["alternatives"]) == (False, 30, FULL["alternatives"])
    world.now += 29
    world.hold("orders", 30, alternatives=["orders-graz"])
    world.now += 29
    assert world.found()["orders"].alternatives == ["orders-graz"], "renewed, and changed"
    world.now += 1
    assert world.found() == {}, "readers miss it at the end of the lease"
    assert world.hold("orders", 30)["static"] is False
    with world.store.writing(ALICE) as records:
        all_records.delete(records, ALICE, "application", "ring", "orders")
    assert world.found() == {}, "it leaves"


def test_what_was_registered_by_hand_stands(world: World) -> None:
    with world.store.writing(ALICE) as records:
        all_records.put(records, ALICE, Record("application", "orders", "ring", alternatives=["by-hand"]))
    shown = world.hold("orders", 30, alternatives=["other"])
    assert (shown["static"], shown["alternatives"], shown["expires_in"]) == (True, ["by-hand"], None)
    world.now += 31
    assert world.found()["orders"].alternatives == ["by-hand"]


@pytest.mark.parametrize("seconds", [0, 86401, "30", True, float("nan")])
def test_a_lease_has_bounds(world: World, seconds: object) -> None:
    with pytest.raises(DirectoryError, match=r"lease = .*1 to 86400 seconds"):
        world.hold("orders", seconds)


def test_another_account_holds_nothing_here(world: World) -> None:
    """An application of another organisation is none of this mesh: its name is not known here."""
    with pytest.raises(DirectoryError, check=lambda error: error.code == "E_userMismatch"):
        world.hold("orders", 30, BOB)
    world.hold("orders", 30)
    with pytest.raises(DirectoryError, check=lambda error: error.code == "E_userMismatch"):
        world.hold("orders", 30, BOB)


def test_f12_a_broker_registers_its_applications(world: World) -> None:
    """F12: dynamic. They last as long as the broker's lease; those that it does not name any more go at once."""
    assert world.claim(1, "porto", "orders", "invoices").refused == []
    assert {name: one.broker for name, one in world.found().items()} == {"orders": "porto", "invoices": "porto"}
    world.claim(1, "porto", "orders")
    assert list(world.found()) == ["orders"]
    assert world.claim(2, "lyon", "orders").refused == ["another application here has the name 'orders'"]
    world.claim(1, "porto")
    assert world.claim(2, "lyon", "orders").refused == []
    assert world.found()["orders"].broker == "lyon", "it has moved"
    world.now += 30
    assert world.found() == {}


def test_a_claim_of_too_many_is_refused() -> None:
    body = {"name": "porto", "seconds": 30, "applications": [{"name": str(one)} for one in range(1001)]}
    with pytest.raises(DirectoryError, match="applications: a list of at most 1000 objects"):
        leases.read_claim("ring", str(uuid.UUID(int=1)), body)
    with pytest.raises(DirectoryError, match="applications: name = 'a': a name of its own for each"):
        leases.read_claim("ring", str(uuid.UUID(int=1)), {**body, "applications": [{"name": "a"}, {"name": "a"}]})


@pytest.mark.process
def test_a_uddi_client_sees_and_saves_the_same(directory: Directory) -> None:
    """The categories of a UDDI document are the fields of REST."""
    zeep = pytest.importorskip("zeep")
    alice = directory.client("alice")
    alice.put("mesh", "uddi")
    alice.put("application", "orders", "uddi", **FULL)
    client = zeep.Client(f"{directory.url}/uddi?wsdl")
    inquiry = client.bind("UDDI_Service", "UDDI_Inquiry_Port")
    key = alice.get("application", "orders", "uddi")["key"]
    [service] = inquiry.get_serviceDetail(serviceKey=[key])["businessService"]
    given = [(one["tModelKey"], one["keyValue"]) for one in service["categoryBag"]["keyedReference"]]
    assert ("uddi:mqmesh:fault-interval", "3") in given
    assert [value for key, value in given if key == "uddi:mqmesh:alternative"] == FULL["alternatives"]
    publication = client.bind("UDDI_Service", "UDDI_Publication_Port")
    security = client.bind("UDDI_Service", "UDDI_Security_Port")
    token = security.get_authToken(userID="alice", cred=directory.secrets["alice"])
    for one in service["categoryBag"]["keyedReference"]:
        if one["tModelKey"] == "uddi:mqmesh:fault-interval":
            one["keyValue"] = "4.5"
    publication.save_service(authInfo=token, businessService=[service])
    assert alice.get("application", "orders", "uddi")["fault_interval"] == 4.5


@pytest.mark.process
def test_f18_the_client_library_registers_here(directory: Directory) -> None:
    """F18: what `mqmesh.client` calls its directory. A record that was registered by hand stays when the application leaves."""
    alice = directory.client("alice")
    alice.put("mesh", "jms")
    registrar = alice.applications("jms")
    registrar.register("orders", 60, {"alternatives": ["lyon"], "clients": ["orders-1"]})
    assert alice.get("application", "orders", "jms")["alternatives"] == ["lyon"]
    registrar.leave("orders")
    assert alice.find("application", "jms") == []
    alice.put("application", "orders", "jms", alternatives=["by-hand"])
    registrar.register("orders", 60, {"alternatives": ["lyon"]})
    registrar.leave("orders")
    assert alice.get("application", "orders", "jms")["alternatives"] == ["by-hand"]
    with pytest.raises(ValueError, match="E_userMismatch"):
        directory.client("bob").applications("jms").register("orders", 60, {})
