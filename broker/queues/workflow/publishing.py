"""Delayed messages to topics: a queue with `publish` holds them, and this broker publishes each when its delay is over.

A PUBLISH with the user properties `mqmesh-handle` and `mqmesh-delay` is put into that queue with its topic, instead of being published
(`publish/accept.py`). So it is on the disk before its acknowledgement, and its publisher's repeat is known by the handle.

    it is due                    -> it is published in turns with everybody else's work
    it is published              -> DONE, after the commit of what was caused by it
    there is no room for it      -> it waits, and is tried again at the next tick
    it was put without a topic   -> UNUSABLE

Between being published and DONE it comes again if the broker is killed: at least once, with the same properties.

What it does not know: routes, subscribers.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ....base.queues import DELAY, DELIVERIES, HANDLE, PREFIX
from ....base.quoting import quoted
from ....mqtt.batch.run import Run
from ....mqtt.properties import Property, encode_properties, properties_in
from ..core.states import Subscriber
from .own import OwnBench

if TYPE_CHECKING:
    from ..core.blocks import Part
    from ..core.queue import Queue
    from ..offers import Offer
    from ..settings import QueueSettings

log = logging.getLogger("mqmesh.broker")

MEMBER = "$publish"
SAID = (DELAY, HANDLE, DELIVERIES)  # words of the queue, which subscribers do not get


class Home(Protocol):
    """What is needed of the queues of the broker."""

    context: Any
    settings: QueueSettings
    answers: Any

    def publish(self, run: Run, /) -> bool: ...

    def queue_here(self, name: str) -> Queue | None: ...

    def sit(self, seat: Any) -> None: ...

    def stand(self, seat: Any) -> None: ...

    def stir(self, name: str) -> None: ...

    def now(self) -> int: ...


class Publishing(OwnBench):
    """The member that publishes what is due."""

    __slots__ = ("_queues",)

    def __init__(self, queues: Home, queue: Queue) -> None:
        super().__init__(queues, queue, MEMBER)
        self._queues = queues

    def work(self, offer: Offer, now: int) -> None:
        """Publish a message."""
        part, at, run = offer.part_of, offer.base, offer.run
        topic = bytes(run.topic)
        if topic.startswith(PREFIX.encode()):
            log.warning("event=queue-not-published queue=%s position=%d text=it has no topic", quoted(self.name), part.block.first + at)
            self.outcome(part, at, 1, Subscriber.UNUSABLE, now)
            return
        block = _without_words(run.properties)
        if not self._queues.publish(Run(topic, 1, False, [bytes(run.payloads[0])], block, run.expiry, self._queues.context.now)):
            self.back(offer)
            return
        persistence = self._queues.answers.persistence
        if persistence is None:
            self.outcome(part, at, 1, Subscriber.DONE, now)
        else:
            persistence.when(persistence.mark(), partial(self._published, part, at))

    def _published(self, part: Part, at: int) -> None:
        """What a message has caused is kept."""
        self.outcome(part, at, 1, Subscriber.DONE, self._queues.now())
        self._queues.stir(self.name)


def _without_words(properties: bytes) -> bytes:
    found: dict[int, Any] = properties_in(properties)
    user = [pair for pair in found.get(Property.USER_PROPERTY, ()) if pair[0] not in SAID]
    found = {key: value for key, value in found.items() if key != Property.USER_PROPERTY}
    return encode_properties(found | {Property.USER_PROPERTY: user} if user else found)


class DuePublisher:
    """The queue of one broker that holds delayed messages. name: its name; None: there is none here now."""

    def __init__(self, queues: Home) -> None:
        self._queues = queues
        self._seat: Publishing | None = None
        self.name: str | None = None

    def look(self) -> None:
        """Queues have come or gone."""
        self.name = next((name for name, rules in self._queues.settings.rules.items() if rules.publish), None)
        queue = self._queues.queue_here(self.name) if self.name is not None else None
        if self._seat is not None and self._seat.queue is not queue:
            self._seat.end()
            self._queues.stand(self._seat)
            self._seat = None
        if queue is not None and self._seat is None:
            self._seat = Publishing(self._queues, queue)
            self._queues.sit(self._seat)

    def tick(self) -> None:
        """There may be room again."""
        if self._seat is not None and self._seat.held_up:
            self._seat.held_up = False
            self._queues.sit(self._seat)


def is_delayed(pairs: tuple[tuple[str, str], ...]) -> bool:
    """Whether the user properties of a PUBLISH ask for a delay."""
    return any(name == DELAY for name, _ in pairs)
