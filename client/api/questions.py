"""Requests to a broker about its queues, and the answers to them (docs/queues.md, "To look at and to change")."""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any

from ...base.queues import ANSWER, TOPIC
from ..core.errors import JMSError, error_from_outcome
from ..core.transport import Incoming, Link, Outcome, Properties, Publication

MOST = 1000  # messages of one request


class Question:
    """A request, and its answer as soon as that is there."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._answer: dict[str, Any] | JMSError | None = None

    def end(self, answer: dict[str, Any] | JMSError) -> None:
        """The answer, or why there is none."""
        self._answer = answer
        self._event.set()

    def wait(self, timeout: float) -> dict[str, Any]:
        """The answer. Raises `JMSError` with what the broker says is wrong, and after `timeout` seconds."""
        if not self._event.wait(timeout):
            raise JMSError(f"the broker has not answered a request about queues within {timeout:g} s", "timeout")
        if isinstance(self._answer, JMSError):
            raise self._answer
        assert self._answer is not None
        return self._answer


class Questions:
    """The requests of one link that are not answered yet. The link is subscribed to `ANSWER`, and passes on what comes there."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[bytes, Question] = {}

    def ask(self, link: Link, request: dict[str, Any]) -> Question:
        """Send a request."""
        number, question = str(next(self._numbers)).encode(), Question()
        self._open[number] = question

        def sent(outcome: Outcome) -> None:
            if outcome.failed and self._open.pop(number, None) is not None:
                question.end(error_from_outcome(outcome, f"asking about queues{outcome.text and ': '}{outcome.text}"))

        link.publish(Publication(TOPIC, json.dumps(request).encode(), 1, Properties(True, None, None, ANSWER, number)), sent)
        return question

    def answered(self, incoming: Incoming) -> None:
        """An answer has come."""
        question = self._open.pop(incoming.properties.correlation or b"", None)
        if question is None:
            return
        found: dict[str, Any] = json.loads(incoming.payload)
        error = found.get("error")
        question.end(found if error is None else JMSError(f"the broker says: {error}", "queues"))

    def fail(self, error: JMSError) -> None:
        """There are no answers any more."""
        while self._open:
            self._open.popitem()[1].end(error)


def ranges(positions: list[int]) -> list[tuple[int, int]]:
    """Positions in order as (first, last) of those that follow each other."""
    found: list[tuple[int, int]] = []
    for position in positions:
        if found and position == found[-1][1] + 1 and position < found[-1][0] + MOST:
            found[-1] = (found[-1][0], position)
        else:
            found.append((position, position))
    return found
