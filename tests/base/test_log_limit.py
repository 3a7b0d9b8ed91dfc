"""However much happens, a minute has few lines of it."""

from __future__ import annotations

import logging
import time

import pytest
from mqmesh.base.log_limit import EVENTS, MOST, MOST_TOLD, LogLimit


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Lines(logging.Handler):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.addFilter(LogLimit(clock))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines(clock: Clock) -> Lines:
    return Lines(clock)


@pytest.fixture
def log(lines: Lines) -> logging.Logger:
    made = logging.Logger("test")
    made.addHandler(lines)
    return made


def test_an_event_has_few_lines_a_minute_whatever_their_text(log: logging.Logger, lines: Lines, clock: Clock) -> None:
    for number in range(20_000):
        log.warning("event=link-refused text=%s", f"mesh {number} {time.time_ns()}")
    log.error("event=store-failed text=x")
    log.info("event=connect")
    assert len(lines.lines) == MOST + 2
    assert lines.lines[MOST - 1].endswith(" left_out=the-rest-of-this-minute")
    clock.now = 60.0
    log.warning("event=link-refused text=again")
    log.warning("event=link-refused text=more")
    assert lines.lines[-2:] == [f"event=link-refused text=again left_out={20_000 - MOST}", "event=link-refused text=more"]


def test_records_without_an_event_are_one(log: logging.Logger, lines: Lines) -> None:
    for number in range(1000):
        log.warning("%d Invalid HTTP request", number)
    assert len(lines.lines) == MOST


def test_events_without_an_end_are_bounded_too(log: logging.Logger, lines: Lines) -> None:
    for number in range(5 * EVENTS):
        log.warning("event=%d", number)
    assert len(lines.lines) == EVENTS + MOST


def test_what_is_only_told_has_a_bound_of_its_own(log: logging.Logger, lines: Lines, clock: Clock) -> None:
    log.setLevel(logging.DEBUG)
    for _ in range(2 * MOST_TOLD):
        log.info("event=connect")
    log.warning("event=connect")
    assert len(lines.lines) == MOST_TOLD + 1
    assert lines.lines[-2:] == ["event=connect left_out=the-rest-of-this-minute", "event=connect"]
    clock.now = 60.0
    log.info("event=connect")
    assert lines.lines[-1] == f"event=connect left_out={MOST_TOLD}"


def test_those_of_an_earlier_minute_make_room(log: logging.Logger, lines: Lines, clock: Clock) -> None:
    for number in range(EVENTS + MOST + 1):
        log.warning("event=%d", number)
    clock.now = 60.0
    log.warning("event=new")
    assert lines.lines[-1] == "event=new"


def test_debugging_and_mistakes_pass(log: logging.Logger, lines: Lines) -> None:
    log.setLevel(logging.DEBUG)
    for _ in range(MOST_TOLD + 1):
        log.debug("event=connect")
    assert len(lines.lines) == MOST_TOLD + 1
    assert lines.filters[0].filter(logging.LogRecord("n", logging.WARNING, "p", 1, "%d", ("x",), None))  # type: ignore[union-attr]
