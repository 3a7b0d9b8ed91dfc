"""What a segment of the log says itself: the names of queues and members before it uses their numbers, and where each queue stands.

    a segment begins    all queues are to be named in it, `AT_ONCE` records in each commit         `begin`, `name_some`
    a queue is used     it is named before that, with its next position and its subscribers        `name`
    all are named       older segments may go: nothing is known from them alone                    `whole`

A broker may be killed before all are named. Then the older segments, which stayed, say where the others stand.

What it does not know: when a segment begins, files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from operator import itemgetter

from ..core.blocks import NOBODY, Block
from ..core.queue import Queue
from ..core.stock import ENDS, ON
from .batch import Batch
from .claims import Claims
from .format import claim_record, name_record, next_record, subscriber_record

AT_ONCE = 2000  # queues, and records of them, that a commit brings though nothing is new in them
ALL = 1 << 62  # above the number of any segment

_MEMBER_OF = itemgetter(3)  # of a Move


class Naming:
    """Of one log. named: what the current segment names: queue, and member or 0. left: queues that it is still to name. said: by the number
    of a queue the last segment that names it and is on the disk.

    queues: that are written here, by name; they come and go.
    """

    def __init__(self, queues: Mapping[str, Queue], claims: Claims) -> None:
        self.named: set[tuple[int, int]] = set()
        self.left: dict[Queue, None] = {}
        self.said: dict[int, int] = {}
        self._queues = queues
        self._claims = claims
        self._oldest = 0

    def begin(self, queues: Iterable[Queue], oldest: int) -> None:
        """A segment begins. oldest: the number of the oldest one that there is."""
        self.named.clear()
        self.left = dict.fromkeys(queues)
        self._oldest = oldest

    def name_some(self, batch: Batch, head: list[bytes]) -> None:
        """Have a batch name some of the queues that are left."""
        end = len(head) + AT_ONCE
        for queue in list(islice(self.left, AT_ONCE)):
            if len(head) >= end:
                return
            if self._queues.get(queue.name) is queue:
                self.name(queue, (), batch, head)
            self.left.pop(queue, None)

    def name(self, queue: Queue, blocks: Iterable[Block], batch: Batch, head: list[bytes]) -> None:
        """A segment says itself what its numbers stand for, before it uses them. blocks: that are in the batch."""
        if queue in self.left:
            del self.left[queue]
            queue.forget_members(self._oldest)
        number, members = queue.number, queue.members
        used = set(map(_MEMBER_OF, queue.moves))
        for block in blocks:
            used.update([members[name].number for group in block.key.groups for name in group])
        used.update([members[name].number for name, _ in queue.changed])
        if (number, NOBODY) not in self.named:
            self.named.add((number, NOBODY))
            batch.said.append(number)
            head.append(name_record(number, NOBODY, queue.name))
            if self._claims.epoch(number):
                head.append(claim_record(number, self._claims.epoch(number), True))
            head.append(next_record(number, queue.next))
            subscribers = [members[name].number for name in queue.subscribers]
            self._name_members(queue, subscribers, batch.segment, head)
            head += [subscriber_record(number, members[name].number, ENDS if ends else ON) for name, ends in queue.subscribers.items()]
        self._name_members(queue, used, batch.segment, head)

    def _name_members(self, queue: Queue, numbers: Iterable[int], segment: int, head: list[bytes]) -> None:
        for one in numbers:
            if (queue.number, one) not in self.named:
                self.named.add((queue.number, one))
                queue.named_in[one] = segment
                head.append(name_record(queue.number, one, queue.names[one]))

    def written(self, batch: Batch) -> bool:
        """A batch is on the disk: whether its segment names all queues now, and did not before."""
        self.said.update(dict.fromkeys(batch.said, batch.segment))
        return not self.left and (batch.new or bool(batch.said))

    def fail(self) -> None:
        """A batch is not on the disk: the next one begins a segment."""
        self.named.clear()
        self.left.clear()

    def forget(self, number: int) -> None:
        """A queue is in another log."""
        self.named = {one for one in self.named if one[0] != number}
        self.said.pop(number, None)

    def come_back(self, queue: Queue) -> None:
        """A queue is written here again, and a segment may have begun meanwhile."""
        if self.named and (queue.number, NOBODY) not in self.named:
            self.left[queue] = None

    def whole(self) -> int:
        """The segment from which on the log knows where all queues stand."""
        return min([self.said[one.number] for one in self._queues.values() if one.number in self.said], default=ALL)
