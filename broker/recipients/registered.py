"""The applications of the directory as recipients: lookups, those whose home is this broker; what this broker registers there.

Over `broker/applications.py`, which a directory's client keeps. The broker's own file stands above the directory.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...base.quoting import quoted
from ..applications import Application as Registered
from .directory import Answer
from .settings import EVERYBODY, Application, Intervals, wrong_alternatives, wrong_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..applications import ApplicationDirectory, Lookup

log = logging.getLogger("mqmesh.broker")


class DirectoryRecipients:
    """A `RecipientDirectory`.

    default: intervals where a record says none. home: takes up an application whose home is here; gone: one is not registered any more.
    is_home: whether an application's home is this broker. own: names that the broker's file has.
    """

    def __init__(
        self,
        directory: ApplicationDirectory,
        default: Intervals,
        own: set[str],
        is_home: Callable[[Application], bool],
        home: Callable[[Application], object],
        gone: Callable[[str], None],
    ) -> None:
        self._directory, self._default, self._own = directory, default, own
        self._is_home, self._home, self._gone = is_home, home, gone
        self._taken: dict[str, Application] = {}
        self._declared: set[str] = set()
        directory.watch(self.look)

    def cached(self, name: str) -> Application | None:
        """See `RecipientDirectory`."""
        found = self._directory.known().get(name)
        return None if found is None else application_of(found, self._default)

    def ask(self, name: str, answer: Callable[[Application | Answer], None]) -> None:
        """See `RecipientDirectory`."""

        def answered(found: Lookup) -> None:
            if found.record is not None:
                answer(application_of(found.record, self._default) or Answer.UNKNOWN)
            else:
                answer(Answer.AWAY if found.away else Answer.UNKNOWN)

        self._directory.find(name, answered)

    def look(self) -> None:
        """The listing has changed: take up what is at home here, and give up what is not registered any more."""
        known = self._directory.known()
        for name, record in known.items():
            application = application_of(record, self._default)
            if application is None or name in self._own or name in self._declared or self._taken.get(name) == application:
                continue
            if application.broker is not None and self._is_home(application):
                self._taken[name] = application
                self._home(application)
        for name in [one for one in self._taken if one not in known]:
            del self._taken[name]
            self._gone(name)

    def declare(self, application: Application) -> None:
        """A client has declared itself here: register it with this broker's lease."""
        self._declared.add(application.name)
        self._directory.declare(registered_of(application))

    def withdraw(self, name: str) -> None:
        """It is no recipient here any more."""
        self._declared.discard(name)
        self._directory.withdraw(name)


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
