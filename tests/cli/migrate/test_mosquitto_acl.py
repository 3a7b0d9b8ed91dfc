"""Mosquitto's ACL files as rules: the same answer to every question, by Mosquitto's way of asking."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.auth.rules import ACTIONS, Rules
from mqmesh.broker.config import parse
from mqmesh.cli.migrate.mosquitto_acl import rules_of
from mqmesh.cli.migrate.mosquitto_conf import options_of
from mqmesh.cli.migrate.remarks import Remarks
from mqmesh.mqtt.topics import matches

USERS = (None, "alice", "bob")
CLIENTS = ("one", "two")
TOPICS = ["a", "a/b", "a/alice", "a/one", "b", "b/bob/c", "$x/a"]
FILTERS = ["#", "a/#", "a/+", "a/b", "b/+/c", "b", "$x/#", "+"]
PATTERNS = ["a/%u", "a/%c", "b/%u/#", "%c", "a/#"]
ACCESS = st.sampled_from(["read", "write", "readwrite", "deny"])
topic_lines = st.builds("topic {} {}".format, ACCESS, st.sampled_from(FILTERS))
pattern_lines = st.builds("pattern {} {}".format, ACCESS, st.sampled_from(PATTERNS))
user_lines = st.sampled_from(["user alice", "user bob"])
texts = st.lists(topic_lines | topic_lines | pattern_lines | user_lines, max_size=8).map("\n".join)


def rules(text: str, remarks: Remarks) -> Rules:
    tables = rules_of(options_of(text, "acl"), remarks)
    access = parse({"access": {"certificates": True, "on_overlap": "filter", "rule": tables}}, "F").access
    assert access is not None
    return access.rules


def answer_of_mosquitto(text: str, action: str, user: str | None, client: str, topic: str) -> bool:
    """As `acl__check` of Mosquitto 2.0 asks."""
    word = "write" if action == "publish" else "read"
    lines: dict[Any, list[list[str]]] = {}
    of: str | None = None
    for line in text.splitlines():
        kind, *rest = line.split()
        if kind == "user":
            of = rest[0]
        else:
            lines.setdefault("pattern" if kind == "pattern" else of, []).append(rest)
    for place in (user, "pattern"):
        given = lines.get(place, [])
        for access, filter_ in sorted(given, key=lambda one: one[0] != "deny"):
            if "%u" in filter_ and user is None:
                continue
            if matches(filter_.replace("%u", user or "").replace("%c", client), topic):
                if access == "deny":
                    return False
                if access in (word, "readwrite"):
                    return True
    return False


@given(texts)
def test_every_question_gets_the_answer_of_mosquitto(text: str) -> None:
    made = rules(text, Remarks())
    if not made:  # no rules: `_rules` of broker_tables denies everything then
        return
    for user in USERS:
        for client in CLIENTS:
            for topic in TOPICS:
                for action in ACTIONS:
                    found = made.publish(user, client, topic).allowed if action == "publish" else made.reads(user, client, topic)
                    assert found == answer_of_mosquitto(text, action, user, client, topic), (text, action, user, client, topic)


@pytest.mark.parametrize(
    ("line", "kind", "reason"),
    [
        ("topic read a#b", "lost", "this is no topic filter"),
        ("topic a/%u", "lost", "a line topic takes %u and %c as they stand"),
        ("user a*", "lost", "a user's name with * or ?"),
        ("usr a", "lost", "an ACL file has lines user, topic and pattern"),
        ("pattern write $SYS/broker/connection/%c/state", "note", "bridges need no permission"),
    ],
)
def test_what_is_not_taken(line: str, kind: str, reason: str) -> None:
    remarks = Remarks()
    assert not rules(line, remarks)
    assert [(one.kind, one.place) for one in remarks.found] == [(kind, "acl:1")]
    assert remarks.found[0].text.startswith(reason)


def test_a_topic_without_a_word_is_for_both() -> None:
    made = rules_of(options_of("user alice\ntopic a b/c\n", "acl"), Remarks())
    assert made == [{"users": ["alice"], "allow": ["publish", "subscribe"], "topics": ["a b/c"]}]
