"""A session that is made through one listener and resumed through another one, at its site and at another, after a restart, beside a thief.

The rules let alice have everything through `office` and nothing but `plant/lobby/` through `hall`, and mallory nothing but `own/`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings, parse
from mqmesh.broker.roaming.shell import Roaming
from mqmesh.mesh.roaming.places import Place
from mqmesh.mqtt.packets import Connack, Connect
from mqmesh.mqtt.properties import Property
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until

SECRET = b"a secret of the token's issuer, 32 bytes or more"
FOREVER = 0xFFFFFFFF
REFUSED = 0x87
TRY_AGAIN = 0x89
RULES: list[dict[str, Any]] = [
    {"allow": ["publish", "subscribe"], "topics": ["own/%u/#"]},
    {"users": ["alice"], "listeners": ["office"], "allow": ["subscribe"], "topics": ["plant/#"]},
    {"users": ["alice"], "listeners": ["hall"], "allow": ["subscribe"], "topics": ["plant/lobby/#"]},
    {"users": ["feeder"], "allow": ["publish"], "topics": ["plant/#"]},
]


def site(number: int, folder: Path, store: MemoryStore | None, *peers: Site) -> Site:
    (folder / "tokens.key").write_bytes(SECRET)
    listen = [{"address": "mqtt://127.0.0.1:0", "name": "hall"}, {"address": f"unix://{folder}/office{number}", "name": "office"}]
    access = {"anonymous": False, "tokens": {"key": "tokens.key"}, "rule": RULES, "on_overlap": "filter"}
    config = parse({"listen": listen, "access": access}, "F", folder)
    settings = MeshSettings("m", "a key of sixteen bytes", peers=[PeerSettings(at(peer, "hall")) for peer in peers], clients="roam")
    made = Site(mesh=(number, settings), access=config.access, store=store)
    made.broker.config.listen, made.broker.config.listeners = config.listen, config.listeners
    return made


def at(where: Site, listener: str) -> str:
    """The address of a listener; the site's next clients come there."""
    where.broker.addresses.sort(key=lambda address: address.startswith("unix") != (listener == "office"))
    return where.broker.addresses[0]


async def come(where: Site, listener: str, user: str, name: str, version: int = 5) -> tuple[Client, Connack]:
    """What CONNECT is answered."""
    at(where, listener)
    client = await where.dial(version)
    client.name = name
    token = jwt.encode({"exp": time.time() + 600, "sub": user}, SECRET, "HS256").encode()
    kept: dict[int, Any] = {Property.SESSION_EXPIRY_INTERVAL: FOREVER} if version == 5 else {}
    client.send(Connect(name, version, False, user_name=user, password=token, properties=kept))
    return client, await client.expect(Connack)


async def linked(*sites: Site) -> None:
    await until(lambda: all(one.broker.site.mesh.node.live().bit_count() == len(sites) - 1 for one in sites))


@pytest.mark.parametrize("back", ["hall", "office"])
@pytest.mark.parametrize("made", ["hall", "office"])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_the_listener_of_the_last_connection_says_what_a_session_gets(
    tmp_path: Path, made: str, back: str, restarted: bool, elsewhere: bool
) -> None:
    store = MemoryStore()
    async with site(2, tmp_path, None) as other:
        async with site(1, tmp_path, store, other) as home:
            await linked(home, other)
            alice, _ = await come(home, made, "alice", "c")
            assert (await alice.subscribe("plant/#", qos=1)).reasons == [1]
            await alice.cut()
            await home.gone("c")
            if not restarted:
                await resumed(home, other, made, back, elsewhere)
        if restarted:
            async with site(1, tmp_path, store, other) as home:
                await linked(home, other)
                await resumed(home, other, made, back, elsewhere)


@pytest.mark.parametrize("back", ["hall", "office"])
@pytest.mark.parametrize("made", ["hall", "office"])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_session_that_comes_when_nobody_waits_is_judged_by_the_listener_of_its_last_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, back: str, restarted: bool
) -> None:
    """She was told to try again, and finds all that she had."""
    install = Roaming.install

    def come_late(roaming: Roaming, place: Place, state: bytes, merge: bool) -> None:
        roaming._too_long(place.client)
        install(roaming, place, state, merge)

    monkeypatch.setattr(Roaming, "install", come_late)
    store = MemoryStore()
    async with site(1, tmp_path, None) as home:
        async with site(2, tmp_path, store, home) as other:
            await linked(home, other)
            alice, _ = await come(home, made, "alice", "c")
            assert (await alice.subscribe("plant/#", qos=1)).reasons == [1]
            await alice.cut()
            await home.gone("c")
            alice, answer = await come(other, back, "alice", "c")
            assert answer.reason == TRY_AGAIN
            await until(lambda: other.broker.site.sessions.get("c") is not None)
            if not restarted:
                await resumed(other, home, made, back, elsewhere=False)
        if restarted:
            async with site(2, tmp_path, store, home) as other:
                await linked(home, other)
                await resumed(other, home, made, back, elsewhere=False)


async def resumed(home: Site, other: Site, made: str, back: str, elsewhere: bool) -> None:
    """Messages while alice is away, a thief at each listener, alice comes back."""
    feeder, answer = await come(other, "hall", "feeder", "feeder")
    assert not answer.reason
    await feed(feeder, home, other, "away")
    for where in (home, other):
        for listener in ("hall", "office"):
            for version in (4, 5):
                thief, answer = await come(where, listener, "mallory", "c", version)
                assert answer.reason == (REFUSED if version == 5 else 5), (where, listener)
                await thief.closed()
    alice, answer = await come(other if elsewhere else home, back, "alice", "c")
    assert (answer.reason, answer.session_present) == (0, True)
    assert await until_end(alice, "away") == allowed(made, "away")
    await feed(feeder, home, other, "back")
    assert await until_end(alice, "back") == allowed(back, "back")


def allowed(listener: str, when: str) -> list[str]:
    """What she gets of what is published."""
    return [f"plant/lobby/{when}"] if listener == "hall" else [f"plant/safe/{when}", f"plant/lobby/{when}"]


async def feed(feeder: Client, home: Site, other: Site, when: str) -> None:
    """To both places, behind all that was said of interest."""
    for topic in (f"plant/safe/{when}", f"plant/lobby/{when}", f"plant/lobby/end of {when}"):
        assert await feeder.publish(topic, b"x", 1) < 0x80


async def until_end(alice: Client, when: str) -> list[str]:
    """The topics of what comes up to the last one."""
    found: list[str] = []
    while not found or found[-1] != f"plant/lobby/end of {when}":
        found += [one.topic for one in await alice.messages(1)]
    return found[:-1]
