"""Recipients as lines: a table of all, one with its history, and why a message goes where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base.plural import counted

HEAD = ("NAME", "SITE", "STATE", "SINCE", "QUEUE", "IN FLIGHT", "FAILED OVER", "RETURNED", "ALTERNATIVES")
RIGHT = {4, 5, 6, 7}


def table(shown: list[dict[str, Any]]) -> str:
    """All recipients, those in trouble first."""
    order = {"defunct": 0, "fault": 1}
    rows: list[Sequence[str]] = [HEAD]
    for one in sorted(shown, key=lambda one: (order.get(str(one.get("state")), 2), str(one["name"]))):
        state = str(one.get("state", "?")) + (", held" if one.get("held") else "")
        counts = (_count(one, key) for key in ("queue", "in_flight", "failed_over", "returned"))
        rows.append((name_of(one["name"]), _plain(one.get("site")), state, moment(one.get("since")), *counts, alternatives(one)))
    bad = sum(one.get("state") in order for one in shown)
    end = f"{counted(len(shown), 'recipient')}, {bad:,} in fault or defunct" if shown else "no recipients"
    return "\n".join([*lines(rows), end]) if shown else end


def others(found: Any) -> list[str]:
    """Sessions that declared nothing and take nothing, as a line."""
    if not isinstance(found, dict) or not found.get("fault"):
        return []
    names = [name_of(one) for one in found.get("clients") or []]
    return [f"{_count(found, 'fault')} sessions that declared nothing take no messages: {', '.join(names)}"]


def details(one: dict[str, Any]) -> str:
    """One recipient, with its history."""
    intervals = [f"{key} {seconds(one.get(f'{key}_interval'))}" for key in ("message", "fault", "defunct")]
    rows = [
        ("recipient", name_of(one["name"])),
        ("site", _plain(one.get("site"))),
        ("state", f"{one.get('state', '?')} since {moment(one.get('since'))}{', held' if one.get('held') else ''}"),
        ("intervals", ", ".join(intervals)),
        ("waiting", f"{_count(one, 'queue')} in the queue, {_count(one, 'in_flight')} in flight"),
        ("probe", _probe(one.get("probe"))),
        ("alternatives", alternatives(one)),
        (
            "so far",
            ", ".join(f"{_count(one, key)} {key.replace('_', ' ')}" for key in ("succeeded", "failed_over", "returned", "repeated")),
        ),
    ]
    shown = lines(rows, right=())
    history = one.get("history") or []
    if history:
        changes = [
            (moment(step.get("at")), f"{step.get('from', '?')} -> {step.get('to', '?')}", _plain(step.get("why"))) for step in history
        ]
        shown += ["history", *("  " + line for line in lines(changes, right=()))]
    return "\n".join(shown)


def explained(answer: dict[str, Any]) -> str:
    """Who was looked at for a message, and who gets it."""
    rows: list[Sequence[str]] = [("RECIPIENT", "SITE", "STATE", "ANSWER")]
    for step in answer.get("steps", []):
        rows.append((name_of(step["recipient"]), _plain(step.get("site")), _plain(step.get("state")), _plain(step.get("answer"))))
    return "\n".join([*lines(rows, right=()), f"a message for it goes to {_plain(answer.get('goes_to'))}"])


def lines(rows: Sequence[Sequence[str]], right: Sequence[int] | set[int] = RIGHT) -> list[str]:
    """Rows as lines with columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def alternatives(one: dict[str, Any]) -> str:
    """In order, with the state of each that is not well."""
    shown = []
    for other in one.get("alternatives") or []:
        name, state = (other.get("name"), other.get("state")) if isinstance(other, dict) else (other, None)
        shown.append(name_of(name) + (f" ({_plain(state)})" if state not in (None, "operational") else ""))
    return ", ".join(shown) or "-"


def name_of(name: object) -> str:
    """A name from the network, without control characters."""
    text = str(name)
    return text if text.isprintable() and text else repr(text)


def moment(text: object) -> str:
    """A time as the broker says it, to the second and without the date's T."""
    return str(text).replace("T", " ").split(".")[0].removesuffix("Z").removesuffix("+00:00") if isinstance(text, str) and text else "-"


def seconds(value: object) -> str:
    """Seconds in the unit that fits."""
    if not isinstance(value, int | float):
        return "-"
    for unit, name in ((3600, "h"), (60, "min")):
        if value >= unit and value % unit == 0:
            return f"{value / unit:g} {name}"
    return f"{value:g} s"


def _count(one: dict[str, Any], key: str) -> str:
    value = one.get(key)
    return f"{value:,}" if isinstance(value, int) else "-"


def _probe(probe: object) -> str:
    return "out, or waiting" if probe is True else "none" if probe is False else _plain(probe)


def _plain(text: object) -> str:
    return "-" if text is None or text == "" else "".join(letter if letter.isprintable() else "?" for letter in str(text))
