"""Messages for a service of the broker that come in one piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...mqtt.publish import PublishProperties
    from ..routing.publication import Numbers
    from ..routing.route import Together

MOST = 32  # messages at once: a service may take a tenth of a millisecond for each


@dataclass(slots=True)
class Posts:
    """Messages for one service, in order. numbers: their packet identifiers. stop: where they end."""

    service: Together
    payloads: list[bytes]
    properties: list[PublishProperties | None]
    numbers: Numbers
    stop: int

    @property
    def qos(self) -> int:
        """Of all of them."""
        return 1

    @property
    def count(self) -> int:
        """How many messages."""
        return len(self.payloads)
