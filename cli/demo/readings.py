"""Real readings of this machine, by psutil: each core, memory, disks, interfaces, processes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import psutil


class Reading(NamedTuple):
    """A value. subject: the rest of the topic after the site, such as ``cpu/0``. unit: of the value."""

    subject: str
    value: float
    unit: str


def readings() -> Iterator[Reading]:
    """Endless readings: it reads all sources in turn, again and again."""
    while True:
        for source in SOURCES:
            with contextlib.suppress(psutil.Error, OSError, AttributeError, NotImplementedError):  # what this machine lacks
                yield from source()


def _cores() -> Iterator[Reading]:
    for number, percent in enumerate(psutil.cpu_percent(percpu=True)):
        yield Reading(f"cpu/{number}", percent, "percent")


def _load() -> Iterator[Reading]:
    for minutes, load in zip((1, 5, 15), psutil.getloadavg(), strict=True):
        yield Reading(f"load/{minutes}", round(load, 2), "processes")


def _memory() -> Iterator[Reading]:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    yield Reading("memory/used", memory.used, "bytes")
    yield Reading("memory/available", memory.available, "bytes")
    yield Reading("memory/swap", swap.used, "bytes")


def _disks() -> Iterator[Reading]:
    for name, io in itertools.islice(psutil.disk_io_counters(perdisk=True).items(), 8):
        yield Reading(f"disk/{name}/read", io.read_bytes, "bytes")
        yield Reading(f"disk/{name}/written", io.write_bytes, "bytes")
    yield Reading("disk/system/used", psutil.disk_usage("/").percent, "percent")


def _interfaces() -> Iterator[Reading]:
    for name, io in itertools.islice(psutil.net_io_counters(pernic=True).items(), 8):
        yield Reading(f"net/{name}/sent", io.bytes_sent, "bytes")
        yield Reading(f"net/{name}/received", io.bytes_recv, "bytes")


def _processes() -> Iterator[Reading]:
    pids = psutil.pids()
    yield Reading("process/count", len(pids), "processes")
    own = psutil.Process()
    yield Reading("process/own/resident", own.memory_info().rss, "bytes")
    yield Reading("process/own/cpu", round(sum(own.cpu_times()[:2]), 3), "seconds")
    yield Reading("process/own/threads", own.num_threads(), "threads")


SOURCES: tuple[Callable[[], Iterator[Reading]], ...] = (_cores, _load, _memory, _disks, _interfaces, _processes)
