"""Logs what peers do wrong, without a flood of lines.

A refusal is a warning. The same refusal of the same source is a warning at most once a minute; the others are logged at level debug and
counted in the next warning as `more`. Memory and lines are bounded: beyond `REFUSALS` different refusals within a minute, the rest counts
as one.
"""

from __future__ import annotations

import ipaddress
import logging

SAY_AGAIN = 60.0  # seconds after which the same refusal is a warning again
REFUSALS = 100  # different ones that are remembered for that
REST = ("", "")  # stands for those beyond


def host_of(address: str) -> str:
    """The host of a peer's address: without the port."""
    return address.rpartition(":")[0] or address


def source_of(address: str) -> str:
    """Who counts as one peer: the host of its address; of an IPv6 address the first 64 bits, because whoever has one has them all."""
    host = host_of(address)
    if ":" not in host:
        return host
    try:
        whole = ipaddress.IPv6Address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if whole.ipv4_mapped is not None:
        return str(whole.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(whole) >> 64 << 64)}/64"


class Refusals:
    """The refusals of the last minute. event: for the lines of the log; empty if the caller writes them, when they are `due`."""

    def __init__(self, log: logging.Logger, event: str = "") -> None:
        self._log = log
        self._event = event
        self._said: dict[tuple[str, str], tuple[float, int]] = {}  # (source, what) -> when it was logged, how often it came since

    def say(self, now: float, address: str, text: str, fields: str = "", what: str = "") -> None:
        """Log a refusal.

        now: seconds of any clock.
        address: of the peer, with its port.
        fields: more `key=value`, with a space in front.
        what: two refusals of one source with the same `what` are the same. No text that a peer chooses belongs into it.
        """
        more = self.due(now, (source_of(address), what))
        if more is None:
            self._log.debug("event=%s address=%s%s text=%s", self._event, address, fields, text)
        else:
            self._log.warning("event=%s address=%s%s more=%d text=%s", self._event, address, fields, more, text)

    def due(self, now: float, key: tuple[str, str]) -> int | None:
        """Count a refusal. Returns how many were left out since the last warning if this one is a warning, else None."""
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
    """The refusals of one logger, by event."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._events: dict[str, Refusals] = {}

    def say(self, event: str, now: float, address: str, text: str, fields: str = "", what: str = "") -> None:
        """Log a refusal of an event, see `Refusals.say`."""
        if event not in self._events:
            self._events[event] = Refusals(self._log, event)
        self._events[event].say(now, address, text, fields, what)
