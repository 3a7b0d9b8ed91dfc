"""`mqmesh store check` and `salvage` in a PostgreSQL server: what is whole of a damaged schema goes on, the rest is named and set aside."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from mqmesh.broker import program
from mqmesh.broker.config import BrokerConfig, StoreSettings
from mqmesh.store import Kind, StoreError, salvage
from mqmesh.store.locations import store_at
from mqmesh.store.postgresql_lease import Lease
from mqmesh.store.postgresql_schema import Schema
from mqmesh.store.records import Counts
from support.command import run as command
from support.peers.postgres import Server, server
from support.services import PATIENCE, wait_until
from support.storage import filled
from support.storage.filled import RUNS, read

pytestmark = pytest.mark.service
LONG = 100  # the run whose payload lies in pages of its own
_schemas = count(1)


def written(address: str) -> Any:
    """Fill a store; its content."""
    return filled.written(address, {LONG: bytes(range(256)) * 400})


@pytest.fixture
def address(postgres_server: Server) -> str:
    return f"{postgres_server.url}?schema=salvage_{next(_schemas)}"


@pytest.fixture
def admin(postgres_server: Server, address: str) -> Iterator[psycopg.Connection[Any]]:
    """What changes rows behind the store's back."""
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {schema_of(address)}")
        yield connection


def schema_of(address: str) -> str:
    return address.rpartition("=")[2]


def schemas(admin: psycopg.Connection[Any], address: str) -> list[str]:
    """Those that belong to the store of an address: its own, and what was set aside."""
    rows = admin.execute("SELECT nspname FROM pg_namespace ORDER BY 1").fetchall()
    return [name for (name,) in rows if name == schema_of(address) or name.startswith(f"{schema_of(address)}_")]


def test_of_a_whole_store_everything_is_whole(address: str, admin: psycopg.Connection[Any]) -> None:
    before = written(address)
    whole = Counts(RUNS, 2 * RUNS, 50)
    assert salvage.check(address) == salvage.Report([], whole)
    report = salvage.salvage(address)
    assert (report.problems, report.whole) == ([], whole)
    assert read(address) == before
    (place, aside) = schemas(admin, address)
    assert (place, f"schema {aside}") == (schema_of(address), report.aside)


def test_damaged_rows_are_named_and_the_rest_goes_on(address: str, admin: psycopg.Connection[Any]) -> None:
    before = written(address)
    admin.execute("UPDATE runs SET payloads = 'massage 77.' WHERE id = 77")
    admin.execute('UPDATE "values" SET value = $$stale 7.$$ WHERE key = $$client 7$$')
    admin.execute("""UPDATE deliveries SET packet_id = 9 WHERE "order" = 50 AND recipient = (SELECT min(recipient) FROM deliveries)""")
    with pytest.raises(StoreError, match="mqmesh store salvage") as caught:
        read(address)
    assert caught.value.kind is Kind.CORRUPT
    done = command("store", "check", address)
    assert done.returncode == 1
    lines = done.stdout.decode().splitlines()
    for what in ("run 77 does not have its checksum", "client 7", "delivery 50 of ", "49 of 50 values are whole"):
        assert any(what in line for line in lines), (what, lines)
    assert lines[-1] == f"whole: {RUNS - 1} runs, {2 * RUNS - 3} deliveries, 49 values"
    done = command("store", "salvage", address)
    assert done.returncode == 1
    (_, aside) = schemas(admin, address)
    assert done.stdout.decode().splitlines() == [*lines[:-1], f"{lines[-1]}; the damaged store is in schema {aside}"]
    after = read(address)
    assert after["runs"] == {number: stored for number, stored in before["runs"].items() if number != 77}
    assert after["values"]["sessions"] == {k: v for k, v in before["values"]["sessions"].items() if k != b"client 7"}
    assert admin.execute(f"SELECT payloads FROM {aside}.runs WHERE id = 77").fetchone() == (b"massage 77.",)
    assert salvage.check(address).problems == []


def test_a_recipient_whose_name_has_changed_loses_its_deliveries(address: str, admin: psycopg.Connection[Any]) -> None:
    before = written(address)
    admin.execute("UPDATE recipients SET name = 'lion' WHERE name = 'lyon'")
    report = salvage.salvage(address)
    assert f"{RUNS} of {2 * RUNS} deliveries are whole" in report.problems
    after = read(address)
    assert after["deliveries"] == {"porto": before["deliveries"]["porto"]}
    assert after["runs"] == before["runs"]


@pytest.mark.parametrize("relation", ["deliveries", "deliveries_pkey", "runs", "runs_pkey", "values", "recipients_pkey", "long payloads"])
def test_a_page_that_cannot_be_read_costs_its_rows(relation: str) -> None:
    """One page of each kind; a damaged index costs nothing."""
    with server() as postgres:
        address = f"{postgres.url}?schema=pages"
        before = written(address)
        file = postgres.folder / "data" / file_of(postgres, relation)
        postgres.stop()
        data = bytearray(file.read_bytes())
        page = len(data) // 8192 // 2 * 8192
        data[page + 4000] ^= 4
        file.write_bytes(data)
        postgres.start()
        report = salvage.salvage(address)
        after = read(address)
        lost = {
            "deliveries": len(before["runs"]) * 2 - sum(map(len, after["deliveries"].values())),
            "runs": len(before["runs"]) - len(after["runs"]),
            "values": 50 - len(after["values"]["sessions"]),
        }
        if relation.endswith("_pkey"):
            assert after == before
            assert report.problems == []
        elif relation == "long payloads":
            assert lost == {"deliveries": 2, "runs": 1, "values": 0}
            assert set(before["runs"]) - set(after["runs"]) == {LONG}
        else:
            assert any("invalid page" in problem for problem in report.problems)
            assert 0 < lost[relation] < (160 if relation == "deliveries" else 100)
            assert all(before["runs"][number] == stored for number, stored in after["runs"].items())


def file_of(postgres: Server, relation: str) -> Path:
    """The file of a table or an index, in the folder of the cluster."""
    query = "SELECT pg_relation_filepath(%s::regclass)"
    if relation == "long payloads":
        query = "SELECT pg_relation_filepath(reltoastrelid) FROM pg_class WHERE oid = 'pages.runs'::regclass AND %s <> ''"
    with psycopg.connect(postgres.url) as admin:
        row = admin.execute(query, (f'pages."{relation}"',)).fetchone()
        assert row is not None
        return Path(row[0])


@pytest.mark.parametrize("moment", ["_run", "store_at"])
def test_a_salvage_that_is_interrupted_changes_nothing(
    moment: str, address: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = written(address)

    def interrupted(*arguments: Any) -> Any:
        if moment == "store_at" and not arguments[0].endswith(schema_of(address)):
            raise KeyboardInterrupt
        return store_at(*arguments) if moment == "store_at" else interrupt()

    def interrupt() -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(salvage, moment, interrupted)
        with pytest.raises(KeyboardInterrupt):
            salvage.salvage(address)
    assert read(address) == before
    assert salvage.salvage(address).problems == []
    assert read(address) == before
    assert len(schemas(admin, address)) == 2


def test_a_salvage_that_is_killed_changes_nothing(address: str, admin: psycopg.Connection[Any], postgres_server: Server) -> None:
    """It waits for a table that somebody holds, and is killed there."""
    before = written(address)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock' AND query LIKE %s"
    name = f"mqmesh {schema_of(address)}"
    with psycopg.connect(postgres_server.url) as holder:
        holder.execute(f"""LOCK TABLE {schema_of(address)}."values" IN ACCESS EXCLUSIVE MODE""")
        process = subprocess.Popen([sys.executable, "-m", "mqmesh.cli.main", "store", "salvage", address])

        def waits() -> bool:
            return admin.execute(waiting, (name, "REINDEX%")).fetchone() == (1,)

        wait_until(waits, PATIENCE, "salvage that waits for a table")
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    assert read(address) == before
    assert salvage.salvage(address).problems == []
    assert read(address) == before
    assert len(schemas(admin, address)) == 2


def test_a_server_that_goes_away_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    with server() as postgres:
        before = written(postgres.url)
        number = 0
        read_run = salvage._run

        def away(*arguments: Any) -> Any:
            nonlocal number
            number += 1
            if number == RUNS // 2:
                postgres.kill()
            return read_run(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(salvage, "_run", away)
            with pytest.raises(StoreError, match="the server cannot be used now") as caught:
                salvage.salvage(postgres.url)
        assert caught.value.kind is Kind.UNREACHABLE
        postgres.start()
        assert read(postgres.url) == before
        assert salvage.salvage(postgres.url).problems == []
        assert read(postgres.url) == before


def test_a_broker_that_runs_keeps_its_store(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqmesh.store.postgresql_schema.LOCK_WAIT", 0.1)
    written(address)
    running = store_at(address)
    running.open()
    with pytest.raises(StoreError, match="is open in another broker") as caught:
        salvage.salvage(address)
    assert caught.value.kind is Kind.BUSY
    running.close()


def test_a_start_goes_on_with_what_is_whole_if_it_may(address: str, admin: psycopg.Connection[Any]) -> None:
    written(address)
    admin.execute("UPDATE runs SET payloads = 'massage 77.' WHERE id = 77")
    error = StoreError(Kind.CORRUPT, "a store", "is damaged")
    for on_damage, done in (("refuse", False), ("salvage", True)):
        config = BrokerConfig(listen=[], store=StoreSettings("postgresql", url=address, on_damage=on_damage))
        assert program._salvaged(config, error) == done
    assert len(read(address)["runs"]) == RUNS - 1


def test_a_lease_stays_in_its_place(address: str) -> None:
    """Who had it once has a lower token than who takes it next, whatever was salvaged between."""
    written(address)
    lease = Lease(Schema(address, "", 1), "porto")
    assert lease.take()
    token = lease.token
    lease.close()
    assert salvage.salvage(address).problems == []
    assert lease.take()
    assert lease.token == token + 1
    lease.close()


def test_what_is_no_store_or_of_another_version_stays(address: str, admin: psycopg.Connection[Any]) -> None:
    with pytest.raises(StoreError, match="no broker has used it yet"):
        salvage.salvage(address)
    before = written(address)
    admin.execute("UPDATE meta SET value = '3' WHERE key = 'schema'")
    with pytest.raises(StoreError, match="schema version 3"):
        salvage.salvage(address)
    admin.execute("UPDATE meta SET value = '2' WHERE key = 'schema'")
    assert read(address) == before
    admin.execute("UPDATE deliveries SET checksum = 0")
    admin.execute('UPDATE "values" SET checksum = 0')
    with pytest.raises(StoreError, match="nothing that is whole"):
        salvage.salvage(address, at_least=1)
    assert schemas(admin, address) == [schema_of(address)]
    assert admin.execute("SELECT count(*) FROM deliveries").fetchone() == (2 * RUNS,)
