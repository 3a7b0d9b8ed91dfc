"""Translations: this broker itself takes each message of a queue, and puts what a program that embeds it makes of it into another one.

A translation is a member of its queue, as a worker is. What it makes is a child of the message (`workflow.py`): both count or neither, over
a crash too. Its handle names the parent, so a child that is put again is known.

    a child is made           -> put; the parent is DONE when the child is revealed
    nothing is made           -> DONE
    the program raises        -> UNUSABLE
    there is no room          -> the message waits, and is tried again at the next tick

What it does not know: what the program does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ....base.queues import HANDLE, PARENTS, PRIORITY
from ....base.quoting import quoted
from ....mqtt.batch.run import Run
from ....mqtt.properties import Property, encode_properties, properties_in
from ...hooks import QueueMessage, Translation
from ..committer import Then
from ..core.states import Subscriber
from ..putting import properties_of
from ..refused import Refused
from .own import OwnBench

if TYPE_CHECKING:
    from ..core.blocks import Part
    from ..core.queue import Queue
    from ..offers import Offer
    from ..shell import Queues

log = logging.getLogger("mqmesh.broker")

KEPT = (PRIORITY, "mqmesh-group")  # of the words of queues, those that a child has of its parent
OWN = "mqmesh-"  # how these words begin


class Translator(OwnBench):
    """One translation at its queue."""

    __slots__ = ("_queues", "_translation")

    def __init__(self, queues: Queues, queue: Queue, translation: Translation) -> None:
        super().__init__(queues, queue, f"$translation/{translation.target}")
        self._queues = queues
        self._translation = translation

    def work(self, offer: Offer, now: int) -> None:
        """Make the child of a message."""
        part, at, run = offer.part_of, offer.base, offer.run
        try:
            child = self._translation.translate(_message_of(run.payloads[0], run.properties))
            if child is None:
                self.outcome(part, at, 1, Subscriber.DONE, now)
                return
            made = self._made(child, part.block.first + at, run.expiry)
        except Exception:
            log.exception("event=translation-failed %s", self._named(part, at))
            self.outcome(part, at, 1, Subscriber.UNUSABLE, now)
            return
        self._put(made, offer, now)

    def _made(self, child: QueueMessage, position: int, expiry: int | None) -> Run:
        """What is put. Raises what the encoding raises: the program has made something that MQTT cannot carry."""
        parent = f"{self.name}:{position}"
        found: dict[int, Any] = {Property.USER_PROPERTY: [*child.user, (HANDLE, parent), (PARENTS, parent)]}
        for key, value in (
            (Property.CONTENT_TYPE, child.content_type),
            (Property.RESPONSE_TOPIC, child.response_topic),
            (Property.CORRELATION_DATA, child.correlation),
        ):
            if value is not None:
                found[key] = value
        block = encode_properties(found)
        properties_of(block)
        return Run(b"", 1, False, [bytes(child.payload)], block, expiry, self._queues.context.now)

    def _put(self, run: Run, offer: Offer, now: int) -> None:
        part, at = offer.part_of, offer.base
        queues, target = self._queues, self._translation.target
        properties = properties_of(run.properties)
        refused = next(iter(queues.publishers.check(target, self.member.name, None, run, properties)), None)
        if refused is not None:
            log.error("event=translation-refused %s text=%s", self._named(part, at), quoted(refused.text))
            self.outcome(part, at, 1, Subscriber.UNUSABLE, now)
            return
        try:
            gate, _ = queues.publishers.put(target, self.member.name, None, run, properties)
        except Refused as error:
            log.warning("event=translation-waits %s text=%s", self._named(part, at), quoted(error.text))
            self.back(offer)
            return
        if gate is not None:
            gate.waiting.append(Then(partial(self._kept, offer)))

    def _kept(self, offer: Offer, text: str | None) -> None:
        """The commit of a child is done, or has failed."""
        if text is not None and offer.part_of.has(offer.base, 1, self.member.number):
            self.back(offer)

    def _named(self, part: Part, at: int) -> str:
        return f"queue={quoted(self.name)} position={part.block.first + at} target={quoted(self._translation.target)}"


def _message_of(payload: bytes, properties: bytes) -> QueueMessage:
    found = properties_in(properties)
    user = [(name, value) for name, value in found.get(Property.USER_PROPERTY, ()) if not name.startswith(OWN) or name in KEPT]
    return QueueMessage(
        bytes(payload),
        tuple(user),
        found.get(Property.CONTENT_TYPE),
        found.get(Property.RESPONSE_TOPIC),
        found.get(Property.CORRELATION_DATA),
    )


class Translators:
    """The translations of one broker. A queue has them while its home is here."""

    def __init__(self, queues: Queues, translations: Sequence[Translation]) -> None:
        self._queues = queues
        self._translations = translations
        self._seats: dict[int, Translator] = {}

    def look(self) -> None:
        """Queues have come or gone."""
        for number, translation in enumerate(self._translations):
            queue, seat = self._queues.queue_here(translation.source), self._seats.get(number)
            if seat is not None and seat.queue is not queue:
                seat.end()
                self._sit(seat, False)
                del self._seats[number]
                seat = None
            if queue is not None and seat is None:
                self._seats[number] = Translator(self._queues, queue, translation)
                self._sit(self._seats[number], True)

    def tick(self) -> None:
        """There may be room again."""
        for seat in self._seats.values():
            if seat.held_up:
                seat.held_up = False
                self._sit(seat, True)

    def _sit(self, seat: Any, here: bool) -> None:
        if here:
            self._queues.sit(seat)
        else:
            self._queues.stand(seat)
