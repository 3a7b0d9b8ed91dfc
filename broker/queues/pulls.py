"""Members that ask for messages: a subscription to `$queue/NAME/alerts` (row Q12; docs/queues.md, "Alerts").

Such a member is told that something is available, once until it asks for messages. What it asks for comes as the messages of any other
member do, and goes back when its connection is lost. An alert is an offer of nothing: nobody keeps it.

What it does not know: requests, when something is available.
"""

from __future__ import annotations

import json
from typing import Any

from ...base.queues import ALERTS, PREFIX
from ...mqtt.batch.run import Run
from .core.states import Subscriber
from .offers import Offer
from .seats import Seat, send


def queue_of_alerts(topic_filter: str) -> str:
    """The queue whose alerts a filter is for; "": it is for something else."""
    return topic_filter[len(PREFIX) : -len(ALERTS)] if topic_filter.startswith(PREFIX) and topic_filter.endswith(ALERTS) else ""


def alert(name: str, waiting: int, now: float) -> Run:
    """The message to a member of a queue that something is available. now: of the loop's clock."""
    text = json.dumps({"queue": name, "waiting": waiting}, separators=(",", ":"))
    return Run((PREFIX + name + ALERTS).encode(), 1, False, [text.encode()], received=now)


class PullSeat(Seat):
    """See the module. told: that something is available, since it asked last."""

    __slots__ = ("told",)
    pulls = True

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.told = False

    def room(self) -> int:
        """It gets nothing that it has not asked for."""
        return 0

    def asked(self) -> int:
        """How many messages it may get when it asks."""
        return super().room()

    def alert(self, now: float) -> None:
        """Tell it that something is available, if it has room for that and was not told yet. now: of the loop's clock."""
        if self.told or not self.queue.available(self.member) or self.place.room(self.qos) <= 0:
            return
        self.told = True
        send(self, Offer(alert(self.name, self.queue.waiting_for(self.member), now), self.suffix, self, None, 0), 0)

    # What becomes of an alert, whose part is None, is all the same

    def acknowledged(self, part: Any, start: int, count: int, now: int) -> None:
        """See `Sitting`."""
        if part is not None:
            super().acknowledged(part, start, count, now)

    def outcome(self, part: Any, start: int, count: int, outcome: Subscriber, now: int) -> None:
        """See `Sitting`."""
        if part is not None:
            super().outcome(part, start, count, outcome, now)

    def returned(self, part: Any, start: int, count: int, now: int) -> None:
        """See `Sitting`."""
        if part is not None:
            super().returned(part, start, count, now)
