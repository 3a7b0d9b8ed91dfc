"""Who takes part in which session, and what services work on: each question is one look, however much there is and whoever asks."""

from __future__ import annotations


class Sessions:
    """The sessions of the calls that one home knows."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], int] = {}  # service and session -> calls in which it takes part
        self._work: dict[str, dict[str, int]] = {}  # service -> session -> messages that it has and has not answered

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self._calls or self._work)

    def joined(self, service: str, session: str) -> None:
        """A service takes part in one more call of a session."""
        self._calls[service, session] = self._calls.get((service, session), 0) + 1

    def left(self, service: str, session: str) -> None:
        """A call of a session, in which a service took part, is forgotten."""
        self._calls[service, session] -= 1
        if not self._calls[service, session]:
            del self._calls[service, session]

    def takes_part(self, service: str, session: str) -> bool:
        """Whether a service has sent or got a message of a session."""
        return (service, session) in self._calls

    def begins(self, service: str, session: str) -> None:
        """A service has one more message to work on."""
        work = self._work.setdefault(service, {})
        work[session] = work.get(session, 0) + 1

    def ends(self, service: str, session: str) -> None:
        """It has one less."""
        work = self._work[service]
        work[session] -= 1
        if not work[session]:
            del work[session]
            if not work:
                del self._work[service]

    def of_work(self, service: str) -> str:
        """The session of all that a service works on; empty: there is nothing, or it is of several."""
        work = self._work.get(service, ())
        return next(iter(work)) if len(work) == 1 else ""
