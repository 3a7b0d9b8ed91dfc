"""Wildcards against a regular expression, which says the same in another way."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st
from mqmesh.directory.records import _pattern
from mqmesh.directory.uddi.search import like

patterns = st.text("ab%_\\*", max_size=8)
texts = st.text("ab%_\\*", max_size=8)


@given(patterns, texts)
@example("\\%", "%")
@example("a\\", "a\\")
def test_like_is_what_its_words_say(pattern: str, text: str) -> None:
    meaning = {"%": ".*", "_": "."}
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    expression = "".join(meaning.get(part) or re.escape(part[-1]) for part in parts)
    assert like(pattern, text) == (re.fullmatch(expression, text, re.DOTALL) is not None)


@given(patterns, texts)
def test_a_star_stands_for_any_characters(pattern: str, text: str) -> None:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    assert _pattern(pattern)(text) == (re.fullmatch(expression, text, re.DOTALL) is not None)


def test_a_pattern_of_many_wildcards_takes_no_time() -> None:
    assert not like("%a" * 100 + "b", "a" * 255)
