"""The rules of a service as a JSON Schema (draft 7), for editors and for those who make rules by program.

What the schema refuses, `read_script` refuses too. It cannot say all: how deep conditions are, whether a path or a pattern is one, and
whether a value is of the type that is declared, only `read_script` knows.
"""

from __future__ import annotations

from typing import Any

from ..reading import LONGEST_TEXT, MOST_ARGUMENTS, MOST_NAMES
from .actions import IN, LATEST, LONGEST_REASON, MOST_ACTIONS, OUT
from .conditions import JOINS, MOST_VALUES, OPERATORS
from .paths import LONGEST_PATH
from .patterns import LONGEST_PATTERN
from .rules import MOST_RULES
from .values import TYPES

Schema = dict[str, Any]
ID = "urn:mqmesh:interchange:rules"
SERVICE: Schema = {"type": "string", "pattern": "^[^/#+]+/[^/#+]+$", "maxLength": 255, "description": "organisation/name"}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string", "maxLength": LONGEST_TEXT}, "maxProperties": MOST_ARGUMENTS}
NAMES: Schema = {"type": "array", "items": {"type": "string", "maxLength": 255}, "maxItems": MOST_NAMES}
TRUE: Schema = {"const": True}


def schema() -> Schema:
    """The schema of the list of rules of one service."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": ID,
        "title": "Rules of a service of the interchange, in their sequence",
        "type": "array",
        "maxItems": MOST_RULES,
        "items": {"$ref": "#/definitions/rule"},
        "definitions": {
            "rule": _object(
                {
                    "name": {"type": "string", "maxLength": 255},
                    "role": {"enum": [IN, OUT], "description": "in: the message comes to the service; out: the service posts it"},
                    "when": {"$ref": "#/definitions/condition"},
                    "then": {"type": "array", "items": {"$ref": "#/definitions/action"}, "minItems": 1, "maxItems": MOST_ACTIONS},
                },
                "when",
                "then",
            ),
            "condition": {"anyOf": [*_joins(), {"$ref": "#/definitions/comparison"}]},
            "comparison": _comparison(),
            "action": {"oneOf": _actions()},
        },
    }


def _object(properties: Schema, *required: str) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _joins() -> list[Schema]:
    one: Schema = {"$ref": "#/definitions/condition"}
    return [_object({join: one if join == "not" else {"type": "array", "items": one, "minItems": 1}}, join) for join in JOINS]


def _comparison() -> Schema:
    """One place and one operator."""
    path: Schema = {"type": "string", "maxLength": LONGEST_PATH}
    operators: Schema = {name: {} for name in OPERATORS} | {
        "exists": TRUE,
        "matches": {"type": "string", "maxLength": LONGEST_PATTERN, "description": "a regular expression of RE2"},
        "equalsOneOf": {"type": "array", "minItems": 1, "maxItems": MOST_VALUES},
    }
    found = _object(
        {
            "header": path,
            "json": path | {"pattern": r"^\$", "description": "a singular path of RFC 9535"},
            "xml": path | {"pattern": "^/", "description": "child, attribute and index steps"},
            "attachment": {"type": "string", "pattern": "/", "description": "a content type, such as image/*"},
            "namespaces": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 1024}, "maxProperties": 64},
            "type": {"enum": list(TYPES)},
            "default": {},
            **operators,
        }
    )
    places = [_only(place, ("header", "json", "xml")) for place in ("header", "json", "xml")]
    places[0] = {"allOf": [places[0], {"not": {"required": ["attachment"]}}]}
    bare = {"required": ["attachment", "exists"], "not": {"anyOf": [{"required": [one]} for one in ("header", "json", "xml")]}}
    return found | {"allOf": [{"oneOf": [_only(name, OPERATORS) for name in OPERATORS]}, {"oneOf": [*places, bare]}]}


def _only(name: str, of: tuple[str, ...]) -> Schema:
    """An object that has one key of several."""
    return {"required": [name], "not": {"anyOf": [{"required": [other]} for other in of if other != name]}}


def _actions() -> list[Schema]:
    include = {"include": SERVICE, "where": {"enum": ["before", "after"]}, "arguments": TEXTS, "visible": NAMES}
    return [
        _object(include, "include"),
        _object({"redirect": SERVICE, "arguments": TEXTS}, "redirect"),
        _object({"set": TEXTS}, "set"),
        _object({"return": TEXTS}, "return"),
        _object({"topic": {"type": "string", "maxLength": LONGEST_TEXT}}, "topic"),
        _object({"expires": {"type": "number", "minimum": 0, "maximum": LATEST, "description": "seconds after the post"}}, "expires"),
        _object({"reject": {"type": "string", "maxLength": LONGEST_REASON}}, "reject"),
        _object({"exclude": TRUE}, "exclude"),
        _object({"end": TRUE}, "end"),
    ]
