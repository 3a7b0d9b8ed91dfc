"""Requests to a broker about its queues, and the answers to them (docs/queues.md, "To look at and to change")."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

from ...base.queues import ANSWER, TOPIC
from ..core.errors import JMSError, error_from_outcome
from ..core.settings import Settings, Waiter
from ..core.transport import Incoming, Link, LinkSpec, Outcome, Properties, Publication, Transport

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


class QueueRequests:
    """Requests to a broker about its queues, over a link of its own. It is the handler of that link, see `transport.LinkHandler`.

    lost: called when the broker has lost the link's session.
    """

    def __init__(self, transport: Transport, client_id: str, settings: Settings, lost: Callable[[], None] = lambda: None) -> None:
        self._settings = settings
        self._lost = lost
        self._connected = threading.Event()
        self._error: JMSError | None = None
        self._last_failure = ""
        self._questions = Questions()
        self._link = transport.open(LinkSpec(client_id, settings.session_keep), self)

    def open(self) -> None:
        """Wait for the connection, and listen for answers. Raises `JMSError`."""
        timeout = self._settings.connect_timeout
        if not self._connected.wait(timeout):
            raise JMSError(f"no connection to ask about queues within {timeout:g} s: {self._last_failure}", "timeout")
        if self._error is not None:
            raise self._error
        subscribed = Waiter()
        self._link.subscribe(ANSWER, 1, 0, subscribed)
        subscribed.wait(timeout, "subscribing to answers about queues", "nothing is changed")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The broker's answer to a request. Raises `JMSError` with what it says is wrong."""
        if self._error is not None:
            raise self._error
        return self._questions.ask(self._link, request).wait(self._settings.send_timeout)

    def close(self) -> None:
        """End the link."""
        done = Waiter()
        self._link.close(True, done)
        done.wait(self._settings.connect_timeout, "closing a link for requests", "its connection is being ended")

    def received(self, incoming: Incoming) -> None:
        """An answer."""
        self._link.acknowledge(incoming.token)
        self._questions.answered(incoming)

    def connected(self, resumed: bool) -> None:
        if self._connected.is_set() and not resumed:
            self._lost()
        self._connected.set()

    def disconnected(self, text: str, word: str = "") -> None:
        self._last_failure = text

    def notified(self, text: str, word: str) -> None:
        """Nothing that a request needs."""

    def failed(self, outcome: Outcome) -> None:
        self._error = error_from_outcome(outcome, f"asking about queues{outcome.text and ': '}{outcome.text}")
        self._questions.fail(self._error)
        self._connected.set()


def ranges(positions: list[int]) -> list[tuple[int, int]]:
    """Positions in order as (first, last) of those that follow each other."""
    found: list[tuple[int, int]] = []
    for position in positions:
        if found and position == found[-1][1] + 1 and position < found[-1][0] + MOST:
            found[-1] = (found[-1][0], position)
        else:
            found.append((position, position))
    return found
