"""Refusals of requests to publish that want no answer (QoS 0, without `message`). They are counted, and reported now and then.

A client may send thousands of such requests a second. It must learn that they are refused, without thousands of answers: the first
refusal is reported at once, then at most one in `PAUSE` seconds, with the number of all so far. A report is a puback without `message`.

The same holds for sessions that do not exist; at most `STRANGERS` of them are reported within `PAUSE`.
"""

from __future__ import annotations

from collections.abc import Callable

from ...base.metabroker import Code, pack, response_topic
from .actions import Action, LogLine, Respond
from .sessions import Counters, Session

PAUSE = 1.0  # seconds
STRANGERS = 1000


class UnansweredRefusals:
    """do: takes an action. counts: of the metabroker."""

    def __init__(self, do: Callable[[Action], None], counts: Counters) -> None:
        self._do, self._counts = do, counts
        self._sessions: dict[str, tuple[Session, Code, str]] = {}  # with refusals that are not told, and the last of them
        self._strangers: dict[str, int] = {}  # names of no sessions -> requests that were not answered
        self._look = 0.0  # when strangers may be told again

    def refuse(self, session: Session, code: Code, reason: str, now: float) -> None:
        """A session's request is not published."""
        counts = self._counts
        counts.refused[code] = counts.refused.get(code, 0) + 1
        counts.not_published += 1
        session.unpublished += 1
        if now >= session.tells:
            self._tell(session, code, reason, now)
        else:
            self._sessions[session.id] = (session, code, reason)

    def stranger(self, name: str, now: float) -> int:
        """A request of a session that there is not. How many of its requests are to be answered now, as one; 0: it waits."""
        counts = self._counts
        counts.not_published += 1
        waiting = self._strangers.get(name)
        if waiting is None and len(self._strangers) < STRANGERS:
            if not self._strangers:
                self._look = now + PAUSE
            self._strangers[name] = 0
            return 1
        counts.refused[Code.UNKNOWN_SESSION] = counts.refused.get(Code.UNKNOWN_SESSION, 0) + 1
        if waiting is not None:
            self._strangers[name] = waiting + 1
        return 0

    def forget(self, session: Session) -> None:
        """It has ended."""
        self._sessions.pop(session.id, None)

    def on_timer(self, now: float) -> None:
        """Tell what may be told now."""
        for session, code, reason in [one for one in self._sessions.values() if now >= one[0].tells]:
            self._tell(session, code, reason, now)
        if self._strangers and now >= self._look:
            strangers, self._strangers = self._strangers, {}
            for name, waiting in strangers.items():
                if waiting:
                    reason = f"there is no such session ({waiting} requests since the last answer)"
                    self._do(Respond(response_topic(name, "puback"), pack(code=Code.UNKNOWN_SESSION, reason=reason), 1))

    def _tell(self, session: Session, code: Code, reason: str, now: float) -> None:
        session.tells = now + PAUSE
        self._sessions.pop(session.id, None)
        refused = session.unpublished
        text = f"event=request-refused request=publish client={session.client!r} code={code.name} error={reason!r} refused={refused}"
        self._do(LogLine(True, text, f"publish client={session.client!r} {code.name}"))
        self._do(Respond(response_topic(session.id, "puback"), pack(code=code, reason=reason, refused=refused), 1))
