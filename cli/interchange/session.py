"""`mqmesh interchange session`: what became of messages, as pictures of their sessions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from ..connection_options import ConnectionOptions, OptionError, reported_errors
from ..output import FAILED, note

_filter = partial(typer.Option, rich_help_panel="Which calls", show_default=False)
LATEST = 10  # sessions without a filter


@dataclass(slots=True)
class Filters:
    """Which calls are asked for; one that is left out does not matter."""

    call: Annotated[str, _filter("--call", help="This call.")] = ""
    service: Annotated[str, _filter("--service", metavar="SERVICE", help="This service takes part in it.")] = ""
    route: Annotated[str, _filter("--route", metavar="SERVICE", help="This service was on its way.")] = ""
    status: Annotated[str, _filter("--status", help="open, answered, delivered, failed, expired, cancelled.")] = ""
    identifier: Annotated[str, _filter("--identifier", metavar="NAME=VALUE", help="An identifier that a service of yours has for it.")] = ""
    since: Annotated[str, _filter("--since", metavar="TIME", help="Posted since: 2026-11-22T10:00 (UTC), or 10min, 2h, 3d ago.")] = ""
    until: Annotated[str, _filter("--until", metavar="TIME", help="Posted before.")] = ""
    limit: Annotated[int | None, _filter("-n", "--limit", min=1, max=1000, help=f"So many; {LATEST}, or all of a session.")] = None

    def question(self, session: str) -> dict[str, Any]:
        """As the interchange reads it. Raises OptionError."""
        asked: dict[str, Any] = {"session": session, "call": self.call, "service": self.service, "route": self.route, "status": self.status}
        for name, value in (("since", self.since), ("until", self.until)):
            if value:
                asked[name] = _milliseconds(f"--{name}", value)
        if self.identifier:
            name, equals, value = self.identifier.partition("=")
            if not equals:
                raise OptionError(f'--identifier "{self.identifier}": write NAME=VALUE')
            asked["identifier"] = {"name": name, "value": value}
        limit = self.limit or (1000 if session or self.call else LATEST)
        return {key: value for key, value in asked.items() if value} | {"limit": limit}


def session(
    filters: Filters,
    options: ConnectionOptions,
    id: Annotated[str, typer.Argument(metavar="[SESSION]", help="32 hexadecimal digits, as a post has answered.", show_default=False)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="The answer as one JSON object.")] = False,
) -> None:
    """Show sessions that services of yours take part in: calls, routes, hops with their times, and how each ended.

    \b
    One session; the latest calls; those that failed since yesterday:
      mqmesh interchange session 000006ffc5f8b102cbda69c40b1a8b68
      mqmesh interchange session
      mqmesh interchange session --status failed --since 1d

    Status: 0 shown; 1 nothing is found, it is refused, or the broker cannot be reached; 2 wrong command line.
    """
    from ...interchange.correlation.picture import picture
    from .client import Client

    try:
        with reported_errors("interchange session"):
            question = filters.question(id)
            client = Client(options)
            with client:
                answer = client.query(json.dumps(question).encode())
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if answer is None or "code" in answer:
        text = client.failure if answer is None else f"{answer['code']}: {answer['what']}; {answer['right']}".rstrip("; ")
        note(f"interchange session: {text}")
        raise typer.Exit(FAILED)
    if as_json:
        print(json.dumps(answer, ensure_ascii=False))
        return
    for line in picture(answer):
        print(line)
    if "cursor" in answer:
        note("interchange session: there are earlier ones: -n shows more, --until those before a time")
    if not answer["calls"]:
        note("interchange session: nothing is found that services of this user take part in")
        raise typer.Exit(FAILED)


def _milliseconds(option: str, value: str) -> int:
    from ..moments import moment

    try:
        return moment(option, value) // 1000
    except ValueError as error:
        raise OptionError(str(error)) from None
