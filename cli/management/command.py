"""`mqmesh clients`, `subscriptions`, `retained`, `routes`, `links`, ...: lists of any site; `mqmesh manage`: everything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ..connection_options import ConnectionOptions
from ..option_groups import with_option_groups
from ..output import FAILED, WRONG_USE, command_group, fail
from .asking import pairs, request, rows, sites_of
from .view import absent, ending, table

At = Annotated[str | None, typer.Option("--at", metavar="SITE", help="Name or number of a site, several with commas, or '*' for all.")]
Sort = Annotated[str | None, typer.Option("--sort", metavar="COLUMN", help="The column to sort by; with '-' before it the largest first.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000_000, help="How many rows are shown.")]
Columns = Annotated[str | None, typer.Option("--columns", metavar="A,B", help="The columns that are shown.")]
Payload = Annotated[bool, typer.Option("--payload", help="With payloads, for payload readers.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]
Where = Annotated[list[str], typer.Argument(metavar="[COLUMN=CONDITION]...", help="Only these rows.", show_default=False)]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]

STATUS = "Status: 0 done; 1 refused, or a site did not answer (it is named); 2 wrong command line."


def show_rows(name: str, asked: dict[str, Any], columns: str | None, limit: int, as_json: bool, options: ConnectionOptions) -> None:
    """Print rows of a list, and say which sites are missing."""
    found, answer = rows(name, asked, limit, options)
    if as_json:
        print(json.dumps({**answer, "rows": found}))
    else:
        chosen = [one for one in columns.split(",") if one] if columns is not None else None
        print(table(name, found, chosen))
        print(ending(answer, len(found)))
    if missing := absent(answer):
        raise fail(f"{name}: " + "; ".join(missing), FAILED)


def _lister(name: str, text: str, example: str) -> Callable[..., None]:
    """The command for one list."""

    def show(
        *,
        where: Where = [],  # noqa: B006
        at: At = None,
        sort: Sort = None,
        limit: Limit = 100,
        columns: Columns = None,
        as_json: AsJson = False,
        options: ConnectionOptions,
    ) -> None:
        asked = {"list": name, "where": pairs(name, where), "sort": sort, **sites_of(at)}
        show_rows(name, asked, columns, limit, as_json, options)

    show.__doc__ = f"{text}\n\n    \b\n      mqmesh {name} {example}\n\n    {STATUS}\n    "
    show.__name__ = name
    return with_option_groups(show)


clients = _lister("clients", "Show the clients that are connected, at any site.", "--at lyon --sort -unsent 'client=sensor-*'")
subscriptions = _lister("subscriptions", "Show subscriptions, at any site.", "--at '*' 'filter=plant/*'")
groups = _lister("groups", "Show shared subscriptions and their members, at any site.", "--at '*'")
brokers = _lister("brokers", "Show the brokers of the mesh, as a site sees them.", "--at lyon reachable=no")
links = _lister("links", "Show links with what passed each way, at any site.", "--at '*' --sort -round_trip")
custody = _lister("custody", "Show what sites hold for others, by destination.", "--at '*' --sort -bytes")
configuration = _lister("configuration", "Show what a broker goes by, key by key, without secrets.", "--at lyon 'key=limits.*'")


@with_option_groups
def retained(
    *,
    where: Where = [],  # noqa: B006
    at: At = None,
    sort: Sort = None,
    limit: Limit = 100,
    payload: Payload = False,
    columns: Columns = None,
    as_json: AsJson = False,
    options: ConnectionOptions,
) -> None:
    """Show retained messages, at any site.

    \b
      mqmesh retained --at lyon --sort -bytes 'topic=plant/+/state'

    Status: 0 done; 1 refused, or a site did not answer (it is named); 2 wrong command line.
    """
    asked = {"list": "retained", "where": pairs("retained", where), "sort": sort, "payload": payload, **sites_of(at)}
    show_rows("retained", asked, columns, limit, as_json, options)


@with_option_groups
def routes(
    *,
    topic: Annotated[str, typer.Argument(help="A topic.", show_default=False)],
    at: At = None,
    limit: Limit = 1000,
    columns: Columns = None,
    as_json: AsJson = False,
    options: ConnectionOptions,
) -> None:
    """Show who gets the messages of a topic, who does not, and why. They are published at the site that is asked, or --at another.

    \b
      mqmesh routes plant/1/state --at lyon

    Status: 0 done; 1 refused, or a site did not answer (it is named); 2 wrong command line.
    """
    show_rows("routes", {"list": "routes", "where": {"topic": topic}, **sites_of(at)}, columns, limit, as_json, options)


def list_sessions(client: list[str], by: str, limit: int, at: str, as_json: bool, options: ConnectionOptions) -> None:
    """`mqmesh sessions --at`: the sessions of sites."""
    where = {"client": client[0]} if client else {}
    show_rows("sessions", {"list": "sessions", "where": where, "sort": f"-{by}", **sites_of(at)}, None, limit, as_json, options)


app = command_group()


@app.callback()
def _group() -> None:
    """Look at sites and change them, from any one of them: actions, other lists, roles.

    \b
      mqmesh manage show actions
      mqmesh manage do disconnect client=sensor-17 --at lyon
    """


@app.command("list")
@with_option_groups
def list_(
    *,
    name: Annotated[str, typer.Argument(metavar="LIST", help="See `mqmesh manage show lists`.", show_default=False)],
    where: Where = [],  # noqa: B006
    at: At = None,
    sort: Sort = None,
    limit: Limit = 100,
    columns: Columns = None,
    as_json: AsJson = False,
    options: ConnectionOptions,
) -> None:
    """Show rows of any list.

    \b
      mqmesh manage list log --at lyon --sort -number level=warning
    """
    asked = {"list": name, "where": pairs(name, where), "sort": sort, **sites_of(at)}
    show_rows(name, asked, columns, limit, as_json, options)


@app.command()
@with_option_groups
def do(
    *,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="See `mqmesh manage show actions`.", show_default=False)],
    values: Annotated[list[str], typer.Argument(metavar="[KEY=VALUE]...", help="Its values.", show_default=False)] = [],  # noqa: B006
    at: At = None,
    dry_run: Dry = False,
    as_json: AsJson = False,
    options: ConnectionOptions,
) -> None:
    """Do something at a site.

    \b
      mqmesh manage do disconnect client=sensor-17 --at lyon --dry-run
      mqmesh manage do set-log-level level=debug --at '*'
    """
    act({"do": action, **pairs(action, values)}, at, dry_run, as_json, options)


def act(asked: dict[str, Any], at: str | None, dry_run: bool, as_json: bool, options: ConnectionOptions) -> None:
    """Ask for an action, and print what each site says."""
    name = str(asked["do"])
    (answer,) = request(name, [{**asked, "dry_run": dry_run, **sites_of(at)}], options)
    if as_json:
        print(json.dumps(answer))
    else:
        for site, said in answer.get("would" if dry_run else "done", {}).items():
            print(f"{site}: {'would: ' if dry_run else ''}{said}")
    if missing := absent(answer):
        raise fail(f"{name}: " + "; ".join(missing), FAILED)


@app.command()
@with_option_groups
def show(
    *,
    what: Annotated[str, typer.Argument(metavar="lists|actions|roles", show_default=False)],
    as_json: AsJson = False,
    options: ConnectionOptions,
) -> None:
    """Show which lists and actions a broker has, or which roles you have."""
    if what not in ("lists", "actions", "roles"):
        raise fail(f"manage show {what}: one of lists, actions, roles", WRONG_USE)
    (answer,) = request("manage", [{"show": what}], options)
    if as_json:
        print(json.dumps(answer))
        return
    for one in answer[what]:
        if what == "lists":
            print(f"{one['list']}: {one['text']}\n    {', '.join(one['columns'])}")
        elif what == "actions":
            values = [f"[{key}={text}]" if key in one["optional"] else f"{key}={text}" for key, text in one["values"].items()]
            print(f"{' '.join([one['do'], *values])}: {one['text']} ({one['role']})")
        else:
            print(", ".join([one["role"], *[f"{key} {' '.join(one[key])}" for key in ("sites", "topics", "queues") if key in one]]))
