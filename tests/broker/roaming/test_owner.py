"""A session has an owner at every site: two users and one client identifier, at the same and at the other site, whatever happens meanwhile.

The rules let alice have everything and mallory nothing but `own/`. So each message that mallory gets from `plant/` was taken.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import jwt
import pytest
from mqmesh.broker.auth.identifiers import identifier_of
from mqmesh.broker.auth.rules import Rule, Rules
from mqmesh.broker.auth.settings import AccessSettings, TokenSettings
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.roaming.moving_session import MovingSession
from mqmesh.mesh.roaming.places import Cut
from mqmesh.mqtt.packets import Connack, Connect
from mqmesh.mqtt.properties import Property
from mqmesh.store import Store
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until

FOREVER = 0xFFFFFFFF
KEY = "a key of sixteen bytes"
SECRET = b"a secret of the token's issuer, 32 bytes or more"
NOT_AUTHORIZED, SERVER_BUSY = 0x87, 0x89
BOTH = frozenset(("publish", "subscribe"))
RULES = Rules(
    (
        Rule(1, True, BOTH, ("own/%u/#",)),
        Rule(2, True, BOTH, ("plant/#",), users=("alice", "feeder")),
    )
)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.key"
    path.write_bytes(SECRET)
    return path


def token(user: str) -> bytes:
    return jwt.encode({"exp": time.time() + 600, "sub": user}, SECRET, "HS256").encode()


def site(number: int, key: Path | None, *peers: Site, store: Store | None = None, starts: float = 0.0, **mesh: object) -> Site:
    """A broker of a mesh whose clients roam. key: of its tokens; None: it asks nobody who he is."""
    addresses = [PeerSettings(peer.broker.addresses[0]) for peer in peers]
    settings = MeshSettings("m", KEY, peers=addresses, clients="roam", start_wait=starts or None, **mesh)  # type: ignore[arg-type]
    access = None if key is None else AccessSettings(False, tokens=TokenSettings(key), rules=RULES)
    return Site(store=store, mesh=(number, settings), access=access)


@asynccontextmanager
async def pair(key: Path, stored: bool) -> AsyncIterator[tuple[Site, Site]]:
    """Two sites that know each other."""
    stores = [MemoryStore() if stored else None for _ in range(2)]
    async with site(1, key, store=stores[0]) as one, site(2, key, one, store=stores[1]) as two:
        await linked(one, two)
        yield one, two


async def linked(*sites: Site) -> None:
    await until(lambda: all(one.broker.site.mesh.node.live().bit_count() == len(sites) - 1 for one in sites))


async def come(at: Site, user: str | None, name: str = "c", clean: bool = False, version: int = 5) -> Client:
    """A client that has sent CONNECT."""
    client = await at.dial(version)
    client.name = name
    properties = {Property.SESSION_EXPIRY_INTERVAL: FOREVER} if version == 5 else {}
    client.send(Connect(name, version, clean, user_name=user, password=None if user is None else token(user), properties=properties))
    return client


async def answered(client: Client) -> Connack:
    """What a CONNECT was answered with."""
    client.connack = await client.expect(Connack)
    return client.connack


async def let_in(at: Site, user: str | None, name: str = "c", **fields: bool) -> Client:
    client = await come(at, user, name, **fields)
    assert (await answered(client)).reason == 0
    return client


async def refused(at: Site, user: str | None, name: str = "c", **fields: bool) -> None:
    client = await come(at, user, name, **fields)
    assert (await answered(client)).reason == NOT_AUTHORIZED
    await client.closed()


async def knows(origin: Site, topic: bytes, at: Site) -> None:
    """Wait until a site knows that another one wants a topic."""
    if origin is not at:
        await until(lambda: (route := origin.broker.site.mesh.route(topic)) is not None and route.match.mask.bit_count() > 0)


async def fed(at: Site, *bodies: bytes) -> None:
    """Messages for whoever has the session."""
    feeder = await let_in(at, "feeder", "feeder", clean=True)
    for body in bodies:
        assert await feeder.publish("plant/x", body, 1) == 0
    await feeder.leave()


both = pytest.mark.parametrize("stored", [False, True], ids=["in memory", "stored"])
fresh = pytest.mark.parametrize("clean", [False, True], ids=["resume", "clean start"])
where = pytest.mark.parametrize("other", [False, True], ids=["same site", "other site"])


@both
@fresh
@where
async def test_takeover_of_a_client_that_is_connected(key: Path, stored: bool, clean: bool, other: bool) -> None:
    async with pair(key, stored) as (one, two):
        alice = await let_in(one, "alice")
        await alice.subscribe("plant/#", qos=1)
        await refused(two if other else one, "mallory", clean=clean)
        await fed(one, b"1", b"2")
        assert [message.payload for message in await alice.messages(2)] == [b"1", b"2"]
        await alice.nothing()  # nobody has disconnected her
        alice = await let_in(two, "alice")  # and her session moves as before
        assert alice.connack is not None
        assert alice.connack.session_present


@both
@fresh
@where
async def test_a_session_whose_client_is_away(key: Path, stored: bool, clean: bool, other: bool) -> None:
    async with pair(key, stored) as (one, two):
        alice = await let_in(one, "alice")
        await alice.subscribe("plant/#", qos=1)
        await alice.leave()
        await one.gone("c")
        await fed(one, b"1", b"2")
        await refused(two if other else one, "mallory", clean=clean)
        await fed(one, b"3")
        alice = await let_in(two, "alice")
        assert alice.connack is not None
        assert alice.connack.session_present
        assert [message.payload for message in await alice.messages(3)] == [b"1", b"2", b"3"]


@both
@fresh
@where
async def test_while_the_session_moves(key: Path, stored: bool, clean: bool, other: bool) -> None:
    """Both CONNECTs are under way at once."""
    bodies = [b"%d" % number for number in range(200)]
    async with pair(key, stored) as (one, two):
        alice = await let_in(one, "alice")
        await alice.subscribe("plant/#", qos=1)
        await alice.leave()
        await one.gone("c")
        await fed(one, *bodies)
        alice = await come(two, "alice")
        thieves = [await come(one if other else two, "mallory", clean=clean) for _ in range(3)]
        assert (await answered(alice)).reason == 0
        assert [message.payload for message in await alice.messages(len(bodies))] == bodies
        reasons = [(await answered(thief)).reason for thief in thieves]
        assert set(reasons) <= {NOT_AUTHORIZED, SERVER_BUSY}  # one that waits is told to come again when the next one comes
        assert NOT_AUTHORIZED in reasons
        await alice.nothing()


@both
@fresh
async def test_before_the_mesh_is_there(key: Path, stored: bool, clean: bool) -> None:
    """Both wait before either session exists; the first has it."""
    async with site(1, key, store=MemoryStore() if stored else None, starts=2.0) as one:
        assert one.broker.site.mesh.starting
        alice = await come(one, "alice")
        await until(lambda: len(one.broker.site.mesh._early) == 1)
        thief = await come(one, "mallory", clean=clean)
        await until(lambda: len(one.broker.site.mesh._early) == 2)
        await one.later(3.0)
        assert (await answered(alice)).reason == 0
        assert (await answered(thief)).reason == NOT_AUTHORIZED
        await thief.closed()
        await alice.subscribe("plant/#", qos=1)
        await alice.nothing()


@both
@fresh
async def test_both_come_for_the_first_time_at_two_sites_at_once(key: Path, stored: bool, clean: bool) -> None:
    """Nobody has a session yet. Whoever is let in has one of his own, and at most one of the two is refused."""
    async with pair(key, stored) as (one, two):
        alice, thief = await come(one, "alice"), await come(two, "mallory", clean=clean)
        answers = [(await answered(alice)).reason, (await answered(thief)).reason]
        assert sorted(answers) == [0, NOT_AUTHORIZED]
        if not answers[0]:
            await alice.subscribe("plant/#", qos=1)
            await fed(two, b"1")
            assert [message.payload for message in await alice.messages(1)] == [b"1"]


@fresh
@where
async def test_after_a_restart(key: Path, clean: bool, other: bool) -> None:
    """The owner is read back with the session."""
    stores = MemoryStore(), MemoryStore()
    async with site(1, key, store=stores[0]) as one, site(2, key, one, store=stores[1]) as two:
        await linked(one, two)
        alice = await let_in(one, "alice")
        await alice.subscribe("plant/#", qos=1)
        await alice.leave()
        await one.gone("c")
        await fed(one, b"1")
    async with site(1, key, store=stores[0]) as one, site(2, key, one, store=stores[1]) as two:
        await linked(one, two)
        await refused(two if other else one, "mallory", clean=clean)
        alice = await let_in(two, "alice")
        assert alice.connack is not None
        assert alice.connack.session_present
        assert [message.payload for message in await alice.messages(1)] == [b"1"]


@both
async def test_a_user_of_that_name_at_a_site_that_asks_nobody(key: Path, stored: bool) -> None:
    """What nobody has proven is no name."""
    stores = [MemoryStore() if stored else None for _ in range(2)]
    async with site(1, key, store=stores[0]) as one, site(2, None, one, store=stores[1]) as two:
        await linked(one, two)
        alice = await let_in(one, "alice")
        await alice.subscribe("plant/#", qos=1)
        await refused(two, "alice")
        await refused(two, "alice", clean=True)
        await refused(two, None)
        await alice.nothing()


@both
async def test_a_session_of_nobody_is_for_the_first_user_who_opens_it_with_what_his_rules_allow(key: Path, stored: bool) -> None:
    stores = [MemoryStore() if stored else None for _ in range(2)]
    async with site(1, None, store=stores[0]) as one, site(2, key, one, store=stores[1]) as two:
        await linked(one, two)
        nobody = await let_in(one, None)
        await nobody.subscribe("plant/#", "own/bob/#", qos=1)
        await nobody.leave()
        await one.gone("c")
        bob = await let_in(two, "bob")
        assert bob.connack is not None
        assert bob.connack.session_present
        assert list(two.broker.site.sessions.get("c").subscriptions) == ["own/bob/#"]
        await refused(one, None)
        await refused(two, "mallory")
        await bob.nothing()


async def test_what_the_rules_hide_stays_hidden_while_a_session_moves(key: Path) -> None:
    """Rules that filter at delivery know a session also by what stands for it during a move, and by its own client identifier."""
    rules = Rules((Rule(1, False, BOTH, ("plant/%c/secret",)), Rule(2, True, BOTH, ("plant/#",))))
    async with Site(access=AccessSettings(False, tokens=TokenSettings(key), rules=rules, on_overlap="filter")) as one:
        bob, router = await let_in(one, "bob"), one.broker.site.router
        await bob.subscribe("plant/#", qos=1)
        session = one.broker.site.sessions.get("c")
        router.reface(session, MovingSession(session, Cut((1, 1)), lambda: 0))
        alice = await let_in(one, "alice", "d")
        assert await alice.publish("plant/c/secret", b"1", 1) in (0, 0x10)
        await alice.publish("plant/c/known", b"2", 1)
        assert [message.payload for message in await bob.messages(1)] == [b"2"]
        router.reface(session, session)
        await alice.publish("plant/c/secret", b"3", 1)
        await bob.nothing()
    assert [identifier_of(f"\0{kind}c\0bob") for kind in ("leaving.12.3.", "parked.", "aside.")] == ["c"] * 3


@both
@pytest.mark.parametrize("listener", ["hall", "yard"])
async def test_a_session_that_comes_is_judged_by_the_listener_where_its_client_waits(key: Path, stored: bool, listener: str) -> None:
    stores = [MemoryStore() if stored else None for _ in range(2)]
    async with site(1, key, store=stores[0]) as one:
        two = site(2, key, one, store=stores[1])
        two.broker.config.listeners = {two.broker.config.listen[0]: listener}
        two.broker.site.guard.rules = Rules((Rule(1, True, BOTH, ("plant/#",), listeners=frozenset(("hall",))),))
        async with two:
            await linked(one, two)
            alice = await let_in(one, "alice")
            await alice.subscribe("plant/#", qos=1)
            alice = await let_in(two, "alice")
            assert alice.connack is not None
            assert alice.connack.session_present
            session = two.broker.site.sessions.get("c")
            assert session is not None
            assert list(session.subscriptions) == (["plant/#"] if listener == "hall" else [])


@both
async def test_sites_that_could_not_ask_each_other_keep_both_sessions_apart(key: Path, stored: bool) -> None:
    """Each user has made a session of his own, and each keeps it."""
    stores = [MemoryStore() if stored else None for _ in range(2)]
    async with site(1, key, store=stores[0]) as one, site(2, key, store=stores[1], roam_wait=0.0) as two:
        alice = await let_in(one, "alice")
        await alice.subscribe("plant/#", qos=1)
        mallory = await let_in(two, "mallory")
        await mallory.subscribe("own/mallory/#", qos=1)
        two.broker.site.mesh.add_peer(PeerSettings(one.broker.addresses[0]))
        await linked(one, two)
        await fed(two, b"1")
        assert [message.payload for message in await alice.messages(1)] == [b"1"]
        await mallory.nothing()
        await refused(two, "alice")
        await refused(one, "mallory", clean=True)
        await alice.nothing()
        await mallory.nothing()
