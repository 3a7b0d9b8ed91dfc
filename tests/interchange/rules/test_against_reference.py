"""Rules against a plain reference: generated trees, messages and sequences, with what is missing, of another type, nested.

The reference knows no closures, index, looks or caches: it walks the JSON form of a condition for each message anew.
MQMESH_RULES: how many evaluations; `make soak` has 1,000,000.
"""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime
from typing import Any

from lxml import etree
from mqmesh.interchange.message import Header, Kind, Message, Part
from mqmesh.interchange.rules.rules import read_script
from mqmesh.interchange.rules.view import Budget, Content, Facts
from support.examples import how_many

EVALUATIONS = how_many("MQMESH_RULES", 40_000)
RULES, MESSAGES = 40, 25  # of one round

# Few names and values, so that they meet.
NAMES = ("a", "b", "c")
STRINGS = ("", "x", "y", "5", "5.0", "-1e2", "true", "2026-11-24", "2026-11-24T00:00:00Z", "2026-11-23T23:00:00-01:00", "x y", "\u00e9")
NUMBERS = (0, 1, -1, 5, 5.0, 5.5, 10**18, 10**18 + 1, 1e18)
DATES = ("2026-11-24", "2026-11-24T00:00:00Z", "2026-11-24T02:00:00+02:00", "2027-01-01")
PATTERNS = ("^x", "y$", "5", "[xy]", "^$", " ")
HEADERS = ("kind", "topic", "expires", "possible_duplicate", "argument.a", "context.b")
LISTS = ("recipients", "services")


def any_value(r: random.Random, depth: int = 2) -> Any:
    roll = r.random()
    if depth and roll < 0.2:
        return {name: any_value(r, depth - 1) for name in NAMES if r.random() < 0.6}
    if depth and roll < 0.35:
        return [any_value(r, depth - 1) for _ in range(r.randrange(3))]
    return r.choice([*STRINGS, *NUMBERS, True, False, None])


def place(r: random.Random) -> dict[str, Any]:
    roll = r.random()
    if roll < 0.3:
        return {"header": r.choice(HEADERS)}
    steps = [(name, f".{name}") for name in NAMES] + [(0, "[0]"), (-1, "[-1]")]
    if roll < 0.7:
        return {"json": "$" + "".join(r.choice(steps)[1] for _ in range(r.randrange(4)))}
    path = "/o" + "".join(f"/{r.choice(NAMES)}" + (f"[{r.randrange(1, 3)}]" if r.random() < 0.3 else "") for _ in range(r.randrange(3)))
    return {"xml": path + (f"/@{r.choice(NAMES)}" if r.random() < 0.3 and path != "/o" else "")}


def constant(r: random.Random, kind: str) -> Any:
    return r.choice({"string": STRINGS, "number": NUMBERS, "date": DATES, "boolean": (True, False)}[kind])


def leaf(r: random.Random) -> dict[str, Any]:
    if r.random() < 0.1:
        operator = r.choice(["equals", "notEquals", "equalsOneOf", "exists", "matches"])
        operand = {"exists": True, "matches": "^bank/", "equalsOneOf": ["bank/a", "shop/x"]}.get(operator, r.choice(["bank/a", "bank/b"]))
        return {"header": r.choice(LISTS), operator: operand}
    where = place(r)
    operator = r.choice(["equals", "equals", "notEquals", "equalsOneOf", "lessThan", "greaterThan", "exists", "matches"])
    if operator == "exists":
        return {**where, "exists": True, **({"default": 1} if r.random() < 0.1 else {})}
    if operator == "matches":
        return {**where, "matches": r.choice(PATTERNS)}
    kind = r.choice(["string", "number", "date"] + (["boolean"] if operator not in ("lessThan", "greaterThan") else []))
    made: dict[str, Any] = {**where, "type": kind}
    if operator == "equalsOneOf":
        made[operator] = [constant(r, kind) for _ in range(r.randrange(1, 4))]
    else:
        made[operator] = place(r) if r.random() < 0.2 else constant(r, kind)
    if r.random() < 0.15:
        made["default"] = constant(r, kind)
    return made


def tree(r: random.Random, depth: int) -> dict[str, Any]:
    roll = r.random()
    if not depth or roll < 0.4:
        return leaf(r)
    if roll < 0.55:
        return {"not": tree(r, depth - 1)}
    return {r.choice(["and", "and", "or", "xor"]): [tree(r, depth - 1) for _ in range(r.randrange(1, 4))]}


def xml_of(r: random.Random, name: str, depth: int) -> str:
    attributes = "".join(f' {one}="{r.choice(STRINGS)}"' for one in NAMES if r.random() < 0.4)
    inner = "".join(xml_of(r, r.choice(NAMES), depth - 1) for _ in range(r.randrange(4))) if depth else r.choice(STRINGS)
    return f"<{name}{attributes}>{inner}</{name}>"


def message(r: random.Random) -> tuple[Message, Facts]:
    body = json.dumps(any_value(r, 3)) if r.random() < 0.6 else xml_of(r, "o", 2) if r.random() < 0.9 else "neither"
    values = {
        "kind": "request",
        "topic": r.choice(STRINGS),
        "expires": r.choice([None, 5, 10**18]),
        "possible_duplicate": r.random() < 0.5,
        "recipients": tuple(r.sample(["bank/a", "bank/b", "shop/x"], r.randrange(1, 3))),
        "services": tuple(r.sample(["bank/a", "shop/x"], r.randrange(2))),
    }
    facts = Facts(values, {"a": r.choice(STRINGS)} if r.random() < 0.5 else {}, {"b": r.choice(STRINGS)} if r.random() < 0.5 else {})
    return Message(Header(Kind.REQUEST, "s/s"), Part(body.encode())), facts


# The reference


def raw(where: dict[str, Any], of: Message, facts: Facts) -> Any:
    if "header" in where:
        name = where["header"]
        if "." in name:
            return (facts.argument if name.startswith("argument") else facts.context).get(name.partition(".")[2])
        return facts.values[name] or (False if facts.values[name] is False else None)
    if "json" in where:
        try:
            value = json.loads(of.body.data)
        except ValueError:
            return None
        for name, index in re.findall(r"\.(\w+)|\[(-?\d+)\]", where["json"]):
            try:
                value = (
                    value[name] if name and isinstance(value, dict) else value[int(index)] if index and isinstance(value, list) else None
                )
            except (KeyError, IndexError):
                return None
        return value
    try:
        root = etree.fromstring(of.body.data)
    except etree.XMLSyntaxError:
        return None
    path, _, attribute = where["xml"].partition("/@")
    if path != "/o" and path.count("/") == 1:
        return None
    steps = [re.sub(r"\[(\d+)\]", r"[\1]", step) if "[" in step else f"{step}[1]" for step in path.split("/")[2:]]
    found = root.xpath("/o" + "".join(f"/{step}" for step in steps))
    if not found:
        return None
    return found[0].get(attribute) if attribute else found[0]


def of_type(value: Any, kind: str) -> Any:
    if isinstance(value, etree._Element):
        if len(value):
            return None
        value = value.text or ""
    if kind == "string":
        return value if isinstance(value, str) else None
    if kind == "boolean":
        return value if isinstance(value, bool) else {"true": True, "false": False}.get(value) if isinstance(value, str) else None
    if kind == "number":
        if isinstance(value, str):
            return (int(value) if re.fullmatch(r"-?\d+", value) else float(value)) if re.fullmatch(r"-?\d+(\.\d+)?(e\d+)?", value) else None
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    try:
        made = datetime.fromisoformat(value) if isinstance(value, str) and value[:4].isdigit() and len(value) >= 10 else None
    except ValueError:
        return None
    return made if made is None or made.tzinfo else made.replace(tzinfo=UTC)


def reference(when: dict[str, Any], of: Message, facts: Facts) -> bool:
    for join in ("and", "or", "xor", "not"):
        if join in when:
            parts = [reference(part, of, facts) for part in ([when["not"]] if join == "not" else when[join])]
            return {"and": all(parts), "or": any(parts), "xor": sum(parts) % 2 == 1, "not": not parts[0]}[join]
    (operator,) = {"equals", "notEquals", "equalsOneOf", "lessThan", "greaterThan", "exists", "matches"} & set(when)
    operand = when[operator]
    found = raw(when, of, facts)
    if operator == "exists":
        return found is not None or "default" in when
    if when.get("header") in LISTS:
        if found is None:
            return False
        wanted = operand if operator == "equalsOneOf" else [operand]
        same = any(re.search(operand, one) if operator == "matches" else one in wanted for one in found)
        return not same if operator == "notEquals" else same
    kind = when.get("type", "string")
    value = of_type(found, kind) if found is not None else of_type(when["default"], kind) if "default" in when else None
    if value is None:
        return False
    if operator == "matches":
        return re.search(operand, value) is not None
    if operator == "equalsOneOf":
        return value in [of_type(one, kind) for one in operand]
    other = of_type(raw(operand, of, facts), kind) if isinstance(operand, dict) else of_type(operand, kind)
    if other is None:
        return False
    return {"equals": value == other, "notEquals": value != other, "lessThan": operator == "lessThan" and value < other}.get(
        operator, operator == "greaterThan" and value > other
    )


def test_rules_hold_when_the_reference_says_so() -> None:
    for seed in range(max(1, EVALUATIONS // (RULES * MESSAGES))):
        r = random.Random(seed)
        conditions = [tree(r, r.randrange(5)) for _ in range(RULES)]
        rules = read_script([{"when": when, "then": [{"topic": "x"}]} for when in conditions]).incoming
        for number in range(MESSAGES):
            of, facts = message(r)
            fired = {rule.place - 1 for rule in rules.fired(rules.values(Content(of), facts, Budget()))}
            for at, when in enumerate(conditions):
                assert (at in fired) is reference(when, of, facts), (seed, number, when, of.body.data, facts)
