"""`mqmesh queue --at`: queues of other sites, by the management protocol (docs/management.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..management.asking import request as ask
from ..management.asking import sites_of
from ..management.command import act as act_at
from ..management.command import show_rows
from ..management.view import absent, table
from ..output import FAILED, WRONG_USE, fail
from .options import MOST as SHOWN

if TYPE_CHECKING:
    from ..connection_options import ConnectionOptions
    from .options import QueueOptions

ASKED = {"list": "queues", "show": "queues", "peek": "queue-messages", "trace": "queue-states"}  # request -> list of management
ACTIONS = {  # request -> action of management
    **{do: f"{do}-queue" for do in ("pause", "resume", "purge", "redrive", "recover", "declare", "delete")},
    **{do: f"{do}-message" for do in ("reveal", "withdraw", "expire", "edit")},
    "store": "move-queue",
    "again": "redeliver-message",
    "priority": "set-priority",
    "distribute": "copy-messages",
}
HOME = "queue: {0} goes to the home of the queue by itself: leave out --at"
MOST = 1000  # queues, or states of a message


def looks(request: dict[str, Any], chosen: QueueOptions, options: ConnectionOptions) -> bool:
    """Print what is asked, if that changes nothing. request: as for the broker itself. chosen: `at` says of which sites."""
    do, name, at = request["do"], request.get("name"), str(chosen.at)
    if do in ACTIONS:
        return False
    if do not in ASKED:
        raise fail(HOME.format(do), WRONG_USE)
    if do == "show":
        _show(str(name), at, chosen.as_json, options)
        return True
    asked: dict[str, Any] = {"list": ASKED[do], **sites_of(at)}
    if do == "peek":
        asked |= {"where": {"queue": name, "position": f">={chosen.begin or 0}"}, "payload": chosen.payload}
    elif do == "trace":
        asked["where"] = {"queue": name, "position": request["position"]}
    show_rows(asked["list"], asked, None, (chosen.most or SHOWN) if do == "peek" else MOST, chosen.as_json, options)
    return True


def act(request: dict[str, Any], chosen: QueueOptions, options: ConnectionOptions) -> None:
    """Have a site do what is asked, and print what it says. request: as for the broker itself."""
    asked = {key: value for key, value in request.items() if key not in ("name", "dry_run")}
    asked |= {"do": ACTIONS[request["do"]], "queue": request["name"]}
    if request["do"] == "distribute":
        name = str(request["to"]).removeprefix("$queue/")
        if "/" in name:
            raise fail(f"queue: distribute: {request['to']}: with --at copies go to a queue of that site, as '$queue/again'", WRONG_USE)
        asked["to"] = name
    act_at(asked, chosen.at, chosen.dry_run, chosen.as_json, options)


def _show(name: str, at: str, as_json: bool, options: ConnectionOptions) -> None:
    """A queue at each site that has one of this name, and its members."""
    asked = [{"list": "queues", "where": {"name": name}}, {"list": "queue-members", "where": {"queue": name}}]
    queues, members = ask("queue", [{**one, **sites_of(at)} for one in asked], options)
    if as_json:
        print(json.dumps({"queues": queues["rows"], "members": members["rows"]}))
    elif queues["rows"]:
        print(table("queues", queues["rows"], None))
        for row in queues["rows"]:
            settings = ", ".join(
                f"{key} {value}" for key, value in {**row["bounds"], "dead letters": row["dead_letters"] or "none"}.items()
            )
            print(f"{row['site']}: {settings}")
        print(table("queue-members", members["rows"], None) if members["rows"] else "no members")
    missing = absent(queues)
    if missing or not queues["rows"]:
        raise fail("queue: " + ("; ".join(missing) or f"there is no queue {name!r} at {at}"), FAILED)
