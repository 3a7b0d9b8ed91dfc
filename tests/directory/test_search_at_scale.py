"""Searches in many records: what the database's indexes answer, in parts, and in databases of earlier releases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from lxml import etree
from mqmesh.directory import records as all_records
from mqmesh.directory.records import Record
from mqmesh.directory.storage.store import Store
from mqmesh.directory.storage.tables import PERMISSION, Account
from mqmesh.directory.uddi import soap
from mqmesh.directory.uddi.documents import RECORD, VISIBILITY, add, make
from mqmesh.directory.uddi.finding import Search
from mqmesh.directory.uddi.saving import prepare
from mqmesh.directory.uddi.search import KEYWORDS
from support.peers import postgres

ALICE = Account("alice", "acme")
MANY = 1200
PAGES = ({"maxRows": "1"}, {"maxRows": "1", "listHead": "2"}, {"listHead": "9"}, {"maxRows": "0"})


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.service)])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Many services in a mesh, and one of the same name in another."""
    if request.param == "postgresql":
        with postgres.server() as server:
            yield _filled(server.url)
    else:
        yield _filled(f"sqlite:///{tmp_path_factory.mktemp('scale') / 'd.db'}")


def _filled(url: str) -> Store:
    store = Store(url)
    prepare(store)
    wanted = [Record("service", f"s{at:04d}", "one", addresses=[f"mqtt://h{at}:1"]) for at in range(MANY)]
    with store.writing(ALICE) as records:
        for mesh in ("one", "two"):
            all_records.put(records, ALICE, Record("mesh", mesh))
        all_records.put_all(records, ALICE, [*wanted, Record("service", "s0007", "two")])
    return store


def _statements(store: Store) -> list[str]:
    """The statements that are executed from now on."""
    seen: list[str] = []
    for engine in {store._engine, store._reading}:
        sa.event.listen(engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    return seen


def test_records_come_in_parts_each_once(store: Store) -> None:
    with store.reading(ALICE) as records:
        found: list[Record] = []
        after = None
        while True:
            part, _ = all_records.find_page(records, "service", None, None, 500, after=after)
            found += part
            if len(part) < 500:
                break
            after = (part[-1].name, all_records.mesh_of(records, part[-1].mesh).key)
    names = sorted([f"s{at:04d}" for at in range(MANY)] + ["s0007"])
    assert [one.name for one in found] == names
    assert len({(one.mesh, one.name) for one in found}) == MANY + 1


@pytest.mark.parametrize(("name", "count"), [("s0007", 2), ("s011*", 10), ("*7", 121), ("s?007", 0), (None, MANY + 1)])
def test_names_are_counted_and_found(store: Store, name: str | None, count: int) -> None:
    with store.reading() as records:
        found, total = all_records.find_page(records, "service", None, name, 1000)
    assert (len(found), total) == (min(count, 1000), count)


@pytest.mark.parametrize("name", ["s0007", "s000*"])
def test_a_search_is_one_statement(store: Store, name: str) -> None:
    with store.reading():
        pass  # a server may be asked for the time
    seen = _statements(store)
    with store.reading() as records:
        found, _ = all_records.find_page(records, "service", None, name, 1000)
    assert sorted((one.mesh, one.owns_name) for one in found if one.name == "s0007") == [("one", True), ("two", True)]
    assert all(one.addresses for one in found if one.mesh == "one")
    assert len([one for one in seen if one.startswith("SELECT") and "clock_timestamp" not in one]) == 1


@pytest.mark.service
def test_a_connection_that_the_server_has_ended_is_replaced() -> None:
    with postgres.server() as server:
        store = Store(server.url)
        prepare(store)
        with store.reading() as records:
            assert records.version()
        with sa.create_engine(server.url.replace("://", "+psycopg://")).connect() as connection:
            others = "pid <> pg_backend_pid() AND backend_type = 'client backend'"
            ended = connection.exec_driver_sql(f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {others}")
            assert ended.scalar()
        store._asked = (-1e9, 0.0)  # a while later
        with store.reading() as records:
            assert records.version()
        with store.writing(ALICE) as records:
            all_records.put(records, ALICE, Record("mesh", "one"))
        store.close()


def test_many_records_are_written_in_few_statements(store: Store) -> None:
    seen = _statements(store)
    again = [Record("service", f"s{at:04d}", "one", addresses=[f"mqtt://other{at}:1"]) for at in range(1000)]
    with store.writing(ALICE) as records:
        all_records.put_all(records, ALICE, again)
    assert len(seen) < 60
    with store.reading() as records:
        assert all_records.get(records, "service", "one", "s0999").addresses == ["mqtt://other999:1"]


def test_addresses_keep_their_keys(store: Store) -> None:
    with store.writing(ALICE) as records:
        all_records.put(records, ALICE, Record("service", "kept", "two", addresses=["mqtt://a:1", "mqtt://b:1"]))
        key = all_records.get(records, "service", "two", "kept").key
        before = [one.key for one in records.children([key])[key]]
        all_records.put(records, ALICE, Record("service", "kept", "two", addresses=["mqtt://c:1"]))
        assert [one.key for one in records.children([key])[key]] == before[:1]
        all_records.delete(records, ALICE, "service", "two", "kept")


def test_a_database_of_an_earlier_release_is_brought_up_in_place(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'd.db'}"
    old = _filled(url)
    with old._engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE directory_words")
        connection.exec_driver_sql("DROP TABLE directory_versions")
        connection.exec_driver_sql("DROP TABLE directory_names")
        connection.exec_driver_sql("DROP INDEX directory_entities_by_position")
        connection.exec_driver_sql("DROP INDEX directory_entities_by_name")
        connection.exec_driver_sql("CREATE INDEX ix_directory_entities_parent ON directory_entities (parent)")
    old.close()
    new = Store(url)
    prepare(new)
    asked = '<find_service xmlns="urn:uddi-org:api_v3"><name>s0007</name></find_service>'
    envelope = f'<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>{asked}</s:Body></s:Envelope>'
    status, text = soap.answer(new, envelope.encode())
    assert (status, text.count(b"<serviceInfo ")) == (200, 2)
    with new.reading() as records:
        assert all_records.get(records, "service", "one", "s0007").owns_name
    with new._engine.connect() as connection:
        indexes = {index["name"] for index in sa.inspect(connection).get_indexes("directory_entities")}
    assert {"directory_entities_by_position", "directory_entities_by_name"} <= indexes
    assert "ix_directory_entities_parent" not in indexes
    new.close()


def test_addresses_are_for_those_whom_permissions_name(store: Store) -> None:
    bob, eve = Account("bob", "other"), Account("eve", "third")
    with store.writing(ALICE) as records:
        for name, permissions in (("p-other", ["other"]), ("p-bob", ["bob"]), ("p-all", ["*"]), ("p-none", [])):
            all_records.put(records, ALICE, Record("service", name, "two", addresses=["mqtt://p:1"], permissions=permissions))
    for reader, expected in ((None, "all none"), (eve, "all none"), (bob, "all bob none other"), (ALICE, "all bob none other")):
        for name in ("p-*", "p*-*", None):
            with store.reading(reader) as records:
                found, _ = all_records.find_page(records, "service", "two", name, 1000)
                by_page = {one.name: one for one in found if one.name.startswith("p-")}
                alone = {name: all_records.get(records, "service", "two", name) for name in by_page}
            for shown in (by_page, alone):
                assert {one.name for one in shown.values() if one.permitted} == {f"p-{one}" for one in expected.split()}
                assert all(one.addresses == (["mqtt://p:1"] if one.permitted else []) for one in shown.values())
    with store.writing(ALICE) as records:
        for name in by_page:
            all_records.delete(records, ALICE, "service", "two", name)


def _find(kind: str, bag: str, tmodel: str, value: str, **attributes: str) -> Any:
    """A find request with one criterion."""
    request = make(f"find_{kind}", **attributes)
    if bag == "name":
        add(request, "name", value)
    else:
        add(add(request, bag), "keyedReference", tModelKey=tmodel, keyName="", keyValue=value)
    return request


@pytest.mark.slow
def test_a_search_for_one_word_finds_what_the_general_one_does(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {"visibility": "organisation"}
    with store.writing(ALICE) as records:
        for at in range(6):
            more = hidden if at == 3 else {}
            wanted = Record("service", f"w{at}", "one", permissions=["a", "b"][: at % 3], addresses=["mqtt://w:1"], **more)
            all_records.put(records, ALICE, wanted)
        mesh = all_records.mesh_of(records, "one").key
    requests = [
        _find(kind, bag, tmodel, value, **attributes)
        for kind in ("service", "business", "tModel")
        for bag, tmodel, value in [
            *(("categoryBag", PERMISSION.upper(), value) for value in ("a", "b", "A", " a ", "none")),
            *(("categoryBag", tmodel, value) for tmodel, value in ((RECORD, "service"), (VISIBILITY, "public"), (KEYWORDS, "a"))),
            ("identifierBag", PERMISSION, "a"),
            *(("name", "", value) for value in ("s0007", "w1", "w3", "one", "%", "x" * 300, PERMISSION)),
        ]
        for attributes in ({}, *(PAGES if value in ("a", "one") else ()))
    ]
    requests += [_find("service", "name", "", "w1", businessKey=key) for key in (mesh, "")]
    for reader in (None, ALICE, Account("eve", "third")):
        with store.reading(reader) as records:
            taken = [_shown(Search(records, one.tag.rpartition("_")[2], one)) for one in requests]
            with monkeypatch.context() as patch:
                patch.setattr(Search, "_only_word", lambda self: None)
                general = [_shown(Search(records, one.tag.rpartition("_")[2], one)) for one in requests]
        assert taken == general
        assert sum(bool(keys) for keys, _, _ in taken) > 10
    with store.writing(ALICE) as records:
        for at in range(6):
            all_records.delete(records, ALICE, "service", "one", f"w{at}")


def _shown(search: Search) -> tuple[list[str], bytes, bool]:
    found, described, more = search.page()
    return [one.key for one in found], etree.tostring(described), more
