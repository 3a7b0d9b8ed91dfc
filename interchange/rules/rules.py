"""The rules of one service, in their sequence, behind an index over their equalities (l. 138, 150-154).

The rules of a service see the message as it came to the service: what their actions set is seen by the services that follow.
So all of them may be looked up at once, and those that need a value which this message does not have are not evaluated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ..reading import only_keys, read_text, wrong
from .actions import ENDING, IN, OUT, Action, read_actions
from .compiling import Test, Values, closure
from .conditions import Condition, Leaf, leaves, read_condition
from .values import Value
from .view import LEAF, Budget, Content, Facts, Look, finder

MOST_RULES = 10_000  # of one service
_KEYS = frozenset(("name", "role", "when", "then"))


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. place: in the sequence of its service, from 1."""

    place: int
    name: str
    role: str
    condition: Condition
    actions: tuple[Action, ...]

    @property
    def ends(self) -> bool:
        return isinstance(self.actions[-1], ENDING)


def read_rule(value: object, place: int, where: str) -> Rule:
    """A rule from its JSON form; Refusal not-well-formed says where it is wrong."""
    fields = only_keys(value, _KEYS, where)
    role = fields.get("role", IN)
    if role not in (IN, OUT):
        raise wrong(f"{where}.role", role, "give in or out")
    if "when" not in fields:
        raise wrong(f"{where}.when", None, "a rule has at least one condition; {header = 'kind', exists = true} always holds")
    return Rule(
        place,
        read_text(fields.get("name", f"rule {place}"), f"{where}.name", 255),
        str(role),
        read_condition(fields["when"], f"{where}.when"),
        read_actions(fields.get("then"), str(role), f"{where}.then"),
    )


class RuleSet:
    """The compiled rules of one service in one role."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self._looks: dict[Look, int] = {}
        self._tests: list[Test] = [closure(rule.condition, self._number) for rule in rules]
        self._costs = [LEAF * sum(1 for _ in leaves(rule.condition)) for rule in rules]
        self.looks = tuple(self._looks)
        self._finders = [finder(look, lambda: self.looks) for look in self.looks]
        self._always, self._tables = self._index()
        self._always_cost = sum(self._costs[at] for at in self._always) + LEAF * len(self._tables)

    def _number(self, look: Look) -> int:
        return self._looks.setdefault(look, len(self._looks))

    def _index(self) -> tuple[list[int], list[tuple[int, bool, dict[Value, list[int]]]]]:
        """Rules that must be evaluated always, and tables: (look, whether it is a list, value -> rules that need it)."""
        needs = [dict(_needed(rule.condition)) for rule in self.rules]
        variety: Counter[Look] = Counter()  # a look that many values are asked of tells rules apart best
        for look, values in {(look, values) for need in needs for look, values in need.items()}:
            variety[look] += len(values)
        always = []
        tables: dict[Look, dict[Value, list[int]]] = defaultdict(lambda: defaultdict(list))
        for at, need in enumerate(needs):
            if not need:
                always.append(at)
                continue
            best = max(need, key=lambda look: variety[look])
            for value in need[best]:
                tables[best][value].append(at)
        return always, [(self._looks[look], look.type == "list", dict(table)) for look, table in tables.items()]

    def values(self, content: Content, facts: Facts, budget: Budget) -> Values:
        return Values(self._finders, content, facts, budget)

    def fired(self, values: Values) -> list[Rule]:
        """The rules that hold, in their sequence, up to one that ends it. Refusal: the budget is spent."""
        tests, rules = self._tests, self.rules
        candidates = self._candidates(values) if self._tables else []
        costs = self._costs
        values.budget.spend(self._always_cost + (costs[candidates[0]] if len(candidates) == 1 else sum([costs[at] for at in candidates])))
        if not candidates:
            candidates = self._always
        elif self._always or len(candidates) > 1:
            candidates = sorted({*candidates, *self._always})
        made = []
        for at in candidates:
            if tests[at](values):
                rule = rules[at]
                made.append(rule)
                if rule.ends:
                    break
        return made

    def holds(self, condition: Condition, values: Values) -> bool:
        """Whether a condition of one of the rules, or a part of it, holds; for `explain`."""
        return closure(condition, self._looks.__getitem__)(values)

    def value(self, look: Look, values: Values) -> Value | None:
        """What a message has at a look of one of the rules; None: nothing."""
        found: Value | None = values[self._looks[look]]
        return found

    def _candidates(self, values: Values) -> list[int]:
        """The rules whose needed value this message has."""
        found: list[int] = []
        for number, is_list, table in self._tables:
            value = values[number]
            if value is None:
                continue
            for one in value if is_list else (value,):
                found += table.get(one, ())
        return found


def _needed(condition: Condition) -> Iterator[tuple[Look, frozenset[Value]]]:
    """Looks with the values of which one must be there, or else the condition is false."""
    if isinstance(condition, Leaf):
        if condition.operator == "equals" and not isinstance(condition.operand, Look):
            yield condition.look, frozenset((condition.operand,))
        elif condition.operator == "equalsOneOf":
            yield condition.look, condition.operand
    elif condition.operator == "and":
        for part in condition.parts:
            yield from _needed(part)


@dataclass(frozen=True, slots=True)
class Script:
    """All rules of one service, by role."""

    incoming: RuleSet
    outgoing: RuleSet

    def of(self, role: str) -> RuleSet:
        return self.incoming if role == IN else self.outgoing


EMPTY = Script(RuleSet(()), RuleSet(()))


def read_script(value: object, where: str = "rules") -> Script:
    """The rules of one service from their JSON form, a list in sequence; Refusal not-well-formed says where it is wrong."""
    if not isinstance(value, list) or len(value) > MOST_RULES:
        raise wrong(where, value, f"give a list of at most {MOST_RULES} rules")
    rules = [read_rule(one, at + 1, f"{where}[{at}]") for at, one in enumerate(value)]
    return Script(*(RuleSet(tuple(rule for rule in rules if rule.role == role)) for role in (IN, OUT)))
