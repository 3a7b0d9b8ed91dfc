"""Requests to the broker over MQTT: how are the queues, what is in one, what became of a message, and what may be done about it.

A client publishes a JSON object to `$mqmesh/queues`, with Response Topic and Correlation Data as MQTT 5 has it, or is subscribed to
`$mqmesh/queues/answer`; only the client that asked gets the answer (docs/queues.md, "To look at and to change"):

    {"do": "list"}                                              {"queues": [{...}]}
    {"do": "show", "name": "orders"}                            {"queue": {...}}: with members and settings
    {"do": "peek", "name": "orders", "from": 1, "most": 20}     {"messages": [...], "more": 21}: disturbs nothing. With
                                                                "whole": true all of each message, for payload readers
    {"do": "trace", "name": "orders", "position": 17}           {"states": [...], "subscribers": {...}}: with times
    {"do": "read", "name": "orders", "from": 1, "since": "2026-11-23T10:00:00Z", "most": 100}
                                                                {"messages": [...], "more": 101}: of the log, at an end too; all of each
    {"do": "needed", "name": "orders", "from": 1}               {"needed": {"a": {"messages": 2, "waits": [[1, 1]], "has": [[2, 2]]}}}
    {"do": "distribute", "name": "orders", "from": 1, "last": 9, "to": "some/topic"}
                                                                {"distributed": 9, "more": null}: copies; or "to": "$queue/others".
                                                                To a topic also of a queue elsewhere, for payload readers (`copies.py`)
    {"do": "edit", "name": "orders", "position": 17, "payload": "base64", "properties": {...}}
                                                                {"edited": 17, "position": 20}: another message in its place
    {"do": "redrive", "name": "dead", "to": "orders"}           {"redriven": 3}: dead letters go back; "position": one of them
    {"do": "purge", "name": "orders"}                           {"purged": 3}: what nobody has is withdrawn
    {"do": "recover", "name": "orders"}                         {"children": 1, "revealed": 2, "cleaned": 0}: docs/queues.md, "Workflow"
    {"do": "reveal", "name": "orders", "position": 17}          {"message": {...}}; and withdraw; and again, "member": "a": to it alone
    {"do": "get", "name": "orders", "most": 10}                 {"given": 3, "waiting": 0}: messages 1 to 3 go before the answer
    {"do": "priority", "name": "orders", "position": 17, "priority": 9}    {"message": {...}}
    {"do": "expire", "name": "orders", "position": 17}          as withdraw, or as done: for a member that has it, for it alone
    {"do": "temporary"}                                         {"queue": "temporary/1/5d0c...", "key": "..."}: until its session ends
    {"do": "done", "name": "orders", "position": 17, "last": 20}  {"state": "done", ...}: a member, of messages 17 to 20 that it has; and
                                                                processing, unusable, return, journalled. The answer follows the commit
    {"do": "declare", "name": "orders", "settings": {...}}      {"queue": "orders", "declared": true}: settings as in a file
    {"do": "delete", "name": "orders", "force": true}           {"queue": "orders", "deleted": 3}: with its messages
    {"do": "store", "name": "orders", "store": "sqlite"}        {"queue": "orders", "store": "sqlite", "queues": ["orders"]}: it goes there
    {"do": "pause", "name": "orders"}                           {"queue": "orders", "paused": true}: members get nothing; and resume
    anything wrong                                              {"error": "one line"}

purge, redrive, recover, declare, delete, store, pause and resume take "dry_run": true. Who may: viewers look, payload readers see
payloads and read, administrators edit, operators do the rest (`broker/auth/roles.py`).
A publisher may reveal and withdraw its own messages. Where a broker has no rules of access, everybody may look.

What it does not know: how queues work.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ...base.queues import ANSWER, PREFIX, TOPIC
from ...base.quoting import quoted
from ...mqtt.batch.batch import Batch
from ...mqtt.errors import MqttError, UsageError
from ...mqtt.topics import check_topic
from ..auth.operators import DENIED, UNBELIEVED, rights_of
from ..auth.roles import Role
from ..queues.committer import Then
from ..queues.core.queue import HIGHEST
from ..queues.declared.declaring import Declarations
from ..queues.kept import MOST_READ, Position
from ..queues.log.locations import shown
from ..queues.overview import MOST_PEEKED, Overview, Walk
from ..queues.workflow.workflow import DO as PARENTS
from .copies import Copies
from .reply import Reply

if TYPE_CHECKING:
    from ...mqtt.batch.run import Run
    from ...mqtt.publish import PublishProperties
    from ..auth.guard import Guard
    from ..ports import Connection, Context
    from ..routing.route import Route
    from ..routing.router import Router
    from ..site import ClientConnection

log = logging.getLogger("mqmesh.broker")

LOOKS, ACTS = ("list", "show", "peek", "trace", "read", "needed"), ("reveal", "withdraw", "again", "expire", "priority")
DEEDS, CHANGES = ("redrive", "purge", "recover", "distribute", "edit"), ("declare", "delete", "store", "pause", "resume")
GET, TEMPORARY = "get", "temporary"
WORKS = ("processing", "done", "unusable", "return", "journalled")  # what members say
AWAY = (*WORKS, *ACTS, GET, *(do for do in LOOKS if do != "list"))  # what goes to the home of a queue elsewhere
MOST_WORKED = 10_000  # messages of one request
LISTED = 64  # queues in one step
MOST_GOT = 1000  # messages that a member asks for at once
RIGHT = 'send {"do": "list"} or {"do": "show", "name": "..."}; do: ' + ", ".join((*LOOKS, *DEEDS, *CHANGES, *ACTS, *WORKS, GET, TEMPORARY))
NO_QUEUES = "this broker has no queues: its file has no table [queues]"
LARGEST_REQUEST = 262_144  # bytes
LARGEST = 2**63  # of positions
KINDS: dict[str, tuple[type, str]] = {
    "from": (int, "a position"),
    "most": (int, f"a number from 1 to {MOST_PEEKED}"),
    "position": (int, "a position"),
    "last": (int, "a position"),
    "priority": (int, "a number from 0 to 9"),
    "to": (str, "the name of a queue; with distribute a topic, or $queue/NAME"),
    "since": (str, 'a time such as "2026-11-23T10:00:00Z"'),
    "payload": (str, "base64"),
    "properties": (dict, "an object"),
    "member": (str, "the name of a member"),
    "dry_run": (bool, "true or false"),
    "whole": (bool, "true or false"),
    "selector": (str, "a selector"),
    "force": (bool, "true or false"),
    "store": (str, "log, sqlite, lmdb or a URL"),
    "settings": (dict, "an object with the keys of a table [queues.NAME]"),
}

AUDITED = ("do", "name", "from", "position", "last", "to", "member", "dry_run", "force", "settings", "store")
COMMITTED = ("distributed", "edited")  # answers that count after the commit, as those of `WORKS` do

Asked = dict[str, Any]


class QueueTopic:
    """Answers what is asked on `TOPIC`.

    overview: None without a mesh and queues. declarations: None without a table of queues: only temporary ones are here then.
    elsewhere: has the home of a queue of another site do something. home: says where that is. site_name: of a broker's number.
    accept: takes a message of the broker's own; False: there is no room.
    """

    def __init__(self, context: Context, router: Router, guard: Guard) -> None:
        self._context = context
        self._router = router
        self._guard = guard
        self.overview: Overview | None = None
        self.declarations: Declarations | None = None
        self.elsewhere: Callable[[str, Asked, Callable[[bytes], None]], bool] | None = None
        self.home: Callable[[str], str | None] = lambda name: None
        self.site_name: Callable[[int], str] = str
        self.accept: Callable[[Run, Route], bool] = lambda run, route: False
        self._away: deque[Iterator[None]] = deque()
        router.services[TOPIC] = self.serve

    def serve(self, connection: Connection, run: Batch, properties: PublishProperties | None) -> bool:
        """Answer requests: whether the client takes the answers."""
        reply = Reply(self._router, connection, properties, ANSWER)
        if not reply.wanted():
            return False
        client = cast("ClientConnection", connection)
        client.work(self._steps(client, list(run.payloads), reply.send))
        return True

    def _steps(self, connection: ClientConnection, payloads: list[bytes], send: Callable[[bytes], None]) -> Iterator[None]:
        """Answer requests one after the other, in short steps."""
        for payload in payloads:
            found = yield from self._answer(connection, payload, send)
            if found:
                self._say(found, send)
            yield

    def _say(self, found: dict[str, Any], send: Callable[[bytes], None]) -> None:
        """Answer; what a member says counts once it is told so, and that is after the commit."""
        answer = Answered(send, found)
        if self.overview is None or (found.get("state") not in (*WORKS, "expire") and found.keys().isdisjoint(COMMITTED)):
            answer.go()
            return
        try:
            self.overview.after_commit(_written(found), answer)
        except UsageError as error:  # the queue is deleted meanwhile
            answer.refused(str(error))
            answer.go()

    def carry_out(self, origin: int, client: str, asked: Asked, send: Callable[[bytes], None]) -> None:
        """Do what a client of another site asks: what members, publishers and browsers may. send: takes the answer."""
        do, name = asked.get("do"), asked.get("name")
        if do == PARENTS and self.overview is not None:
            self._of_parents(self.overview, asked, send)
            return
        wrong = RIGHT if do not in AWAY or not isinstance(name, str) else _wrong(str(do), asked)
        if do in LOOKS and self._guard.rules and not self._guard.management.believes(self.site_name(origin)):
            wrong = UNBELIEVED.format(self.site_name(origin))
        if wrong is not None or self.overview is None:
            self._say({"error": wrong or NO_QUEUES}, send)
            return
        try:
            steps = self._steps_for(self.overview, origin, client, asked)
        except UsageError as error:
            self._say({"error": str(error)}, send)
            return
        self._away.append(self._worked(steps, partial(self._say, send=send)))
        if len(self._away) == 1:
            turns = self._context.turns
            turns.run(turns.broker, self._work_away(), "work=queue-requests")

    def order(self, asked: Asked, respond: Callable[[dict[str, Any]], None]) -> None:
        """Do what an operator says who is a client somewhere in the mesh: `ACTS`, `DEEDS` and `CHANGES`; copies go to queues only.

        respond: takes the answer, after its commit. Raises UsageError.
        """
        overview, do, name = self.overview, asked["do"], asked["name"]
        wrong = _wrong(do, asked)
        if wrong is not None:
            raise UsageError(wrong)
        if overview is None or self.declarations is None:
            raise UsageError(NO_QUEUES)
        if do in CHANGES:
            self._change(do, asked, respond)
            return

        def done(found: dict[str, Any]) -> None:
            if "error" in found or asked.get("dry_run"):
                respond(found)
                return
            try:
                overview.after_commit(_written({"queue": name, **found}), Then(lambda text: respond({"error": text} if text else found)))
            except UsageError as error:  # the queue is deleted meanwhile
                respond({"error": str(error)})

        turns = self._context.turns
        turns.run(turns.broker, self._worked(self._deed(overview, asked, _no_topics), done), f"do={do} work=queue-orders")

    def _steps_for(self, overview: Overview, origin: int, client: str, asked: Asked) -> Walk:
        do, name = asked["do"], asked["name"]
        if do in LOOKS:
            return _look(overview, do, asked, asked.get("payloads") is True)
        if do == GET:
            return _given(overview, origin, client, asked)
        return self._work_or_act(overview, asked, overview.member(name, client, origin), client)

    def _work_away(self) -> Iterator[None]:
        """Do what clients of other sites have asked, in that order."""
        while self._away:
            yield from self._away[0]
            self._away.popleft()

    def _worked(self, steps: Walk, say: Callable[[dict[str, Any]], None]) -> Iterator[None]:
        try:
            found = yield from steps
        except UsageError as error:
            found = {"error": str(error)}
        except Exception:
            log.exception("event=internal-error work=queue-requests")
            found = {"error": "internal error: the log of the broker says more"}
        say(found)

    def _of_parents(self, overview: Overview, asked: Asked, send: Callable[[bytes], None]) -> None:
        """The home of a child asks what its parents are; the answer follows the commit."""
        try:
            overview.parents(asked, lambda counts: send(json.dumps({"counts": counts}).encode()))
        except UsageError as error:
            send(json.dumps({"error": str(error)}).encode())

    def _work_or_act(self, overview: Overview, asked: Asked, member: str, publisher: str | None) -> Walk:
        """member: who says what becomes of messages. publisher: whose messages they have to be; None: anybody's."""
        do, name, first = str(asked["do"]), str(asked["name"]), int(asked["position"])
        if _works(overview, asked, member):
            return (yield from overview.work(name, do, first, asked.get("last", first), member))
        if "last" in asked:
            raise UsageError(f"{do}: give one position")
        return overview.act(name, do, first, asked.get("member", ""), publisher, asked.get("priority", 0))

    def _answer(self, connection: ClientConnection, payload: bytes, send: Callable[[bytes], None]) -> Walk:
        """The answer; an empty one: `send` gets it later, or nobody is there."""
        if len(payload) > LARGEST_REQUEST:
            return {"error": f"a request has at most {LARGEST_REQUEST:,} bytes"}
        try:
            asked = json.loads(payload)
        except (ValueError, RecursionError):
            return {"error": RIGHT}
        do = asked.get("do") if isinstance(asked, dict) else None
        if do == TEMPORARY:
            return self._temporary(connection)
        if (
            do not in (*LOOKS, *DEEDS, *CHANGES, *ACTS, *WORKS, GET)
            or not isinstance(asked.get("name"), str | None)
            or (do != "list" and not asked.get("name"))
        ):
            return {"error": RIGHT}
        wrong = _wrong(do, asked)
        if wrong is not None:
            return {"error": wrong}
        name, free = asked.get("name"), not self._guard.rules
        if do == "delete" and self.overview is not None and self.overview.temporary.maker(str(name)) is connection.session:
            if asked.get("dry_run"):
                return {"queue": name, "deleted": True, "dry_run": True}
            self.overview.temporary.delete(str(name), lambda text: self._say({"queue": name, "deleted": True}, send))
            return {}
        site = self.home(name) if name else None
        rights = rights_of(self._guard, connection).at(site or self._guard.site)

        def may(role: Role, queue: str | None = name) -> bool:
            return rights.may_queue(role, queue) if queue is not None else rights.some(role, "queues")

        operator = may(Role.OPERATOR)
        permitted = free or may(Role.VIEWER) if do in LOOKS else operator or do not in DEEDS + CHANGES
        if do == "edit" or (do == "store" and "://" in asked["store"]):  # the broker would connect to anything
            permitted = may(Role.ADMINISTRATOR)
        elif do == "distribute" and str(asked["to"]).startswith(PREFIX):
            permitted = operator and may(Role.OPERATOR, str(asked["to"])[len(PREFIX) :])
        if not permitted:
            return {"error": DENIED}
        try:
            if do == GET and not self._consumes(connection, asked["name"]):
                return {"error": DENIED}
            if site is not None:
                return self._have_done(connection, site, asked, free or may(Role.PAYLOAD_READER), send)
            if self.overview is None or (self.declarations is None and name not in self.overview.temporary):
                return {"error": NO_QUEUES}
            if do == GET:
                session: Any = connection.session
                return self.overview.get(session, asked["name"], _most_got(asked))
            if do in LOOKS:
                if do == "list":
                    rows = self.overview.list(lambda name: free or may(Role.VIEWER, name))
                    return (yield from _while_there(connection, _listed(rows, send)))
                return (yield from _while_there(connection, _look(self.overview, do, asked, free or may(Role.PAYLOAD_READER))))
            if _works(self.overview, asked, connection.client_id):
                return (yield from self._work_or_act(self.overview, asked, connection.client_id, None))
            if do in CHANGES:
                self._change(do, asked, partial(self._changed, connection, asked, send))
                return {}
            if do == "redrive" and "to" in asked and not may(Role.OPERATOR, asked["to"]):
                return {"error": DENIED}
            return (yield from self._act(self.overview, do, asked, connection, operator))
        except UsageError as error:
            return {"error": str(error)}

    def _have_done(
        self, connection: ClientConnection, site: str, asked: Asked, payloads: bool, send: Callable[[bytes], None]
    ) -> dict[str, Any]:
        """Have a request done at the home of its queue: what `_answer` answers. payloads: whether the client may read them there."""
        do, name = asked["do"], asked["name"]
        if self.elsewhere is not None and do in AWAY:
            self.elsewhere(connection.client_id, asked | {"payloads": payloads}, send)
            return {}
        if self.elsewhere is not None and do == "distribute" and not asked["to"].startswith(PREFIX):
            self._copy_from_elsewhere(connection, asked, payloads, send)
            return {}
        return {"error": f"queue {name!r} has its home at {site}: ask there, or have it done there (mqmesh queue {do} --at {site})"}

    def _copy_from_elsewhere(self, connection: ClientConnection, asked: Asked, payloads: bool, send: Callable[[bytes], None]) -> None:
        """Publish copies of messages of a queue elsewhere for a client that may publish here. payloads: whether it may read them there."""
        assert self.elsewhere is not None
        if asked.get("dry_run"):
            Answered(send, {"queue": asked["name"]}).go()
            return
        elsewhere, turns = self.elsewhere, self._context.turns

        def read(request: Asked, take: Callable[[bytes], None]) -> None:
            if not elsewhere(connection.client_id, request | {"payloads": payloads}, take):
                raise UsageError(f"queue {asked['name']!r} has no home now: try again")

        def answer(found: dict[str, Any]) -> None:
            if "error" not in found:
                self._note(connection, asked)
            Answered(send, found).go()

        def work(steps: Iterator[None]) -> None:
            turns.run(connection.share, steps, f"client={quoted(connection.client_id)} work=queue-copies")

        Copies(asked, read, partial(self._publish, connection), work, lambda: not connection.closing, answer).begin()

    def _consumes(self, connection: ClientConnection, name: str) -> bool:
        """Whether the rules let a client consume from a queue."""
        return self._guard.subscription(connection.user, connection.client_id, connection.listener, PREFIX + name) is None

    def _temporary(self, connection: ClientConnection) -> dict[str, Any]:
        """A client that may consume from a queue has one of its own."""
        if self.overview is None:
            return {"error": NO_QUEUES}
        temporary, session = self.overview.temporary, connection.session
        name = temporary.new_name()
        if not self._consumes(connection, name) or session is None:
            return {"error": DENIED}
        try:
            return dict(temporary.make(session, name))
        except UsageError as error:
            return {"error": str(error)}

    def _act(self, overview: Overview, do: str, asked: Asked, connection: ClientConnection, operator: bool) -> Walk:
        if do in ACTS:
            answer = yield from self._work_or_act(overview, asked, connection.client_id, None if operator else connection.client_id)
        else:
            answer = yield from self._deed(overview, asked, partial(self._publish, connection))
        if not asked.get("dry_run"):
            self._note(connection, asked)
        return answer

    def _deed(self, overview: Overview, asked: Asked, publish: Callable[[Run], bool]) -> Walk:
        """What operators and administrators do with messages of a queue that has its home here."""
        do, name, dry_run = asked["do"], asked["name"], asked.get("dry_run", False)
        if do in ACTS:
            if dry_run:
                return overview.look_at(name, asked["position"])
            return overview.act(name, do, asked["position"], asked.get("member", ""), None, asked.get("priority", 0))
        if do == "recover":
            return (yield from overview.recover(name, dry_run))
        if do == "purge":
            return (yield from overview.purge(name, dry_run))
        if do == "redrive":
            return (yield from overview.redrive(name, asked.get("to"), asked.get("position"), dry_run))
        if dry_run:
            return {"queue": overview.queue(name).name}
        if do == "edit":
            return overview.kept.edit(name, asked["position"], asked.get("payload"), asked.get("properties", {}))
        return (yield from overview.kept.distribute(name, asked.get("from", 1), asked["last"], asked["to"], publish))

    def _publish(self, connection: Connection, run: Run) -> bool:
        """Publish a copy for a client that may publish there. False: there is no room. Raises UsageError."""
        try:
            check_topic(run.topic)
            route = self._router.routes.get(run.topic) or self._router.route(run.topic)
        except MqttError as error:
            raise UsageError(f'"to": {error}') from None
        if not route.writable:
            raise UsageError('"to": topics that begin with $SYS/ or $mqmesh/ belong to the broker')
        text = self._guard.topic(connection, route.topic, run) if self._guard.rules else None
        if text is not None:
            raise UsageError(f'"to": {text}')
        return self.accept(run, route)

    def _change(self, do: str, asked: Asked, respond: Callable[[dict[str, Any]], None]) -> None:
        """Declare, move, delete or pause a queue; the answer follows when that is kept."""
        declarations, name, dry_run = self.declarations, asked["name"], asked.get("dry_run", False)
        if declarations is None:
            raise UsageError(NO_QUEUES)
        if do == "declare":
            declarations.declare(name, asked.get("settings", {}), dry_run, respond)
        elif do == "store":
            declarations.move(name, asked["store"], dry_run, respond)
        elif do in ("pause", "resume"):
            declarations.pause(name, do == "pause", dry_run, respond)
        else:
            declarations.delete(name, asked.get("force", False), dry_run, respond)

    def _changed(self, connection: Connection, asked: Asked, send: Callable[[bytes], None], found: dict[str, Any]) -> None:
        """A queue is changed, or not."""
        if not asked.get("dry_run") and "error" not in found:
            self._note(connection, asked)
        self._say(found, send)

    def _note(self, connection: Connection, asked: Asked) -> None:
        """Somebody has changed something."""
        if self._context.journal is not None:
            self._context.journal.managed(connection, "queues", **_audited(asked))
        do, name = asked["do"], asked["name"]
        who = quoted(connection.client_id), quoted(connection.user), connection.address
        log.warning("event=queue-changed do=%s name=%s client=%s user=%s address=%s", do, quoted(name), *who)
        client = {"client": connection.client_id, "user": connection.user, "address": connection.address}
        self._context.event("queues", {"event": do, "queue": name, **client})


def _no_topics(run: Run) -> bool:
    """Who publishes copies at a topic has to be a client here, whose rules are known."""
    raise UsageError("to: copies go to a topic by the rules of the site where you are a client: ask that one")


def _written(found: dict[str, Any]) -> str:
    """The queue whose commit an answer waits for."""
    to = str(found.get("to", ""))
    return to[len(PREFIX) :] if to.startswith(PREFIX) else str(found["queue"])


def _audited(asked: Asked) -> Asked:
    """What the journal has of a request: not the password that the URL of a store may hold."""
    found = {key: asked[key] for key in AUDITED if key in asked}
    if "store" in found:
        found["store"] = shown(found["store"])
    if "store" in found.get("settings", {}):
        found["settings"] = found["settings"] | {"store": shown(found["settings"]["store"])}
    return found


class Answered:
    """An answer that may wait for a commit. send: takes it."""

    def __init__(self, send: Callable[[bytes], None], found: dict[str, Any]) -> None:
        self._send, self._found = send, found

    def refused(self, text: str) -> None:
        """The commit has failed, and is tried again: what was said counts for now, and is told as an error."""
        self._found = {"error": text}

    def go(self) -> None:
        """Send it."""
        self._send(json.dumps(self._found, separators=(",", ":"), default=_number).encode())


def _number(position: Position) -> int:
    return position.number


def _wrong(do: str, asked: Asked) -> str | None:
    """What is wrong with the other keys of a request."""
    for key, (kind, right) in KINDS.items():
        value = asked.get(key)
        number = kind is int and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST)
        if key in asked and (number or not isinstance(value, kind)):
            return f'"{key}": give {right}'
    if do in ("trace", "edit", *ACTS, *WORKS) and "position" not in asked:
        return f'{do}: give "position" of the message; peek and the publisher\'s acknowledgement name it'
    if do == "store" and "store" not in asked:
        return 'store: give "store", where the queue is to be kept: log, sqlite, lmdb or a URL'
    if do == "edit" and not ("payload" in asked or "properties" in asked):
        return 'edit: give "payload", "properties" or both, as they are to be'
    if do == "distribute" and not ("to" in asked and asked.get("from", 1) <= asked.get("last", 0)):
        return 'distribute: give "to", a topic or $queue/NAME, and positions: "from" (or all from the first one on) and "last"'
    if do in (*WORKS, "expire") and "last" in asked and not asked["position"] <= asked["last"] < asked["position"] + MOST_WORKED:
        return f'"last": give a position from "position" on, at most {MOST_WORKED} messages'
    if do == "priority" and asked.get("priority", LARGEST) > HIGHEST:
        return f'priority: give "priority", a number from 0 to {HIGHEST}'
    if do == "again" and "member" not in asked:
        return 'again: give "member", to whom alone the message is revealed again'
    return None


def _most_got(asked: Asked) -> int:
    """How many messages a member asks for; they are sent before the answer."""
    return max(1, min(int(asked.get("most", 1)), MOST_GOT))


def _given(overview: Overview, origin: int, client: str, asked: Asked) -> Walk:
    """A member of another site asks for messages: these, the answer and the next alert leave in this order."""
    return overview.get_away(origin, client, asked["name"], _most_got(asked))
    yield


def _works(overview: Overview, asked: Asked, member: str) -> bool:
    """Whether somebody says as a member what becomes of a message."""
    do = asked["do"]
    return do in WORKS or (do == "expire" and overview.is_members(asked["name"], asked["position"], member))


def _look(overview: Overview, do: str, asked: Asked, payloads: bool) -> Walk:
    if do == "show":
        return {"queue": overview.show(asked["name"])}
    if do == "peek":
        whole = asked.get("whole", False)
        if whole and not payloads:
            return {"error": DENIED}
        most = max(1, min(asked.get("most", 20), MOST_PEEKED))
        if "selector" in asked and not payloads:
            return {"error": DENIED}  # whether messages fit says what is in them
        return (yield from overview.peek(asked["name"], asked.get("from", 0), most, payloads, whole, asked.get("selector", "").strip()))
    if do == "needed":
        return overview.kept.needed(asked["name"], asked.get("from", 0), max(1, min(asked.get("most", 100), MOST_READ)))
    if do == "read":
        if not payloads:
            return {"error": DENIED}
        most = max(1, min(asked.get("most", MOST_READ), MOST_READ))
        return overview.kept.read(asked["name"], asked.get("from", 0), asked.get("since"), most)
    return (yield from overview.trace(asked["name"], asked["position"], payloads))


def _listed(rows: Iterator[dict[str, Any]], send: Callable[[bytes], None]) -> Walk:
    """Answer with rows, some in each step: there may be very many, so that a step makes their JSON too."""
    found: list[str] = []
    for row in rows:
        found.append(json.dumps(row, separators=(",", ":")))
        if len(found) % LISTED == 0:
            yield
    send(f'{{"queues":[{",".join(found)}]}}'.encode())
    return {}


def _while_there(connection: ClientConnection, walk: Walk) -> Walk:
    """A walk that nobody needs to the end when its client is gone."""
    while not connection.closing:
        try:
            next(walk)
        except StopIteration as end:
            found: dict[str, Any] = end.value
            return found
        yield
    walk.close()
    return {}
