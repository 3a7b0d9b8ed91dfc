"""Logs what could not be delivered and came back: one line for all that came back from one destination at one time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch

log = logging.getLogger("mqmesh.mesh")


class Returned:
    """What came back and is not logged yet."""

    def __init__(self) -> None:
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
            messages = sum(run.count for run in runs)
            log.warning(
                "event=returned destination=%d reason=%s messages=%d first_topic=%s", destination, reason, messages, runs[0].topic.decode()
            )
        self._runs.clear()
        for (destination, reason), messages in self._given_up.items():
            log.warning("event=returned destination=%d reason=%s messages=%d text=they were on the disk", destination, reason, messages)
        self._given_up.clear()
