"""The pipeline's jobs over a journal: `python -m benchmarks.pipeline.on_spark JOURNAL OUT MEMORY`. The last line is JSON."""

from __future__ import annotations

import json
import sys
import time

from mqmesh.pipeline.registry import JOBS
from mqmesh.pipeline.run import Order, run
from mqmesh.pipeline.session import spark_session

WANTED = ("messages", "latency", "traffic", "usage")


def main(journal: str, out: str, memory: str) -> None:
    """Start Spark, then run the jobs; the two times are told apart."""
    began = time.monotonic()
    spark_session("local[2]", memory)
    start = time.monotonic() - began
    summary = run(Order(journal, out, tuple(name for name in WANTED if name in JOBS), "local[2]", memory))
    if summary.failed:
        raise SystemExit([job.error for job in summary.jobs if job.error])
    jobs = {job.job: round(job.seconds, 2) for job in summary.jobs}
    print(json.dumps({"events": summary.selection.events, "start": start, "seconds": summary.seconds, "jobs": jobs}))


main(*sys.argv[1:])
