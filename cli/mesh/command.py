"""`mqmesh mesh`: change a mesh while it runs."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ..connection_options import ConnectionOptions, reported_errors
from ..option_groups import with_option_groups
from ..output import FAILED, command_group, fail

TOPIC, ANYWHERE = "$mqmesh/mesh", "$mqmesh/manage"

Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]
At = Annotated[str | None, typer.Option("--at", metavar="SITE", help="The broker that does it; left out: the one that is asked.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]
Who = Annotated[str, typer.Argument(metavar="BROKER", help="Name or number.", show_default=False)]
Peer = Annotated[str, typer.Argument(metavar="PEER", help="Name, number or address.", show_default=False)]

app = command_group(
    help="Change a mesh while it runs. The broker that is asked, or that of --at, answers its operators: users of access.operators, and "
    "its own user over its Unix socket."
)


@app.command()
@with_option_groups
def forget(*, broker: Who, dry_run: Dry = False, at: At = None, as_json: AsJson = False, options: ConnectionOptions) -> None:
    """Have all brokers of the mesh forget one that is gone for good. It has to be out of reach.

    What waits for it is given up, and its number is free for another key.

    \b
      mqmesh mesh forget turin -h unix:///run/mqmesh.sock --dry-run
    """
    _ask({"do": "forget", "broker": broker}, dry_run, at, as_json, options)


@app.command()
@with_option_groups
def rekey(
    *,
    broker: Who,
    public_key: Annotated[str, typer.Argument(metavar="KEY", help="The public key: `key` in the new identity.json.", show_default=False)],
    dry_run: Dry = False,
    at: At = None,
    as_json: AsJson = False,
    options: ConnectionOptions,
) -> None:
    """Give a broker's number to another key: its machine was replaced without identity.key. It has to be out of reach.

    All brokers of the mesh let the new machine in, and nobody else under that number.
    """
    _ask({"do": "rekey", "broker": broker, "key": public_key}, dry_run, at, as_json, options)


@app.command()
@with_option_groups
def leave(
    *,
    force: Annotated[bool, typer.Option("--force", help="Also when sessions, or messages that wait for others, are lost.")] = False,
    dry_run: Dry = False,
    at: At = None,
    as_json: AsJson = False,
    options: ConnectionOptions,
) -> None:
    """Take this broker out of the mesh: it ends, and all others forget it. When it is started again it is a member again."""
    _ask({"do": "leave", "force": force}, dry_run, at, as_json, options)


@app.command("add-peer")
@with_option_groups
def add_peer(
    *,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Where the neighbour listens.", show_default=False)],
    cost: Annotated[int, typer.Option("--cost", min=1, max=65535, help="The link's cost.")] = 1,
    number: Annotated[
        int | None, typer.Option("--number", min=0, max=65535, help="The neighbour's number: any other broker is refused.")
    ] = None,
    dry_run: Dry = False,
    at: At = None,
    as_json: AsJson = False,
    options: ConnectionOptions,
) -> None:
    """Let this broker dial one more neighbour."""
    _ask({"do": "add-peer", "address": address, "cost": cost, "number": number}, dry_run, at, as_json, options)


@app.command("remove-peer")
@with_option_groups
def remove_peer(*, peer: Peer, dry_run: Dry = False, at: At = None, as_json: AsJson = False, options: ConnectionOptions) -> None:
    """Let this broker dial a neighbour no more; the link ends."""
    _ask({"do": "remove-peer", "peer": peer}, dry_run, at, as_json, options)


@app.command("set-cost")
@with_option_groups
def set_cost(
    *,
    peer: Peer,
    cost: Annotated[int, typer.Argument(metavar="COST", min=1, max=65535, help="1 to 65535.", show_default=False)],
    dry_run: Dry = False,
    at: At = None,
    as_json: AsJson = False,
    options: ConnectionOptions,
) -> None:
    """Change the cost of a link at this broker; the higher cost of its two ends counts."""
    _ask({"do": "set-cost", "peer": peer, "cost": cost}, dry_run, at, as_json, options)


@app.command()
@with_option_groups
def drain(
    *,
    clients: Annotated[bool, typer.Option("--clients", help="End the connections of its clients too; their sessions stay.")] = False,
    dry_run: Dry = False,
    at: At = None,
    as_json: AsJson = False,
    options: ConnectionOptions,
) -> None:
    """Let this broker take no new clients, and others route around it. `mqmesh mesh resume` ends that."""
    _ask({"do": "drain", "clients": clients}, dry_run, at, as_json, options)


@app.command()
@with_option_groups
def resume(*, dry_run: Dry = False, at: At = None, as_json: AsJson = False, options: ConnectionOptions) -> None:
    """Let this broker take clients again."""
    _ask({"do": "resume"}, dry_run, at, as_json, options)


def _ask(request: dict[str, Any], dry_run: bool, at: str | None, as_json: bool, options: ConnectionOptions) -> None:
    """Ask, print the answer, end with status 1 when the broker refuses."""
    from ..connection import Connection
    from .requester import Requester

    name = f"mesh {request['do']}"
    try:
        with reported_errors(name):
            requester = Requester(Connection(options), TOPIC if at is None else ANYWHERE)
            with requester.connection:
                given = {key: value for key, value in request.items() if value is not None}
                answer = requester.request(given | {"dry_run": dry_run} | ({} if at is None else {"at": at}))
    except ValueError as error:  # an answer that is not JSON
        raise fail(f"{name}: {error}") from None
    if as_json:
        print(json.dumps(answer))
    if "error" in answer:
        raise fail(f"{name}: {answer['error']}", FAILED)
    said = answer.get("would" if dry_run else "done", "no answer")
    if isinstance(said, dict):  # by site
        said = "; ".join(said.values())
    if not as_json:
        print(f"would: {said}" if dry_run else said)
