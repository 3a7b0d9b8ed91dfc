"""What the journal keeps of a message's payload: values that a topic's rule selects by JSON paths, such as an order's number.

    topics = [{ filter = "orders/#", mode = "full", select = { order = "$.order.id", first = "$.lines[0].article" } }]

Only texts, numbers and truth values are kept. A payload that is no JSON, or in which a path leads nowhere, has no such value. The values
stand in the `detail` of `published`, as one JSON object. Source: US 9,037,726, selected content and custom message ids (rows M1, M5).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

LARGEST = 2**16  # bytes of a payload that is looked into
LONGEST = 256  # characters of a value that are kept
MOST = 16  # values of a rule
_PATH = re.compile(r"\$((\.[A-Za-z_][A-Za-z0-9_-]*)|(\[\d{1,6}\]))+")
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_-]*)|\[(\d+)\]")
_PLAIN = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false")

Steps = tuple[str | int, ...]
Selection = tuple[tuple[str, Steps], ...]  # (name, steps to its value)


def steps_of(path: str) -> Steps:
    """A path as names and indexes. Raises ValueError, what would be right."""
    if not _PATH.fullmatch(path):
        raise ValueError("give a JSON path of names and indexes, as $.order.id or $.lines[0].article")
    return tuple(name or int(index) for name, index in _STEP.findall(path))


def selected(selection: Selection, payload: bytes) -> str | None:
    """The values of a payload as a JSON object; None: it has none."""
    if len(payload) > LARGEST:
        return None
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    found = {name: value for name, steps in selection if (value := _value(body, steps)) is not None}
    return json.dumps(found, sort_keys=True) if found else None


def _value(body: Any, steps: Steps) -> str | int | float | bool | None:
    for step in steps:
        if isinstance(step, str):
            body = body.get(step) if isinstance(body, Mapping) else None
        else:
            body = body[step] if isinstance(body, list) and step < len(body) else None
    if isinstance(body, str):
        return body[:LONGEST]
    return body if isinstance(body, int | float) and body == body and abs(body) != float("inf") else None


def pattern_of(value: str) -> str:
    """A regular expression (RE2) that finds a value in what `selected` gives. value: NAME=VALUE. Raises ValueError, one line."""
    name, equals, text = value.partition("=")
    if not name or not equals:
        raise ValueError(f'value: "{value[:80]}": give NAME=VALUE, such as order=4711')
    forms = [json.dumps(text)] + [text] * bool(_PLAIN.fullmatch(text))
    return f"[{{ ]{re.escape(json.dumps(name))}: ({'|'.join(map(re.escape, forms))})[,}}]"


def runs(details: Iterable[str | None]) -> list[tuple[int, int, str | None]]:
    """(first, count, detail) of messages one after the other that have the same."""
    made: list[tuple[int, int, str | None]] = []
    for index, detail in enumerate(details):
        if made and made[-1][2] == detail:
            made[-1] = made[-1][0], made[-1][1] + 1, detail
        else:
            made.append((index, 1, detail))
    return made
