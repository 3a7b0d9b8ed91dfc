"""Roles: who may what, where; and the table `[management]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.auth.roles import NAMES, Grant, Rights, Role
from mqmesh.broker.config import parse

MAY = {  # role -> what its holder may do
    "viewer": {"viewer"},
    "operator": {"viewer", "operator"},
    "administrator": {"viewer", "operator", "administrator"},
    "payload-reader": {"viewer", "payload-reader"},
}


@pytest.mark.parametrize("name", NAMES)
def test_what_each_role_includes(name: str) -> None:
    rights = Rights((Grant(Role(name)),))
    assert {role.value for role in Role if rights.may(role)} == MAY[name]
    assert {role.value for role in Role if rights.may_topic(role, "a/b")} == MAY[name]
    assert not Rights().may(Role.VIEWER)


def test_where_a_role_holds() -> None:
    rights = Rights((Grant(Role.OPERATOR, None, ("lyon", "fr-*"), ("plant/#",), ("orders",)),))
    assert rights.at("fr-2")
    assert not rights.at("porto")
    assert not rights.may(Role.VIEWER), "it is for some topics and queues"
    assert rights.may_topic(Role.VIEWER, "plant/+/x")
    assert not rights.may_topic(Role.VIEWER, "#")
    assert rights.may_queue(Role.OPERATOR, "orders")
    assert not rights.may_queue(Role.OPERATOR, "bills")
    assert Rights.heard(rights.told()) == rights


@pytest.mark.parametrize("told", [5, [5], [{"role": "king"}], [{"role": "viewer", "sites": "x"}], [{"role": "viewer"}] * 65])
def test_what_another_site_says_is_checked(told: Any) -> None:
    with pytest.raises(ValueError):
        Rights.heard(told)


def test_the_table(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("")
    table = {
        "access": {"users": "users"},
        "management": {"accept": ["lyon"], "role": [{"role": "viewer"}, {"role": "operator", "users": ["ops-*"], "sites": ["lyon"]}]},
    }
    found = parse(table, "F", tmp_path).management
    assert (found.believes("lyon"), found.believes("porto")) == (True, False)
    assert [grant.role.value for grant in found.rights("ops-1").grants] == ["viewer", "operator"]
    assert [grant.role.value for grant in found.rights(None).grants] == ["viewer"]


WRONG = [
    ({"accept": "lyon"}, r"management\.accept"),
    ({"role": [{"role": "king"}]}, r"management\.role\[1\]\.role = \"king\""),
    ({"role": [{}]}, r"role is missing"),
    ({"role": [{"role": "viewer", "users": ["ops"]}]}, "no name is proven"),
    ({"role": [{"role": "viewer", "topics": ["a/#/b"]}]}, r"topics = "),
    ({"role": [{"role": "viewer", "sites": []}]}, "leave it out for all"),
    ({"roles": []}, "roles"),
]


@pytest.mark.parametrize(("table", "text"), WRONG, ids=str)
def test_mistakes_name_file_key_and_value(table: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as error:
        parse({"management": table}, "broker.toml")
    assert str(error.value).startswith("broker.toml: ")
