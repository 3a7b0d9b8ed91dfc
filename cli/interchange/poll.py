"""`mqmesh interchange poll`: take messages from the inbox of a service."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ..connection_options import ConnectionOptions, reported_errors
from ..output import FAILED, TIMED_OUT, note


def poll(
    options: ConnectionOptions,
    service: Annotated[str, typer.Argument(help="Whose inbox: organisation/name.", show_default=False)],
    count: Annotated[int, typer.Option("-C", "--count", min=1, help="How many messages to take.")] = 1,
    wait: Annotated[float | None, typer.Option("-W", "--wait", metavar="SECONDS", min=0, help="How long to wait for the next one.")] = None,
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
    from .client import Client

    try:
        with reported_errors("interchange poll"):
            client = Client(options)
            client.take_from(service, selector)
            with client:
                for _ in range(count):
                    message = client.next(wait)
                    if message is None:
                        if client.failure:
                            note(f"interchange poll: {client.failure}")
                        raise typer.Exit(FAILED if client.failure else TIMED_OUT)
                    print(json.dumps(message, ensure_ascii=False), flush=True)
                    if not keep:
                        client.acknowledge()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
