"""The same tables by DuckDB: `python -m benchmarks.pipeline.on_duckdb JOURNAL OUT`. The last line is JSON."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import duckdb
from mqmesh.broker.journal.layout import read_manifest
from mqmesh.broker.journal.place import Place

from . import sql

TABLES = {
    "messages": sql.MESSAGES,
    "latency": f"""with h as ({sql.HISTOGRAM}), c as (
        select *, sum(messages) over g as total, sum(messages) over (g order by bucket) as until from h
        window g as (partition by level, "window", prefix, origin, broker))
        select level, "window", prefix, origin, broker, sum(messages) as messages, min(bucket) filter (until >= ceil(total * 0.5)) as p50,
            min(bucket) filter (until >= ceil(total * 0.9)) as p90, min(bucket) filter (until >= ceil(total * 0.99)) as p99,
            list((bucket, messages)) as histogram
        from c group by all""",
    "traffic": sql.TRAFFIC,
    "links": sql.LINKS,
    "copies": """select origin, reached0, count(*) as messages, sum(forwards) as copies, sum(arrivals) as arrivals
        from read_parquet($messages) where arrivals > 0 group by all""",
    "usage": """select minute // 1440 as day, account, topic, recipient, kind, sum(messages) as messages, sum(bytes) as bytes
        from read_parquet($counts, hive_partitioning = false) group by all""",
}


def main(root: str, out: str, *_: str) -> None:
    """Write each table as Parquet files."""
    began = time.monotonic()
    place = Place(root)
    segments = read_manifest(place).segments
    shutil.rmtree(out, ignore_errors=True)
    Path(out).mkdir(parents=True)
    parameters = {
        "paths": [place.url(one.path) for one in segments],
        "names": [place.url(one) for one in place.files("names", ".parquet")],
        "counts": [place.url(one) for one in place.files("counts", ".parquet")],
        "messages": f"{out}/messages.parquet",
    }
    connection = duckdb.connect()
    connection.execute("set threads = 2")
    connection.execute("set preserve_insertion_order = false")
    jobs = {}
    for name, query in TABLES.items():
        start = time.monotonic()
        used = {key: value for key, value in parameters.items() if f"${key}" in query}
        connection.execute(f"copy ({query}) to '{out}/{name}.parquet' (format parquet, compression zstd)", used)
        jobs[name] = round(time.monotonic() - start, 2)
    events = sum(one.events for one in segments)
    print(json.dumps({"events": events, "start": 0.0, "seconds": time.monotonic() - began, "jobs": jobs}))


main(*sys.argv[1:])
