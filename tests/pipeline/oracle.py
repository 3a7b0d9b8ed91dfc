"""The jobs once more, independently, by DuckDB. Only what both say is right counts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import duckdb
from mqmesh.broker.journal.layout import read_manifest
from mqmesh.broker.journal.place import Place
from mqmesh.pipeline.tables.tables import Tables

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:  # `benchmarks` stands outside the wheel
    sys.path.append(ROOT)

from benchmarks.pipeline.sql import CALLS, HISTOGRAM, HOPS, LINKS, MESSAGES, SESSIONS, TRAFFIC  # noqa: E402


def paths(journal: Path) -> list[str]:
    place = Place(journal)
    return [place.url(segment.path) for segment in read_manifest(place).segments]


def messages(journal: Path) -> duckdb.DuckDBPyRelation:
    return run(MESSAGES, journal)


def run(sql: str, journal: Path, **more: Any) -> duckdb.DuckDBPyRelation:
    return duckdb.connect().sql(sql, params={"paths": paths(journal), **more})


def difference(expected: duckdb.DuckDBPyRelation, out: Path, table: str) -> tuple[list[Any], list[Any]]:
    """Rows that only the oracle has, and rows that only the table has, of the columns that the oracle has."""
    columns = expected.columns
    wanted = sorted(map(tuple, expected.fetchall()))
    found = Tables(out).arrow(table, columns)
    have = sorted(zip(*(found.column(name).to_pylist() for name in columns), strict=True))
    if wanted == have:
        return [], []
    a, b = set(wanted), set(have)
    return sorted(a - b)[:5] or wanted[:1], sorted(b - a)[:5]


def names(journal: Path) -> list[str]:
    return [str(path) for path in (journal / "names").rglob("*.parquet")]


def histogram(journal: Path) -> duckdb.DuckDBPyRelation:
    return run(HISTOGRAM, journal, names=names(journal))


def hops(journal: Path) -> duckdb.DuckDBPyRelation:
    return run(HOPS, journal)


def traffic(journal: Path) -> duckdb.DuckDBPyRelation:
    return run(TRAFFIC, journal)


def links(journal: Path) -> duckdb.DuckDBPyRelation:
    return run(LINKS, journal)


def usage(journal: Path) -> duckdb.DuckDBPyRelation:
    """Without tariffs: a service is the first level of its topics."""
    sql = f"""
    with counts as (select * from read_parquet('{journal}/counts/**/*.parquet', hive_partitioning = false)),
    names as (select distinct id, name from read_parquet('{journal}/names/**/*.parquet', hive_partitioning = false))
    select strftime(make_timestamp(minute * 60000000), '%Y-%m-%d') as date, coalesce(a.name, '') as account,
        split_part(coalesce(t.name, ''), '/', 1) as service, case kind when 1 then 'originator' else 'recipient' end as role,
        sum(messages)::bigint as messages, sum(bytes)::bigint as bytes
    from counts left join names a on a.id = account left join names t on t.id = topic
    where kind in (1, 5) group by all"""
    return duckdb.sql(sql)


def _with_messages(journal: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    table = messages(journal).fetch_arrow_table() if hasattr(duckdb.DuckDBPyRelation, "fetch_arrow_table") else messages(journal).arrow()
    connection.register("messages", table)
    return connection


def calls(journal: Path) -> duckdb.DuckDBPyRelation:
    return _with_messages(journal).sql(CALLS)


def session_calls(journal: Path) -> duckdb.DuckDBPyRelation:
    return _with_messages(journal).sql(SESSIONS, params={"paths": paths(journal)})
