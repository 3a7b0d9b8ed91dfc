"""Which client identifiers a user may use, and how many sessions a user may have."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.settings import ConfigError
from mqmesh.broker.auth.identifiers import Identifiers
from mqmesh.broker.config import parse
from mqmesh.mqtt.packets import Connack, Connect
from mqmesh.mqtt.properties import Property
from support.broker_site import Client, Site

SECRET = b"a secret of the token's issuer, 32 bytes or more"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "key").write_bytes(SECRET)
    return tmp_path


def site(folder: Path, **access: Any) -> Site:
    return Site(access=settings(folder, **access))


def settings(folder: Path, **access: Any) -> Any:
    return parse({"access": {"tokens": {"key": "key"}, **access}}, "F", folder).access


async def come(at: Site, user: str | None, name: str, reason: int = 0, clean: bool = True, version: int = 5) -> Client:
    client = await at.dial(version)
    password = None if user is None else jwt.encode({"exp": time.time() + 600, "sub": user}, SECRET, "HS256").encode()
    expiry = {Property.SESSION_EXPIRY_INTERVAL: 600} if version == 5 else {}
    client.send(Connect(name, version, clean, user_name=user, password=password, properties=expiry))
    client.connack = await client.expect(Connack, reason=reason)
    return client


names = st.text(st.sampled_from("ab*%u-[?"), max_size=5)


@given(names, names, names)
def test_a_name_is_itself_and_no_pattern(user: str, other: str, rest: str) -> None:
    """A user may use what begins with the name as it is written, and nothing else."""
    patterns = Identifiers(("%u/*",))
    assert patterns.allow(user, f"{user}/{rest}")
    assert patterns.allow(user, f"{other}/{rest}") == f"{other}/{rest}".startswith(f"{user}/")
    assert not patterns.allow(None, f"{user}/{rest}")
    made = patterns.assigned(user)
    assert made is not None
    assert patterns.allow(user, made)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("%u", ["al"], ["al-1", "a", ""]),
        ("%u-*", ["al-", "al-1", "al-*"], ["al", "xal-1", "bob-1"]),
        ("*-%u-*x", ["-al-x", "1-al-2x"], ["-al-", "al-x", "1-bob-x", "-al-al"]),
        ("d-*", ["d-1"], ["d", "e-1"]),
        ("ab*ba", ["abba", "abxba"], ["aba"]),
        ("[a]?", ["[a]?"], ["a1"]),
    ],
)
def test_patterns(pattern: str, good: list[str], bad: list[str]) -> None:
    patterns = Identifiers((pattern,))
    assert [patterns.allow("al", one) for one in good] == [True] * len(good)
    assert [patterns.allow("al", one) for one in bad] == [False] * len(bad)


def test_a_long_identifier_costs_no_more_than_its_length() -> None:
    patterns = Identifiers(("*a*a*a*a*a*a*a*b",))
    assert not patterns.allow("al", "a" * 65_535)  # would not end if each `*` were tried at each place


async def test_foreign_identifiers_are_refused(folder: Path) -> None:
    async with site(folder, client_ids=["%u", "%u-*", "display-*"], anonymous=True) as at:
        await come(at, "alice", "alice")
        await come(at, "alice", "alice-1")
        await come(at, None, "display-1")
        await come(at, "alice", "bob-1", 0x85)
        await come(at, "alice", "bob-1", 2, version=4)
        await come(at, None, "alice-2", 0x85)
        assert at.broker.site.sessions.get("bob-1") is None


async def test_an_assigned_identifier_is_one_that_the_user_may_come_back_with(folder: Path) -> None:
    async with site(folder, client_ids=["%u", "%u-*"]) as at:
        client = await come(at, "alice", "")
        assert client.connack is not None
        name = client.connack.properties[Property.ASSIGNED_CLIENT_IDENTIFIER]
        assert name.startswith("alice-")
        await client.leave()
        back = await come(at, "alice", name, clean=False)
        assert back.connack is not None
        assert back.connack.session_present
    async with site(folder, client_ids=["%u"]) as at:
        await come(at, "alice", "", 0x85)


async def test_patterns_that_are_read_anew_hold_for_who_is_there(folder: Path) -> None:
    async with site(folder) as at:
        stays, goes = await come(at, "alice", "alice-1"), await come(at, "alice", "c")
        at.broker.renew_access(settings(folder, client_ids=["%u-*"]))
        at.broker.context.flush()
        await goes.closed(0x98)
        await stays.nothing()


async def test_a_user_has_so_many_sessions_and_no_more(folder: Path) -> None:
    async with site(folder, sessions_per_user=2) as at:
        first = await come(at, "alice", "1")
        await come(at, "alice", "2")
        await come(at, "alice", "3", 0x97)
        await come(at, "bob", "4")
        await first.leave()
        await at.gone("1")
        await come(at, "alice", "3", 0x97)  # the session stays
        await come(at, "alice", "1", clean=False)
        await come(at, "alice", "1", clean=True)
        at.broker.site.sessions.end(at.broker.site.sessions.get("2"))
        await come(at, "alice", "3")


@pytest.mark.parametrize(
    ("access", "text"),
    [
        ({"client_ids": ["%c-*"], "users": "key"}, r"access.client_ids.*'%c-\*'"),
        ({"client_ids": [""], "users": "key"}, r"access.client_ids"),
        ({"client_ids": ["%u-*"]}, r"access.client_ids.*no name is proven"),
        ({"sessions_per_user": -1, "users": "key"}, r"access.sessions_per_user"),
    ],
)
def test_settings_that_cannot_be(folder: Path, access: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse({"access": access}, "F", folder)
