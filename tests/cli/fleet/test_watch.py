"""Statuses over a pipe."""

from __future__ import annotations

import os
import threading

from mqmesh.cli.fleet.watch import Status, _Reporter, follow
from support.services import PATIENCE

LARGE = "x" * 10_000  # some of them fill a pipe


def test_a_reader_that_stops_does_not_stop_the_broker_and_hears_the_newest_in_the_end() -> None:
    reading, writing = os.pipe()
    reporter = _Reporter(writing)
    for number in range(100):
        reporter.say(f'{{"number": {number}, "large": "{LARGE}"}}')
    found: list[Status] = []
    last = threading.Event()

    def heard(status: Status) -> None:
        found.append(status)
        if status["number"] == 99:
            last.set()

    thread = follow(os.fdopen(reading), heard)
    assert last.wait(PATIENCE)
    numbers = [one["number"] for one in found]
    assert numbers == sorted(set(numbers))
    assert all(one["large"] == LARGE for one in found)
    os.close(writing)
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_what_the_end_of_a_broker_cuts_off_is_left_out() -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"number": 1}\n{"number"')
    os.close(writing)
    found: list[Status] = []
    follow(os.fdopen(reading), found.append).join(PATIENCE)
    assert found == [{"number": 1}]
