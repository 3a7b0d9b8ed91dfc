"""Overdue accounts: what they publish is refused, others are served, and paying helps without a restart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.base.standing import OPEN, OVERDUE, PAID, Standing, StandingFile, Standings
from mqmesh.broker.auth import passwords
from mqmesh.broker.auth.accounts import LOOK, account_of
from mqmesh.broker.auth.settings import AccessSettings
from mqmesh.broker.config import parse
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish, Will
from mqmesh.mqtt.properties import Property
from support.broker_site import Client, Site

REASON = "the account acme is overdue since 2026-12-16: 30.75 EUR for INV-2026-11-acme"
OWES = Standing(OVERDUE, "2026-12-16", "30.75 EUR", ("INV-2026-11-acme",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for user in ("alice", "bob"):
        passwords.change(tmp_path / "users", user, user.encode())
    write(tmp_path, acme=OWES, bob=Standing(OPEN))
    return tmp_path


def write(folder: Path, **accounts: Standing) -> None:
    """As billing does: under another name, then renamed."""
    new = folder / "new"
    new.write_text(Standings("2026-12-16", accounts).dumped())
    os.replace(new, folder / "standing.json")


def access(folder: Path, **table: Any) -> AccessSettings:
    given = {"users": "users", "accounts": {"al*": "acme"}, "standing": "standing.json", **table}
    found = parse({"access": given}, "F", folder).access
    assert found is not None
    return found


async def let_in(site: Site, user: str, name: str, version: int = 5, **fields: Any) -> Client:
    client = await site.dial(version)
    client.name = name
    client.send(Connect(name, version, True, user_name=user, password=user.encode(), **fields))
    client.connack = await client.expect(Connack, reason=0)
    return client


@pytest.mark.parametrize("version", [4, 5])
async def test_what_an_overdue_account_publishes_is_refused(folder: Path, version: int) -> None:
    async with Site(access=access(folder)) as site:
        alice, bob = await let_in(site, "alice", "c1", version), await let_in(site, "bob", "c2")
        reader = await let_in(site, "bob", "c3")
        await reader.subscribe("#", qos=1)
        alice.send(Publish("plant/1", b"x", 1, packet_id=7))
        answer = await alice.expect(Puback, packet_id=7)
        if version == 5:
            assert (answer.reason, answer.properties[Property.REASON_STRING]) == (0x87, REASON)
        await alice.publish("plant/1", b"x", 0)
        await alice.nothing()
        await bob.publish("plant/2", b"x", 1)
        assert [one.topic for one in await reader.messages(1)] == ["plant/2"]
        assert site.broker.context.counters.denied_messages == 2


async def test_an_overdue_account_still_hears(folder: Path) -> None:
    async with Site(access=access(folder)) as site:
        alice, bob = await let_in(site, "alice", "c1"), await let_in(site, "bob", "c2")
        await alice.subscribe("#", qos=1)
        await bob.publish("plant/2", b"x", 1)
        assert [one.topic for one in await alice.messages(1)] == ["plant/2"]


async def test_paying_helps_and_owing_again_does_not(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with Site(access=access(folder)) as site:
        alice, bob = await let_in(site, "alice", "c1"), await let_in(site, "bob", "c2")
        await alice.subscribe("nothing/#", qos=1)
        await bob.subscribe("#", qos=1)

        async def reason() -> int:
            return await alice.publish("plant/1", b"x", 1)

        assert await reason() == 0x87
        write(folder, acme=Standing(PAID))
        await site.later(2 * LOOK)
        assert await reason() == 0
        (folder / "standing.json").write_text("{")  # damaged: all stays as it was
        await site.later(2 * LOOK)
        assert await reason() == 0
        write(folder, acme=OWES)
        await site.later(2 * LOOK)
        assert await reason() == 0x87
        assert len(await bob.messages(2)) == 2
        said = [one.split()[0] for one in caplog.messages if one.startswith("event=standing-")]
        assert said == ["event=standing-read", "event=standing-not-read", "event=standing-read"]


def test_a_file_whose_rights_change_is_read_again(folder: Path) -> None:
    file = StandingFile(folder / "standing.json")
    assert not file.look(LOOK)
    (folder / "standing.json").chmod(0o600)
    assert file.look(2 * LOOK)
    assert not file.look(3 * LOOK)


async def test_who_pays_is_on_no_slower_path(folder: Path) -> None:
    """Only connections of overdue accounts ask for each topic."""
    async with Site(access=access(folder)) as site:
        await let_in(site, "alice", "c1")
        await let_in(site, "bob", "c2")
        found = {one.client_id: one.allowed for one in site.broker.site.connections}
        assert found == {"c1": set(), "c2": None}


async def test_the_will_of_an_overdue_account_is_not_published(folder: Path) -> None:
    async with Site(access=access(folder)) as site:
        bob = await let_in(site, "bob", "c2")
        await bob.subscribe("#", qos=1)
        alice = await let_in(site, "alice", "c1", will=Will("gone/alice", b"x", 1))
        carol = await let_in(site, "bob", "c3", will=Will("gone/bob", b"x", 1))
        alice.transport.abort()
        await site.settled(lambda: "c1" not in {one.client_id for one in site.broker.site.connections}) if hasattr(
            site, "settled"
        ) else None
        carol.transport.abort()
        assert [one.topic for one in await bob.messages(1)] == ["gone/bob"]


def test_accounts_are_found_by_pattern() -> None:
    accounts = {"alice": "acme", "meter-*": "grid"}
    assert [account_of(accounts, user) for user in ("alice", "meter-7", "bob", None)] == ["acme", "grid", "bob", None]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"standing": "nowhere.json"}, "access.standing"),
        ({"standing": "users"}, "is not JSON"),
        ({"accounts": ["alice"]}, "access.accounts"),
        ({"accounts": {"alice": 1}}, "access.accounts"),
    ],
)
def test_mistakes_are_named(folder: Path, table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        access(folder, **table)
    assert said in str(caught.value)


@pytest.mark.parametrize("key", ["accounts", "standing"])
def test_without_proven_names_there_is_nobody_to_refuse(folder: Path, key: str) -> None:
    with pytest.raises(ConfigError, match="no name is proven"):
        parse({"access": {key: {"a": "b"} if key == "accounts" else "standing.json"}}, "F", folder)
