"""Output of commands: results on stdout, everything else as one line on stderr, and an exit status.

Exit statuses of every command:
0: done.
1: the other side refused or failed, or the demo found a loss.
2: the command line or a file is wrong; nothing was started.
27: the time is up (the number that mosquitto_sub uses).
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

HELP = {"help_option_names": ["-h", "--help"]}  # of commands in which -h is nothing else
FAILED = 1
WRONG_USE = 2
TIMED_OUT = 27


class Command(TyperCommand):
    """A command whose help shows options below the titles that they name (typer's `rich_help_panel`)."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[Any]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = getattr(parameter, "rich_help_panel", None) or ("Options" if record[0].startswith("-") else "Arguments")
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Group(TyperGroup):
    """A group that shows the whole first sentence of its commands, and asks of a wrong name whether a near one was meant."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first(command.help)) for name, command in found if command is not None and not command.hidden])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            near = get_close_matches(name, self.list_commands(ctx))
            hint = f" Did you mean {' or '.join(near)}?" if near else f" {ctx.command_path} --help lists them."
            ctx.fail(f"No such command: {name}.{hint}")
        return super().resolve_command(ctx, args)


class GroupWithDefault(Group):
    """A group whose first command may be left out: `mqmesh metabroker --community URL` is `mqmesh metabroker run --community URL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [next(iter(self.commands)), *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


def _first(text: str | None) -> str:
    """The first paragraph of a help, in one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


def command_group(cls: type[Group] = Group, **options: Any) -> typer.Typer:
    """An empty group of commands, such as `mqmesh topology`. options: for typer."""
    return typer.Typer(cls=cls, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **options)


def note(text: str) -> None:
    """Print one line on stderr while the command continues."""
    print(f"mqmesh: {text}", file=sys.stderr, flush=True)


def fail(text: str, status: int = FAILED) -> typer.Exit:
    """Print one line on stderr and return the exception that ends the command: ``raise fail("...", WRONG_USE)``."""
    note(text)
    return typer.Exit(status)
