"""What every part of the core shares: its state, the actions that it wants done, and the answers to requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base.metabroker import ANSWERS, Code, pack, response_topic
from ...mqtt.reasons import Reason
from ..policy import Policy
from .actions import Action, After, Note, Respond
from .durable import Memory
from .records import Changes
from .remote import Remote
from .sessions import Counts, Session


class Answering:
    """The state of a core. new_id: gives identifiers that nobody can guess.

    changes: where what outlives the process goes, None: nothing does. offset: from the core's time to the wall clock, seconds.
    """

    def __init__(self, policy: Policy, new_id: Callable[[], str], changes: Changes | None = None, offset: float = 0.0) -> None:
        self.policy = policy
        self.counts = Counts()
        self.memory = Memory(changes, policy.limits, self.counts, offset, self._do) if changes is not None else None
        self.sessions: dict[str, Session] = {}
        self.remotes: dict[int, Remote] = {}
        self._new_id = new_id
        self._last = 0  # token, request and remote
        self._actions: list[Action] = []
        self._now = 0.0  # of the last request or look at the clock
        self._late = False  # the request at hand is to be acknowledged when what has been put is kept

    def take(self) -> list[Action]:
        """What is to be done, in order."""
        actions, self._actions = self._actions, []
        return actions

    def do(self, action: Action) -> None:
        """An action behind the others."""
        self._actions.append(action)

    _do = do

    def new_token(self) -> int:
        """A number that no token, request or remote has."""
        self._last += 1
        return self._last

    _token = new_token

    def _answer(self, session_id: str, verb: str, **items: Any) -> None:
        self._do(Respond(response_topic(session_id, ANSWERS.get(verb, verb)), pack(**items), 1))

    def _answer_kept(self, session_id: str, verb: str, **items: Any) -> None:
        """Answer once what has been put is kept; a request that is answered so now stays with the community until then."""
        self._late = self.memory is not None
        response = Respond(response_topic(session_id, ANSWERS.get(verb, verb)), pack(**items), 1)
        self._do(After([response]) if self.memory is not None else response)

    def _refuse(
        self, session_id: str, verb: str, message: str | int | None, code: Code, reason: str, codes: list[int] | None = None
    ) -> None:
        self.counts.refused[code] = self.counts.refused.get(code, 0) + 1
        session = self.sessions.get(session_id)
        who = f"client={session.client!r}" if session is not None else "client=unknown"
        self._do(Note(True, f"event=request-refused request={verb} {who} code={code.name} error={reason!r}", f"{verb} {who} {code.name}"))
        self._answer(session_id, verb, message=message, code=code, reason=reason, codes=codes)

    def _status(self, session: Session, code: Code, reason: str | None = None) -> None:
        self._answer(session.id, "status", code=code, reason=reason or None)

    def _note_session(self, what: str, session: Session) -> None:
        remote = session.remote
        text = f"event=session-{what} client={session.client!r} remote={remote.credentials.remote} sharers={len(remote.sessions)}"
        self._do(Note(False, text))


def words(reason: int) -> str:
    """What the remote says, for people."""
    return f"the remote says {Reason(reason).name.lower().replace('_', ' ')} (0x{reason:02x})"
