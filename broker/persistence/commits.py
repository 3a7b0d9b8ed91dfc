"""Persistence of a broker: one store, one writer, and the rule that a message is acknowledged only after it is kept.

The event loop changes sessions and retained messages in memory. Those that the store keeps write their changes into the writer's
open batch. Packets that may leave only after a commit wait in two short queues of each connection, in order:

- *answers*: PUBACK, PUBREC, PUBCOMP, SUBACK, UNSUBACK. One that waits for nothing goes at once, unless others wait before it.
- *sends*: PUBLISH of QoS 2 and PUBREL to a session in the store, whose identifiers must be kept first; PUBLISH of QoS 2 to any session,
  where what lets the message in once (a publisher's identifier, a window of the mesh) must be kept first; and what follows them.

An answer to a publisher waits until the batch with its messages is committed, or until every recipient in the store has
acknowledged them (then nothing needs to be kept; see `store/coalescer.py`). One commit lets go of all that waited for it, one
write for each connection.

What belongs into one commit may take several turns of the loop (`whole`): a message that comes again unless it is kept, and its many
recipients. Nothing is committed meanwhile, so there is one such piece of work at a time, and a commit between two.

Nothing waits and nothing is written for messages whose recipients are all connected without a stored session.

When the store fails, messages that need it are refused or not read (`closed`), what was promised is given to it again until it takes
it, and everybody else goes on. The same, without a refusal, while too much waits for the disk; and when the store is full (`quota.py`).

What it does not know: how a session writes its rows (`stored_session.py`), files, SQL.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from ...base.alarm import Alarm
from ...base.quoting import quoted
from ...mqtt.batch.batch import Batch
from ...mqtt.packets import Subscription
from ...store import Store, StoreError, Writer
from ...store.records import StoredRun
from .answers import NEVER, Answer, Dirty, Unwritten
from .codec import pack, retained_value, run_of, stored_run, subscription_key, subscription_value, will_value
from .maintenance import Maintenance
from .quota import StoreQuota, passes
from .stored_session import StoredSession

if TYPE_CHECKING:
    from ..ports import Connection, Context, Mesh
    from ..routing.retained import Retained
    from ..routing.route import Recipients, Route
    from ..routing.router import Router
    from ..session.table import Sessions

log = logging.getLogger("mqmesh.broker")

ALIVE = 60.0  # seconds between two notes of the time: how late a broker that was killed may think its clients left
HELD_MAX = 5.0  # seconds that a publisher waits for the store before MQTT 5 is answered 0x97
CLOSE_TIMEOUT = 10.0  # seconds that the store has to take what is left when the broker stops

T = TypeVar("T")


class Persistence:
    """The store of one broker, seen from its event loop.

    store: the store; it is not open yet when it is passed in.
    pending_limit: bytes that may wait for the store.
    closed: messages that need the store are refused or not read now, because it is stuck or its quota is reached.
    stuck: the store fails, or too many bytes wait for it.
    quota: the limits of what the store may keep.
    dirty: sessions whose identifiers have to be written, and posts to other brokers that go together.
    moving: messages pass from one session to another now, so they are not settled when the first session drops them.
    """

    def __init__(self, context: Context, router: Router, sessions: Sessions, retained: Retained, store: Store, pending_limit: int) -> None:
        self.context = context
        self.router = router
        self.sessions = sessions
        self.retained = retained
        self.mesh: Mesh | None = None
        self.store = store
        self.pending_limit = pending_limit
        self.closed = False
        self.stuck = False
        self.moving = False
        self.dirty: dict[Dirty, None] = {}
        self.commits = 0
        loop = context.loop
        context.unsaved = self._unsaved
        self.writer = Writer(store, loop.call_soon_threadsafe, self._on_commit, self._on_error, self._on_settled)
        self._deferred = Alarm(self._look_at_deferred)
        self._deferred_until = 0.0  # by the loop's clock; 0: nothing is deferred, or not any more
        self._hurried = 0  # the ticket of the last commit that somebody waits for, or waited, but for answers in `_awaiting`
        self.quota = StoreQuota(self.writer, self._bound_changed)
        self.maintenance = Maintenance(self)
        self._reader = ThreadPoolExecutor(1, "store-reader")
        self._next_run = 1
        self._next_number = 1
        self._last_run: Batch | None = None
        self._last_id = 0
        self._loaded: tuple[int, Batch] | None = None
        self._runs: set[int] = set()  # stored for the message that is being taken
        self._commit_needed = False  # beside runs, something must be kept for the message that is being taken
        self._awaiting: dict[int, tuple[Connection, Answer]] = {}  # run -> who waits for it
        self._unwritten: Unwritten | None = None  # the message that is held back
        self._holding: dict[Connection, None] = {}  # connections with something in their queues
        self._ready: dict[Connection, None] = {}  # those of them with an answer that may go though nothing was committed
        self._released = 0
        self._callbacks: list[tuple[int, int, Callable[[], None]]] = []
        self._serials = itertools.count()
        self._held: dict[Connection, asyncio.TimerHandle | None] = {}
        self._whole: Iterator[None] | None = None  # the rest of the work that is being done
        self._whole_in = -1  # the ticket of the last one's commit
        self._whole_wanted = False  # somebody waits until there is none
        self._failed = False
        self._closing = False
        self._alive_at = 0.0

    # Life

    @property
    def error(self) -> StoreError | None:
        """Why the store takes nothing, None while it does."""
        return self.writer.error

    @property
    def offset(self) -> float:
        """From the loop's clock to the steady clock, in seconds."""
        return self.context.clock.offset(self.context.now)

    def wall(self, now: float) -> float:
        """The steady clock at a time of the loop's clock."""
        return self.context.clock.time(now)

    def numbers_from(self, run: int, number: int) -> None:
        """Set the next identifiers of runs and of sessions."""
        self._next_run, self._next_number = run, number

    def new_session(self, client_id: str) -> StoredSession:
        """A session that the store keeps."""
        number = self._next_number
        self._next_number += 1
        return StoredSession(client_id, self, number)

    async def settle(self, seconds: float) -> bool:
        """Wait until everything so far is kept, and its answers are given to their connections."""
        self._finish_whole()
        self.flush()
        self.begin_commit()
        done = asyncio.Event()
        self.when(self.mark(), done.set)
        try:
            async with asyncio.timeout(seconds):
                await done.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Keep what is left, close the store. Blocks for up to `CLOSE_TIMEOUT`."""
        self._closing = True
        self._deferred.cancel()
        self._finish_whole()
        self.note_time()
        self.flush()
        self.begin_commit()
        self._reader.shutdown(wait=True, cancel_futures=True)
        pending = self.writer.bytes_pending
        if not self.writer.close(CLOSE_TIMEOUT):
            log.error("event=store-left bytes=%d text=%s", pending, self.error or "the store did not answer in time")

    def tick(self) -> None:
        """Called periodically: note the time, try a store that failed, resume publishers that wait."""
        now = self.context.now
        if now - self._alive_at >= ALIVE or (self.error is not None and not self.writer.bytes_pending):
            self._alive_at = now
            if len(self.sessions) or self.error is not None:
                self.note_time()
        self.maintenance.tick(now)
        self.look()
        if self.mesh is not None:
            self.mesh.store_has_room()

    def note_time(self) -> None:  # for the next life
        self.writer.put_value("broker", b"alive", pack(*self.context.noted()))

    # Commits

    def mark(self, waits: bool = True) -> int:
        """The ticket of the commit that holds everything so far; 0 when all is kept. waits: it must not be deferred."""
        writer = self.writer
        if waits and self._unwritten is not None:
            self._unwritten.write()
        if writer.open_size or self.dirty:
            if waits:
                self._hurry()
            return writer.number
        return writer.number - 1 if writer.committed < writer.number - 1 else 0

    @property
    def reached(self) -> int:
        """The highest ticket whose commit is done, or holds nothing any more."""
        writer = self.writer
        if not writer.open_size and not self.dirty and writer.committed >= writer.number - 1:
            return writer.number
        return writer.committed

    def when(self, ticket: int, callback: Callable[[], None], waits: bool = True) -> None:
        """Call once a ticket is committed; at once, if it is. waits: the commit must not be deferred."""
        if ticket <= self.reached:
            callback()
        else:
            if waits:
                self._hurry()
            heapq.heappush(self._callbacks, (ticket, next(self._serials), callback))

    def _unsaved(self) -> bool:
        """Whether something was changed since the last `flush`, or waits to be committed."""
        return not self.idle

    def flush(self) -> None:
        """The end of a piece of work: what was changed is a group; let go of what need not wait. `begin_commit` follows."""
        while self.dirty:  # what one of them writes may change another
            dirty, self.dirty = self.dirty, {}
            for one in dirty:
                one.write_state()
        self._last_run = None
        if self._ready or self._holding or self._callbacks:
            self._release()

    def begin_commit(self) -> None:
        """Hand what was changed to the writer's thread, if that is idle and the commit is not deferred."""
        if self._unwritten is not None and not self.writer.deferred:
            self._unwritten.write()
        if not self.writer.idle:
            self.writer.ticket()
            self.look()

    @property
    def idle(self) -> bool:
        """Whether nothing was changed that the next `begin_commit` will commit."""
        return self.writer.idle and not self.dirty

    @property
    def calm(self) -> bool:
        """Whether nobody waits for what was changed, so that its commit may be deferred."""
        writer = self.writer
        nobody = not (self.dirty or self._awaiting or self._unwritten or writer.error)
        return nobody and (not writer.open_size or self._hurried != writer.number)

    def _hurry(self) -> None:
        """Somebody waits for what is changed now."""
        self._hurried = self.writer.number
        self.writer.hurry()
        if self._deferred_until:  # whoever waits is perhaps in no piece of work that ends with `begin_commit`
            self._deferred_until = 0.0
            self._deferred.set(self.context.loop, self.context.now)

    def defer(self, until: float) -> None:
        """Nobody waits for the changes of the open batch, or they will perhaps be taken back: it may wait until this time of the loop's
        clock, unless somebody begins to wait for its commit."""
        self.writer.defer()
        self._deferred_until = until
        self._deferred.set(self.context.loop, until)

    def _look_at_deferred(self, at: float) -> None:
        if at < self._deferred_until:
            self._deferred.set(self.context.loop, self._deferred_until)
        else:
            self._deferred_until = 0.0
            self.writer.hurry()
            self.begin_commit()

    def whole(self, steps: Iterator[None]) -> Iterator[None]:
        """Steps whose changes belong into one commit, together with those of this piece of work. Only while not `busy`."""
        self._whole = rest = self._to_its_end(steps)
        self.writer.held = True
        return rest

    def _to_its_end(self, steps: Iterator[None]) -> Iterator[None]:
        try:
            yield from steps
        finally:
            self._whole, self._whole_in = None, self.writer.number
            self.writer.held = False
            if self._whole_wanted and not self._unsaved():
                self._next_whole()

    def busy(self) -> bool:
        """Whether other steps have to be done, and their changes handed to the writer's thread, before `whole` may be called.

        Then `retry` tells publishers when they need not wait any more, and the mesh goes on.
        """
        busy = self._whole is not None or (self._whole_in == self.writer.number and self._unsaved())
        self._whole_wanted = self._whole_wanted or busy
        return busy

    def _next_whole(self) -> None:
        self._whole_wanted = False
        self.retry()
        if self.mesh is not None:
            self.mesh.store_has_room()

    def _finish_whole(self) -> None:
        """The broker stops: do now what belongs into one commit."""
        if self._whole is not None:
            for _ in self._whole:
                pass

    def look(self) -> None:
        """Whether the store can take more."""
        pending = self.writer.bytes_pending
        if self.writer.error is not None or pending > self.pending_limit:
            self.stuck = True
        elif 2 * pending <= self.pending_limit:
            self.stuck = False
        self.quota.look()
        before, self.closed = self.closed, self.stuck or self.quota.text is not None
        if before and not self.closed:
            self.retry()

    def retry(self) -> None:
        """Read again from publishers that wait for room in the store."""
        for connection in list(self._held):
            self.context.loop.call_soon(self._let_go, connection, False)

    def _bound_changed(self) -> None:
        full = self.quota.full
        self.retained.store_full = full
        if self.mesh is not None:
            self.mesh.store_changed(full, self.quota.on_its_way)
        if self.error is None:
            self._say(self.quota.state)

    def _on_commit(self, ticket: int) -> None:
        self.context.refresh()
        self.commits += 1
        if self._failed and self.writer.error is None:
            self._failed = False
            log.warning("event=store-recovered text=everything that waited is kept, publishers are served again")
            self._say(self.quota.state)
        self.look()
        if self._whole_wanted and self._whole is None:
            self._next_whole()
        self.context.flush()

    def _on_error(self, error: StoreError) -> None:
        self._failed = True
        self.closed = self.stuck = True
        log.error("event=store-failed kind=%s text=%s", error.kind.value, error)
        self._say(str(error))
        self.context.flush()

    def _say(self, state: str) -> None:
        if self.context.limits.sys_interval:
            self.context.refresh()
            self.context.say("$SYS/broker/store/state", state)

    def values(self) -> dict[str, str]:
        """For `$SYS/broker/store/`."""
        writer = self.writer
        return {
            "store/state": str(writer.error or self.quota.state),
            "store/pending/bytes": str(writer.bytes_pending),
            "store/commits": str(self.commits),
            **{f"store/{name}": str(value) for name, value in self.quota.values().items()},
        }

    # What waits

    def begin(self) -> None:
        """A message is being taken: what is stored from now on is what its answer waits for."""
        if self._runs:
            self._runs = set()
        self._commit_needed = False

    def need_commit(self) -> None:
        """The message that is being taken needs more than its recipients: its answer waits for the commit of this piece of work."""
        self._commit_needed = True

    @property
    def next_commit(self) -> int:
        """The ticket of what is about to be changed."""
        return self.writer.number

    def received(self, session: object) -> None:
        """QoS 2 identifiers received by a session in the store change: its answer waits for them."""
        if isinstance(session, StoredSession):
            self.dirty[session] = None
            self._commit_needed = True

    def answer(self, connection: Connection, data: bytes | bytearray) -> None:
        """Send once what was done since `begin` is kept, and after the answers before."""
        runs = self._runs
        if self._commit_needed:
            answer = Answer(data, self.writer.number, set())
            if not self.writer.open_size and not self.dirty:
                self._released = -1  # nothing is to be written, so no commit would have it looked at
        elif runs:
            answer = Answer(data, self.writer.number, runs)
        else:
            answer = None
        self.begin()
        answers = connection.answers
        if not answers and (answer is None or not answer.ticket):
            connection.send(data)
            return
        if answer is None:
            answer = Answer(data, 0, set())
        if answer.runs:
            self.writer.hurry()
        elif answer.ticket:
            self._hurry()
        for run in answer.runs:
            self._awaiting[run] = (connection, answer)
        if answers is None:
            answers = connection.answers = deque()
        answers.append(answer)
        self._holding[connection] = None

    def hold_back(self, connection: Connection, data: bytes, until: float, write: Callable[[], object]) -> None:
        """Send the answer to a message that is not in the open batch, once that is settled (`held_settled`), or written and committed.

        Only while `calm`. write: puts it there, and calls `held_written`. It is called before the next commit that somebody waits for, and
        at the time `until` of the loop's clock.
        """
        answer = Answer(data, NEVER, set())
        self._unwritten = Unwritten(connection, answer, write)
        if connection.answers is None:
            connection.answers = deque()
        connection.answers.append(answer)
        self._holding[connection] = None
        self.defer(until)

    def held_written(self, run: int) -> None:
        """The message that is held back is in the open batch, as this run."""
        assert self._unwritten is not None
        (connection, answer, _), self._unwritten = self._unwritten, None
        self._runs.discard(run)  # the answer to the message that is being taken does not wait for it
        if not connection.closing:
            answer.ticket, answer.runs = self.writer.number, {run}
            self._awaiting[run] = connection, answer

    def held_settled(self) -> None:
        """The message that is held back need not be written: its answer may go."""
        assert self._unwritten is not None
        (connection, answer, _), self._unwritten = self._unwritten, None
        self.writer.hurry()
        answer.ticket = 0
        self._ready[connection] = None

    def claim(self) -> int:
        """The ticket that an answer to the message that is being taken has to wait for, 0 for none; the caller sees to it."""
        ticket = self.writer.number if self._commit_needed or self._runs else 0
        self.begin()
        return ticket

    def pass_on(self, connection: Connection, data: bytes | bytearray) -> None:
        """Send an answer that waits for no commit, after earlier answers that do."""
        if connection.answers:
            connection.answers.append(Answer(data, 0, set()))
        else:
            connection.send(data)

    def send(self, connection: Connection, ticket: int, data: bytes | bytearray) -> None:
        """Send once a ticket is committed, and after what waits there before."""
        if connection.sends is None:
            connection.sends = deque()
        if not connection.sends and ticket <= self.writer.committed:  # it waited elsewhere meanwhile
            connection.send(data)
            return
        self._hurry()
        self._released = -1  # what the ticket is for may not have been written yet: look at the end of this piece of work
        connection.sends.append((ticket, data))
        self._holding[connection] = None

    def _release(self) -> None:
        """Let go of what need not wait any more."""
        reached = self.reached
        touched = list(self._ready)
        self._ready.clear()
        if reached != self._released:  # lower: what was empty holds something again
            self._released = reached
            touched = list(self._holding)
        for connection in touched:
            self._release_one(connection, reached)
        while self._callbacks and self._callbacks[0][0] <= self.reached:  # the batch that was empty may be begun by a callback
            self._released = -1
            heapq.heappop(self._callbacks)[2]()

    def _release_one(self, connection: Connection, reached: int) -> None:
        answers, sends = connection.answers, connection.sends
        if connection.closing:
            self.abandon(connection)
            return
        while answers and answers[0].ticket <= reached:
            answer = answers.popleft()
            for run in answer.runs:
                self._awaiting.pop(run, None)
            connection.send(answer.data)
        while sends and sends[0][0] <= reached:
            connection.send(sends.popleft()[1])
        if not answers and not sends:
            self._holding.pop(connection, None)

    def abandon(self, connection: Connection) -> None:
        """Drop what waits for a connection that is gone."""
        for answer in connection.answers or ():
            for run in answer.runs:
                self._awaiting.pop(run, None)
        connection.answers = connection.sends = None
        self._holding.pop(connection, None)
        self._ready.pop(connection, None)

    def _on_settled(self, run: int) -> None:
        """All recipients have acknowledged a run before it was kept."""
        found = self._awaiting.get(run)
        if found is None:
            if run in self._runs:
                self._runs.discard(run)
                self._commit_needed = self._commit_needed or self.moving
            return
        connection, answer = found
        del self._awaiting[run]
        if self.moving:
            # it is somebody else's now, in the batch that is open
            for other in answer.runs - {run}:
                self._awaiting.pop(other, None)
            answer.runs = set()
            answer.ticket = self.writer.number
            return
        answer.runs.discard(run)
        if not answer.runs:
            answer.ticket = 0
            self._ready[connection] = None

    # Publishers who need the store while it takes nothing

    def needed(self, route: Route | Recipients, run: Batch) -> bool:
        """Whether a batch of QoS 1 or 2 cannot be taken without the store."""
        return self._wanted(route, run) if self.stuck else self._to_be_kept(route, run)

    def _wanted(self, route: Route | Recipients, run: Batch) -> bool:
        if route.elsewhere or (run.retain and not run.topic.startswith(b"$")):
            return True
        if any(target.session.stored and target.qos for target in route.targets):
            return True
        return any(member.session.stored for group in route.shares for member in group.members)

    def _to_be_kept(self, route: Route | Recipients, run: Batch) -> bool:
        """Whether a batch of QoS 1 or 2 would stay in the store for longer than its recipients need to take it."""
        kept = run.retain and not run.topic.startswith(b"$")
        if kept and not run.length and self.retained.has(run.topic):
            return False  # it makes room
        elsewhere = self.mesh is not None and route.elsewhere and (route.mesh is None or not self.mesh.reaches(route.mesh))
        if not self.quota.full:
            return elsewhere
        if kept and self.retained.grows(run):
            return True
        if elsewhere or any(target.qos and not passes(target.session) for target in route.targets):
            return True
        return any(group.members and not any(passes(member.session) for member in group.members) for group in route.shares)

    def why(self) -> str | None:
        """What a publisher is told whose message finds no room in the store; None: it is not the store."""
        if self.error is not None:
            return f"no room: the broker's store refuses ({self.error.kind.value})"  # not where it is
        return None if self.quota.text is None else f"no room: {self.quota.text}"

    def hold(self, connection: Connection) -> None:
        """A publisher is not read until the store takes messages again; MQTT 5 is answered 0x97 after a while."""
        if connection not in self._held:
            refuse = connection.version == 5
            self._held[connection] = self.context.loop.call_later(HELD_MAX, self._let_go, connection, True) if refuse else None

    def _let_go(self, connection: Connection, refuse: bool) -> None:
        if connection not in self._held:
            return
        timer = self._held.pop(connection)
        if timer is not None:
            timer.cancel()
        connection.release(refuse)

    # Reading

    def read(self, ask: Callable[[], T], take: Callable[[T | None, StoreError | None], None]) -> None:
        """Ask the store something in a thread; `take` gets the answer, or the error."""
        if self._closing:
            return
        future = self.context.loop.run_in_executor(self._reader, ask)

        def done(future: asyncio.Future[T]) -> None:
            if future.cancelled():
                return
            self.context.refresh()
            error = future.exception()
            if error is None:
                take(future.result(), None)
            elif isinstance(error, StoreError):
                take(None, error)
            else:
                raise error

        future.add_done_callback(done)

    def unreadable(self, session: StoredSession, error: StoreError) -> None:
        """The store could not be read for a session, which tries again."""
        log.error("event=store-unreadable client=%s kind=%s text=%s", quoted(session.client_id), error.kind.value, error)

    # Runs

    def store_run(self, run: Batch) -> int:
        """The id of a run in the store, put there unless it is the one that was put last."""
        if run is self._last_run and self.writer.holds(self._last_id):
            return self._last_id
        number = self._next_run
        self._next_run += 1
        self.writer.put_run(stored_run(number, run, self.offset))
        self._last_run, self._last_id = run, number
        self._runs.add(number)
        return number

    def stored_as(self, run: Batch) -> int:
        """The id of a run that was stored just now; 0: it was not."""
        return self._last_id if self._last_run is run else 0

    def store_again(self, run: Batch, number: int) -> None:
        """More recipients of a run follow, in another piece of work. number: its id in the store; 0: it has none."""
        if number:
            self._last_run, self._last_id = run, number

    def loaded(self, stored: StoredRun) -> Batch:
        """A stored run as a run; consecutive rows of one run share it."""
        if self._loaded is None or self._loaded[0] != stored.id:
            self._loaded = (stored.id, run_of(stored, self.offset))
        return self._loaded[1]

    # Sessions, subscriptions, retained messages

    def forget(self, session: StoredSession) -> None:
        """A session has ended."""
        writer = self.writer
        self.dirty.pop(session, None)
        writer.delete_value("sessions", session.client_id.encode())
        for topic_filter in session.filters:
            writer.delete_value("subscriptions", subscription_key(session.key, topic_filter))
        session.filters.clear()
        if session.has_inbound:
            writer.delete_value("inbound", session.key)
        if session.has_released:
            writer.delete_value("released", session.key)
        if session.shared:
            self.maintenance.redistribute(session.recipient, None)
        else:
            writer.delete_recipient(session.recipient)

    def leftover(self, recipient: str, shared: bool) -> None:
        """A recipient whose session has ended, and whose deliveries have not."""
        if shared:
            self.maintenance.redistribute(recipient, None)
        else:
            self.writer.delete_recipient(recipient)

    def put_subscription(self, session: StoredSession, subscription: Subscription, identifier: int) -> None:
        """Keep a subscription; its SUBACK follows the commit."""
        session.filters.add(subscription.filter)
        key = subscription_key(session.key, subscription.filter)
        self.writer.put_value("subscriptions", key, subscription_value(subscription, identifier))
        self.need_commit()

    def delete_subscription(self, session: StoredSession, topic_filter: str) -> None:
        """Forget a subscription; its UNSUBACK follows the commit."""
        if topic_filter in session.filters:
            session.filters.discard(topic_filter)
            self.writer.delete_value("subscriptions", subscription_key(session.key, topic_filter))
            self.need_commit()

    def retain(self, run: Batch, extra: bytes = b"") -> None:
        """Keep a retained message."""
        if not run.topic.startswith(b"$"):
            self.writer.put_value("retained", bytes(run.topic), retained_value(run, self.offset, extra))
            self.need_commit()

    def keep_will(self, run: Batch) -> bytes:
        """Keep a will that is due and finds no room: the key for `forget_will`."""
        key = os.urandom(8)
        self.writer.put_value("wills", key, will_value(run, self.offset))
        return key

    def forget_will(self, key: bytes) -> None:
        """A will is published; in the batch of what it became."""
        self.writer.delete_value("wills", key)

    def forget_retained(self, topic: bytes) -> None:
        """Forget a retained message."""
        if not topic.startswith(b"$"):
            self.writer.delete_value("retained", topic)
            self.need_commit()
