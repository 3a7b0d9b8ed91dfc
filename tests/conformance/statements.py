"""The statements of both specifications, the tests that hold the broker to them, and the table that says so in docs/conformance.md.

    python -m tests.conformance.statements        # write the table anew

A test names its statements with `states`; they stand in its name, as `test_x[5.0 MQTT-3.1.2-4]`, so that `pytest -k MQTT-3.1.2-4` finds
it. The lists stand in `statements-3.1.1.toml` and `statements-5.0.toml`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TABLE = HERE.parent.parent / "docs" / "conformance.md"
VERSIONS = {"mqtt311": "3.1.1", "mqtt5": "5.0"}
LEVELS = {"mqtt311": 4, "mqtt5": 5}
MARK = "<!-- from here on written by `python -m tests.conformance.statements` -->\n"
PARTIES = ("server", "client", "both")


def states(mqtt311: str = "", mqtt5: str = "") -> Callable[[Any], Any]:
    """A test of these statements (numbers with spaces between them), run once for each version: `version` is 4 or 5."""
    import pytest

    named = {"mqtt311": mqtt311, "mqtt5": mqtt5}
    return pytest.mark.parametrize(
        "version",
        [
            pytest.param(LEVELS[key], id=" ".join([VERSIONS[key], *(f"MQTT-{number}" for number in numbers.split())]))
            for key, numbers in named.items()
            if numbers
        ],
    )


@dataclass
class Statement:
    """One numbered statement. binds: server, client or both. says: in our words. none: why it has no test. tests: (file, function)."""

    version: str
    number: str
    binds: str
    says: str
    none: str = ""
    tests: list[tuple[str, str]] = field(default_factory=list)

    @property
    def chapter(self) -> str:
        """The section of the specification that it stands in."""
        section = self.number.rpartition("-")[0].split(".")
        return ".".join(section[:-1] if section[-1] == "0" and len(section) > 2 else section)


def listed() -> dict[tuple[str, str], Statement]:
    """All statements by (version, number), in the order of the specifications."""
    found = {}
    for version in VERSIONS.values():
        table = tomllib.loads((HERE / f"statements-{version}.toml").read_text())
        for number, row in table.items():
            found[version, number] = Statement(version, number, **row)
    return found


def test_files() -> list[Path]:
    """The files with tests in this folder and those below it."""
    return sorted(HERE.rglob("test_*.py"))


def named_by_tests() -> list[tuple[str, str, str, str]]:
    """(version, number, file, function) of each statement that a test names, read from the source. file: from this folder."""
    found = []
    for path in test_files():
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
                for call in function.decorator_list:
                    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "states":
                        keys = list(zip(VERSIONS, call.args, strict=False)) + [(word.arg, word.value) for word in call.keywords]
                        for key, value in keys:
                            numbers = ast.literal_eval(value).split()
                            found += [(VERSIONS[str(key)], number, str(path.relative_to(HERE)), function.name) for number in numbers]
    return found


def left_out() -> list[str]:
    """Tests of this folder that may be passed over: a statement must not count as tested by one of them."""
    pattern = re.compile(r"\b(skip|skipif|xfail|importorskip)\(")
    return [
        f"{path.relative_to(HERE)}:{number}" for path in test_files() for number, line in enumerate(path.open(), 1) if pattern.search(line)
    ]


def with_tests() -> dict[tuple[str, str], Statement]:
    """All statements with their tests. KeyError for a test that names a statement that is not in the lists."""
    found = listed()
    for version, number, file, function in named_by_tests():
        one = found[version, number].tests
        if (file, function) not in one:
            one.append((file, function))
    return found


def render() -> str:
    """The tables of docs/conformance.md: a statement that both versions have in the same words is one row of the first."""
    statements = list(with_tests().values())
    older, newer = ([one for one in statements if one.version == version] for version in VERSIONS.values())
    rows = []
    for one in newer:
        same = next((each for each in older if (each.says, each.binds) == (one.says, one.binds)), None)
        if same is not None:
            older.remove(same)
        rows.append(_row([one, same], f"{one.number} ({same.number})") if same else _row([one], one.number))
    return "\n".join(
        [
            *_counted(statements),
            "## MQTT 5.0, and what 3.1.1 shares with it",
            "",
            "| 5.0 (3.1.1) | in short | tests in |",
            "|---|---|---|",
            *rows,
            "",
            "## MQTT 3.1.1 only",
            "",
            "| 3.1.1 | in short | tests in |",
            "|---|---|---|",
            *(_row([one], one.number) for one in older),
            "",
        ]
    )


def _counted(statements: list[Statement]) -> Iterator[str]:
    """How many statements each version has, and how many of them have a test."""
    for version in VERSIONS.values():
        rows = [one for one in statements if one.version == version]
        bound = [one for one in rows if one.binds != "client"]
        tested = sum(bool(one.tests) for one in bound)
        yield f"MQTT {version}: {len(rows)} statements; {len(bound)} of them bind a server, {tested} of these have a test."
        yield ""


def _row(same: list[Statement], number: str) -> str:
    """One row for statements of the same words. number: what its first cell says."""
    files = dict.fromkeys(file for one in same for file, _ in one.tests)
    tests = ", ".join(f"[{Path(file).stem[5:]}](../tests/conformance/{file})" for file in files)
    says = f"*Client:* {same[0].says}" if same[0].binds == "client" else same[0].says
    return f"| {number} | {says} | {tests or same[0].none} |"


def main() -> None:
    """Write the table into docs/conformance.md, under what is written there by hand."""
    head = TABLE.read_text().partition(MARK)[0]
    TABLE.write_text(head + MARK + "\n" + render())


if __name__ == "__main__":
    main()
