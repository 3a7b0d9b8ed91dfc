"""The numbers of each queue in Prometheus's exposition format, in steps: a broker may have ten thousands of queues, and each has a dozen.

The samples of one name stand together, so the lines of all names are gathered at once, queue by queue.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from ..queues.core.queue import Queue
    from ..queues.shell import Queues

COUNTS = {
    "put": "Messages that were put.",
    "done": "Messages that members have worked.",
    "returned": "Messages that members gave back.",
    "unusable": "Messages that a member could not use.",
    "expired": "Messages whose time was over.",
    "dead": "Messages that became dead letters.",
    "refused": "Messages that found no room.",
    "withdrawn": "Messages that were withdrawn.",
}


class Family(NamedTuple):
    """One name. name: of its samples. heading: the lines before them. value: of a queue."""

    name: str
    heading: bytes
    value: Callable[[Queue], float]


class _One(Collector):
    """Collects one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def queue_metrics(queues: Queues) -> Generator[None, None, bytes]:
    """The lines about all queues that are declared here, in steps."""
    families = _families(queues)
    lines: list[list[str]] = [[] for _ in families]
    for name in list(queues.settings.rules):
        queue = queues.queue_here(name)  # None: it has gone meanwhile
        if queue is None or name in queues.temporary:
            continue
        label = f'{{queue="{_escaped(name)}"}}'
        for family, found in zip(families, lines, strict=True):
            found.append(f"{family.name}{label} {_written(family.value(queue))}\n")
        yield
    parts: list[bytes] = []
    for family, found in zip(families, lines, strict=True):
        parts += [family.heading, "".join(found).encode()]
        yield
    return b"".join(parts)


def _families(queues: Queues) -> list[Family]:
    def oldest(queue: Queue) -> float:
        return max(0, queues.now() - queue.oldest) / 1000 if queue.oldest else 0.0

    def count(key: str) -> Callable[[Queue], float]:
        return lambda queue: queue.counts[key]

    return [
        _gauge("waiting", "Messages that wait for a member.", lambda queue: queue.waiting),
        _gauge("in_flight", "Messages that members have.", lambda queue: queue.held),
        _gauge("oldest_seconds", "Age of the oldest message that is not at an end.", oldest),
        _gauge("paused", "1 while members get nothing of the queue.", lambda queue: queue.name in queues.settings.paused),
        *[_counter(key, text, count(key)) for key, text in COUNTS.items()],
    ]


def _gauge(name: str, text: str, value: Callable[[Queue], float]) -> Family:
    name = f"mqmesh_queue_{name}"
    return Family(name, generate_latest(_One(GaugeMetricFamily(name, text, labels=["queue"]))), value)


def _counter(name: str, text: str, value: Callable[[Queue], float]) -> Family:
    name = f"mqmesh_queue_{name}"
    return Family(f"{name}_total", generate_latest(_One(CounterMetricFamily(name, text, labels=["queue"]))), value)


def _written(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
