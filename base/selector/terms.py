"""The terms of a selector: functions of a message's values that return True, False, a number, a string, or None for unknown."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

Value = bool | int | float | str | bytes | None
Lookup = Callable[[str], Value]


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a selector.

    kind: number, string, boolean, condition, or any (an identifier, whose type a message shows).
    """

    evaluate: Callable[[Lookup], Value]
    kind: str
    identifier: bool = False


COMPARISONS: dict[str, Callable[[int | float, int | float], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def _divide(left: int | float, right: int | float) -> int | float:
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)  # towards zero
        return quotient if (left < 0) == (right < 0) else -quotient
    return left / right


ARITHMETIC: dict[str, Callable[[int | float, int | float], int | float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
}


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def literal(value: Value, kind: str) -> Term:
    return Term(lambda lookup: value, kind)


def identifier(name: str) -> Term:
    return Term(lambda lookup: lookup(name), "any", True)


def _unary(term: Term, function: Callable[[Value], Value]) -> Term:
    """A condition on the value of a term; unknown if the value is unknown."""

    def evaluate(lookup: Lookup) -> Value:
        value = term.evaluate(lookup)
        return None if value is None else function(value)

    return Term(evaluate, "condition")


def condition_of(term: Term) -> Term:
    """A boolean as a condition. Any value that is not a boolean is false."""
    return term if term.kind == "condition" else _unary(term, lambda value: isinstance(value, bool) and value)


def negate(term: Term) -> Term:
    return _unary(term, lambda value: not value)


def _connect(left: Term, right: Term, decisive: bool) -> Term:
    """AND (decisive: False) and OR (decisive: True): the decisive value wins over unknown, unknown over the other value."""

    def evaluate(lookup: Lookup) -> Value:
        first = left.evaluate(lookup)
        if first is decisive:
            return decisive
        second = right.evaluate(lookup)
        return decisive if second is decisive else None if first is None or second is None else not decisive

    return Term(evaluate, "condition")


def both(left: Term, right: Term) -> Term:
    return _connect(left, right, False)


def either(left: Term, right: Term) -> Term:
    return _connect(left, right, True)


def _compared(sign: str, left: Value, right: Value) -> bool | None:
    if left is None or right is None:
        return None
    if _is_number(left) and _is_number(right):
        return COMPARISONS[sign](left, right)  # type: ignore[arg-type] # both are numbers
    if sign in ("=", "<>") and type(left) is type(right):
        return (left == right) is (sign == "=")
    return False


def comparison(sign: str, left: Term, right: Term) -> Term:
    return Term(lambda lookup: _compared(sign, left.evaluate(lookup), right.evaluate(lookup)), "condition")


def between(term: Term, low: Term, high: Term) -> Term:
    """The same as ``term >= low AND term <= high``."""
    return both(comparison(">=", term, low), comparison("<=", term, high))


def arithmetic(function: Callable[[int | float, int | float], int | float], left: Term, right: Term) -> Term:
    def evaluate(lookup: Lookup) -> Value:
        first, second = left.evaluate(lookup), right.evaluate(lookup)
        if not _is_number(first) or not _is_number(second):
            return None
        try:
            return function(first, second)  # type: ignore[arg-type] # both are numbers
        except (ArithmeticError, ValueError):
            return None

    return Term(evaluate, "number")


def opposite(term: Term) -> Term:
    return arithmetic(operator.sub, literal(0, "number"), term)


def is_null(term: Term) -> Term:
    return Term(lambda lookup: term.evaluate(lookup) is None, "condition")


def one_of(term: Term, words: frozenset[str]) -> Term:
    return _unary(term, lambda value: isinstance(value, str) and value in words)


def like(term: Term, pattern: str, escape: str | None) -> Term:
    """``%`` is any text, ``_`` one character. After the escape character each stands for itself.

    The text between two ``%`` is searched once, from the left, without backtracking (atomic groups): no text takes long.
    """
    parts, escaped = [""], False
    for character in pattern:
        if escaped or character not in ("%", "_", escape):
            parts[-1], escaped = parts[-1] + re.escape(character), False
        elif character == escape:
            escaped = True
        elif character == "%":
            parts.append("")
        else:
            parts[-1] += "."
    middle = "".join(f"(?>.*?{part})" for part in parts[1:-1] if part)
    compiled = re.compile(parts[0] + (f"{middle}.*{parts[-1]}" if len(parts) > 1 else ""), re.DOTALL)
    return _unary(term, lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None)
