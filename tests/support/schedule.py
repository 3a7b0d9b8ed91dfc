"""The order of test files in a parallel run: the longest first, so that no process is left with a long file at the end.

A process runs all tests of a file, and all files of a group, because they share something that takes long to start.
`make test` prints the 25 slowest tests at its end.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
RABBITMQ = (  # one node for all of them
    "interop/test_any_broker.py",
    "metabroker/connectors/test_durable.py",
    "metabroker/connectors/amqp/test_bad_messages.py",
    "metabroker/connectors/amqp/test_connector.py",
)
# Seconds of the files that take longest. They need not be exact: they only give an order.
SECONDS = {
    "faults/test_ring.py": 60,
    **dict.fromkeys(RABBITMQ, 60),
}
OTHERS = 1  # seconds of a file that is not listed


def seconds(file: str) -> float:
    """How long a file takes, roughly; a path from the folder of the tests."""
    return SECONDS.get(file, OTHERS)


def group(file: str) -> str:
    """The files with the same answer run in one process."""
    return "rabbitmq" if file in RABBITMQ else file
