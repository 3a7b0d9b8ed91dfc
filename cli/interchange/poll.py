"""`mqmesh interchange poll`: take messages from the inbox of a service."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ..connection_options import ConnectionOptions, reported_errors
from ..output import FAILED, TIMED_OUT, fail, note

if TYPE_CHECKING:
    from .client import Client

SHORTEST = 5.0  # seconds that a connection may take, however short -W is


def poll(
    options: ConnectionOptions,
    service: Annotated[str, typer.Argument(help="Whose inbox: organisation/name.", show_default=False)],
    count: Annotated[int, typer.Option("-C", "--count", min=1, help="How many messages to take.")] = 1,
    wait: Annotated[
        float | None,
        typer.Option(
            "-W", "--wait", metavar="SECONDS", min=0, help="How long to wait for the next one, and for the connection (5 or more)."
        ),
    ] = None,
    selector: Annotated[
        str, typer.Option("--selector", help="A selector: only messages that fit, as sender = 'shop/orders'.", show_default=False)
    ] = "",
    keep: Annotated[bool, typer.Option("--keep", help="Acknowledge nothing: they come again.")] = False,
) -> None:
    """Take messages from a service's inbox, and print each as one JSON object a line: its header, and `body` or `base64`.

    A message that was printed is acknowledged, so it comes to nobody again.

    \b
    The next one; all that are there; responses only:
      mqmesh interchange poll bank/credit
      mqmesh interchange poll bank/credit -C 1000 -W 1
      mqmesh interchange poll shop/orders --selector "kind = 'response'"

    Status: 0 done; 1 the broker refuses or cannot be reached; 2 wrong command line; 27 -W was over before -C was reached.
    """
    from ..connection import TimeIsUp
    from .client import Client

    try:
        with reported_errors("interchange poll"):
            client = Client(options, None if wait is None else max(wait, SHORTEST))
            client.take_from(service, selector)
            try:
                with client:
                    _take(client, count, wait, keep)
            except TimeIsUp as error:
                raise fail(f"interchange poll: {error}", TIMED_OUT) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _take(client: Client, count: int, wait: float | None, keep: bool) -> None:
    """Print so many messages. Raises typer.Exit if they do not come."""
    for _ in range(count):
        message = client.next(wait)
        if message is None:
            if client.failure:
                note(f"interchange poll: {client.failure}")
            raise typer.Exit(FAILED if client.failure else TIMED_OUT)
        print(json.dumps(message, ensure_ascii=False), flush=True)
        if not keep:
            client.acknowledge()
