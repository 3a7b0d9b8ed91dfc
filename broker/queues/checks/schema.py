"""JSON Schema of payloads: a file becomes a function that says what is wrong with a payload.

The library is loaded if a queue has a schema, and each schema is compiled once. A schema that refers to another file or address is refused:
nothing is fetched.

What it does not know: queues, content types.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ....base.extras import install

LONGEST = 300  # characters of what is said to a publisher


class _Nowhere(dict[str, Callable[[str], Any]]):
    """What finds schemas elsewhere, by the scheme of their address: nothing does."""

    def __contains__(self, scheme: object) -> bool:
        return True

    def __missing__(self, scheme: str) -> Callable[[str], Any]:
        return _refuse


def _refuse(address: str) -> Any:
    raise ValueError(f"it refers to {address}: put all of it into one file")


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no value of JSON")


def schema_of(path: Path) -> Callable[[bytes], str | None]:
    """What says what is wrong with a payload, in one line; None: nothing is. Raises ValueError, one line."""
    try:
        from fastjsonschema import JsonSchemaException, compile
    except ImportError:
        raise ValueError(f"JSON Schema needs the extra `schema`: {install('schema')}") from None
    try:
        definition = json.loads(path.read_bytes())
        if not isinstance(definition, dict | bool):
            raise ValueError("a schema is a JSON object")
        validate = compile(definition, handlers=_Nowhere(), use_default=False)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except (JsonSchemaException, ValueError, RecursionError, AttributeError, TypeError, KeyError, SyntaxError) as error:
        raise ValueError(f"{path}: it is no JSON Schema that can be used: {_line(error)}") from None

    def wrong(payload: bytes) -> str | None:
        try:
            validate(json.loads(payload, parse_constant=_no_number))
        except JsonSchemaException as error:
            return f"the payload does not follow the schema of this queue: {_line(error)}"
        except RecursionError:
            return "the payload is nested too deeply"
        except ArithmeticError:
            return "the payload has a number that is too large to be checked"
        except ValueError as error:
            return f"the payload is not JSON: {_line(error)}"
        return None

    return wrong


def _line(error: Exception) -> str:
    """What an error says, in one line that a Reason String can hold: it may quote the payload."""
    return "".join([one if one.isprintable() else "?" for one in " ".join(str(error)[: 2 * LONGEST].split())])[:LONGEST]
