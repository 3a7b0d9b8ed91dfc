"""Message selectors, Jakarta Messaging 3.1, 3.8: the rules one by one, and against SQLite's evaluation of the same text."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.client import InvalidSelectorError, Selector


def selects(text: str, **values: Any) -> bool:
    return Selector(text).matches(values.get)


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("age BETWEEN 15 AND 19", {"age": 15}, True),
        ("age BETWEEN 15 AND 19", {"age": 20}, False),
        ("age NOT BETWEEN 15 AND 19", {"age": 20}, True),
        ("age NOT BETWEEN 15 AND 19", {}, False),
        ("Country IN ('UK', 'US', 'France')", {"Country": "UK"}, True),
        ("Country IN ('UK', 'US', 'France')", {"Country": "Peru"}, False),
        ("Country NOT IN ('UK')", {"Country": "Peru"}, True),
        ("Country NOT IN ('UK')", {}, False),
        ("phone LIKE '12%3'", {"phone": "12993"}, True),
        ("phone LIKE '12%3'", {"phone": "1234"}, False),
        ("word LIKE 'l_se'", {"word": "lose"}, True),
        ("word LIKE 'l_se'", {"word": "loose"}, False),
        (r"underscored LIKE '\_%' ESCAPE '\'", {"underscored": "_foo"}, True),
        (r"underscored LIKE '\_%' ESCAPE '\'", {"underscored": "bar"}, False),
        ("phone NOT LIKE '12%3'", {}, False),
        ("word LIKE 'a%'", {"word": "a\nb"}, True),
        ("prop IS NULL", {}, True),
        ("prop IS NOT NULL", {"prop": 0}, True),
        ("JMSType = 'car' AND color = 'blue' AND weight > 2500", {"JMSType": "car", "color": "blue", "weight": 2501}, True),
        ("name = 'it''s'", {"name": "it's"}, True),
        ("a = 1 OR b = 1", {"b": 1}, True),  # unknown OR true
        ("NOT (a = 1)", {}, False),  # NOT unknown is unknown
        ("a = 1 AND b = 1", {"b": 1}, False),
        ("NOT (a = 1 AND b = 1)", {"b": 2}, True),  # unknown AND false is false
        ("n = '3'", {"n": 3}, False),  # unlike types
        ("n <> '3'", {"n": 3}, False),
        ("flag", {"flag": True}, True),
        ("flag", {"flag": 1}, False),
        ("NOT flag", {"flag": False}, True),
        ("flag = TRUE", {"flag": True}, True),
        ("flag = true and not (flag <> TRUE)", {"flag": True}, True),
        ("flag > 0", {"flag": True}, False),
        ("n = 3", {"n": 3.0}, True),
        ("n / 2 = 3", {"n": 7}, True),  # whole numbers
        ("n / 2 = -3", {"n": -7}, True),
        ("n / 0 = 1 OR n = 7", {"n": 7}, True),
        ("1 + n * 2 = 7", {"n": 3}, True),
        ("-n = +-3", {"n": 3}, True),
        ("n = 0x1F", {"n": 31}, True),
        ("n = 017", {"n": 15}, True),
        ("n = 7L", {"n": 7}, True),
        ("n > 7E3", {"n": 7001}, True),
        ("n = -57.9E2", {"n": -5790.0}, True),
        ("n > .5f", {"n": 0.6}, True),
        ("word + 1 = 2", {"word": "a"}, False),
        ("$a_1 = 1", {"$a_1": 1}, True),
        ("TRUE", {}, True),
        ("(((n = 1)))", {"n": 1}, True),
    ],
)
def test_3_8_1_a_selector_selects(text: str, values: dict[str, Any], expected: bool) -> None:
    assert selects(text, **values) is expected


@pytest.mark.parametrize(
    "text",
    [
        "n =",
        "= 3",
        "n = 3 AND",
        "n = 3 3",
        "n == 3",
        "'a' LIKE 'b'",
        "n LIKE 3",
        "n IN ()",
        "n IN (3)",
        "n IN ('a' 'b')",
        "n BETWEEN 1",
        "n BETWEEN 'a' AND 'b'",
        "n LIKE 'a' ESCAPE 'bc'",
        "n LIKE 'a!' ESCAPE '!'",
        "n IS 3",
        "3",
        "'text'",
        "n + 1",
        "'a' < 'b'",
        "TRUE > FALSE",
        "'a' + 1 = 2",
        "(n = 1) = TRUE",
        "n = 'open",
        "n = 1a",
        "JMSDestination = 'a'",
        "JMSRedelivered = TRUE",
        "n = 3; DROP",
        "NULL = n",
        "AND",
        "n NOT 3",
        "(" * 200 + "n = 1" + ")" * 200,
        "-" * 200 + "n = 1",
        "n = 99999999999999999999",
        "n = 089",
        " OR ".join(["n = 1"] * 300),
    ],
)
def test_3_8_1_1_what_is_no_selector_is_refused_with_the_place(text: str) -> None:
    with pytest.raises(InvalidSelectorError, match="character"):
        Selector(text)


NUMBERS = st.integers(-20, 20) | st.sampled_from([0.5, -2.25, 7.0])
WORDS = st.text("ab%_'", max_size=4)


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"


def _numeric() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["n1", "n2", "n3"]) | NUMBERS.map(lambda number: f"({number})" if number < 0 else str(number))
    return st.recursive(
        leaves,
        lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner) | inner.map("(- {})".format),
        max_leaves=4,
    )


def _conditions() -> st.SearchStrategy[str]:
    """Conditions whose meaning SQLite shares: like types only, since SQLite orders unlike types where JMS says false."""
    number, string = _numeric(), st.sampled_from(["s1", "s2", "s3"])
    negation = st.sampled_from(["", "NOT "])
    leaves = st.one_of(
        st.builds("{} {} {}".format, number, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), number),
        st.builds("{} {}BETWEEN {} AND {}".format, number, negation, number, number),
        st.builds("{} {} {}".format, string, st.sampled_from(["=", "<>"]), WORDS.map(_quoted) | string),
        st.builds("{} {}IN ({}, {})".format, string, negation, WORDS.map(_quoted), WORDS.map(_quoted)),
        st.builds("{} {}LIKE {}".format, string, negation, WORDS.map(_quoted)),
        st.builds("{} {}LIKE {} ESCAPE '!'".format, string, negation, WORDS.map(lambda word: _quoted(word.replace("%", "!%")))),
        st.builds("{} IS {}NULL".format, st.sampled_from(["n1", "n3", "s1", "s3"]), negation),
    )
    return st.recursive(
        leaves,
        lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["AND", "OR"]), inner) | inner.map("NOT ({})".format),
        max_leaves=8,
    )


@given(_conditions(), NUMBERS, NUMBERS, WORDS, WORDS)
def test_3_8_1_1_selectors_mean_what_they_mean_in_sql(text: str, n1: float, n2: float, s1: str, s2: str) -> None:
    """n3 and s3 are never there: NULL. SQLite says 1, 0 or NULL; so do we, True, False or unknown."""
    database = sqlite3.connect(":memory:")
    database.execute("PRAGMA case_sensitive_like = ON")
    database.execute("CREATE TABLE message (n1, n2, n3, s1, s2, s3)")
    database.execute("INSERT INTO message VALUES (?, ?, NULL, ?, ?, NULL)", (n1, n2, s1, s2))
    (expected,) = database.execute(f"SELECT {text} FROM message").fetchone()
    database.close()
    values = {"n1": n1, "n2": n2, "s1": s1, "s2": s2}
    found = Selector(text)._term.evaluate(values.get)
    assert found == (None if expected is None else bool(expected))
    assert Selector(f"NOT ({text})").matches(values.get) is (expected == 0)


@given(
    st.text(max_size=40) | st.lists(st.sampled_from(["n", "=", "(", ")", "'a'", "NOT", "AND", "IN", "3", ".", "LIKE", "-"])).map(" ".join)
)
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    try:
        selector = Selector(text)
    except InvalidSelectorError:
        return
    assert selector.matches({"n": 3}.get) in (True, False)


def test_the_longest_selectors_can_be_evaluated() -> None:
    assert Selector(" OR ".join(["n = 1"] * 249)).matches({"n": 1}.get)
    assert Selector("+".join(["1"] * 490) + " = n").matches({"n": 490}.get)
    assert Selector(f"s IN ({', '.join(['x'.join('abc')] * 3000)!s})".replace("axbxc", "'axbxc'")).matches({"s": "axbxc"}.get)


def test_no_pattern_takes_long() -> None:
    assert not selects("s LIKE '" + "%a" * 40 + "%b'", s="a" * 5000)
