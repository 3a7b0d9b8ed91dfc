"""Who sits at the queues of a broker, and whose turn it is to get messages.

A look at a queue costs what is given, and not what members there are: those are looked at that can take something now.

    it has no room            -> it is passed over, until it has less, or its connection takes more (`wake`)
    there is nothing for it   -> it is passed over, until a lane of it has something (`Stock.fresh`)

Members that have room again come first, then those whose turn it is.

What it does not know: publishers, how a message is sent, commits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from .core.plan import ANYBODY
from .pulls import PullSeat
from .seats import TURN, Seat
from .sites.guests import PullGuest

if TYPE_CHECKING:
    from .core.blocks import Lane
    from .core.queue import Queue
    from .sites.guests import Guest

Give = Callable[["Seat | Guest", int], int]  # give a member messages, at most so many: how many


class Row:
    """Who sits at one queue.

    named: seats by the name of their member: two, if clients of two sites have one name. free: those that may have room, the one whose turn
    it is first. woken: of these, those that may have something to take that they had no room for. untold: those that ask for messages,
    and do not know that there are some.
    """

    def __init__(self, queue: Queue, give: Give) -> None:
        self._queue = queue
        self._give = give
        self._seats: set[Seat | Guest] = set()
        self._named: dict[str, list[Seat | Guest]] = {}
        self._free: OrderedDict[Seat | Guest, None] = OrderedDict()
        self._woken: OrderedDict[Seat | Guest, None] = OrderedDict()
        self._untold: dict[PullSeat | PullGuest, None] = {}

    @property
    def seats(self) -> list[Seat | Guest]:
        """All of them."""
        return list(self._seats)

    def sit(self, seat: Seat | Guest) -> None:
        """A member takes messages from now on."""
        if seat not in self._seats:
            self._seats.add(seat)
            self._named.setdefault(seat.member.name, []).append(seat)
            self._queue.join(seat.member.name)
        if isinstance(seat, PullSeat | PullGuest):
            self.tell(seat)
        self.wake(seat)

    def stand(self, seat: Seat | Guest) -> bool:
        """It takes no more: whether nobody sits here now."""
        if seat not in self._seats:
            return False
        self._seats.remove(seat)
        self._free.pop(seat, None)
        self._woken.pop(seat, None)
        if isinstance(seat, PullSeat | PullGuest):
            self._untold.pop(seat, None)
        named = self._named[seat.member.name]
        named.remove(seat)
        if not named:
            del self._named[seat.member.name]
        return not self._seats

    def wake(self, seat: Seat | Guest) -> None:
        """It may have room again."""
        if seat in self._seats:
            self._free[seat] = self._woken[seat] = None

    def again(self) -> None:
        """Nothing could be given just now, whatever there is: all are looked at next time."""
        self._woken.update(self._free)

    def tell(self, seat: PullSeat | PullGuest) -> None:
        """A member that asks is to be told when something is available."""
        seat.told = False
        self._untold[seat] = None

    def feed(self, most: int, now: float) -> tuple[int, bool]:
        """Give the members what they have room for, in turns: how many messages at most `most`, and whether there is more to be given.

        now: of the loop's clock.
        """
        queue = self._queue
        for member in queue.eased:
            for seat in self._named.get(member.name, ()):
                self.wake(seat)
        queue.eased.clear()
        fresh, queue.fresh = queue.fresh, {}
        left, news = most, bool(fresh or self._woken)
        share = max(1, min(TURN, -(-queue.waiting // max(1, len(self._seats)))))
        while self._woken and left > 0:
            seat, _ = self._woken.popitem(last=False)
            given = self._serve(seat, min(share, left))
            if given:
                left -= given
                self._woken[seat] = None
        for lane in fresh:
            left -= self._share_out(lane, share, left)
            if left <= 0:
                queue.fresh[lane] = None
        for one in list(self._untold) if news else ():
            one.alert(now)
            if one.told:
                del self._untold[one]
        return most - left, left <= 0

    def _share_out(self, lane: Lane, share: int, most: int) -> int:
        """Give what a lane has to the members with room, in turns: how many messages."""
        turns, left, idle = self._turns(lane), most, 0
        while left > 0 and idle < len(turns):
            lane.prune()
            if lane.next is None:
                break
            seat = next(iter(turns))
            turns.move_to_end(seat)
            given = self._serve(seat, min(share, left))
            left -= given
            if seat in self._free:
                idle = 0 if given else idle + 1
            else:
                turns.pop(seat, None)
        return most - left

    def _turns(self, lane: Lane) -> OrderedDict[Seat | Guest, None]:
        """The members of a lane that may have room, in the order of their turns."""
        single = self._queue.first_active if self._queue.rules.single else None
        if lane.group == ANYBODY and single is None:
            return self._free
        names = lane.group if single is None else [single.name]
        return OrderedDict.fromkeys(seat for name in names for seat in self._named.get(name, ()) if seat in self._free)

    def _serve(self, seat: Seat | Guest, most: int) -> int:
        room = min(most, seat.room())
        if room <= 0:
            self._free.pop(seat, None)
            return 0
        given = self._give(seat, room)
        if given and seat in self._free:
            self._free.move_to_end(seat)
        return given
