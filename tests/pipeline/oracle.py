"""The jobs once more, independently: SQL of DuckDB over the journal's files. Only what both say is right counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
from mqmesh.broker.journal.layout import read_manifest
from mqmesh.broker.journal.place import Place
from mqmesh.pipeline.tables.tables import Tables

MESSAGES = """
with events as (
    select *, unnest(range("count")) as offs from read_parquet($paths, hive_partitioning = false)
    where origin >= 0 and kind in (1, 3, 4, 5, 6, 7, 8, 9, 10, 24, 25)
), grouped as (
    select origin, origin_epoch, stream, sequence + offs as sequence,
        max(published) as published, max(size) as size, max(account) as account, max(topic) as topic,
        max("call") as "call", max(session) as session,
        coalesce(max(case when kind = 1 then qos end), 0) as qos_in,
        coalesce(max(case when kind = 1 then client end), 0) as sender,
        coalesce(max(case when kind = 5 then client end), 0) as receiver,
        coalesce(max(nullif(reason, 0)), 0) as reason,
        coalesce(max(case when kind = 1 then protocol_in * 16 + version_in end), 0) as entered,
        count(*) filter (kind = 1) as publications,
        count(*) filter (kind = 4 and broker <> origin) as arrivals,
        coalesce(sum(value) filter (kind = 4), 0) as targets,
        count(*) filter (kind in (6, 7, 8, 9, 10) or kind = 5 and qos = 0) as ends,
        count(*) filter (kind = 3) as forwards,
        count(*) filter (kind = 5) as deliveries,
        count(*) filter (kind = 6) as acknowledgements,
        count(*) filter (kind = 7) as drops,
        count(*) filter (kind = 8) as expiries,
        count(*) filter (kind = 9) as "returns",
        count(*) filter (kind = 10) as failovers,
        count(*) filter (kind = 25) as releases,
        coalesce(max(case when kind = 1 then value end), 0) as wanted,
        coalesce(max(case when kind in (6, 7, 8, 9, 10) or kind = 5 and qos = 0 then time end), 0) as finished,
        max(time) as last,
        bit_or(case when kind = 5 then 1 << protocol_out else 0 end) as ways_out,
        bit_or(case when kind = 4 and broker <> origin then 1::bigint << (broker - 1) else 0 end) as reached0
    from events group by all
)
select *, case when publications = 0 then 4 when arrivals < wanted then 2 when ends < targets then 3 else 1 end as status,
    strftime(make_timestamp(published), '%Y-%m-%d') as date
from grouped
"""


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
