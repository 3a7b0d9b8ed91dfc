"""What the parts of the core share: sessions and remotes, the actions to be done, and answers to requests."""

from __future__ import annotations

from typing import Any

from ...base.metabroker import ANSWERS, Code, pack, response_topic
from ...mqtt.reasons import Reason
from ..policy import Policy
from .actions import Action, AfterCommit, LogLine, Respond
from .persistence import Persistence
from .records import Changes
from .remote import Remote
from .sessions import Counters, Session


class CoreState:
    """The state that the parts of one core share.

    changes: where everything goes that outlives the process; None: nothing does.
    offset: seconds from the core's time to the wall clock.
    now: time of the last request, or of the last call of the timer.
    late: the request being handled is acknowledged only after the commit.
    """

    def __init__(self, policy: Policy, changes: Changes | None = None, offset: float = 0.0) -> None:
        self.policy = policy
        self.counts = Counters()
        self.persistence = Persistence(changes, policy.limits, self.counts, offset, self.do) if changes is not None else None
        self.sessions: dict[str, Session] = {}
        self.remotes: dict[int, Remote] = {}
        self._last = 0  # token, request and remote
        self._actions: list[Action] = []
        self.now = 0.0
        self.late = False

    def take(self) -> list[Action]:
        """The actions to be done, in order."""
        actions, self._actions = self._actions, []
        return actions

    def do(self, action: Action) -> None:
        """Add an action."""
        self._actions.append(action)

    def new_token(self) -> int:
        """A number that no token, request or remote has."""
        self._last += 1
        return self._last

    def answer(self, session_id: str, verb: str, **items: Any) -> None:
        self.do(Respond(response_topic(session_id, ANSWERS.get(verb, verb)), pack(**items), 1))

    def answer_after_commit(self, session_id: str, verb: str, **items: Any) -> None:
        """Answer after the commit. The request is not acknowledged to the community before that."""
        self.late = self.persistence is not None
        response = Respond(response_topic(session_id, ANSWERS.get(verb, verb)), pack(**items), 1)
        self.do(AfterCommit([response]) if self.persistence is not None else response)

    def refuse(
        self, session_id: str, verb: str, message: str | int | None, code: Code, reason: str, codes: list[int] | None = None
    ) -> None:
        self.counts.refused[code] = self.counts.refused.get(code, 0) + 1
        session = self.sessions.get(session_id)
        who = f"client={session.client!r}" if session is not None else "client=unknown"
        self.do(LogLine(True, f"event=request-refused request={verb} {who} code={code.name} error={reason!r}", f"{verb} {who} {code.name}"))
        self.answer(session_id, verb, message=message, code=code, reason=reason, codes=codes)

    def tell_status(self, session: Session, code: Code, reason: str | None = None) -> None:
        self.answer(session.id, "status", code=code, reason=reason or None)

    def tell_after_commit(self, session: Session, code: Code, reason: str) -> None:
        self.answer_after_commit(session.id, "status", code=code, reason=reason)

    def log_session(self, what: str, session: Session) -> None:
        remote = session.remote
        text = f"event=session-{what} client={session.client!r} remote={remote.credentials.remote} sharers={len(remote.sessions)}"
        self.do(LogLine(False, text))


def words(reason: int) -> str:
    """What the remote says, for people."""
    return f"the remote says {Reason(reason).name.lower().replace('_', ' ')} (0x{reason:02x})"
