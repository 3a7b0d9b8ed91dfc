"""Sends with a completion listener: the listeners are called by the session's thread, in the order of the sends (7.3)."""

from __future__ import annotations

import functools
import itertools
import threading
from dataclasses import dataclass

from ..core.errors import JMSError, error_from_outcome
from ..core.transport import Link, Outcome, Publication
from ..message.messages import Message
from .dispatcher import Dispatcher
from .producer import CompletionListener


@dataclass(slots=True)
class _Send:
    """A send whose listener has not been called. error: the broker's refusal."""

    message: Message
    listener: CompletionListener
    answered: bool = False
    error: JMSError | None = None


class AsyncSends:
    """The sends of one session with a completion listener.

    cond: the session's condition.
    limit: sends under way at most.
    """

    def __init__(self, cond: threading.Condition, dispatcher: Dispatcher, limit: int) -> None:
        self._cond, self._dispatcher, self._limit = cond, dispatcher, limit
        self._sends: dict[int, _Send] = {}  # not answered, or behind one that is not; in the order of sending
        self._numbers = itertools.count()
        self._open = 0  # sends whose listener has not returned
        self._closing = False
        self._in_listener = False

    @property
    def full(self) -> bool:
        """Whether the next send would wait for earlier ones."""
        return self._open >= self._limit

    @property
    def in_listener(self) -> bool:
        """Whether the caller is a completion listener of this session."""
        return self._in_listener and self._dispatcher.current

    def wait_for_room(self) -> None:
        """Wait until the next send need not wait, or the session closes."""
        with self._cond:
            self._cond.wait_for(lambda: not self.full or self._closing)

    def publish(self, link: Link, publication: Publication, message: Message, listener: CompletionListener) -> None:
        """Publish; the listener hears of the broker's answer. Waits while too many listeners have not returned."""
        with self._cond:
            self._cond.wait_for(lambda: not self.full or self._dispatcher.current or self._closing)
            self._open += 1
            number = next(self._numbers)
            self._sends[number] = _Send(message, listener)
            self._dispatcher.start()
        link.publish(publication, functools.partial(self._answered, number, publication.topic))

    def complete(self, message: Message, listener: CompletionListener, error: JMSError | None) -> None:
        """Have a listener called for a send that was answered elsewhere, such as in `commit`."""
        with self._cond:
            self._open += 1
        self._post(message, listener, error)

    def wait_until_complete(self, timeout: float | None = None) -> None:
        """Wait until every listener has returned, or the session closes. With the condition held."""
        self._cond.wait_for(lambda: not self._open or (timeout is None and self._closing), timeout)

    def start_closing(self) -> None:
        """Let nobody wait for room. With the condition held."""
        self._closing = True

    def close(self) -> None:
        """Report sends without an answer to their listeners as late."""
        with self._cond:
            sends, self._sends = self._sends, {}
        for send in sends.values():
            late = JMSError("the session was closed before the broker had answered; the message may have been sent", "timeout")
            self._post(send.message, send.listener, send.error if send.answered else late)

    def _answered(self, number: int, topic: str, outcome: Outcome) -> None:
        error = error_from_outcome(outcome, f"sending to {topic!r}{outcome.text and ': '}{outcome.text}") if outcome.failed else None
        with self._cond:
            send = self._sends.get(number)
            if send is None:
                return
            send.answered, send.error = True, error
            while self._sends:  # after a broken connection answers may come in another order
                number, first = next(iter(self._sends.items()))
                if not first.answered:
                    return
                del self._sends[number]
                self._post(first.message, first.listener, first.error)

    def _post(self, message: Message, listener: CompletionListener, error: JMSError | None) -> None:
        self._dispatcher.post(functools.partial(self._call, message, listener, error))

    def _call(self, message: Message, listener: CompletionListener, error: JMSError | None) -> None:
        self._in_listener = True
        try:
            listener(message, error)
        finally:
            self._in_listener = False
            with self._cond:
                self._open -= 1
                self._cond.notify_all()
