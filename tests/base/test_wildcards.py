"""Patterns of names, against the plain definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.wildcards import fits

names = st.text("ab/", max_size=8)
patterns = st.text("ab/*?", max_size=8)


def plainly(pattern: str, text: str, without: str) -> bool:
    """The definition: the first character of a pattern decides, then the rest."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return plainly(pattern[1:], text, without) or (text != "" and text[0] not in without and plainly(pattern, text[1:], without))
    one = text != "" and (text[0] not in without if pattern[0] == "?" else text[0] == pattern[0])
    return one and plainly(pattern[1:], text[1:], without)


@given(patterns, names, st.sampled_from(["", "/"]))
def test_as_defined(pattern: str, text: str, without: str) -> None:
    assert fits(pattern, text, without) == plainly(pattern, text, without)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [("[ab]", "a", False), ("[ab]", "[ab]", True), ("a.c", "abc", False), ("a*", "a\nb", True), ("A", "a", False), ("\\*", "\\x", True)],
)
def test_all_other_characters_are_text(pattern: str, text: str, expected: bool) -> None:
    assert fits(pattern, text) is expected


def test_many_wildcards_take_no_time() -> None:
    """A pattern that backtracks would take longer than the age of the universe."""
    assert not fits("*a" * 40 + "b", "a" * 20_000)
