"""Requests of members and publishers about a queue elsewhere: its home carries them out, and the answer follows its commit.

    queues/ask     [number, client, request as JSON]      to the home
    queues/told    [number, answer as JSON]               back

The home believes the site about who its client is, as it does with PUT. What operators ask of other sites goes by the management protocol.

What it does not know: what may be asked.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....mqtt.errors import UsageError
from .wire import encode, fields

if TYPE_CHECKING:
    from ...ports import Context, Posts

ASK, TOLD = "queues/ask", "queues/told"
WITHIN = 5.0  # seconds that an answer is waited for
OPEN, OPEN_EACH = 1000, 16  # requests that wait for answers, of one client

Answer = Callable[[bytes], None]
CarryOut = Callable[[int, str, dict[str, Any], Answer], None]  # origin, client, request


class Asking:
    """Requests of one broker's clients, and those of others. carry_out: does what clients of other sites ask; None: nothing is done."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._posts: Posts | None = None
        self._open: dict[bytes, tuple[str, Answer]] = {}
        self._each: Counter[str] = Counter()
        self.carry_out: CarryOut | None = None

    def join_mesh(self, posts: Posts) -> None:
        """The broker is a member of a mesh."""
        self._posts = posts

    def ask(self, home: int, client: str, request: bytes, answer: Answer) -> None:
        """Have the home of a queue do something. answer: gets its words, once, now or later. Raises UsageError."""
        assert self._posts is not None
        if client and self._each[client] >= OPEN_EACH:
            raise UsageError(f"{OPEN_EACH} requests of yours to other sites wait for their answers: wait for one")
        if len(self._open) >= OPEN:
            raise UsageError(f"{OPEN:,} requests to other sites wait for their answers: ask again later")
        number = secrets.token_bytes(8)
        self._posts.send(1 << home, ASK, encode((number, client, request)), must=True)
        self._open[number] = client, answer
        self._each[client] += 1
        self._context.loop.call_later(WITHIN, self._late, number)

    def _late(self, number: bytes) -> None:
        text = f"no answer from the home of the queue within {WITHIN:g} s: the request is on its way there, and may still count"
        self._close(number, json.dumps({"error": text}).encode())

    def _close(self, number: bytes, words: bytes) -> None:
        client, answer = self._open.pop(number, ("", None))
        if answer is not None:
            self._each[client] -= 1
            if not self._each[client]:
                del self._each[client]
            self._context.refresh()
            answer(words)
            self._context.flush()

    def asked(self, origin: int, body: bytes) -> None:
        """A client of another site asks something. Raises ValueError."""
        number, client, request = fields(body, bytes, str, bytes)

        def answer(words: bytes) -> None:
            assert self._posts is not None
            self._posts.send(1 << origin, TOLD, encode((number, words)), must=True)

        try:
            found = json.loads(request)
        except RecursionError:
            raise ValueError("a request that is none") from None
        if not isinstance(found, dict):
            raise ValueError("a request that is none")
        if self.carry_out is None:
            answer(json.dumps({"error": "there are no queues at this site any more"}).encode())
        else:
            self.carry_out(origin, client, found, answer)

    def told(self, origin: int, body: bytes) -> None:
        """The home has answered. Raises ValueError."""
        number, words = fields(body, bytes, bytes)
        self._context.loop.call_soon(self._close, number, words)
