"""Questions to the server: requests with an answer, and PINGs whose PONG says that all before them has been handled."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from ...wire import Event
from . import codec

PATIENCE = 5.0  # seconds for an answer

Answer = Callable[[Any, list[Event]], None]  # JSON of the answer, None: there is none


class _Request(NamedTuple):
    subject: str
    answer: Answer
    until: float


class Talk:
    """inbox: the subject below which answers come to us."""

    def __init__(self, inbox: str, write: Callable[[bytes], None]) -> None:
        self.inbox = inbox
        self.now = 0.0
        self._write = write
        self._number = 0
        self._requests: dict[int, _Request] = {}
        self._marks: deque[Callable[[list[Event]], None] | None] = deque()
        self._later: list[Event] = []

    def lost(self) -> None:
        """The connection has ended, and every question with it."""
        self._requests.clear()
        self._marks.clear()
        self._later.clear()

    def ping(self, done: Callable[[list[Event]], None] | None = None) -> None:
        """done is called once the server has handled all that was written so far."""
        self._marks.append(done)
        self._write(b"PING\r\n")

    def later(self, event: Event) -> None:
        """Tell the owner something with the next answer, which is asked for."""
        self._later.append(event)
        self.ping()

    def ask(self, subject: str, body: bytes, answer: Answer) -> None:
        """Send a request."""
        self._number += 1
        self._requests[self._number] = _Request(subject, answer, self.now + PATIENCE)
        self._write(codec.publish(subject, f"{self.inbox}.r{self._number}", b"", body))

    def on_pong(self, events: list[Event]) -> None:
        """A PONG: the answer to our oldest PING."""
        events += self._later
        self._later.clear()
        if self._marks and (done := self._marks.popleft()) is not None:
            done(events)

    def on_answer(self, number: bytes, status: str, payload: bytes, events: list[Event]) -> None:
        """What has come below the inbox. number: behind its r."""
        request = self._requests.pop(int(number), None) if number.isdigit() else None
        if request is None:
            return
        try:
            answer = None if status else json.loads(payload)
        except (ValueError, RecursionError):
            answer = None
        request.answer(answer, events)

    def refused(self, subject: str, events: list[Event]) -> None:
        """We may not publish to this subject."""
        for number, request in list(self._requests.items()):
            if request.subject == subject:
                del self._requests[number]
                request.answer(None, events)

    def on_timer(self, now: float) -> None:
        """Give up what has had no answer."""
        self.now = now
        events: list[Event] = []
        for number, request in list(self._requests.items()):
            if now >= request.until:
                del self._requests[number]
                request.answer(None, events)
        for event in events:
            self.later(event)
