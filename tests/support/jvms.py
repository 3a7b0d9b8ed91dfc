"""The JVMs of Spark that tests start. Each loads some 20,000 classes, and a test of a job is over soon after that."""

from __future__ import annotations

import os

# The bytecode of Spark's and of generated classes is not verified: a tenth of the processor time of a session's start and first jobs.
UNVERIFIED = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"


def begin_fast() -> None:
    """From now on, in this process and those that it starts, for the sessions of Spark (not its masters and executors)."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", UNVERIFIED)
