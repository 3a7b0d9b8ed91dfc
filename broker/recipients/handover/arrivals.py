"""The alternative's broker: messages of another recipient arrive at a recipient here (rows F14, F16, F17).

An alternative that is dead, does not consent, or may not read the topic, does not get them. One that gets them by a subscription of its own
does not get them twice. What it has acknowledged is told to the origins' brokers, added up.

What it does not know: where messages go that an alternative does not take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgpack

from ....mqtt.session import Delivery
from ....mqtt.topics import matches
from .parcels import FAILED_OVER, Parcel, site_of, split_marks

if TYPE_CHECKING:
    from ...auth.guard import Guard
    from ...ports import Context
    from ..recipient import Recipient

REJECTED, UNKNOWN, NO_ROOM = "rejected", "unknown", "no-room"


class Arrivals:
    """What arrives at the recipients of one broker.

    local: the recipients here. number: this broker's. prefix: of addressed topics. noted: told (first recipient, count) of messages that
    alternatives have acknowledged, whose origin's broker is this one.
    """

    def __init__(
        self, context: Context, guard: Guard, local: dict[str, Recipient], number: int, prefix: str, noted: Callable[[str, int], None]
    ) -> None:
        self._context = context
        self._guard = guard
        self._local = local
        self._number = number
        self._prefix = prefix
        self._noted = noted
        self._done: dict[tuple[int, str, str], int] = {}  # (origin's broker, alternative, first recipient) -> acknowledged

    def arrive(self, name: str, parcel: Parcel) -> Parcel | None:
        """Deliver messages to an alternative here. What it does not take comes back; None: it has all."""
        recipient = self._local.get(name)
        if recipient is None:
            return parcel.failed(name, UNKNOWN, False)
        first, topic = parcel.tried[0], parcel.topic.decode()
        if not self.permits(recipient, first, topic):
            return parcel.failed(name, REJECTED, False)
        if not recipient.passing and not recipient.busy:
            return parcel.failed(name, recipient.state.value, False)
        if recipient.passing and self._has_it(recipient, topic):
            self._succeeded(parcel.site, name, first, parcel.count)
            return None
        run = parcel.run(self._context.now)
        delivery = Delivery(run, max(1, parcel.qos), ticket=recipient.port.next_commit if parcel.qos == 2 else 0)
        if not recipient.passing:
            taken = recipient.follow(delivery)  # behind what comes back from it just now
        else:
            if run.mark is not None and self._context.journal is not None:
                self._context.journal.received(run, 1, name)
            taken = recipient.take_over(delivery)
        if taken == parcel.count:
            return None
        left = parcel.failed(name, NO_ROOM, False)
        return left.part(taken, left.count)

    def permits(self, recipient: Recipient, first: str, topic: str) -> bool:
        """Whether an alternative may have messages of a topic, which were for the recipient `first`: it consents, and may read them."""
        if recipient.held or not recipient.application.takes(first):
            return False
        guard = self._guard
        return all(guard.subscription(guard.user_of(one), one.client_id, one.listener, topic) is None for one in recipient.sessions)

    def _has_it(self, recipient: Recipient, topic: str) -> bool:
        """Whether an alternative got messages of a topic by a subscription of its own when they were published."""
        if topic.startswith(f"{self._prefix}/"):
            return False
        return any(
            subscription.qos and not full.startswith("$share/") and matches(full, topic)
            for session in recipient.sessions
            for full, subscription in session.subscriptions.items()
        )

    # What is acknowledged

    def acknowledged(self, recipient: Recipient, delivery: Delivery, count: int) -> None:
        """An alternative has acknowledged messages that failed over to it (row F14)."""
        marks, _ = split_marks(delivery.run.properties)
        first = marks.get(FAILED_OVER, "").split(",")[0]
        self._succeeded(site_of(marks, self._number), recipient.name, first, count)

    def _succeeded(self, site: int, name: str, first: str, count: int) -> None:
        if site == self._number:
            self._noted(first, count)
        else:
            key = (site, name, first)
            self._done[key] = self._done.get(key, 0) + count

    def notices(self) -> list[tuple[int, bytes]]:
        """What the origins' brokers are to be told since the last time: (broker, body)."""
        found, self._done = self._done, {}
        return [(site, msgpack.packb([name, first, count])) for (site, name, first), count in found.items()]
