"""Logs what could not be delivered and came back: one line for all that came back from one destination at one time.

What is said of each reason is what an operator may do, or that nothing is wrong (docs/operations.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...base.quoting import quoted

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch

log = logging.getLogger("mqmesh.mesh")

REASONS = {  # of `Returned` in mesh/node/actions.py
    "dropped": "the oldest that wait for it make room at their bound",
    "expired": "their expiry interval is over",
    "replaced": "another broker has its number now",
    "absent": "it is forgotten",
    "cleared": "it came back without its store, and may have delivered them",
    "refused": "when they came there, the last member of their shared subscription was gone",
    "forbidden": "a policy forbids them on the only path",
    "damaged": "they cannot be read from the disk any more",
}


class Returned:
    """What came back and is not logged yet. name: of a broker with a number."""

    def __init__(self, name: Callable[[int], str]) -> None:
        self._name = name
        self._runs: dict[tuple[int, str], list[Batch]] = {}  # (destination, reason) -> what was in memory
        self._given_up: dict[tuple[int, str], int] = {}  # the same of what was on the disk: messages

    def came(self, destination: int, reason: str, run: Batch) -> None:
        """Messages came back."""
        self._runs.setdefault((destination, reason), []).append(run)

    def given_up(self, destination: int, reason: str, messages: int) -> None:
        """Messages that were on the disk are not sent any more."""
        key = destination, reason
        self._given_up[key] = self._given_up.get(key, 0) + messages

    def say(self) -> None:
        """Log it."""
        if not (self._runs or self._given_up):
            return
        for (destination, reason), runs in self._runs.items():
            self._warn(destination, reason, sum(run.count for run in runs), f"first_topic={quoted(runs[0].topic.decode())}")
        self._runs.clear()
        for (destination, reason), messages in self._given_up.items():
            self._warn(destination, reason, messages, "place=disk")
        self._given_up.clear()

    def _warn(self, destination: int, reason: str, messages: int, which: str) -> None:
        text = "event=returned destination=%d name=%s reason=%s messages=%d %s text=%s"
        log.warning(text, destination, quoted(self._name(destination)), reason, messages, which, REASONS[reason])
