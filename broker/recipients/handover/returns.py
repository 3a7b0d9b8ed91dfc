"""No alternative is left: messages go back to who published them, or to the dead letters (rows F8, F16).

What it does not know: alternatives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ....base.quoting import quoted
from ....mqtt.batch.run import Run
from .parcels import Parcel

if TYPE_CHECKING:
    from ...ports import Context

log = logging.getLogger("mqmesh.broker")


class Returns:
    """The way back of one broker.

    publish: takes a message of the broker's own for its subscribers. False: there is no room. wanted: whether somebody is subscribed to a
    topic. may_answer: whether messages may go to their Response Topic. bury: takes a dead letter. keep: keeps what finds no room, and
    gives it to `give_back` again. prefix: of addressed topics.
    """

    def __init__(
        self,
        context: Context,
        publish: Callable[[Run], bool],
        wanted: Callable[[str], bool],
        may_answer: Callable[[Parcel, str], bool],
        bury: Callable[[Parcel], None],
        keep: Callable[[Parcel], None],
        prefix: str,
    ) -> None:
        self._context = context
        self._publish = publish
        self._wanted = wanted
        self._may_answer = may_answer
        self._bury = bury
        self._keep = keep
        self._prefix = prefix
        self._blocked: set[str] = set()  # topics without room: what comes later for them waits too

    def try_again(self) -> None:
        """What was kept is given back again now, in its order."""
        self._blocked.clear()

    def give_back(self, parcel: Parcel) -> str:
        """To the originator, or to the dead letters. "returned", "dead_lettered", or "": it is kept, because there is no room."""
        topic = None if parcel.final else self._topic(parcel)
        if topic is None or not self._wanted(topic):
            self._bury(parcel)
            return "dead_lettered"
        if topic in self._blocked or not self._publish(parcel.returned(topic, self._context.now, self._context.wall())):
            self._blocked.add(topic)
            self._keep(parcel)
            return ""
        if self._context.journal is not None:
            self._context.journal.returned(parcel.run(self._context.now), parcel.tried, topic, parcel.reason)
        log.info(
            "event=returned-to-originator client=%s topic=%s messages=%d tried=%s reason=%s",
            *(quoted(parcel.originator), quoted(topic), parcel.count, quoted(",".join(parcel.tried)), parcel.reason),
        )
        return "returned"

    def _topic(self, parcel: Parcel) -> str | None:
        """Where the publisher takes it."""
        response = parcel.response_topic
        if response is not None and self._wanted(response) and self._may_answer(parcel, response):
            return response
        return f"{self._prefix}/{parcel.originator}/returned" if _is_level(parcel.originator) else None


def _is_level(text: str) -> bool:
    return bool(text) and not any(c in text for c in "/+#\0")
