"""Parcels leave for other brokers at the end of a piece of work: messages that are alike go together in one post.

A post costs some hundred times as much as a message in it. What is put here is posted by `flush`, in the batch of the store in which it
left where it was: `flush` is called before that batch is handed over.

Invariant: what goes to one broker goes in the order in which it was put here.

What it does not know: what posts mean.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgpack

from ....mqtt.errors import UsageError
from .parcels import Parcel

if TYPE_CHECKING:
    from ...ports import Posts

log = logging.getLogger("mqmesh.broker")


class Outbox:
    """What one broker has for others. posts: None outside a mesh. full: there was no room for the last posts; they went all the same.

    refused: told (kind, name, parcel) of what is for a broker that is not known any more. room: called when there is room again.
    """

    def __init__(self, refused: Callable[[str, str, Parcel], None], room: Callable[[], None]) -> None:
        self.posts: Posts | None = None
        self.full = False
        self._refused = refused
        self._room = room
        self._lines: dict[int, list[tuple[str, str, Parcel | bytes]]] = {}  # broker -> kind, name, what

    @property
    def waiting(self) -> bool:
        """Whether there is something to be posted."""
        return bool(self._lines)

    def put(self, broker: int, kind: str, name: str, parcel: Parcel) -> None:
        """Have a parcel for a broker. name: the recipient there that gets it; "" for none."""
        line = self._lines.setdefault(broker, [])
        if line:
            last_kind, last_name, last = line[-1]
            if last_kind == kind and last_name == name and isinstance(last, Parcel) and last.alike(parcel):
                last.payloads.extend(parcel.payloads)
                return
        line.append((kind, name, parcel.part(0, parcel.count)))  # its list of payloads is nobody else's

    def note(self, broker: int, kind: str, body: bytes) -> None:
        """Have a notice for a broker."""
        self._lines.setdefault(broker, []).append((kind, "", body))

    def flush(self) -> None:
        """Post it all."""
        lines, self._lines = self._lines, {}
        for broker, line in lines.items():
            for kind, name, what in line:
                if isinstance(what, bytes):
                    self._post(broker, kind, what)
                    continue
                for parcel in what.pieces():
                    body = parcel.encode()
                    if not self._post(broker, kind, msgpack.packb([name, body]) if name else body):
                        self._refused(kind, name, parcel)

    def _post(self, broker: int, kind: str, body: bytes) -> bool:
        """Post to a broker. False: it is not known any more."""
        assert self.posts is not None
        try:
            if self.full or not self.posts.send(1 << broker, kind, body, False, self.has_room):
                self.full = True
                self.posts.send(1 << broker, kind, body, True)
        except UsageError as error:
            log.warning("event=recipient-post-failed kind=%s number=%d text=%s", kind, broker, error)
            return False
        return True

    def has_room(self) -> None:
        """There is room for posts again."""
        if self.full:
            self.full = False
            self._room()
