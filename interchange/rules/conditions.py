"""Condition trees: leaves that compare a value of the message, joined by and, or, xor and not (l. 138-146).

A leaf about something that is not in the message is false, whatever its operator, notEquals too; `not` of it is true (l. 142-144).

As JSON a leaf is an object with a path and an operator, `{"json": "$.amount", "greaterThan": 1000}`; others are `{"and": [...]}`,
`{"or": [...]}`, `{"xor": [...]}` (true if an odd number of its parts is) and `{"not": {...}}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..reading import only_keys, read_text, read_true, wrong
from . import patterns
from .paths import Path, attachment_path, header_path, json_path, xml_path
from .values import CONVERT, ORDERED, TYPES, Value
from .view import Look, parse_xml

DEEPEST = 32  # levels of one condition
MOST_LEAVES = 256  # of one condition
MOST_VALUES = 1024  # of one equalsOneOf
JOINS = ("and", "or", "xor", "not")
OPERATORS = ("equals", "notEquals", "equalsOneOf", "lessThan", "greaterThan", "exists", "matches")
SOURCES = ("header", "json", "xml", "attachment")
_KEYS = frozenset((*SOURCES, *OPERATORS, "type", "default", "namespaces"))


@dataclass(frozen=True, slots=True)
class Leaf:
    """One comparison. operand: a value of the type, a Look to compare with, a frozenset, a pattern, or None for `exists`."""

    operator: str
    look: Look
    operand: Any
    shown: str  # as it was written, for `explain`


@dataclass(frozen=True, slots=True)
class Join:
    operator: str
    parts: tuple[Condition, ...]


Condition = Leaf | Join


def leaves(condition: Condition) -> Iterator[Leaf]:
    if isinstance(condition, Leaf):
        yield condition
    else:
        for part in condition.parts:
            yield from leaves(part)


def read_condition(value: object, where: str) -> Condition:
    """A condition from its JSON form; Refusal not-well-formed says where it is wrong."""
    return _read(value, where, DEEPEST, [MOST_LEAVES])


def _read(value: object, where: str, levels: int, left: list[int]) -> Condition:
    """left: how many leaves there may still be."""
    if not levels:
        raise wrong(where, "…", f"a condition has at most {DEEPEST} levels")
    if not isinstance(value, Mapping) or not value:
        raise wrong(where, value, "give an object such as {header = 'topic', equals = 'credit'}")
    joins = [key for key in value if key in JOINS]
    if not joins:
        left[0] -= 1
        if left[0] < 0:
            raise wrong(where, "…", f"a condition has at most {MOST_LEAVES} comparisons")
        return _leaf(value, where)
    if len(value) > 1:
        raise wrong(where, sorted(map(str, value)), f"an object with {joins[0]} has no other key")
    join, parts = joins[0], value[joins[0]]
    if join == "not":
        return Join(join, (_read(parts, f"{where}.not", levels - 1, left),))
    if not isinstance(parts, list) or not parts:
        raise wrong(f"{where}.{join}", parts, "give a list of conditions, at least one")
    return Join(join, tuple(_read(part, f"{where}.{join}[{at}]", levels - 1, left) for at, part in enumerate(parts)))


def _leaf(value: Mapping[str, Any], where: str) -> Leaf:
    for key in value:
        if key not in _KEYS:
            raise wrong(where, key, f"a comparison has {', '.join(SOURCES)}; {', '.join(OPERATORS)}; type, default, namespaces")
    given = [key for key in OPERATORS if key in value]
    if len(given) != 1:
        raise wrong(where, given, f"give one operator of {', '.join(OPERATORS)}")
    operator = given[0]
    namespaces = _namespaces(value.get("namespaces", {}), f"{where}.namespaces")
    path = _path(value, where, namespaces)
    operand = value[operator]
    at = f"{where}.{operator}"
    if operator == "exists":
        read_true(operand, at)
        if "type" in value:
            raise wrong(f"{where}.type", value["type"], "exists asks for any type: leave it out")
        return Leaf(operator, Look(path, "exists", True if "default" in value else None), None, f"{path} exists")
    if path.source == "attachment":
        raise wrong(where, operator, "an attachment itself can only be asked whether it exists; add json or xml to look into it")
    if path.is_list:
        return _list_leaf(operator, path, value, operand, where)
    kind = _type(value, path, operator, operand, where)
    default = _constant(value["default"], kind, path, f"{where}.default") if "default" in value else None
    look = Look(path, kind, default)
    shown = f"{path} {operator} {_shown(operand)}" + (f" as {kind}" if kind not in ("string", "number") else "")
    return Leaf(operator, look, _operand(operator, operand, look, namespaces, at), shown)


def _list_leaf(operator: str, path: Path, value: Mapping[str, Any], operand: object, where: str) -> Leaf:
    """A list of the header: true if one of its texts is equal or matches; notEquals if there is one and none is equal."""
    if operator in ("lessThan", "greaterThan") or not {"type", "default"}.isdisjoint(value):
        raise wrong(where, str(path), "a list of the header has equals, notEquals, equalsOneOf, matches and exists, no type, no default")
    look = Look(path, "list")
    shown = f"{path} {operator} {_shown(operand)}"
    if operator == "matches":
        return Leaf(operator, look, patterns.compiled(operand, f"{where}.{operator}"), shown)
    if operator == "equalsOneOf":
        return Leaf(operator, look, _one_of(operand, "string", path, f"{where}.{operator}"), shown)
    return Leaf(operator, look, read_text(operand, f"{where}.{operator}", patterns.LONGEST_PATTERN), shown)


def read_place(value: object, where: str) -> Path:
    """A place in a message, without a comparison: `{json = "$.order.id"}`."""
    fields = only_keys(value, frozenset((*SOURCES, "namespaces")), where)
    return _path(fields, where, _namespaces(fields.get("namespaces", {}), f"{where}.namespaces"))


def _path(value: Mapping[str, Any], where: str, namespaces: Mapping[str, str]) -> Path:
    sources = [key for key in SOURCES if key in value]
    attachment = value.get("attachment")
    if sources == ["attachment"]:
        return attachment_path(attachment, f"{where}.attachment")
    inner = [key for key in sources if key != "attachment"]
    if len(inner) != 1 or (inner == ["header"] and attachment is not None):
        raise wrong(where, sources, "give one of header, json, xml; json and xml may have attachment = content type beside them")
    if inner == ["header"]:
        return header_path(value["header"], f"{where}.header")
    if inner == ["json"]:
        return json_path(value["json"], f"{where}.json", attachment)
    return xml_path(value["xml"], f"{where}.xml", namespaces, attachment)


def _namespaces(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > 64:
        raise wrong(where, value, "give an object: prefix -> namespace")
    return {read_text(key, where, 64): read_text(uri, f"{where}.{key}", 1024) for key, uri in value.items()}


def _type(value: Mapping[str, Any], path: Path, operator: str, operand: object, where: str) -> str:
    """The declared type, or the one that the operand has."""
    kind = value.get("type")
    if kind is None:
        kind = _type_of(
            operand[0] if isinstance(operand, list) and operand and operator == "equalsOneOf" else operand, f"{where}.{operator}"
        )
    if kind not in TYPES:
        raise wrong(f"{where}.type", kind, f"give one of {', '.join(TYPES)}")
    if operator in ("lessThan", "greaterThan") and kind not in ORDERED:
        raise wrong(f"{where}.type", kind, f"{operator} compares one of {', '.join(ORDERED)}")
    if operator == "matches" and kind != "string":
        raise wrong(f"{where}.type", kind, "matches compares strings")
    if kind == "element" and (operator not in ("equals", "notEquals") or path.source == "header"):
        raise wrong(f"{where}.type", kind, "elements of JSON and XML have equals and notEquals")
    return str(kind)


def _type_of(operand: object, where: str) -> str:
    if isinstance(operand, bool):
        return "boolean"
    if isinstance(operand, int | float):
        return "number"
    if isinstance(operand, str):
        return "string"
    if hasattr(operand, "isoformat"):  # TOML has dates
        return "date"
    if isinstance(operand, Mapping):
        raise wrong(where, operand, "say the type, one of string, number, date, boolean, element, when two places are compared")
    raise wrong(where, operand, "give a text, a number, true or false, or say the type")


def _operand(operator: str, operand: object, look: Look, namespaces: Mapping[str, str], where: str) -> Any:
    if operator == "matches":
        return patterns.compiled(operand, where)
    if operator == "equalsOneOf":
        return _one_of(operand, look.type, look.path, where)
    if isinstance(operand, Mapping) and set(operand) <= {*SOURCES} and operand and _is_place(operand, look):
        other = _path(operand, where, namespaces)
        if other.is_list or other.source == "attachment":
            raise wrong(where, str(other), "compare with one value")
        return Look(other, look.type)
    return _constant(operand, look.type, look.path, where)


def _is_place(operand: Mapping[str, Any], look: Look) -> bool:
    """Whether an object names a place; a JSON element may have members of the same names, whose values are then no paths."""
    return look.type != "element" or any(str(value)[:1] in ("$", "/") for value in operand.values())


def _one_of(operand: object, kind: str, path: Path, where: str) -> frozenset[Value]:
    if not isinstance(operand, list) or not 0 < len(operand) <= MOST_VALUES:
        raise wrong(where, operand, f"give a list of 1 to {MOST_VALUES} values")
    return frozenset(_constant(one, kind, path, f"{where}[{at}]") for at, one in enumerate(operand))


def _constant(operand: object, kind: str, path: Path, where: str) -> Value:
    """A value that a rule names, of the type that is declared; numbers as numbers, dates as texts."""
    raw = operand
    if kind == "element" and path.source == "xml":
        tree = parse_xml(read_text(operand, where).encode())
        raw = None if tree is None else tree.root
    elif kind == "number" and isinstance(operand, str):
        raw = None
    elif kind == "date" and not isinstance(operand, str) and hasattr(operand, "isoformat"):  # TOML has dates
        raw = operand.isoformat()
    elif isinstance(operand, str):
        read_text(operand, where)
    made = CONVERT[kind](raw)
    if made is None:
        raise wrong(where, operand, {"date": "give a date such as 2026-11-24 or 2026-11-24T08:00:00Z"}.get(kind, f"give a {kind}"))
    return made


def _shown(operand: object) -> str:
    text = repr(operand)
    return text if len(text) <= 80 else text[:79] + "…"
