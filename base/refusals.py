"""What peers do wrong is said in the log, and a flood of it is no flood of lines.

A refusal is a warning, the same one of the same host at most once a minute; the others are logged at level debug and counted in the next
warning as `more`. Memory and lines are bounded also when each refusal is another one: beyond `REFUSALS` different ones within a minute, the
rest counts as one.
"""

from __future__ import annotations

import logging

SAY_AGAIN = 60.0  # seconds after which the same refusal is a warning again
REFUSALS = 100  # different ones that are remembered for that
REST = ("", "")  # stands for those beyond


def host_of(address: str) -> str:
    """The host of a peer's address: without the port."""
    return address.rpartition(":")[0] or address


class Refusals:
    """What was said lately. event: of the log's lines; empty where the caller writes them, when they are `due`."""

    def __init__(self, log: logging.Logger, event: str = "") -> None:
        self._log = log
        self._event = event
        self._said: dict[tuple[str, str], tuple[float, int]] = {}  # (host, what) -> when it was logged, how often it came since

    def say(self, now: float, address: str, text: str, fields: str = "", what: str | None = None) -> None:
        """One more. now: of a clock in seconds. address: of the peer, with its port. fields: more `key=value`, with a space in front.

        what: two refusals with the same one are the same; None: the text says it.
        """
        more = self.due(now, (host_of(address), text if what is None else what))
        if more is None:
            self._log.debug("event=%s address=%s%s text=%s", self._event, address, fields, text)
        else:
            self._log.warning("event=%s address=%s%s more=%d text=%s", self._event, address, fields, more, text)

    def due(self, now: float, key: tuple[str, str]) -> int | None:
        """Count one more: how many were not said since the last one, if this one is to be said; None: it is not."""
        said = self._said
        if key not in said and len(said) >= REFUSALS:
            for old in [one for one, (at, _) in said.items() if now - at >= SAY_AGAIN]:
                del said[old]
            if len(said) >= REFUSALS:
                key = REST
        at, more = said.get(key, (now - SAY_AGAIN, 0))
        if now - at < SAY_AGAIN:
            said[key] = (at, more + 1)
            return None
        said[key] = (now, 0)
        return more


class Warnings:
    """All of a broker's refusals of one logger, by event."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._events: dict[str, Refusals] = {}

    def say(self, event: str, now: float, address: str, text: str, fields: str = "", what: str | None = None) -> None:
        """As `Refusals.say` does, for one of a few events."""
        if event not in self._events:
            self._events[event] = Refusals(self._log, event)
        self._events[event].say(now, address, text, fields, what)
