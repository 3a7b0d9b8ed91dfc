"""The lease of a schema with queues: which of several brokers writes the log in it (`store/postgresql_lease.py`)."""

from __future__ import annotations

import errno

from ....store.postgresql_lease import Lease
from ....store.postgresql_schema import Schema

SECONDS = 5.0  # of a lease
SCHEMA = "mqmesh_queues"
LOCK_CLASS = 0x6D72  # of advisory locks, "mr"


def lease_of(url: str, holder: str = "", seconds: float | None = None, clock: str = "clock_timestamp()") -> Lease:
    """url: see `PostgresqlSegments`. See `Lease`. Raises OSError."""
    return Lease(schema_of(url), holder, seconds, clock)


def schema_of(url: str) -> Schema:
    """The schema of a URL. Raises OSError."""
    schema = Schema(url, SCHEMA, LOCK_CLASS)
    if schema.wrong:
        raise OSError(errno.EINVAL, f"{schema.shown}: {schema.wrong}")
    return schema
