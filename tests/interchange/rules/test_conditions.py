"""Conditions: operators, types, what is not there, and forms that are refused."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from mqmesh.interchange.message import Header, Kind, Message, Part
from mqmesh.interchange.refusals import Code, Refusal
from mqmesh.interchange.rules.rules import read_script
from mqmesh.interchange.rules.view import Budget, Content, Facts, NeedsValues, extract

JSON = {
    "amount": 12.5,
    "text": "12",
    "yes": True,
    "null": None,
    "day": "2026-11-24",
    "list": [1, 2],
    "same": [1.0, 2],
    "big": 10**30,
    "word": "abc",
}
XML = b'<o n="7" day="2026-11-24T08:00:00+02:00"><a>5</a><b><c>x</c></b><d><c>x</c></d><!-- y --><e/></o>'
VALUES = {"kind": "request", "sender": "shop/orders", "recipients": ("bank/a", "bank/b"), "expires": 5, "topic": ""}


def holds(when: Any, body: bytes | None = None, attachments: tuple[Part, ...] = ()) -> bool:
    script = read_script([{"when": when, "then": [{"end": True}]}])
    message = Message(Header(Kind.REQUEST, "shop/orders"), Part(json.dumps(JSON).encode() if body is None else body), attachments)
    facts = Facts(VALUES, {"operation": "check"}, {"limit": "5"})
    return bool(script.incoming.fired(script.incoming.values(Content(message), facts, Budget())))


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({"header": "kind", "equals": "request"}, True),
        ({"header": "kind", "notEquals": "request"}, False),
        ({"header": "topic", "exists": True}, False),
        ({"header": "topic", "notEquals": "x"}, False),
        ({"not": {"header": "topic", "notEquals": "x"}}, True),
        ({"header": "topic", "equals": "x", "default": "x"}, True),
        ({"header": "topic", "exists": True, "default": "x"}, True),
        ({"header": "recipients", "equals": "bank/b"}, True),
        ({"header": "recipients", "notEquals": "bank/b"}, False),
        ({"header": "recipients", "notEquals": "bank/c"}, True),
        ({"header": "services", "notEquals": "bank/c"}, False),
        ({"header": "recipients", "equalsOneOf": ["x/y", "bank/a"]}, True),
        ({"header": "recipients", "matches": "^bank/"}, True),
        ({"header": "argument.operation", "equals": "check"}, True),
        ({"header": "argument.other", "exists": True}, False),
        ({"header": "context.limit", "lessThan": 6}, True),
        ({"header": "expires", "greaterThan": 4}, True),
        ({"json": "$.amount", "greaterThan": 12}, True),
        ({"json": "$.amount", "lessThan": 12}, False),
        ({"json": "$.amount", "equalsOneOf": [1, 12.5]}, True),
        ({"json": "$.amount", "equals": "12.5"}, False),  # a number is no string
        ({"json": "$.text", "equals": 12}, True),  # but a text may be read as a number
        ({"json": "$.text", "equals": "12"}, True),
        ({"json": "$.yes", "equals": True}, True),
        ({"json": "$.yes", "equals": 1}, False),
        ({"json": "$.big", "equals": 10**30}, True),
        ({"json": "$.big", "equals": 1e30}, False),  # integers stay exact
        ({"json": "$.null", "exists": True}, False),
        ({"json": "$.list", "exists": True}, True),
        ({"json": "$.list", "equals": "x"}, False),
        ({"json": "$.list", "type": "element", "equals": [1, 2]}, True),
        ({"json": "$.list", "type": "element", "equals": [True, 2]}, False),
        ({"json": "$.list", "type": "element", "equals": {"json": "$.same"}}, True),
        ({"json": "$.list", "type": "element", "notEquals": {"json": "$.none"}}, False),
        ({"json": "$.day", "type": "date", "lessThan": "2026-11-24T00:00:01Z"}, True),
        ({"json": "$.day", "equals": datetime.date(2026, 11, 24)}, True),
        ({"json": "$.word", "type": "date", "lessThan": "2026-11-24"}, False),
        ({"json": "$.word", "matches": "^a.c$"}, True),
        ({"json": "$.word", "lessThan": "abd"}, True),
        ({"json": "$.amount", "type": "number", "lessThan": {"json": "$.big"}}, True),
        ({"json": "$.amount", "type": "number", "greaterThan": {"header": "context.limit"}}, True),
        ({"json": "$.amount", "type": "number", "notEquals": {"json": "$.none"}}, False),
        ({"and": [{"json": "$.yes", "exists": True}, {"json": "$.no", "exists": True}]}, False),
        ({"or": [{"json": "$.yes", "exists": True}, {"json": "$.no", "exists": True}]}, True),
        ({"xor": [{"json": "$.yes", "exists": True}] * 3}, True),
        ({"xor": [{"json": "$.yes", "exists": True}] * 2}, False),
        ({"not": {"json": "$.no", "exists": True}}, True),
        ({"xml": "/o/a", "exists": True}, False),  # the body is no XML
    ],
)
def test_a_condition(when: Any, expected: bool) -> None:
    assert holds(when) is expected


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({"xml": "/o/a", "equals": 5}, True),
        ({"xml": "/o/a", "equals": "5"}, True),
        ({"xml": "/o/@n", "greaterThan": 6}, True),
        ({"xml": "/o/@m", "equals": "EUR", "default": "EUR"}, True),  # an implicit attribute
        ({"xml": "/o/@day", "type": "date", "equals": "2026-11-24T06:00:00Z"}, True),
        ({"xml": "/o/b", "equals": "x"}, False),  # child elements are no character data
        ({"xml": "/o/b", "exists": True}, True),
        ({"xml": "/o/b", "type": "element", "equals": "<b><c>x</c></b>"}, True),
        ({"xml": "/o/b/c", "type": "element", "equals": {"xml": "/o/d/c"}}, True),
        ({"xml": "/o/e", "equals": ""}, True),
        ({"xml": "/o/z", "notEquals": "x"}, False),
    ],
)
def test_a_condition_on_xml(when: Any, expected: bool) -> None:
    assert holds(when, XML) is expected


def test_conditions_on_attachments() -> None:
    parts = (Part(b"%PDF", "application/pdf", "bill"), Part(b'{"a": 1}', "application/json; charset=utf-8", "data"))
    for when, expected in (
        ({"attachment": "application/pdf", "exists": True}, True),
        ({"attachment": "application/*", "exists": True}, True),
        ({"attachment": "image/*", "exists": True}, False),
        ({"attachment": "application/json", "json": "$.a", "equals": 1}, True),
        ({"attachment": "application/json", "json": "$.b", "equals": 1}, False),
        ({"attachment": "text/xml", "json": "$.a", "equals": 1}, False),
    ):
        assert holds(when, attachments=parts) is expected, when


LEAF = {"header": "kind", "exists": True}


def nested(levels: int) -> Any:
    made: Any = LEAF
    for _ in range(levels):
        made = {"not": made}
    return made


@pytest.mark.parametrize(
    "when",
    [
        None,
        [],
        {},
        "x",
        {"near": 1},
        {"header": "kind"},
        {"header": "kind", "like": "x"},
        {"header": "kind", "equals": "x", "exists": True},
        {"header": "kind", "json": "$.a", "equals": 1},
        {"equals": 1},
        {"and": []},
        {"and": [LEAF], "or": [LEAF]},
        {"and": LEAF},
        {"not": [LEAF]},
        nested(32),
        nested(1000),
        {"and": [LEAF] * 257},
        {"header": "kind", "equals": None},
        {"header": "kind", "equals": {"a": 1}},
        {"header": "kind", "equals": {"json": "$.a"}},
        {"header": "kind", "exists": False},
        {"header": "kind", "exists": True, "type": "string"},
        {"header": "kind", "equalsOneOf": []},
        {"header": "kind", "equalsOneOf": "ab"},
        {"header": "kind", "equalsOneOf": ["a", 1]},
        {"json": "$.a", "lessThan": True},
        {"json": "$.a", "type": "element", "lessThan": [1]},
        {"json": "$.a", "type": "colour", "equals": 1},
        {"json": "$.a", "type": "number", "equals": "1"},
        {"json": "$.a", "type": "date", "equals": "yesterday"},
        {"json": "$.a", "matches": "("},
        {"json": "$.a", "matches": "(?=a)"},
        {"json": "$.a", "matches": "a" * 1025},
        {"json": "$.a", "matches": "((a{9}){9}){9}"},
        {"json": "$.a", "type": "number", "matches": "1"},
        {"attachment": "a/b", "equals": "x"},
        {"attachment": "a/b", "header": "kind", "equals": "x"},
        {"header": "recipients", "lessThan": "x"},
        {"header": "recipients", "equals": 1},
        {"json": "$.a", "equals": 1, "namespaces": 5},
        {"json": "$.a", "equals": "\ud800"},
        {"json": "$.a", "equals": float("nan")},
    ],
)
def test_a_condition_that_is_wrong_is_refused_with_the_place(when: Any) -> None:
    with pytest.raises(Refusal) as caught:
        holds(when)
    assert caught.value.code is Code.NOT_WELL_FORMED
    assert caught.value.what.startswith("rules[0].when")
    assert caught.value.right


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[" * 10_000,
        b'{"a":' * 10_000,
        b"1" * 100_000,
        b"{",
        b'{"a": 1} x',
        b"<o>",
        b"<o>" * 10_000,
        b"NaN",
        b'<!DOCTYPE o [<!ENTITY a "5">]><o><a>&a;</a></o>',
        '<!DOCTYPE o [<!ENTITY a "5">]><o><a>&a;</a></o>'.encode("utf-16"),
    ],
)
def test_bodies_that_are_none_have_nothing(body: bytes) -> None:
    assert not holds({"or": [{"json": "$.a", "exists": True}, {"xml": "/o/a", "exists": True}, {"json": "$", "equals": 1}]}, body)


def test_a_pattern_on_half_of_a_surrogate_pair_is_false() -> None:
    assert not holds({"json": "$", "matches": "."}, rb'"\ud800"')


def test_rules_that_take_too_long_are_refused() -> None:
    body = json.dumps({"word": "ab" * 30_000}).encode()
    with pytest.raises(Refusal) as caught:
        holds({"json": "$.word", "matches": "((a?b?){9}){4}c"}, body)
    assert caught.value.code is Code.ROUTE_TOO_LONG


def test_values_of_a_large_body_are_found_elsewhere() -> None:
    script = read_script(
        [
            {
                "when": {"and": [{"json": "$.a", "equals": 1}, {"json": "$.b", "exists": True}, {"header": "kind", "equals": "request"}]},
                "then": [{"end": True}],
            }
        ]
    )
    body = Part(json.dumps({"filler": "x" * (1 << 18), "a": 1, "b": 2}).encode())
    message = Message(Header(Kind.REQUEST, "shop/orders"), body)
    rules = script.incoming
    with pytest.raises(NeedsValues) as caught:
        rules.fired(rules.values(Content(message), Facts(VALUES), Budget()))
    assert {str(look.path) for look in caught.value.looks} == {"json $.a", "json $.b"}
    known = extract((body, ()), caught.value.looks)
    assert rules.fired(rules.values(Content(message, known), Facts(VALUES), Budget()))
