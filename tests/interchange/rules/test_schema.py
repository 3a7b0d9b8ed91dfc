"""The JSON Schema of rules, beside what reads them: it takes all that is right, and refuses nothing else than what is wrong."""

from __future__ import annotations

import json
import random
from typing import Any

import fastjsonschema
import pytest
from mqmesh.interchange.refusals import Refusal
from mqmesh.interchange.rules.rules import read_script
from mqmesh.interchange.rules.schema import schema
from support.examples import examples

from .test_against_reference import tree

fits = fastjsonschema.compile(schema())
HOLDS = {"header": "kind", "exists": True}
THEN = [{"end": True}]
ACTIONS: list[dict[str, Any]] = [
    {"include": "map/ids"},
    {"include": "map/ids", "where": "after", "arguments": {"to": "bank"}, "visible": ["body"]},
    {"redirect": "bank/new", "arguments": {"a": "b"}},
    {"set": {"tier": "gold"}},
    {"return": {"score": "7"}},
    {"topic": "large"},
    {"expires": 60.5},
    {"reject": "no"},
    {"exclude": True},
    {"end": True},
]
PLACES: list[dict[str, Any]] = [
    {"attachment": "image/*", "exists": True},
    {"attachment": "text/xml", "xml": "/p:order/@id", "equals": "1", "namespaces": {"p": "urn:p"}},
    {"json": "$.a", "equals": {"json": "$.b"}, "type": "number", "default": 5},
    {"json": "$.a", "equals": {"b": [1]}, "type": "element"},
    {"header": "argument.to", "matches": "^b"},
]


def test_generated_rules_fit() -> None:
    chance = random.Random(16)
    for _ in range(examples(600)):
        rules = [{"name": "r", "role": "in", "when": tree(chance, 3), "then": [chance.choice(ACTIONS)]}]
        read_script(rules)
        fits(json.loads(json.dumps(rules)))


@pytest.mark.parametrize("then", ACTIONS, ids=lambda one: next(iter(one)))
def test_each_action_fits(then: dict[str, Any]) -> None:
    rules = [{"when": HOLDS, "then": [then]}]
    read_script(rules)
    fits(rules)


@pytest.mark.parametrize("when", PLACES)
def test_each_place_fits(when: dict[str, Any]) -> None:
    rules = [{"when": when, "then": THEN}]
    read_script(rules)
    fits(rules)


@pytest.mark.parametrize(
    "rules",
    [
        {},
        [{"when": HOLDS}],
        [{"then": THEN}],
        [{"when": HOLDS, "then": []}],
        [{"when": HOLDS, "then": THEN, "role": "both"}],
        [{"when": HOLDS, "then": THEN, "else": THEN}],
        [{"when": HOLDS, "then": THEN * 33}],
        [{"when": {}, "then": THEN}],
        [{"when": {"and": []}, "then": THEN}],
        [{"when": {"not": [HOLDS]}, "then": THEN}],
        [{"when": {"and": [HOLDS], "or": [HOLDS]}, "then": THEN}],
        [{"when": {"header": "kind"}, "then": THEN}],
        [{"when": {"header": "kind", "like": "x"}, "then": THEN}],
        [{"when": {"header": "kind", "equals": "x", "exists": True}, "then": THEN}],
        [{"when": {"header": "kind", "exists": False}, "then": THEN}],
        [{"when": {"header": "kind", "json": "$.a", "equals": 1}, "then": THEN}],
        [{"when": {"header": "kind", "attachment": "a/b", "equals": "x"}, "then": THEN}],
        [{"when": {"attachment": "a/b", "equals": "x"}, "then": THEN}],
        [{"when": {"json": "amount", "equals": 1}, "then": THEN}],
        [{"when": {"json": "$.a", "equalsOneOf": []}, "then": THEN}],
        [{"when": {"json": "$.a", "type": "colour", "equals": 1}, "then": THEN}],
        [{"when": HOLDS, "then": [{"include": "ids"}]}],
        [{"when": HOLDS, "then": [{"include": "map/ids", "where": "beside"}]}],
        [{"when": HOLDS, "then": [{"include": "map/ids", "end": True}]}],
        [{"when": HOLDS, "then": [{"expires": -1}]}],
        [{"when": HOLDS, "then": [{"set": {"a": 1}}]}],
        [{"when": HOLDS, "then": [{"end": False}]}],
    ],
)
def test_what_is_wrong_fits_neither(rules: Any) -> None:
    with pytest.raises(fastjsonschema.JsonSchemaException):
        fits(rules)
    with pytest.raises(Refusal):
        read_script(rules)
