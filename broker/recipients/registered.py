"""The applications of the directory as recipients: lookups, those whose home is this broker; what this broker registers there.

Over `broker/applications.py`, which a directory's client keeps. The broker's own file stands above the directory.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from ...base.clients import wrong_name
from ...base.quoting import quoted
from ..applications import Application as Registered
from .directory import Answer
from .settings import EVERYBODY, Application, Intervals, wrong_alternatives

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..applications import ApplicationDirectory, Lookup
    from .settings import RecipientSettings

log = logging.getLogger("mqmesh.broker")


class Home(Protocol):
    """The recipients of this broker."""

    site: str

    def adopt(self, application: Application) -> object:
        """Take up an application, or new settings of one."""

    def drop(self, name: str) -> None:
        """It is no recipient any more."""


class Known(Protocol):
    """The broker's sessions."""

    def get(self, client_id: str) -> object | None:
        """The session of a client."""


class DirectoryRecipients:
    """A `RecipientDirectory`.

    directory: what a directory's client keeps. settings: the broker's table, whose applications stand above the directory's. home: takes up
    those whose home is this broker. sessions: tell whether it is, where a record names no broker.
    """

    def __init__(self, directory: ApplicationDirectory, settings: RecipientSettings, home: Home, sessions: Known) -> None:
        self._directory, self._default, self._home, self._sessions = directory, settings.intervals, home, sessions
        self._own = {one.name for one in settings.applications}
        self._taken: dict[str, Application] = {}
        self._unplaced: dict[str, list[Application]] = {}  # client identifier -> applications whose records name no broker
        self._declared: set[str] = set()
        directory.watch(self.look)

    def cached(self, name: str) -> Application | None:
        """See `RecipientDirectory`."""
        found = self._directory.known().get(name)
        return None if found is None else application_of(found, self._default)

    def ask(self, name: str, answer: Callable[[Application | Answer], None]) -> None:
        """See `RecipientDirectory`. The home of a record without a broker is not known until one of its clients comes somewhere."""

        def answered(found: Lookup) -> None:
            if found.record is None:
                answer(Answer.AWAY if found.away else Answer.UNKNOWN)
                return
            application = application_of(found.record, self._default)
            if application is None:
                answer(Answer.UNKNOWN)
            elif application.broker is None and not self._here(application):
                answer(Answer.AWAY)
            else:
                answer(application)

        self._directory.find(name, answered)

    def resume(self, kept: list[Application]) -> None:
        """See `RecipientDirectory`. A record that names this broker came from the directory."""
        self.look()
        for one in kept:
            if one.broker == self._home.site and one.name not in self._own:
                self._taken.setdefault(one.name, one)

    def look(self) -> None:
        """The listing has changed: take up what is at home here, and give up what is not registered any more."""
        known = self._directory.known()
        self._unplaced = {}
        for name, record in known.items():
            application = application_of(record, self._default)
            if application is None or name in self._own or name in self._declared:
                continue
            if application.broker is None:
                for client in application.clients:
                    self._unplaced.setdefault(client, []).append(application)
            if application.broker == self._home.site or (application.broker is None and self._here(application)):
                self._take(application)
        for name in [one for one in self._taken if one not in known]:
            del self._taken[name]
            self._home.drop(name)

    def opened(self, client_id: str) -> None:
        """See `RecipientDirectory`."""
        for application in self._unplaced.get(client_id, ()):
            if application.name not in self._declared:
                self._take(application)

    def declare(self, application: Application) -> None:
        """See `RecipientDirectory`."""
        self._declared.add(application.name)
        self._directory.declare(registered_of(application))

    def withdraw(self, name: str) -> None:
        """See `RecipientDirectory`."""
        self._declared.discard(name)
        self._directory.withdraw(name)

    def _here(self, application: Application) -> bool:
        return any(self._sessions.get(client) is not None for client in application.clients)

    def _take(self, application: Application) -> None:
        if self._taken.get(application.name) != application:
            self._taken[application.name] = application
            self._home.adopt(application)


def application_of(record: Registered, default: Intervals) -> Application | None:
    """A record as a recipient; None, with a line in the log, for one that cannot be a recipient.

    An interval that the record does not say is the default, moved where the one beside it would contradict it.
    """
    alternatives = list(dict.fromkeys(record.alternatives))
    wrong = wrong_name(record.name) or wrong_alternatives(record.name, alternatives)
    message, fault = record.message_interval, record.fault_interval
    intervals = Intervals(
        message if message is not None else min(default.message, fault if fault is not None else default.message),
        fault if fault is not None else max(default.fault, message if message is not None else default.fault),
        record.defunct_interval if record.defunct_interval is not None else default.defunct,
    )
    contradiction = intervals.wrong()
    if wrong is None and contradiction is not None:
        wrong = f"{contradiction[0]}_interval: {contradiction[1]}"
    if wrong is not None:
        log.warning("event=recipient-not-usable name=%s text=%s", quoted(record.name), wrong)
        return None
    made = Application(record.name, list(record.clients) or [record.name], alternatives=alternatives, intervals=intervals)
    made.probe, made.consents, made.broker = record.probe, list(record.consents), record.broker or None
    return made


def registered_of(application: Application) -> Registered:
    """A recipient as the directory keeps it."""
    one, (message, fault, defunct) = application, application.intervals
    consents = (EVERYBODY,) if EVERYBODY in one.consents else tuple(one.consents)
    return Registered(one.name, "", tuple(one.clients), tuple(one.alternatives), message, fault, defunct, consents, one.probe)
