"""What peers choose cannot write lines or keys of its own into a log."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.quoting import LONGEST, one_line, quoted


@pytest.mark.parametrize("name", ["meter-7", "jms/a%2Fb/x", "a@b.example:1", "Zähler", "plant/+/#"])
def test_ordinary_names_stand_as_they_are(name: str) -> None:
    assert quoted(name) == name


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (None, "-"),
        ("-", '"-"'),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("x\nevent=connect client=root", '"x\\nevent=connect client=root"'),
        ("a\u2028b", '"a\\u2028b"'),
        ("a\x1b[2J", '"a\\u001b[2J"'),
    ],
)
def test_others_are_quoted(name: str | None, written: str) -> None:
    assert quoted(name) == written


@pytest.mark.parametrize("letter", ["a", "\n"])
def test_what_is_too_long_for_a_line_is_cut(letter: str) -> None:
    whole = json.dumps(letter * LONGEST)
    assert quoted(letter * LONGEST) in (whole, whole[1:-1])
    assert json.loads(quoted(letter * 65535)) == letter * LONGEST + "...(65535 characters)"


@given(st.text(max_size=LONGEST))
def test_each_is_one_value_and_can_be_read_back(name: str) -> None:
    written = quoted(name)
    assert written.isprintable()
    assert re.fullmatch(r'"([^"\\]|\\.)*"|[^\s"=]+', written)
    assert (json.loads(written) if written.startswith('"') else written) == name


@given(st.text())
def test_one_line_is_one_line(text: str) -> None:
    assert one_line(text).isprintable()
    assert one_line("plain text, as it is") == "plain text, as it is"
