"""Copies of messages of a queue elsewhere for a topic: its home reads them, page by page, and this site publishes them by its own rules.

    read from 1 on    -> the home -> publish, a message a step
    read from 101 on  -> the home -> ...                          -> the answer

What it does not know: who may read, who may publish.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from ...mqtt.batch.run import Run
from ...mqtt.errors import UsageError
from ..queues.kept import MOST_DISTRIBUTED, MOST_READ, NO_ROOM
from ..queues.rows import Row, message_of, with_origin

UNREADABLE = "the home of the queue has answered what is no page of messages"


class Copies:
    """One request.

    asked: `distribute`, with its positions. read: has the home carry out a request, whose answer comes later; raises UsageError. publish:
    takes a message; False: there is no room; raises UsageError. work: does steps in turns with everybody else. wanted: whether the client
    that has asked is still there. answer: takes what has become of it, once, unless it is not wanted any more.
    """

    def __init__(
        self,
        asked: Row,
        read: Callable[[Row, Callable[[bytes], None]], None],
        publish: Callable[[Run], bool],
        work: Callable[[Iterator[None]], None],
        wanted: Callable[[], bool],
        answer: Callable[[Row], None],
    ) -> None:
        self._asked = asked
        self._read = read
        self._publish = publish
        self._work = work
        self._wanted = wanted
        self._answer = answer
        self._count = 0
        self._at = max(1, asked.get("from", 1))  # the next one

    def begin(self) -> None:
        """Ask for the next page."""
        most = min(MOST_READ, MOST_DISTRIBUTED - self._count, self._asked["last"] + 1 - self._at)
        try:
            self._read({"do": "read", "name": self._asked["name"], "from": self._at, "most": most}, self._came)
        except UsageError as error:
            self._fail(str(error))

    def _came(self, words: bytes) -> None:
        self._work(self._take(words))

    def _take(self, words: bytes) -> Iterator[None]:
        """Publish a page."""
        begin = self._at
        try:
            page: Any = json.loads(words)
            if "error" in page:
                self._fail(page["error"])
                return
            rows, more = page["messages"], page["more"]
            for row in rows:
                if not self._wanted():
                    return
                if row["position"] > self._asked["last"]:
                    break
                if not self._publish(self._copy(row)):
                    self._at = row["position"]
                    self._fail(NO_ROOM)
                    return
                self._count, self._at = self._count + 1, row["position"] + 1
                yield
            if more is not None and max(self._at, more) <= begin:
                raise ValueError("it would go on for ever")
            self._go_on(more)
        except UsageError as error:
            self._fail(str(error))
        except (KeyError, TypeError, ValueError, RecursionError):
            self._fail(UNREADABLE)

    def _copy(self, row: Row) -> Run:
        """The copy of a message."""
        payload, properties = message_of(row)
        topic = self._asked["to"].encode("utf-8", "surrogatepass")
        return Run(topic, 1, False, [payload], with_origin(properties, self._asked["name"], row["position"]))

    def _go_on(self, more: int | None) -> None:
        """A page is published. more: where the next one begins; None: there is none."""
        at = max(self._at, more) if more is not None else None
        if at is None or at > self._asked["last"]:
            self._end(None)
            return
        self._at = at
        if self._count >= MOST_DISTRIBUTED:
            self._end(at)
        else:
            self.begin()

    def _end(self, more: int | None, **why: str) -> None:
        self._answer({"queue": self._asked["name"], "to": self._asked["to"], "distributed": self._count, "more": more, **why})

    def _fail(self, text: str) -> None:
        """It does not go on. What was published so far is not taken back."""
        if self._count or text == NO_ROOM:
            self._end(self._at, refused=text)
        else:
            self._answer({"error": text})
