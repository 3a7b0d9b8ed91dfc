"""What peers choose is quoted in a line of the log (`base/quoting.py`): a topic or a name writes no keys of its own there.

Read from the syntax tree: `log.warning("event=... topic=%s", quoted(topic))`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .test_layers import LAYERS, ROOT

CHOSEN = {"topic", "first_topic", "filter", "client", "user", "recipient", "alternative", "originator", "publisher", "queue", "service"}
SPECIFIER = re.compile(r"(\w+)=%[-.a-z0-9]+|%[-.a-z0-9]+")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def values(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """What is logged: the name of each value, and the expression that gives it, as far as the call says which is which."""
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS and call.args):
            continue
        text = call.args[0]
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and not any(isinstance(one, ast.Starred) for one in call.args):
            yield from zip((match[1] or "" for match in SPECIFIER.finditer(text.value)), call.args[1:], strict=False)


def is_chosen_here(value: ast.expr) -> bool:
    """Whether a value is quoted, a constant, or of the broker's own settings."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id == "quoted"
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id.isupper()) or "settings" in ast.unparse(value)


def test_what_peers_choose_is_quoted() -> None:
    found, bare = 0, []
    layers = [layer for layer in LAYERS if layer != "client"]  # what that one logs are names of the program that it is in
    for path in (path for layer in layers for path in sorted((ROOT / layer).rglob("*.py"))):
        for name, value in values(ast.parse(path.read_text())):
            if name in CHOSEN:
                found += 1
                if not is_chosen_here(value):
                    bare.append(f"{path.relative_to(ROOT)}:{value.lineno}: {name}=%s of {ast.unparse(value)}")
    assert found > 40
    assert not bare, "\n".join(bare)
