"""What faces ask for: post a message, poll an inbox, say what became of what was taken. One desk for all who log in.

Each login has connections of its own (`line.py`), so the broker decides for each request who asks and what it may. One connection serves
all services of a login; polls with a selector have another one for each selector, since a selector belongs to a member of a queue.

A message that was taken is *leased*: it is its taker's until that acknowledges it or returns it, or until the lease is over, and then
others may have it. Leases are not kept: if this process dies, the messages are available again at once.

What it does not know: HTTP, SOAP.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...base.interchange import EXPLAIN, POST, QUERY
from ...mqtt.packets import Publish
from ...mqtt.properties import Properties
from ..faces import mqtt
from ..faces.envelope import Form
from ..refusals import Code, Refusal
from .line import Line, Login, Lost

MOST_LINES = 2000  # connections to the broker; the one that is idle longest makes room
IDLE = 60.0  # seconds after which a connection that nobody needs is closed
MOST_TAKEN = 1000  # messages of one poll
LONGEST_WAIT = 300.0  # seconds of one poll
LONGEST_LEASE = 43_200.0  # seconds
LONGEST_SELECTOR = 4096  # characters

Connect = Callable[[Login, str], Coroutine[Any, Any, Line]]  # opens a connection for who comes from an address; raises Denied, Lost


class Poll(NamedTuple):
    """What is asked of an inbox. most: messages. wait, lease: seconds. selector: as Jakarta Messaging has it; "": any message."""

    service: str
    most: int = 10
    wait: float = 0.0
    lease: float = 60.0
    selector: str = ""


class Taken(NamedTuple):
    """A message that was taken from an inbox, under a lease. lease: its name, for `Desk.settle`."""

    lease: str
    form: Form


@dataclass(slots=True)
class _Lease:
    line: Line
    packet_id: int
    over: asyncio.TimerHandle


class _Account:
    """The state of one login. busy: requests that are carried out."""

    def __init__(self) -> None:
        self.lines: dict[str, asyncio.Task[Line]] = {}  # by selector
        self.leases: dict[str, _Lease] = {}
        self.busy = 0

    @property
    def used(self) -> float:
        """When it was used last; 0: never."""
        return max((task.result().used for task in self.lines.values() if _is_open(task)), default=0.0)


class Desk:
    """Carries out what faces ask for. connect: to the broker. now: milliseconds since 1970."""

    def __init__(self, connect: Connect, now: Callable[[], int]) -> None:
        self._connect = connect
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._accounts: dict[Login, _Account] = {}
        self._tidying: asyncio.TimerHandle | None = self._loop.call_later(IDLE / 2, self._tidy)

    def close(self) -> None:
        """Let go of everything: messages that are leased are available again."""
        if self._tidying is not None:
            self._tidying.cancel()
        for login in list(self._accounts):
            self._drop(login)

    # What faces ask

    async def enter(self, login: Login, address: str) -> Line:
        """The connection of a login. Raises Denied, Lost, Refusal."""
        return (await self._line(login, address, ""))[1]

    async def post(self, login: Login, address: str, form: Form) -> dict[str, Any]:
        """Post a message: what the interchange answers. Raises Refusal, Denied, Lost."""
        return await self._asked(login, address, POST, *mqtt.posting(form))

    async def explain(self, login: Login, address: str, form: Form) -> dict[str, Any]:
        """Ask what would become of a message, which is not posted. Raises Refusal, Denied, Lost."""
        return await self._asked(login, address, EXPLAIN, *mqtt.posting(form))

    async def query(self, login: Login, address: str, question: bytes) -> dict[str, Any]:
        """Ask what became of messages, with a question in JSON. Raises Refusal, Denied, Lost."""
        return await self._asked(login, address, QUERY, question)

    async def poll(self, login: Login, address: str, asked: Poll) -> list[Taken]:
        """Take messages of an inbox, and wait for one if need be. Raises Refusal, Denied, Lost."""
        account, line = await self._line(login, address, asked.selector)
        ends = self._loop.time() + asked.wait
        account.busy += 1
        try:
            alert = await line.open(asked.service, asked.selector)
            while True:
                alert.clear()
                found = await self._take(line, asked)
                if found or self._loop.time() >= ends:
                    return [self._leased(account, line, one, asked.lease) for one in found]
                try:
                    async with asyncio.timeout_at(ends):
                        await alert.wait()
                except TimeoutError:
                    return []
        finally:
            account.busy -= 1
            line.used = self._loop.time()

    def settle(self, login: Login, leases: Iterable[str], done: bool) -> list[str]:
        """Acknowledge messages, or return them. The leases that are none, or are over."""
        account = self._accounts.get(login)
        unknown = []
        for name in leases:
            lease = account.leases.pop(name, None) if account is not None else None
            if lease is None or lease.line.closed:
                unknown.append(name)
                continue
            lease.over.cancel()
            lease.line.settle(lease.packet_id, done)
        return unknown

    def extend(self, login: Login, leases: Iterable[str], seconds: float) -> list[str]:
        """Have leases end so many seconds from now. Those that are none, or are over."""
        account = self._accounts.get(login)
        unknown = []
        for name in leases:
            lease = account.leases.get(name) if account is not None else None
            if account is None or lease is None or lease.line.closed:
                unknown.append(name)
                continue
            lease.over.cancel()
            lease.over = self._loop.call_later(seconds, self._end, account, name)
        return unknown

    async def _asked(self, login: Login, address: str, topic: str, payload: bytes, properties: Properties | None = None) -> dict[str, Any]:
        line = await self.enter(login, address)
        answer = await line.ask(topic, payload, properties)
        if "code" in answer:
            raise Refusal(Code(answer["code"]), answer["what"], answer["right"])
        return answer

    # Leases

    async def _take(self, line: Line, asked: Poll) -> list[Publish]:
        """What is there now. If nobody waits for it any more, the broker has it back."""
        task = asyncio.create_task(line.take(asked.service, asked.most), name="interchange-poll")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: _give_back(line, done))
            raise

    def _leased(self, account: _Account, line: Line, one: Publish, seconds: float) -> Taken:
        name = secrets.token_urlsafe(12)
        account.leases[name] = _Lease(line, one.packet_id, self._loop.call_later(seconds, self._end, account, name))
        return Taken(name, mqtt.taken(one.payload, one.properties, self._now()))

    def _end(self, account: _Account, name: str) -> None:
        """A lease is over."""
        lease = account.leases.pop(name, None)
        if lease is not None:
            lease.line.settle(lease.packet_id, False)

    # Connections

    async def _line(self, login: Login, address: str, selector: str) -> tuple[_Account, Line]:
        account = self._accounts.get(login)
        if account is None:
            account = self._accounts[login] = _Account()
        task = account.lines.get(selector)
        if task is None or (task.done() and not _is_open(task)):
            self._make_room()
            task = account.lines[selector] = asyncio.create_task(self._connect(login, address), name="interchange-login")
            task.add_done_callback(lambda done: self._forget(login, account, selector, done))
        try:
            line = await asyncio.shield(task)
        finally:
            del task  # its error would hold this frame, and the frame the error
        line.used = self._loop.time()
        return account, line

    def _forget(self, login: Login, account: _Account, selector: str, task: asyncio.Task[Line]) -> None:
        """A connection was opened, or refused: forget it as soon as it is of no use. Another one may have its place already."""

        def ended() -> None:
            if account.lines.get(selector) is task:
                del account.lines[selector]
            gone = [name for name, one in account.leases.items() if one.line.closed]
            for name in gone:
                account.leases.pop(name).over.cancel()
            if not account.lines and self._accounts.get(login) is account:
                del self._accounts[login]

        if _is_open(task):
            task.result().ended = ended
        else:
            ended()

    def _make_room(self) -> None:
        """At the bound, close who has been idle longest. Raises Refusal."""
        if sum(len(one.lines) for one in self._accounts.values()) < MOST_LINES:
            return
        idle = [(one.used, login) for login, one in self._accounts.items() if not one.busy and not one.leases and one.used]
        if not idle:
            raise Refusal(Code.UNAVAILABLE, f"{MOST_LINES} connections to the broker are in use", "come again later")
        self._drop(min(idle, key=lambda one: one[0])[1])

    def _tidy(self) -> None:
        """Close what nobody has needed for a while."""
        since = self._loop.time() - IDLE
        for login, account in list(self._accounts.items()):
            if not account.busy and not account.leases and 0 < account.used < since:
                self._drop(login)
        self._tidying = self._loop.call_later(IDLE / 2, self._tidy)

    def _drop(self, login: Login) -> None:
        account = self._accounts.pop(login)
        for lease in account.leases.values():
            lease.over.cancel()
        account.leases.clear()
        for task in list(account.lines.values()):
            if _is_open(task):
                task.result().close()
            else:
                task.cancel()


def _is_open(task: asyncio.Task[Line]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None and not task.result().closed


def _give_back(line: Line, task: asyncio.Task[list[Publish]]) -> None:
    if not task.cancelled() and task.exception() is None:
        for one in task.result():
            line.settle(one.packet_id, False)


async def open_line(line: Line) -> Line:
    """A connection that is made: wait until the broker has let it in. Raises Denied, Lost."""
    try:
        await line.up()
    except BaseException:
        line.close()
        raise
    return line


__all__ = ["Connect", "Desk", "Line", "Login", "Lost", "Poll", "Taken", "open_line"]
