"""The list of statements, the tests and the table in the documentation agree."""

from __future__ import annotations

import re

from .statements import HERE, MARK, PARTIES, TABLE, left_out, listed, named_by_tests, render, with_tests


def test_the_lists_are_whole() -> None:
    """As many statements as appendix B of each specification has, numbered from 1 without gaps but those that it has itself."""
    found = listed()
    for version, count, gaps in (("3.1.1", 141, set()), ("5.0", 251, {"2.2.1-1"})):
        numbers = [number for each, number in found if each == version]
        assert len(numbers) == count
        present = set(numbers)
        missing = set()
        for number in numbers:
            clause, _, last = number.rpartition("-")
            missing |= {f"{clause}-{one}" for one in range(1, int(last))} - present
        assert missing == gaps


def test_each_row_is_complete() -> None:
    for one in listed().values():
        assert one.binds in PARTIES, one
        assert re.fullmatch(r"\d+(\.\d+)+-\d+", one.number), one
        assert one.says.endswith("."), one
        assert "|" not in one.says, one


def test_each_test_names_statements_that_exist() -> None:
    found = listed()
    unknown = [(file, name, version, number) for version, number, file, name in named_by_tests() if (version, number) not in found]
    assert unknown == []


def test_each_statement_that_binds_a_server_has_a_test() -> None:
    without = [f"{one.version} {one.number}" for one in with_tests().values() if one.binds != "client" and not one.tests and not one.none]
    assert without == []


def test_a_statement_has_a_test_or_a_reason() -> None:
    wrong = [f"{one.version} {one.number}" for one in with_tests().values() if bool(one.tests) == bool(one.none)]
    assert wrong == []


def test_no_test_of_a_statement_is_passed_over() -> None:
    assert left_out() == []


def test_the_table_is_the_one_of_the_documentation() -> None:
    """Written with `python -m tests.conformance.statements`."""
    assert TABLE.read_text().partition(MARK)[2].strip() == render().strip()


def test_the_statements_of_each_test_are_read_from_its_source() -> None:
    names = {name for _, _, file, name in named_by_tests() if file == "connection/test_authentication.py"}
    source = (HERE / "connection/test_authentication.py").read_text()
    assert names == set(re.findall(r"^def (test_\w+)", source, re.MULTILINE))
