"""`mqmesh interchange explain`: why a message goes to whom it goes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..output import FAILED, WRONG_USE, fail


def explain(
    file: Annotated[Path, typer.Argument(help="A message: its header's fields, body, content_type, as JSON or TOML.", show_default=False)],
    services: Annotated[Path, typer.Option("--services", help="The file of services, with their rules.")] = Path("services.toml"),
    to: Annotated[str, typer.Option("--to", help="For a response: the service that has posted the request.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say which rules hold for a message and why, and who would get it. Nothing is sent.

    \b
      mqmesh interchange explain message.json
      mqmesh interchange explain message.toml --services services.toml --json

    Status: 0 there is a route; 1 it would be refused; 2 a file is wrong.
    """
    from ...base.settings import ConfigError
    from ...interchange.explain import explain as explained
    from ...interchange.refusals import Refusal
    from ...interchange.registry.file import load
    from ...interchange.rules.view import LARGE, NeedsValues
    from .files import read_message

    try:
        registry = load(services, "here")
        message = read_message(file)
        if message.header.sender not in registry.services:
            raise fail(f"interchange: {services} has no service {message.header.sender}, the sender", WRONG_USE)
        found = explained(registry, message, int(time.time() * 1000), to)
    except ConfigError as error:
        raise fail(f"interchange: {error}", WRONG_USE) from None
    except Refusal as refusal:
        raise fail(f"interchange: {file}: {refusal}", WRONG_USE) from None
    except NeedsValues:
        raise fail(f"interchange: {file}: rules look into parts of at most {LARGE:,} bytes", WRONG_USE) from None
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else "\n".join(_lines(found)))
    if "refusal" in found or any("refusal" in one for one in found["routes"]):
        raise typer.Exit(FAILED)


def _lines(found: dict[str, Any]) -> list[str]:
    lines = []
    for one in found["services"]:
        way = f"  ({' -> '.join(one['chain'])})" if len(one["chain"]) > 1 else ""
        lines.append(f"{one['service']}  {one['role']}{way}")
        if not one["rules"]:
            lines.append("    no rules")
        for rule in one["rules"]:
            lines.append(f"    {_mark(rule['holds'])}  {rule['name']}{'  (skipped: an earlier rule ended)' if 'skipped' in rule else ''}")
            lines += _condition(rule["condition"], 2)
    if "refusal" in found:
        return [*lines, f"refused: {_refusal(found['refusal'])}"]
    for route in found["routes"]:
        if "refusal" in route:
            lines.append(f"to {route['recipient']}: refused: {_refusal(route['refusal'])}")
        else:
            lines.append(f"to {route['recipient']}: " + " -> ".join(_delivery(one) for one in route["deliveries"]))
    return lines


def _condition(condition: dict[str, Any], depth: int) -> list[str]:
    margin = "    " * depth
    if "comparison" in condition:
        value = condition.get("value", "")
        what = f": {value}" if value else "" if condition["there"] else ": not there"
        return [f"{margin}{_mark(condition['holds'])}  {condition['comparison']}{what}"]
    (join,) = set(condition) - {"holds"}
    lines = [f"{margin}{_mark(condition['holds'])}  {join}"]
    for part in condition[join]:
        lines += _condition(part, depth + 1)
    return lines


def _delivery(one: dict[str, Any]) -> str:
    more = [f"{key} {json.dumps(value, ensure_ascii=False)}" for key, value in one.items() if key != "service"]
    return f"{one['service']} ({', '.join(more)})" if more else str(one["service"])


def _refusal(one: dict[str, str]) -> str:
    return f"{one['code']}: {one['what']}" + (f"; {one['right']}" if one["right"] else "")


def _mark(holds: bool) -> str:
    return "yes" if holds else "no "
