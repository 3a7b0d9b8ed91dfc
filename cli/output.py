"""Output of commands: results on stdout, everything else as one line on stderr, and an exit status.

Exit statuses of every command:
0: done.
1: the other side refused or failed, or the demo found a loss.
2: the command line or a file is wrong; nothing was started.
27: the time is up (the number that mosquitto_sub uses).
"""

from __future__ import annotations

import sys
from typing import Any

import typer

FAILED = 1
WRONG_USE = 2
TIMED_OUT = 27


def command_group(**options: Any) -> typer.Typer:
    """An empty group of commands, such as `mqmesh topology`. options: for typer."""
    return typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False, **options)


def note(text: str) -> None:
    """Print one line on stderr while the command continues."""
    print(f"mqmesh: {text}", file=sys.stderr, flush=True)


def fail(text: str, status: int = FAILED) -> typer.Exit:
    """Print one line on stderr and return the exception that ends the command: ``raise fail("...", WRONG_USE)``."""
    note(text)
    return typer.Exit(status)
