"""Strangers that are refused before they are clients: each gets one line in the log, and a flood of them no flood of lines.

A refusal is a warning, the same one of the same host at most once a minute; the others are logged at level debug and counted in the next
warning as `more`.
"""

from __future__ import annotations

import logging

SAY_AGAIN = 60.0  # seconds after which the same refusal is a warning again
REFUSALS = 100  # different ones that are remembered for that


class Refusals:
    """What was said lately. event: of the log's lines."""

    def __init__(self, log: logging.Logger, event: str) -> None:
        self._log = log
        self._event = event
        self._said: dict[tuple[str, str], tuple[float, int]] = {}  # (host, text) -> when it was logged, how often it came since

    def say(self, now: float, address: str, text: str) -> None:
        """One more. now: of a clock in seconds. address: of the peer, with its port."""
        key = (address.rpartition(":")[0], text)
        said, more = self._said.get(key, (now - SAY_AGAIN, 0))
        if now - said < SAY_AGAIN:
            self._log.debug("event=%s address=%s text=%s", self._event, address, text)
            self._said[key] = (said, more + 1)
            return
        if len(self._said) >= REFUSALS:
            self._said.clear()
        self._log.warning("event=%s address=%s more=%d text=%s", self._event, address, more, text)
        self._said[key] = (now, 0)
