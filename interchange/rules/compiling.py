"""Makes closures of condition trees.

A closure takes the values of one message (`Values`) by the number of their look, and is True or False. A value that is not there is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import patterns
from .conditions import Condition, Leaf
from .values import Value
from .view import Budget, Content, Facts, Finder, Look


class Values(dict[int, Any]):
    """What the rules of one service ask one message for, found when it is first asked for. Key: number of the look."""

    __slots__ = ("_content", "_facts", "_finders", "budget")

    def __init__(self, finders: Sequence[Finder], content: Content, facts: Facts, budget: Budget) -> None:
        self._finders = finders
        self._content = content
        self._facts = facts
        self.budget = budget

    def __missing__(self, number: int) -> Value | None:
        made = self[number] = self._finders[number](self._content, self._facts)
        return made

    def matches(self, pattern: Any, value: str) -> bool:
        self.budget.spend(patterns.cost(pattern, value))
        return patterns.found(pattern, value)


Test = Callable[[Values], bool]


def closure(condition: Condition, number: Callable[[Look], int]) -> Test:
    """number: of a look among those of the service's rules."""
    if isinstance(condition, Leaf):
        return _list_leaf(condition, number) if condition.look.type == "list" else _leaf(condition, number)
    return _join(condition.operator, [closure(part, number) for part in condition.parts])


def _join(operator: str, tests: list[Test]) -> Test:
    if operator == "not":
        (only,) = tests
        return lambda values: not only(values)
    if len(tests) == 1:
        return tests[0]
    if len(tests) > 2:
        return {"and": _of_all, "or": _of_any, "xor": _of_odd}[operator](tests)
    one, two = tests
    if operator == "xor":
        return lambda values: one(values) is not two(values)
    if operator == "and":
        return lambda values: one(values) and two(values)
    return lambda values: one(values) or two(values)


def _of_all(tests: list[Test]) -> Test:
    def test_all(values: Values) -> bool:
        for test in tests:  # noqa: SIM110 - a loop takes half of the time of all()
            if not test(values):
                return False
        return True

    return test_all


def _of_any(tests: list[Test]) -> Test:
    def test_any(values: Values) -> bool:
        for test in tests:  # noqa: SIM110
            if test(values):
                return True
        return False

    return test_any


def _of_odd(tests: list[Test]) -> Test:
    def test_odd(values: Values) -> bool:
        odd = False
        for test in tests:
            odd = odd is not test(values)
        return odd

    return test_odd


def _leaf(leaf: Leaf, number: Callable[[Look], int]) -> Test:
    at, operand = number(leaf.look), leaf.operand
    if isinstance(operand, Look):
        return _two_places(leaf.operator, at, number(operand))
    match leaf.operator:
        case "equals":
            return lambda values: values[at] == operand
        case "notEquals":
            return lambda values: (value := values[at]) is not None and value != operand
        case "equalsOneOf":
            return lambda values: values[at] in operand  # None is in none
        case "lessThan":
            return lambda values: (value := values[at]) is not None and value < operand
        case "greaterThan":
            return lambda values: (value := values[at]) is not None and value > operand
        case "exists":
            return lambda values: values[at] is not None
    return lambda values: (value := values[at]) is not None and values.matches(operand, value)


def _two_places(operator: str, at: int, other: int) -> Test:
    """A comparison of two values of the message; false if one of them is not there."""
    match operator:
        case "equals":
            return lambda values: (value := values[at]) is not None and value == values[other]
        case "notEquals":
            return lambda values: (value := values[at]) is not None and (two := values[other]) is not None and value != two
        case "lessThan":
            return lambda values: (value := values[at]) is not None and (two := values[other]) is not None and value < two
    return lambda values: (value := values[at]) is not None and (two := values[other]) is not None and value > two


def _list_leaf(leaf: Leaf, number: Callable[[Look], int]) -> Test:
    at, operand = number(leaf.look), leaf.operand
    match leaf.operator:
        case "equals":
            return lambda values: operand in (values[at] or ())
        case "notEquals":
            return lambda values: (value := values[at]) is not None and operand not in value
        case "equalsOneOf":
            return lambda values: not operand.isdisjoint(values[at] or ())
    return lambda values: any(values.matches(operand, value) for value in values[at] or ())
