"""Queues that are declared, deleted and paused by requests while the broker runs (docs/queues.md, "To declare by a request").

They stand in a file beside the log, `declared.json`, which is replaced as a whole: a queue is declared or it is not, whenever the broker is
killed. The file is written in a thread; one change follows the other. What the broker's own file declares is not changed here, and its
settings count where both declare a queue.

    declare    the file is written, then the queue is there, then the answer
    move       the other store is in use, the file is written, then the answer; then the queue goes there
    delete     nobody puts any more, the file is written, what is in the queue is withdrawn, its commit, then the answer
    pause      the file is written, then members get no more, then the answer
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....base.process.files import replace_file
from ....base.quoting import quoted
from ....base.settings import MISSING, NAME, ConfigError, Section
from ....mqtt.errors import UsageError
from ..archive.files import missing
from ..committer import Then
from ..core.rules import Rules
from ..log.locations import shown, wrong
from ..settings import QueueSettings, queue_of, wrong_dead_letters
from ..stores import groups_of

if TYPE_CHECKING:
    from ..core.queue import Queue
    from ..shell import Queues

log = logging.getLogger("mqmesh.broker")

MOST = 1000  # queues that are declared by requests
Respond = Callable[[dict[str, Any]], None]


class Declared:
    """The file. tables: settings by the queue's name, as they were asked for. paused: names of queues, those of the broker's file too."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "declared.json"
        self.tables: dict[str, dict[str, Any]] = {}
        self.paused: frozenset[str] = frozenset()

    def read(self, settings: QueueSettings) -> None:
        """Add what is declared to the queues of the broker's file. Raises OSError, ConfigError."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            found, self.paused = dict(content["queues"]), frozenset(map(str, content.get("paused", ())))
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(
                str(self.path), "", MISSING, "cannot be read: restore a copy, or remove it and declare the queues again"
            ) from None
        section = Section(str(self.path), found)
        self.tables = dict(section.table)
        settings.paused.update(self.paused)
        fresh = []
        for name in self.tables:
            if name in settings.rules and name not in settings.declared:
                text = "it is declared in the broker's file and by a request: the settings in the file count"
                log.error("event=queue-declared-twice queue=%s text=%s", quoted(name), text)
                continue
            settings.rules[name], settings.subscribers[name] = queue_of(section.section(name), name)
            fresh.append(name)
        for name in fresh:
            if (wrong := wrong_dead_letters(settings.rules, name)) is not None:
                raise section.section(name).error("dead_letters", wrong)
        settings.declared.update(fresh)

    def write(self, tables: Mapping[str, Any], paused: frozenset[str]) -> None:
        """Replace it. Blocks. Raises OSError."""
        content = {"queues": tables, **({"paused": sorted(paused)} if paused else {})}
        replace_file(self.path, json.dumps(content, sort_keys=True))


class Declarations:
    """Declares and deletes. Each method answers once, now or later; what cannot be done is a UsageError, one line, at once."""

    def __init__(self, queues: Queues, site: str) -> None:
        assert queues.declared is not None
        self._queues = queues
        self._file = queues.declared
        self._site = site
        self._work: deque[Callable[[], None]] = deque()  # changes that wait for the one before

    def _then(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        if len(self._work) == 1:
            work()

    def _done(self) -> None:
        """A change is made, or refused."""
        self._queues.context.loop.call_soon(self._next)

    def _next(self) -> None:
        context = self._queues.context
        context.refresh()
        self._work.popleft()
        if self._work:
            self._work[0]()
        context.flush()

    def _write(
        self, tables: dict[str, dict[str, Any]], then: Callable[[OSError | None], None], paused: frozenset[str] | None = None
    ) -> None:
        """Have the file written; then: called in the loop, with the error. paused: other than before."""
        context = self._queues.context
        now_paused = self._file.paused if paused is None else paused

        def done(future: Any) -> None:
            if future.cancelled() or context.stopping:
                return
            context.refresh()
            error = future.exception()
            if error is None:
                self._file.tables, self._file.paused = tables, now_paused
            then(error)
            context.flush()

        context.loop.run_in_executor(None, self._file.write, tables, now_paused).add_done_callback(done)

    # ---- declare

    def declare(self, name: str, table: dict[str, Any], dry_run: bool, respond: Respond) -> None:
        """Declare a queue. table: as `[queues.NAME]` in a file. The same again changes nothing."""
        settings = self._queues.settings
        answer = {"queue": name, "declared": True, "dry_run": dry_run}
        if name in settings.rules:
            if name in settings.declared and self._file.tables.get(name) == table:
                respond(answer)
                return
            raise UsageError(f"queue {name!r} is declared at {self._site} already, with other settings or in its file")
        self._checked(name, table)
        if dry_run:
            respond(answer)
        else:
            self._then(partial(self._declare, name, table, respond, answer))

    def _checked(self, name: str, table: dict[str, Any]) -> tuple[Rules, list[str]]:
        settings = self._queues.settings
        home = self._queues.sites.homes.home(name)
        if not NAME.fullmatch(name):
            raise UsageError("give the queue a name of 1 to 64 letters, digits, '.', '_' and '-' that does not begin with '.' or '-'")
        if home is not None:
            raise UsageError(f"queue {name!r} has its home at site {home}: a queue has one home")
        if len(settings.declared) >= MOST:
            raise UsageError(f"a broker has at most {MOST:,} queues that are declared by requests: declare it in the file")
        try:
            rules, subscribers = queue_of(Section("settings", table), name)
        except ConfigError as error:
            raise UsageError(str(error)) from None
        if rules.homes:
            raise UsageError("homes: declare a queue with several homes in the files of these brokers")
        if name in settings.shared:
            raise UsageError(f"queue {name!r} is declared in the file of {self._site}, with several homes")
        if rules.archive and (text := missing()) is not None:
            raise UsageError(f"archive: {text}")
        if (text := self._queues.store.refusal(name, rules)) is not None:
            raise UsageError(f"store: {text}")
        if (text := wrong_dead_letters({**settings.rules, name: rules}, name)) is not None:
            raise UsageError(f"dead_letters: {text}")
        return rules, subscribers

    def _declare(self, name: str, table: dict[str, Any], respond: Respond, answer: dict[str, Any]) -> None:
        def written(error: OSError | None) -> None:
            self._done()
            if error is not None:
                respond({"error": f"queue {name!r} is not declared: {self._file.path.name} cannot be written: {error.strerror or error}"})
                return
            self._queues.settings.declared.add(name)
            self._queues.begin(name, rules, subscribers)
            respond(answer)

        try:
            if name in self._queues.settings.rules:
                raise UsageError(f"queue {name!r} is declared at {self._site} already")
            rules, subscribers = self._checked(name, table)  # another change may have come between
        except UsageError as error:
            respond({"error": str(error)})
            self._done()
            return
        self._write({**self._file.tables, name: table}, written)

    def _check_lasts(self, name: str) -> None:
        """Raise UsageError for a temporary queue."""
        maker = self._queues.temporary.maker(name)
        if maker is not None:
            raise UsageError(f"queue {name!r} ends with the session of the client that made it: {maker.client_id!r}")

    # ---- another store

    def move(self, name: str, store: str, dry_run: bool, respond: Respond) -> None:
        """Have a queue go to another store, with those that it belongs to. The answer comes when that is kept; then they go."""
        if (text := wrong(store)) is not None:
            raise UsageError(f"store: {shown(store)}: {text}")
        answer = {"queue": name, "store": shown(store), "queues": self._goes(name), "dry_run": dry_run}
        if dry_run:
            respond(answer)
        else:
            self._then(partial(self._queues.store.have, store, partial(self._move, name, store, respond, answer)))

    def _goes(self, name: str) -> list[str]:
        """A queue and those that it belongs to, if they may be changed by a request."""
        settings = self._queues.settings
        if name not in settings.rules:
            raise UsageError(f"there is no queue {name[:200]!r} at {self._site}")
        group = next(group for group in groups_of(settings.rules) if name in group)
        for one in group:
            self._check_lasts(one)
            if one not in settings.declared:
                text = "give its table another store, and have the broker read its file again (SIGHUP)"
                raise UsageError(f"queue {one!r} is declared in the file of {self._site}: {text}")
        return group

    def _move(self, name: str, store: str, respond: Respond, answer: dict[str, Any], error: OSError | None) -> None:
        """The store is in use, or cannot be."""

        def written(error: OSError | None) -> None:
            self._done()
            if error is not None:
                respond({"error": f"queue {name!r} stays: {self._file.path.name} cannot be written: {error.strerror or error}"})
                return
            self._queues.store.change(dict.fromkeys(group, store))
            respond(answer)

        try:
            if error is not None:
                raise UsageError(f"store {shown(store)} cannot be used: {error.strerror or error}")
            group = self._goes(name)  # another change may have come between
        except UsageError as wrong:
            respond({"error": str(wrong)})
            self._done()
            return
        tables = self._file.tables
        self._write({**tables, **{one: {**tables[one], "store": store} for one in group}}, written)

    # ---- pause

    def pause(self, name: str, paused: bool, dry_run: bool, respond: Respond) -> None:
        """Members get no more of a queue, or get messages again; also after a restart."""
        settings = self._queues.settings
        if name not in settings.rules and name not in settings.shared:
            raise UsageError(f"there is no queue {name[:200]!r} at {self._site}")
        self._check_lasts(name)
        answer = {"queue": name, "paused": paused, "dry_run": dry_run}
        if dry_run:
            respond(answer)
        else:
            self._then(partial(self._pause, name, respond, answer))

    def _pause(self, name: str, respond: Respond, answer: dict[str, Any]) -> None:
        def written(error: OSError | None) -> None:
            self._done()
            if error is not None:
                respond({"error": f"queue {name!r} stays as it was: {self._file.path.name} cannot be written: {error.strerror or error}"})
                return
            self._queues.pause(name, answer["paused"])
            respond(answer)

        paused = self._file.paused | {name} if answer["paused"] else self._file.paused - {name}
        self._write(self._file.tables, written, paused)

    # ---- delete

    def delete(self, name: str, force: bool, dry_run: bool, respond: Respond) -> None:
        """Delete a queue. force: with the messages in it."""
        answer = {"queue": name, "deleted": self._may_go(name, force), "dry_run": dry_run}
        if dry_run:
            respond(answer)
        else:
            self._then(partial(self._delete, name, force, respond))

    def _may_go(self, name: str, force: bool) -> int:
        """How many messages would go with it."""
        settings = self._queues.settings
        if name not in settings.rules:
            raise UsageError(f"there is no queue {name[:200]!r} at {self._site}")
        self._check_lasts(name)
        if name not in settings.declared:
            raise UsageError(f"queue {name!r} is declared in the file of {self._site}: delete its table there")
        for other, rules in settings.rules.items():
            if rules.dead_letters == name and other != name:
                raise UsageError(f"queue {name!r} takes the dead letters of {other!r}: delete that one first")
        count = _left(self._queues.store.queues[name])
        if count and not force:
            raise UsageError(f'{count:,} messages of queue {name!r} are not at an end: purge it, or say "force": true')
        return count

    def _delete(self, name: str, force: bool, respond: Respond) -> None:
        queues = self._queues
        settings, answer = queues.settings, {"queue": name, "deleted": 0, "dry_run": False}

        def written(error: OSError | None) -> None:
            if error is not None:
                settings.paused.update(self._file.paused & {name})
                queues.begin(name, rules, settings.subscribers.get(name, []))
                settings.declared.add(name)
                self._done()
                respond({"error": f"queue {name!r} is not deleted: {self._file.path.name} cannot be written: {error.strerror or error}"})
            else:
                queues.after_commit(queues.store.queues[name], Then(partial(self._empty, name, answer, respond)))

        try:
            self._may_go(name, force)
        except UsageError as error:
            respond({"error": str(error)})
            self._done()
            return
        rules = settings.rules[name]
        settings.declared.discard(name)
        queues.end(name)
        settings.paused.discard(name)
        self._write({one: table for one, table in self._file.tables.items() if one != name}, written, self._file.paused - {name})

    def _empty(self, name: str, answer: dict[str, Any], respond: Respond, refused: str | None) -> None:
        """Everything that was put is in the queue now, nobody has any of it, and nothing more comes: it goes, in turns."""
        turns = self._queues.context.turns
        turns.run(turns.broker, self._emptied(self._queues.store.queues[name], answer, respond), f"queue={quoted(name)} work=queue-delete")

    def _emptied(self, queue: Queue, answer: dict[str, Any], respond: Respond) -> Iterator[None]:
        queues = self._queues
        answer["deleted"] = _left(queue)
        yield from queue.empty(queues.now())
        self._done()
        queues.after_commit(queue, Then(lambda text: respond(answer if text is None else {"error": text})))


def _left(queue: Queue) -> int:
    """Messages that are not at an end, counted for each group, and those that are not committed yet."""
    return queue.waiting + queue.held + queue.gathering
