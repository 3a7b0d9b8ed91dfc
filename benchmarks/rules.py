"""Rules of the interchange beside CEL in Rust: processor time to evaluate the rules of one service for one message.

    python -m benchmarks.rules

Both get the same message: its header as values, its body as bytes of JSON. CEL's context is made once a message, which counts, as our
views do. The rules that hold are compared. Three sets: 10 rules; 1,000 with an equality each; 1,000 of which every comparison is looked at.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from mqmesh.interchange.message import Header, Kind, Message, Part
from mqmesh.interchange.rules.rules import read_script
from mqmesh.interchange.rules.view import Budget, Content, Facts

MESSAGES = 40
REPEATS = 7


@dataclass
class Case:
    """rules: pairs of our condition and CEL's expression. most: what the ratio shall be at least."""

    name: str
    rules: list[tuple[dict[str, Any], str]]
    most: float


def body(number: int) -> bytes:
    lines = [{"sku": f"s{line}", "count": line, "price": 1.5 * line} for line in range(10)]
    customer = {"name": f"customer {number}", "country": ("DE", "FR", "PT")[number % 3], "tier": "gold" if number % 5 else "iron"}
    return json.dumps({"order": number, "amount": 37 * number % 2000, "currency": "EUR", "customer": customer, "lines": lines}).encode()


def message_of(number: int) -> Message:
    return Message(Header(Kind.REQUEST, "s/s"), Part(body(number)))


def mixed(number: int) -> tuple[dict[str, Any], str]:
    ours = {
        "and": [
            {"json": "$.amount", "greaterThan": 150 * number},
            {"or": [{"json": "$.customer.country", "equals": "DE"}, {"json": "$.lines[0].count", "lessThan": number}]},
            {"header": "kind", "equals": "request"},
        ]
    }
    return ours, f'body.amount > {150 * number} && (body.customer.country == "DE" || body.lines[0].count < {number}) && kind == "request"'


def equality(number: int) -> tuple[dict[str, Any], str]:
    ours = {"and": [{"header": "topic", "equals": f"topic/{number}"}, {"json": "$.amount", "greaterThan": number % 500}]}
    return ours, f'topic == "topic/{number}" && body.amount > {number % 500}'


def every(number: int) -> tuple[dict[str, Any], str]:
    """No equality that all depends on, and no branch that is left out: `xor` looks at both."""
    ours = {"xor": [{"json": "$.amount", "greaterThan": 2 * number}, {"json": "$.customer.country", "notEquals": f"C{number}"}]}
    return ours, f'(body.amount > {2 * number}) != (body.customer.country != "C{number}")'


CASES = (
    Case("10 rules", [mixed(number) for number in range(10)], 4),
    Case("1,000 rules with an equality each", [equality(number) for number in range(1000)], 50),
    Case("1,000 rules, every comparison looked at", [every(number) for number in range(1000)], 1.5),
)


def ours(case: Case) -> Callable[[Message, dict[str, str]], list[int]]:
    rules = read_script([{"when": when, "then": [{"topic": "x"}]} for when, _ in case.rules]).incoming

    def evaluate(message: Message, header: dict[str, str]) -> list[int]:
        content = Content(message)
        return [rule.place - 1 for rule in rules.fired(rules.values(content, Facts(header), Budget()))]

    return evaluate


def theirs(case: Case) -> Callable[[Message, dict[str, str]], list[int]]:
    import cel

    programs = [cel.compile(expression) for _, expression in case.rules]

    def evaluate(message: Message, header: dict[str, str]) -> list[int]:
        context = cel.Context(variables={**header, "body": msgspec.json.decode(message.body.data)})
        return [number for number, program in enumerate(programs) if program.execute(context)]

    return evaluate


def seconds(evaluate: Callable[[Message, dict[str, str]], list[int]], messages: list[tuple[Message, dict[str, str]]]) -> float:
    """Processor time a message, the best of some runs."""
    best = float("inf")
    for _ in range(REPEATS):
        begin = time.process_time()
        for message, header in messages:
            evaluate(message, header)
        best = min(best, time.process_time() - begin)
    return best / len(messages)


def main() -> None:
    messages = [(message_of(number), {"kind": "request", "topic": f"topic/{25 * number}"}) for number in range(MESSAGES)]
    print("| rules | mqmesh, microseconds a message | CEL in Rust | ratio | asked for |\n|---|---|---|---|---|")
    for case in CASES:
        one, other = ours(case), theirs(case)
        hits = [one(*message) for message in messages]
        assert hits == [other(*message) for message in messages], f"{case.name}: other rules hold"
        assert any(hits), case.name
        mine, cels = seconds(one, messages), seconds(other, messages)
        print(f"| {case.name} | {1e6 * mine:,.1f} | {1e6 * cels:,.1f} | {cels / mine:.1f} | {case.most} |")


if __name__ == "__main__":
    main()
