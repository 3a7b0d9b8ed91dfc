"""How long `mqmesh trace --tables` takes in large tables: `python -m benchmarks.pipeline.trace --messages 10000000`.

The tables `messages` and `hops` of a made journal, which Spark makes, are multiplied: each copy has sequences of its own, and all rows of a
date are shuffled, so that no row group says by its statistics what it holds. Then random messages are asked for, each in a request of its
own that opens the tables anew, as the command does. The time is that of the request. Exit status 1 if one takes more than a second.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from mqmesh.broker.journal.kinds import MessageId
from mqmesh.broker.journal.search import Query
from mqmesh.pipeline.run import Order as RunOrder
from mqmesh.pipeline.run import run
from mqmesh.pipeline.synthesis.synthesize import Order, synthesize
from mqmesh.pipeline.tables.tables import ROWS, Tables
from mqmesh.pipeline.trace.tables import find

from benchmarks.peers import ROOT

BAR = 1.0  # seconds
DAYS = 10
ONE = 60_000  # events of the journal that is multiplied
APART = 1 << 32  # between the sequences of two copies
TABLES = ("messages", "hops")
app = typer.Typer(add_completion=False)


def multiply(tables: Tables, table: str, copies: int) -> int:
    """Put so many copies in the place of a table's files; how many rows it has then."""
    rows, chance = 0, np.random.default_rng(1)
    version = tables.version(table)
    assert version is not None
    by_date: dict[str, list[Path]] = {}
    for file in version.files:
        by_date.setdefault(str(file.date), []).append(Path(tables.place.url(f"{table}/{file.path}")))
    for paths in by_date.values():
        one = pa.concat_tables([pq.ParquetFile(path).read() for path in paths])
        place = one.schema.get_field_index("sequence")
        sequences = one.column("sequence").to_numpy()
        many = [one.set_column(place, one.schema.field(place), pa.array(sequences + APART * copy)) for copy in range(copies)]
        made = pa.concat_tables(many)
        made = made.take(pa.array(chance.permutation(made.num_rows)))
        pq.write_table(made, paths[0], compression="zstd", row_group_size=ROWS)
        for path in paths[1:]:
            pq.write_table(made.slice(0, 0), path)
        rows += made.num_rows
    return rows


def asked(tables: Tables, copies: int, count: int, seed: int) -> list[MessageId]:
    """Random messages."""
    chance = random.Random(seed)
    keys: Any = tables.arrow("messages").select(["origin", "origin_epoch", "stream", "sequence"]).to_pylist()
    chosen = [MessageId(*row.values()) for row in chance.choices(keys, k=count)]
    return [one._replace(sequence=one.sequence + APART * chance.randrange(copies)) for one in chosen]


@app.command()
def main(
    messages: Annotated[int, typer.Option(min=10_000, help="About how many messages the table has.")] = 10_000_000,
    requests: Annotated[int, typer.Option(min=1, help="Messages that are asked for.")] = 50,
    seed: Annotated[int, typer.Option(help="Which ones follows from it.")] = 1,
) -> None:
    """Ask for random messages in large tables."""
    with tempfile.TemporaryDirectory(prefix="mqmesh-trace-") as name:
        folder = Path(name)
        synthesize(Order(ROOT / "topologies" / "ring-of-five.toml", events=ONE, days=DAYS, topics=100, seed=seed), folder / "journal")
        summary = run(RunOrder(str(folder / "journal"), str(folder / "tables"), TABLES, "local[2]"))
        if summary.failed:
            raise RuntimeError(str([job.error for job in summary.jobs]))
        tables = Tables(str(folder / "tables"))
        copies = max(1, messages // tables.arrow("messages").num_rows)
        wanted = asked(tables, copies, requests, seed)
        sizes = {table: multiply(tables, table, copies) for table in TABLES}
        times, missing = [], 0
        for message in wanted:
            begun = time.perf_counter()
            found = find(tables.place.root, Query(message=message))
            times.append(time.perf_counter() - begun)
            missing += [one.message for one in found] != [str(message)] or len(found[0].steps) < 2
    said = ", ".join(f"{rows:,} rows of {table}" for table, rows in sizes.items())
    late = sorted(times)[int(len(times) * 0.99)]
    print(f"{said}: median {statistics.median(times):.2f} s, 99 % {late:.2f} s, most {max(times):.2f} s; {missing} of {requests} not found")
    if missing or max(times) > BAR:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
