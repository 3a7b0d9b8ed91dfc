"""Why a message is not put into a queue."""

from __future__ import annotations

from ...mqtt.reasons import Reason


class Refused(Exception):
    """A message is not put. reason: for the publisher."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
