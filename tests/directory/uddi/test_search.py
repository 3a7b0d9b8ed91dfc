"""Wildcards against a regular expression, which says the same in another way."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mqmesh.directory.storage.patterns import matching, starred
from mqmesh.directory.uddi.search import like, parts_of
from support.examples import examples
from support.peers import postgres

patterns = st.text("ab%_\\*?[A", max_size=8)
texts = st.text("ab%_\\*?[A", max_size=8)


@given(patterns, texts)
@example("\\%", "%")
@example("a\\", "a\\")
def test_like_is_what_its_words_say(pattern: str, text: str) -> None:
    meaning = {"%": ".*", "_": "."}
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    expression = "".join(meaning.get(part) or re.escape(part[-1]) for part in parts)
    assert like(pattern, text) == (re.fullmatch(expression, text, re.DOTALL) is not None)


@pytest.fixture(scope="module", params=[pytest.param("sqlite://"), pytest.param("postgresql", marks=pytest.mark.service)])
def database(request: pytest.FixtureRequest) -> Iterator[sa.Connection]:
    if request.param == "postgresql":
        with postgres.server() as server, sa.create_engine(server.url.replace("://", "+psycopg://")).connect() as connection:
            yield connection
    else:
        with sa.create_engine(request.param).connect() as connection:
            yield connection


def _matches(database: sa.Connection, parts: list[str], text: str) -> bool:
    column = sa.literal(text)
    postgresql = database.dialect.name == "postgresql"
    return bool(database.scalar(sa.select(matching(column.collate("C") if postgresql else column, parts, postgresql))))


@given(patterns, texts)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(100))
@example("a%", "b")
@example("\uffff%", "\U00010000")
def test_the_database_matches_as_like_does(database: sa.Connection, pattern: str, text: str) -> None:
    assert _matches(database, list(parts_of(pattern)), text) == like(pattern, text)


@given(patterns, texts)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(100))
def test_a_star_stands_for_any_characters(database: sa.Connection, pattern: str, text: str) -> None:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    assert _matches(database, starred(pattern), text) == (re.fullmatch(expression, text, re.DOTALL) is not None)


def test_a_pattern_of_many_wildcards_takes_no_time() -> None:
    assert not like("%a" * 100 + "b", "a" * 255)
