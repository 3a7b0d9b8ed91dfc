"""What only a server can do to its client: be away, come back, end a connection, belong to somebody else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import psycopg
import pytest
from mqmesh.store import Kind, StoreError
from mqmesh.store.postgresql import PostgresqlStore
from support.peers.postgres import Server, server
from support.services import PATIENCE, free_port, wait_until
from support.stores import batch, delivery, run

pytestmark = pytest.mark.service
_schemas = count(1)


@pytest.fixture
def address(postgres_server: Server) -> str:
    return f"{postgres_server.url}?schema=faults_{next(_schemas)}"


@pytest.fixture
def store(address: str) -> Iterator[PostgresqlStore]:
    opened = PostgresqlStore(address)
    opened.open()
    yield opened
    opened.close()


def numbered(number: int):  # type: ignore[no-untyped-def]
    return batch(run(number), delivery("porto", number, number))


def end_connections(postgres: Server, schema: str) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        name = (f"mqmesh {schema}",)
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", name)

        def gone() -> bool:
            return admin.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", name).fetchone() == (0,)

        wait_until(gone, PATIENCE, "end of the connections")


def test_a_connection_that_is_ended_fails_one_commit(store: PostgresqlStore, address: str, postgres_server: Server) -> None:
    store.commit(numbered(1))
    end_connections(postgres_server, address.rpartition("=")[2])
    with pytest.raises(StoreError, match="the server cannot be used now") as caught:
        store.commit(numbered(2))
    assert caught.value.kind is Kind.UNREACHABLE
    store.commit(numbered(2))
    assert store.count("porto") == 2
    assert store.run(2) == run(2)


def test_queries_connect_again_by_themselves(store: PostgresqlStore, address: str, postgres_server: Server) -> None:
    store.commit(numbered(1))
    end_connections(postgres_server, address.rpartition("=")[2])
    assert store.run(1) == run(1)


def test_a_query_that_fails_does_not_end_a_snapshot(store: PostgresqlStore) -> None:
    with store.snapshot():
        assert store.run(1) is None
        store.commit(numbered(1))
        with pytest.raises(StoreError, match="division by zero"):
            store._query("SELECT 1 / 0", ())
        assert store.run(1) is None
    assert store.run(1) == run(1)


def test_a_commit_whose_answer_was_lost_may_be_given_again(store: PostgresqlStore, address: str, postgres_server: Server) -> None:
    made = batch(run(1), delivery("porto", 1, 1), delivery("lyon", 1, 1))
    store.commit(made)
    store._drop_writing()  # as if the connection had gone after the server's commit
    made.tried = True
    store.commit(made)
    store.commit(batch(run(2), delivery("porto", 2, 2)))
    assert store.count("porto") == 2
    assert store.count("lyon") == 1


def test_an_old_connection_that_the_server_still_holds_is_ended(store: PostgresqlStore, address: str) -> None:
    store.commit(numbered(1))
    old, store._writing = store._writing, None  # still alive for the server, lost for us
    assert old is not None
    store.commit(numbered(2))
    assert store.count("porto") == 2
    with pytest.raises(psycopg.OperationalError):
        old.execute("SELECT 1")


def test_a_server_that_crashes_keeps_what_it_committed() -> None:
    with server() as own:
        store = PostgresqlStore(own.url)
        store.open()
        for number in range(1, 20):
            store.commit(numbered(number))
        own.kill()
        for _ in range(2):
            with pytest.raises(StoreError, match="the server cannot be used now") as caught:
                store.commit(numbered(20))
            assert caught.value.kind is Kind.UNREACHABLE
        with pytest.raises(StoreError):
            store.count("porto")
        own.start()
        store.commit(numbered(20))
        assert [found.order for found in store.deliveries("porto")] == list(range(1, 21))
        store.close()


def test_nobody_listens() -> None:
    with pytest.raises(StoreError, match="the server cannot be used now") as caught:
        PostgresqlStore(f"postgresql://mqmesh:secret@127.0.0.1:{free_port()}/postgres").open()
    assert caught.value.kind is Kind.UNREACHABLE
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_database_that_does_not_exist(postgres_server: Server) -> None:
    with pytest.raises(StoreError, match='database "missing" does not exist') as caught:
        PostgresqlStore(postgres_server.url.replace("/postgres", "/missing")).open()
    assert caught.value.kind is Kind.UNREACHABLE


def test_a_schema_name_that_is_none(postgres_server: Server) -> None:
    with pytest.raises(StoreError, match="lower-case letters"):
        PostgresqlStore(f"{postgres_server.url}?schema=A;b").open()


def test_a_user_who_may_not(postgres_server: Server) -> None:
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(StoreError, match="may not be written: permission denied") as caught:
        PostgresqlStore(postgres_server.url.replace("mqmesh@", "guest@")).open()
    assert caught.value.kind is Kind.READ_ONLY


@pytest.mark.parametrize("version", [0, 3])
def test_another_schema_version(store: PostgresqlStore, address: str, postgres_server: Server, version: int) -> None:
    store.close()
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute(f"UPDATE {address.rpartition('=')[2]}.meta SET value = '{version}'")
    with pytest.raises(StoreError, match=f"has schema version {version}, this mqmesh reads version 2") as caught:
        PostgresqlStore(address).open()
    assert caught.value.kind is Kind.SCHEMA


def test_a_schema_of_another_program(address: str, postgres_server: Server) -> None:
    schema = address.rpartition("=")[2]
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute(f"CREATE SCHEMA {schema}")
        admin.execute(f"CREATE TABLE {schema}.recipes (name text)")
    with pytest.raises(StoreError, match="holds tables of another program") as caught:
        PostgresqlStore(address).open()
    assert caught.value.kind is Kind.SCHEMA
