"""What comes in from an attached broker on demand: its topics that somebody in the mesh has subscribed, and no others.

`in_wanted` names topics that are worth their way only while somebody listens: measurements, say, of a thousand machines. The session at the
other broker is subscribed to what subscribers in the mesh and these filters have in common, and changes as they come and go.

- Whoever subscribes here is found by the router, which tells of each filter that changes, here or elsewhere in the mesh.
- No topic is ever subscribed twice: where two filters overlap and neither covers the other, the whole of `in_wanted` that they lie in is
  asked for, as it is for more than `MOST`, and for a filter over which the other broker might close the connection: clients choose them.
  A filter that overlaps a new one is given up in the same write.
- A filter that nobody wants any more stays for up to `LINGER`, for a client that comes back.
- The session there may know filters of an earlier life of this broker, or of a stand-by. What comes by them shows it: then all filters that
  match its topic are given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, product
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ...base.cache import Cache
from ...mesh.wire.policy import Policy
from ...mqtt.fields import doubtful
from ...mqtt.topics import has_wildcard, intersection, matches, overlaps
from ..settings.attach import filters_there, widest

if TYPE_CHECKING:
    from ..site import Site

MOST = 30  # filters that one of `in_wanted` is divided into
LONGEST = 512  # bytes of such a filter, and of a topic that may be a stray
LEVELS = 8  # of such a filter, and of a topic whose filters are given up: there are about 2 ** (LEVELS + 1) + 2 ** LEVELS of them
LINGER = 5.0  # seconds
SOON = 0.01  # seconds in which changes are collected
STRAY = 1.0  # seconds between two attempts to give up what an earlier life has subscribed
PIECE = 1000  # filters that are looked at in one turn of the loop
KNOWN = 10_000  # topics of which it is kept whether they are strays

Ask = Callable[[list[str], list[str]], None]  # subscribe these at the other broker, give up those


class Demand:
    """What one attached broker is asked for. A machine without a clock.

    wanted: `in_wanted`, of which no topic matches two. policy: of the attachment, for names.
    """

    def __init__(self, wanted: Iterable[str], policy: Policy) -> None:
        self._policy = policy
        self._held: dict[str, set[str]] = {one: set() for one in wanted}  # filters of subscribers that overlap it
        self.asked: set[str] = set()
        self._strays: Cache[bytes, bool] = Cache(KNOWN)  # name there -> whether it is one

    def concerns(self, filter_: str) -> bool:
        """Whether subscribers of a filter want something of `in_wanted`."""
        return any(overlaps(one, filter_) for one in self._held)

    def hold(self, filter_: str, held: bool) -> None:
        """Somebody, or nobody any more, has subscribed a filter."""
        for one, filters in self._held.items():
            if not held:
                filters.discard(filter_)
            elif overlaps(one, filter_):
                filters.add(filter_)

    def held(self) -> set[str]:
        """The filters that somebody has subscribed."""
        return set().union(*self._held.values())

    def target(self) -> list[str]:
        """The filters, by the names there, of what somebody wants."""
        return widest([there for one, filters in self._held.items() for there in self._narrowed(one, filters)])

    def _narrowed(self, one: str, filters: set[str]) -> list[str]:
        whole = filters_there(self._policy._replace(into=(one,)))
        if len(filters) > MOST:
            return whole
        common = [both for both in (intersection(one, filter_) for filter_ in sorted(filters)) if both is not None]
        if one in common:
            return whole
        found = widest(filters_there(self._policy._replace(into=tuple(common))))
        twice = any(overlaps(*pair) for pair in combinations(filter(has_wildcard, found), 2))  # what is covered is out already
        return found if not twice and all(map(_harmless, found)) else whole

    def change(self, final: bool) -> tuple[list[str], list[str], bool]:
        """(to subscribe, to give up now, whether more is to be given up in a while). final: give up all that nobody wants."""
        target = set(self.target())
        new, surplus = sorted(target - self.asked), sorted(self.asked - target)
        gone = [one for one in surplus if final or any(overlaps(one, other) for other in new)]
        self.asked = (self.asked | target) - set(gone)
        if new or gone:
            self._strays.clear()
        return new, gone, len(gone) < len(surplus)

    def again(self, present: bool) -> tuple[list[str], list[str]]:
        """(to subscribe, to give up) when a connection begins. present: the other broker has the session."""
        target = set(self.target())
        gone = sorted(self.asked - target) if present else []
        self.asked = target
        self._strays.clear()
        return sorted(target), gone

    def of_demand(self, topic: str) -> bool:
        """Whether a topic, by its name here, comes in on demand."""
        return any(matches(one, topic) for one in self._held)

    def stray(self, topic: bytes, name: bytes) -> bool:
        """Whether a message comes by a filter that is not asked for. topic, name: its names here and there."""
        known = self._strays.get(name)
        if known is None:
            there = name.decode()
            known = _harmless(there) and self.of_demand(topic.decode()) and not any(matches(one, there) for one in self.asked)
            if len(name) <= LONGEST:
                self._strays.keep(name, known)
        return known

    def astray(self, name: str) -> list[str]:
        """The filters, by the names there, that may have brought a message with this name, and are not asked for."""
        return [one for one in _matching(name.split("/")) if one not in self.asked]


class Interest:
    """Keeps a demand in line with the subscribers of the mesh, for the life of one connection.

    session: of the attachment, whose own subscriptions do not count. ask: tells the other broker. present: it has the session.
    """

    def __init__(self, demand: Demand, site: Site, session: str, ask: Ask, present: bool) -> None:
        self.demand = demand
        self._site, self._session, self._ask = site, session, ask
        self._dirty: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._search: asyncio.Task[None] | None = None
        self._stray_at = self._loop.time() - STRAY
        site.router.watchers.append(self.changed)
        ask(*demand.again(present))
        self.changed(None)

    def changed(self, filter_: str | None) -> None:
        """Subscribers of a filter have come or gone; None: of any."""
        if filter_ is None:
            if self._search is not None:
                self._search.cancel()
            self._search = self._loop.create_task(self._search_all())
        elif self.demand.concerns(filter_):
            self._dirty.add(filter_)
            self._renew_soon()

    def stop(self) -> None:
        """The connection is gone."""
        self._site.router.watchers.remove(self.changed)
        for one in (self._timer, self._linger, self._search):
            if one is not None:
                one.cancel()

    def stray(self, name: bytes) -> None:
        """A message has come that nobody has asked for: it shows a filter that the session there still has."""
        now = self._loop.time()
        if now - self._stray_at >= STRAY:
            self._stray_at = now
            self._ask([], self.demand.astray(name.decode()))

    async def _search_all(self) -> None:
        """Look at the filters of all subscribers, some at a time."""
        for entries, filter_of in self._all():
            for start in range(0, len(entries), PIECE):
                self._look(filter(self.demand.concerns, map(filter_of, entries[start : start + PIECE])))
                await asyncio.sleep(0)
        known = list(self.demand.held())
        for start in range(0, len(known), PIECE):
            self._look(known[start : start + PIECE])
            await asyncio.sleep(0)
        self._renew_soon()

    def _all(self) -> Iterator[tuple[list[Any], Callable[[Any], str]]]:
        """Lists of what is subscribed, and how the filter of an entry is found."""
        router, mesh = self._site.router, self._site.mesh
        yield list(router.holders), str
        yield list(router.groups), itemgetter(1)
        for entries in mesh.node.interests.filters() if mesh is not None else ():
            yield list(entries), itemgetter(0)

    def _renew_soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(SOON, self._renew)

    def _renew(self) -> None:
        self._timer = None
        self._look([self._dirty.pop() for _ in range(min(PIECE, len(self._dirty)))])
        if self._dirty:
            self._timer = self._loop.call_later(0, self._renew)
        else:
            self._settle(False)

    def _look(self, filters: Iterable[str]) -> None:
        for filter_ in filters:
            self.demand.hold(filter_, self._is_held(filter_))

    def _is_held(self, filter_: str) -> bool:
        """Whether somebody else than the attachment has subscribed a filter."""
        site = self._site
        session = site.sessions.get(self._session)
        own = session is not None and filter_ in session.subscriptions
        return site.router.tree.count(filter_) > own or (site.mesh is not None and site.mesh.node.interests.has(filter_))

    def _settle(self, final: bool) -> None:
        if final:
            self._linger = None
        new, gone, more = self.demand.change(final)
        if new or gone:
            self._ask(new, gone)
        if more and self._linger is None:
            self._linger = self._loop.call_later(LINGER, self._settle, True)


def _harmless(filter_: str) -> bool:
    """Whether the other broker takes a filter, as far as can be told: it may allow less than we do."""
    raw = filter_.encode()
    return len(raw) <= LONGEST and raw.count(b"/") < LEVELS and not doubtful(raw)


def _matching(levels: list[str]) -> Iterator[str]:
    """All filters that match a topic."""
    for count in range(len(levels) + 1):
        for chosen in product(*((level, "+") for level in levels[:count])):
            yield "/".join((*chosen, "#"))
            if count == len(levels):
                yield "/".join(chosen)
