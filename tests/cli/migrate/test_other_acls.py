"""ACL files of EMQX and VerneMQ as rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.auth.rules import Rules
from mqmesh.broker.config import load, parse
from mqmesh.cli.main import app
from mqmesh.cli.migrate import emqx_acl, vernemq_acl
from mqmesh.cli.migrate.mosquitto_conf import MigrateError, options_of
from mqmesh.cli.migrate.remarks import Remarks
from typer.testing import CliRunner, Result

BOTH = ["publish", "subscribe"]
# The file that EMQX 5 comes with.
EMQX = """%% comments {are not read}.
{allow, {username, {re, "^dashboard$"}}, subscribe, ["$SYS/#"]}.
{allow, {ipaddr, "127.0.0.1"}, all, ["$SYS/#", "#"]}.
{deny, all, subscribe, ["$SYS/#", {eq, "#"}, {eq, "+/#"}]}.
{allow, all}.
"""


def emqx(text: str) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    remarks = Remarks()
    found = emqx_acl.rules_of(text, "acl.conf", remarks)
    return found, [(one.kind, one.option.line) for one in remarks.found]


def migrate(*words: object) -> Result:
    return CliRunner().invoke(app, ["migrate", *map(str, words)])


def test_the_file_that_emqx_comes_with() -> None:
    rules, remarks = emqx(EMQX)
    assert rules == [
        {"users": ["dashboard"], "allow": ["subscribe"], "topics": ["$SYS/#"]},
        {"deny": ["subscribe"], "topics": ["$SYS/#"]},
        {"allow": BOTH, "topics": ["#", "$SYS/#"]},
    ]
    assert remarks == [("lost", 3), ("lost", 4), ("lost", 4)]


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ('{allow, {user, "a"}, publish, ["x/%u", "y/${clientid}/${username}"]}.', [{"users": ["a"], "topics": ["x/%u", "y/%c/%u"]}]),
        ('{allow, {clientid, {re, "^dev-.*"}}, publish, [{eq, "x"}]}.', [{"clients": ["dev-*"], "topics": ["x"]}]),
        ('{allow, {\'and\', [{user, "a"}, {client, "b"}]}, publish, ["x"]}.', [{"users": ["a"], "clients": ["b"], "topics": ["x"]}]),
        (
            '{allow, {\'or\', [{user, <<"a">>}, {clientid, {re, "b"}}]}, publish,\n ["x"]}.',
            [{"users": ["a"], "topics": ["x"]}, {"clients": ["*b*"], "topics": ["x"]}],
        ),
        ("", []),
    ],
)
def test_forms_of_emqx(text: str, rules: list[dict[str, Any]]) -> None:
    found, remarks = emqx(text + "\n{deny, all}.")
    assert found[:-1] == [{"allow": ["publish"], **one} for one in rules]
    assert remarks == []


@pytest.mark.parametrize(
    "text",
    [
        '{allow, {ipaddrs, ["10.0.0.0/8"]}, all, ["x"]}.',
        '{allow, {user, {re, "a|b"}}, all, ["x"]}.',
        '{allow, {user, "a*"}, all, ["x"]}.',
        '{allow, {\'and\', [{user, "a"}, {user, "b"}]}, all, ["x"]}.',
        '{allow, all, {publish, [{qos, 1}]}, ["x"]}.',
        '{allow, all, all, ["x/${cert_common_name}"]}.',
        '{allow, all, all, ["#/x"]}.',
        "{permit, all}.",
    ],
)
def test_what_emqx_has_and_we_have_not_is_left_out(text: str) -> None:
    found, remarks = emqx(text + "\n{deny, all}.")
    assert len(found) == 1
    assert remarks == [("lost", 1)]


def test_without_a_last_rule_for_all_a_note_says_what_differs() -> None:
    assert emqx('{allow, all, publish, ["x"]}.')[1] == [("note", 1)]


@pytest.mark.parametrize("text", ["{allow, all}", "{allow, all", "\n]", "{allow all}.", "@", '{allow, "', "{" * 50])
def test_what_is_no_term_is_named_with_its_line(text: str) -> None:
    with pytest.raises(MigrateError, match=r"acl.conf:\d: this is no Erlang term"):
        emqx(text)


VERNEMQ = """# everybody
topic read news/#

user alice
topic plant/#
topic write orders
pattern read people/%u/#
pattern %c/in
"""


def test_vernemq() -> None:
    remarks = Remarks()
    tables = vernemq_acl.rules_of(options_of(VERNEMQ, "vmq.acl"), remarks)
    access = parse({"access": {"certificates": True, "rule": tables}}, "F").access
    assert access is not None
    rules: Rules = access.rules
    assert remarks.found == []
    for user, action, topic, allowed in (
        (None, "subscribe", "news/a", True),
        ("alice", "subscribe", "news/a", True),  # what stands before the first user is for all, not as in Mosquitto
        ("alice", "publish", "news/a", False),
        ("alice", "publish", "plant/1", True),
        ("bob", "publish", "plant/1", False),
        ("alice", "publish", "orders", True),
        ("alice", "subscribe", "orders", False),
        ("bob", "subscribe", "people/bob/x", True),
        ("bob", "publish", "people/bob/x", False),
        ("bob", "publish", "client/in", True),
    ):
        verdict = rules.publish(user, "client", topic) if action == "publish" else rules.subscribe(user, "client", topic)
        assert verdict.allowed == allowed, (user, action, topic)


def test_mount_points_of_vernemq_are_lost() -> None:
    remarks = Remarks()
    assert vernemq_acl.rules_of(options_of("pattern read %m/x\nuser a*\ntopic x\n", "vmq.acl"), remarks) == []
    assert [one.option.line for one in remarks.found] == [1, 2]


def test_the_table_is_written(tmp_path: Path) -> None:
    file = tmp_path / "acl.conf"
    file.write_text(EMQX)
    result = migrate("--emqx-acl", file, "--out", tmp_path / "out")
    assert result.exit_code == 1
    made = tmp_path / "out" / "access.toml"
    made.write_text(made.read_text().replace("[access]", "[access]\ncertificates = true"))
    assert (access := load(made).access) is not None
    assert len(access.rules.rules) == 3
    file.write_text(VERNEMQ)
    assert migrate("--vernemq-acl", file).exit_code == 0
    file.write_text("")
    for words, text in ((["--emqx-acl", file], "no rule is left"), (["--emqx-acl", file, "--vernemq-acl", file], "give one ACL file")):
        result = migrate(*words)
        assert (result.exit_code, text in result.stderr) == (2, True)
