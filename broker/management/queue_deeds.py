"""Actions on the queues that have their home at a site: what `broker/requests/queues.py` does, for operators of every site.

They take turns of the broker, and are told after the commit of what they have changed.

What it does not know: how queues work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base.plural import counted
from ...base.queues import PREFIX
from ...base.quoting import quoted
from ..auth.roles import Role
from .actions import Action, Later, Told, Values, text_of

if TYPE_CHECKING:
    from ..ports import Context
    from .site_work import SiteWork

Found = Mapping[str, Any]  # an answer of the queues
Order = Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], None]  # (request, takes the answer); raises UsageError
OPERATOR, ADMINISTRATOR = Role.OPERATOR, Role.ADMINISTRATOR
QUEUE = {"queue": '"orders"'}
MESSAGE = {**QUEUE, "position": "17"}


class Deed(NamedTuple):
    """An action. do: of the request. line: what an answer says, about the queue of a name. optional: values that may be left out."""

    name: str
    do: str
    help: str
    role: Role
    values: Mapping[str, str]
    line: Callable[[Found, str], str]
    optional: tuple[str, ...] = ()
    unnoted: tuple[str, ...] = ()


def _message(found: Found, queue: str) -> str:
    message = found["message"]
    return f"message {message['position']} of queue {queue} is {message['state']}, priority {message['priority']}"


def _redriven(found: Found, queue: str) -> str:
    left = f"; some stay: {found['left']}" if "left" in found else ""
    return f"back from queue {queue}: {counted(found['redriven'], 'message')}{left}"


def _recovered(found: Found, queue: str) -> str:
    return f"queue {queue}: " + ", ".join(f"{key} {value}" for key, value in found.items() if key not in ("queue", "dry_run"))


def _edited(found: Found, queue: str) -> str:
    if "position" not in found:
        return f"a message of queue {queue} is replaced"
    return f"message {found['edited']} of queue {queue} is replaced by message {found['position'].number}"


def _copied(found: Found, queue: str) -> str:
    if "distributed" not in found:
        return f"messages of queue {queue} are copied"
    more = f"; go on from {found['more']}" if found["more"] is not None else ""
    why = f": {found['refused']}" if "refused" in found else ""
    return f"copied from queue {queue} to {quoted(found['to'])}: {counted(found['distributed'], 'message')}{more}{why}"


DEEDS = (
    Deed("pause-queue", "pause", "members of a queue get no more", OPERATOR, QUEUE, lambda found, queue: f"queue {queue} is paused"),
    Deed("resume-queue", "resume", "they get messages again", OPERATOR, QUEUE, lambda found, queue: f"queue {queue} is not paused"),
    Deed(
        *("purge-queue", "purge", "what nobody has is withdrawn", OPERATOR, QUEUE),
        lambda found, queue: f"withdrawn from queue {queue}: {counted(found['purged'], 'message')}",
    ),
    Deed(
        *("redrive-queue", "redrive", "dead letters go back to where they come from, or to another queue", OPERATOR),
        *({**QUEUE, "to": '"others"', "position": "3"}, _redriven, ("to", "position")),
    ),
    Deed("recover-queue", "recover", "the five steps of recovery, as far as they are needed", OPERATOR, QUEUE, _recovered),
    Deed(
        *("declare-queue", "declare", "a queue is there from now on", OPERATOR, {**QUEUE, "settings": '{"deliveries": 5}'}),
        *(lambda found, queue: f"queue {queue} is declared", ("settings",)),
    ),
    Deed(
        *("delete-queue", "delete", "a queue that was declared by a request goes", OPERATOR, {**QUEUE, "force": "false"}),
        *(lambda found, queue: f"queue {queue} is deleted, with {counted(found['deleted'], 'message')}", ("force",)),
    ),
    Deed(
        *("move-queue", "store", "a queue goes to another store", ADMINISTRATOR, {**QUEUE, "store": '"lmdb"'}),
        lambda found, queue: f"to store {found['store']}: {', '.join(map(quoted, found['queues']))}",
    ),
    Deed("reveal-message", "reveal", "a message that was only PUT may be taken", OPERATOR, MESSAGE, _message),
    Deed("withdraw-message", "withdraw", "nobody gets a message any more", OPERATOR, MESSAGE, _message),
    Deed("expire-message", "expire", "a message expires for all who do not have it", OPERATOR, MESSAGE, _message),
    Deed(
        *("redeliver-message", "again", "a message that a member could not use is for this member again", OPERATOR),
        *({**MESSAGE, "member": '"worker-1"'}, _message),
    ),
    Deed("set-priority", "priority", "a message waits with another priority", OPERATOR, {**MESSAGE, "priority": "9"}, _message),
    Deed(
        *("edit-message", "edit", "another message takes the place of one; payload in base64", ADMINISTRATOR),
        *({**MESSAGE, "payload": '"b3JkZXIgMTc="', "properties": "{}"}, _edited, ("payload", "properties"), ("payload",)),
    ),
    Deed(
        *("copy-messages", "distribute", "copies of messages go to another queue of the site", OPERATOR),
        *({**QUEUE, "to": '"again"', "from": "17", "last": "20"}, _copied, ("from",)),
    ),
)


def add_queue_deeds(work: SiteWork, order: Order, context: Context) -> None:
    """Have them asked for. order: has the queues do something."""

    def acts(deed: Deed) -> Callable[[Values, bool], Later]:
        def act(values: Values, dry: bool) -> Later:
            queue = text_of(values, "queue")
            asked = {**values, "do": deed.do, "name": queue, **({"dry_run": True} if dry else {})}
            if deed.do == "distribute":
                asked["to"] = PREFIX + text_of(values, "to")

            def begin(told: Told) -> None:
                def answered(found: dict[str, Any]) -> None:
                    if "error" in found:
                        told(found["error"], False)
                        return
                    if not dry:
                        context.event("queues", {"event": deed.do, "queue": queue})
                    told(deed.line(found, quoted(queue)), True)

                order(asked, answered)

            return begin

        return act

    for deed in DEEDS:
        queues = tuple(name for name in ("queue", "to") if name in deed.values)
        work.actions.add(
            Action(deed.name, deed.help, deed.role, deed.values, acts(deed), deed.optional, queues=queues, unnoted=deed.unnoted)
        )
