"""Who sits at the queues of a broker, and whose turn it is to get messages.

A look at a queue costs what is given, and not what members there are: those are looked at that can take something now.

    it has no room            -> it is passed over, until it has less, or its connection takes more (`wake`)
    there is nothing for it   -> it is passed over, until a lane of it has something (`Stock.fresh`)

Members that have room again come first, then those whose turn it is. Of these, those with a selector come first: what fits nobody in
particular is for all others. One that finds nothing that fits asks for all that have the same selector. Where a message at its last try
is next, those that have something wait until it is taken (`Lane.asked`).

What it does not know: publishers, how a message is sent, commits.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .core.plan import ANYBODY
from .core.queue import EVERYTHING
from .offers import Ahead
from .pulls import PullSeat
from .seats import TURN, Seat
from .sites.guests import PullGuest

if TYPE_CHECKING:
    from .core.blocks import Lane
    from .core.queue import Queue
    from .sites.guests import Guest

LOOKS = 512  # messages that are looked at for members with selectors before everybody else has a turn
LOOK = 4  # messages that could be given in the time that one is looked at
MOST_SELECTORS = 100  # different ones at a queue

Give = Callable[["Seat | Guest", int], int]  # give a member messages, at most so many: how many


class Row:
    """Who sits at one queue.

    named: seats by the name of their member: two, while a client moves between sites. free: those that may have room, the one whose turn
    it is first. woken: of these, those that may have something to take that they had no room for. untold: those that ask for messages,
    and do not know that there are some. choosy: as free, of members with selectors, by these. selectors: of all who sit here.
    ahead: makes batches of what is given.
    """

    def __init__(self, queue: Queue, give: Give) -> None:
        self._queue = queue
        self._give = give
        self._seats: dict[Seat | Guest, None] = {}
        self._named: dict[str, list[Seat | Guest]] = {}
        self._free: OrderedDict[Seat | Guest, None] = OrderedDict()
        self._choosy: dict[str, OrderedDict[Seat | Guest, None]] = {}
        self.selectors: Counter[str] = Counter()
        self.ahead = Ahead()
        self._woken: OrderedDict[Seat | Guest, None] = OrderedDict()
        self._untold: dict[PullSeat | PullGuest, None] = {}

    @property
    def seats(self) -> list[Seat | Guest]:
        """All of them."""
        return list(self._seats)

    def sit(self, seat: Seat | Guest) -> None:
        """A member takes messages from now on."""
        if seat not in self._seats:
            self._seats[seat] = None
            self._named.setdefault(seat.member.name, []).append(seat)
            if seat.selector:
                self.selectors[seat.selector] += 1
            self._queue.join(seat.member.name)
        if isinstance(seat, PullSeat | PullGuest):
            self.tell(seat)
        self.wake(seat)

    def stand(self, seat: Seat | Guest, now: int, most: int = EVERYTHING) -> bool:
        """It takes no more, and what it has goes back: whether nobody sits here now. Who has moved to another site stays a member there.

        now: milliseconds since 1970. most: see `Queue.leave`.
        """
        if seat not in self._seats:
            return False
        del self._seats[seat]
        self._line(seat).pop(seat, None)
        if seat.selector:
            self.selectors[seat.selector] -= 1
            if not self.selectors[seat.selector]:
                del self.selectors[seat.selector], self._choosy[seat.selector]
        self._woken.pop(seat, None)
        if isinstance(seat, PullSeat | PullGuest):
            self._untold.pop(seat, None)
        named = self._named[seat.member.name]
        named.remove(seat)
        self._queue.leave(seat.member, now, most)
        if named:
            self._queue.join(seat.member.name)
        else:
            del self._named[seat.member.name]
        return not self._seats

    def wake(self, seat: Seat | Guest) -> None:
        """It may have room again."""
        if seat in self._seats:
            self._line(seat)[seat] = self._woken[seat] = None

    def _line(self, seat: Seat | Guest) -> OrderedDict[Seat | Guest, None]:
        """Where it waits for its turn."""
        return self._choosy.setdefault(seat.selector, OrderedDict()) if seat.selector else self._free

    def again(self) -> None:
        """Nothing could be given just now, whatever there is: all are looked at next time."""
        for line in (self._free, *self._choosy.values()):
            self._woken.update(line)

    def wake_all(self) -> None:
        """Nothing was given for some time, and now it is."""
        for seat in self._seats:
            self.wake(seat)

    def tell(self, seat: PullSeat | PullGuest) -> None:
        """A member that asks is to be told when something is available."""
        seat.told = False
        self._untold[seat] = None

    def feed(self, most: int, now: float) -> tuple[int, bool]:
        """Give the members what they have room for, in turns: what that costs, in messages at most `most`, and whether there is more to be
        given, or looked at. now: of the loop's clock.
        """
        queue = self._queue
        queue.looks.left = LOOKS
        queue.eased.update(queue.looking)
        queue.looking.clear()
        for member in queue.eased:
            for seat in self._named.get(member.name, ()):
                self.wake(seat)
        queue.eased.clear()
        left, news = most, bool(queue.fresh or self._woken)
        share = max(1, min(TURN, -(-queue.waiting // max(1, len(self._seats)))))
        while self._woken and left > 0:
            seat, _ = self._woken.popitem(last=False)
            given, full = self._serve(seat, min(share, left))
            left -= given
            if given and not full:
                self._woken[seat] = None
        fresh, queue.fresh = queue.fresh, {}
        for lane in fresh:
            left -= self._share_out(lane, share, left)
            if left <= 0:
                queue.touch()
                queue.fresh[lane] = None
        for one in list(self._untold) if news else ():
            one.alert(now)
            if one.told:
                del self._untold[one]
        more = left <= 0 or bool(queue.looking or queue.fresh or queue.eased)  # eased: what was given to somebody was not sent
        return most - left + LOOK * (LOOKS - queue.looks.left), more

    def _share_out(self, lane: Lane, share: int, most: int) -> int:
        """Give what a lane has to the members with room: how many messages."""
        left = most
        for selector in (*self._choosy, ""):
            left -= self._share(lane, selector, share, left)
        return most - left

    def _share(self, lane: Lane, selector: str, share: int, most: int) -> int:
        """Give it to those with one selector, or without, in turns."""
        turns, left, idle = self._turns(lane, selector), most, 0
        while left > 0 and idle < len(turns):
            lane.prune()
            if lane.next is None:
                break
            seat = next(iter(turns))
            turns.move_to_end(seat)
            given, _ = self._serve(seat, min(share, left))
            left -= given
            behind = seat.member.behind if not given and not lane.grouped else None
            if seat not in self._line(seat):
                turns.pop(seat, None)
            elif behind is not None and behind == lane.asked.get(selector):
                break  # all who have something wait behind it, and who has nothing is asked by itself
            elif selector and not given and not lane.grouped and behind is None:
                break
            else:
                idle = 0 if given else idle + 1
                if behind is not None and idle >= len(turns):
                    lane.asked[selector] = behind
        return most - left

    def _turns(self, lane: Lane, selector: str) -> OrderedDict[Seat | Guest, None]:
        """The members of a lane that may have room, in the order of their turns."""
        line = self._choosy[selector] if selector else self._free
        single = self._queue.first_active if self._queue.rules.single else None
        if lane.group == ANYBODY and single is None:
            return line
        names = sorted(lane.group) if single is None else [single.name]
        return OrderedDict.fromkeys(seat for name in names for seat in self._named.get(name, ()) if seat in line)

    def _serve(self, seat: Seat | Guest, most: int) -> tuple[int, bool]:
        """Give a member messages, at most so many: how many, and whether it has no room for more now."""
        room, line = seat.room(), self._line(seat)
        if room <= 0:
            line.pop(seat, None)
            return 0, True
        given = self._give(seat, min(most, room))
        if given and seat in line:
            line.move_to_end(seat)
        return given, given == room < TURN


def news(rows: dict[Queue, Row], queues: Iterable[Queue]) -> list[str]:
    """The names of queues that have something new for a member. Where nobody sits it is forgotten: whoever comes looks at all there is."""
    found = []
    for queue in queues:
        if queue not in rows:
            queue.fresh.clear()
            queue.eased.clear()
        elif queue.fresh or queue.eased:
            found.append(queue.name)
    return found
