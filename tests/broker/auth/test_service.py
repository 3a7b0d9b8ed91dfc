"""Who is let in, and what rules let them do: a broker in this loop, and clients that try."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from mqmesh.base import logins
from mqmesh.base.address import parse_address
from mqmesh.broker.auth import passwords
from mqmesh.broker.auth.service import AuthError
from mqmesh.broker.config import MeshSettings, TlsSettings, parse
from mqmesh.broker.server import StartError
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish, Will
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until
from support.certificates import Certificates

SECRET = "a shared secret of thirty-two bytes or more"
FOREVER = 0xFFFFFFFF


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    passwords.change(tmp_path / "users", "alice", b"wonderland")
    passwords.change(tmp_path / "users", "bob", b"builder")
    (tmp_path / "key").write_text(SECRET)
    return tmp_path


def access(folder: Path, *rules: dict[str, Any], **table: Any):
    return parse({"access": {"users": "users", **table, "rule": list(rules)}}, "F", folder).access


async def connect(site: Site, user: str | None, password: bytes | None, name: str = "c", version: int = 5, **fields: Any) -> Client:
    """A client that has sent CONNECT."""
    client = await site.dial(version)
    client.name = name
    client.send(Connect(name, version, fields.pop("clean", True), user_name=user, password=password, **fields))
    return client


async def let_in(site: Site, user: str | None, password: bytes | None, name: str = "c", **fields: Any) -> Client:
    client = await connect(site, user, password, name, **fields)
    client.connack = await client.expect(Connack, reason=0)
    return client


async def refused(site: Site, user: str | None, password: bytes | None, reason: int, **fields: Any) -> Connack:
    client = await connect(site, user, password, **fields)
    found = await client.expect(Connack, reason=reason)
    await client.closed()
    return found


def token(user: str | None = "alice", seconds: float = 600, key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> bytes:
    body = {"exp": time.time() + seconds, **({"sub": user} if user else {}), **claims}
    return jwt.encode(body, key, algorithm).encode()


# Passwords


@pytest.mark.parametrize("version", [4, 5])
async def test_right_and_wrong_passwords(folder: Path, version: int):
    async with Site(access=access(folder)) as site:
        await let_in(site, "alice", b"wonderland", "c1", version=version)
        for user, password in [("alice", b"wrong"), ("carol", b"wonderland"), ("alice", b""), ("bob", b"wonderland")]:
            await refused(site, user, password, 0x86 if version == 5 else 4, version=version)
        await refused(site, None, None, 0x87 if version == 5 else 5, version=version)
        assert site.broker.context.counters.denied_connects == 5


async def test_what_comes_behind_connect_is_taken_once_the_password_was_compared(folder: Path):
    async with Site(access=access(folder)) as site:
        client = await site.dial()
        client.send(Connect("c", 5, user_name="alice", password=b"wonderland"), Publish("t", b"x", 1, packet_id=1))
        await client.expect(Connack, reason=0)
        await client.expect(Puback, packet_id=1)


async def test_what_comes_behind_a_connect_that_is_refused_is_not_taken(folder: Path):
    async with Site(access=access(folder, anonymous=True)) as site:
        watcher = await let_in(site, None, None, "watcher")
        await watcher.subscribe("#")
        client = await site.dial()
        client.send(Connect("c", 5, user_name="alice", password=b"wrong"), Publish("t", b"x"))
        await client.expect(Connack, reason=0x86)
        await client.closed()
        await watcher.nothing()


async def test_anonymous_clients_beside_named_ones(folder: Path):
    async with Site(access=access(folder, anonymous=True)) as site:
        await let_in(site, None, None)
        await refused(site, "alice", b"wrong", 0x86)


async def test_a_right_password_is_compared_once_only(folder: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []
    real = passwords.right
    monkeypatch.setattr(passwords, "right", lambda hash_, password: asked.append(password) or real(hash_, password))
    async with Site(access=access(folder)) as site:
        for number in range(5):
            await let_in(site, "alice", b"wonderland", f"c{number}")
        assert asked == [b"wonderland"]
        await refused(site, "alice", b"wonderlandx", 0x86)
        assert len(asked) == 2


async def test_failures_slow_down_those_who_fail_and_nobody_else(folder: Path, monkeypatch: pytest.MonkeyPatch):
    async with Site(access=access(folder)) as site:
        await let_in(site, "bob", b"builder", "first")
        loop = asyncio.get_running_loop()
        took = []
        for _ in range(4):
            before = loop.time()
            await refused(site, "alice", b"wrong", 0x86)
            took.append(loop.time() - before)
        assert took[3] >= 0.8  # 0.1, 0.2, 0.4, 0.8 seconds at least
        monkeypatch.setattr(logins, "FIRST_PAUSE", 60.0)
        monkeypatch.setattr(logins, "LONGEST_PAUSE", 60.0)
        wrong = await connect(site, "alice", b"wrong", "still waiting")
        await let_in(site, "bob", b"builder", "known")  # was right before: answered while the other waits
        assert not wrong.waiting()


async def test_a_flood_of_wrong_logins_keeps_nobody_out(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A hundred at once for a user who does not exist, and then others: from there, and from elsewhere."""
    asked: list[bytes] = []
    real = passwords.right
    monkeypatch.setattr(passwords, "right", lambda hash_, password: asked.append(password) or real(hash_, password))
    async with Site(access=access(folder)) as site:
        flood = [await connect(site, "nobody", b"flood", f"n{number}") for number in range(100)]
        loop, port = asyncio.get_running_loop(), parse_address(site.broker.addresses[0]).port
        _, elsewhere = await loop.create_connection(Client, "127.0.0.1", port, local_addr=("127.0.0.2", 0))
        elsewhere.send(Connect("e", 5, user_name="bob", password=b"builder"))
        await elsewhere.expect(Connack, reason=0)
        await let_in(site, "alice", b"wonderland", "there")
        assert asked.count(b"flood") <= 5
        assert len(site.broker.admission._strangers) >= 95, "they are strangers until it is known who they are"
        elsewhere.transport.abort()
        for client in flood:
            client.transport.abort()


async def test_guesses_at_once_are_not_faster(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """They are compared one after the other, each when the pause after the one before is over; who waits too long hears so."""
    asked: list[bytes] = []
    real = passwords.right
    monkeypatch.setattr(passwords, "right", lambda hash_, password: asked.append(password) or real(hash_, password))
    async with Site(access=access(folder)) as site:
        guesses = [await connect(site, "alice", b"%d" % number, f"g{number}") for number in range(100)]
        logins = site.broker.site.guard.authenticator._logins
        for _ in range(310):
            await site.later(0.1)
            await until(lambda: not logins._under_way)  # a comparison runs in a thread, which may begin late
        assert 5 <= len(asked) <= 12
        busy = [await client.expect(Connack) for client in guesses]
        reasons = [one.reason for one in busy]
        assert set(reasons) == {0x86, 0x89}
        assert reasons.count(0x89) >= 88


async def test_a_comparison_that_cannot_begin_is_answered_too(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> bool:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(passwords, "right", fails)
    async with Site(access=access(folder)) as site:
        client = await connect(site, "alice", b"wonderland")
        logins = site.broker.site.guard.authenticator._logins
        await until(lambda: not logins.waiting and not logins._under_way)
        await site.later(11)
        await client.expect(Connack, reason=0x86)


async def test_many_clients_of_one_user_cost_one_comparison(folder: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[bytes] = []
    real = passwords.right
    monkeypatch.setattr(passwords, "right", lambda hash_, password: asked.append(password) or real(hash_, password))
    async with Site(access=access(folder)) as site:
        fleet = [await connect(site, "alice", b"wonderland", f"c{number}") for number in range(100)]
        for client in fleet:
            await client.expect(Connack, reason=0)
        assert asked == [b"wonderland"]
        assert not site.broker.admission._strangers


async def test_a_client_that_leaves_while_its_password_waits(folder: Path):
    async with Site(access=access(folder)) as site:
        client = await connect(site, "alice", b"wonderland", "gone")
        await client.cut()
        await until(lambda: not site.broker.site.connections)
        await let_in(site, "alice", b"wonderland", "next")
        assert site.broker.site.sessions.get("gone") is None


async def test_a_session_belongs_to_its_user(folder: Path):
    async with Site(store=MemoryStore(), access=access(folder)) as site:
        alice = await let_in(site, "alice", b"wonderland", "shared", clean=False, properties={17: FOREVER})
        await refused(site, "bob", b"builder", 0x87, name="shared")
        await alice.nothing()  # nobody took it over
        await alice.leave()
        await site.gone("shared")
        await refused(site, "bob", b"builder", 0x87, name="shared")
        again = await let_in(site, "alice", b"wonderland", "shared", clean=False, properties={17: FOREVER})
        assert again.connack.session_present


# Tokens


async def test_tokens(folder: Path):
    settings = access(folder, tokens={"key": "key", "issuer": "us", "audience": "mqtt"})
    good = {"iss": "us", "aud": "mqtt"}
    async with Site(access=settings) as site:
        client = await let_in(site, None, token(**good), "c1")
        assert site.broker.site.sessions.get("c1").user == "alice"
        await let_in(site, "alice", token(**good), "c2")
        await let_in(site, "bob", b"builder", "c3")  # a password does as well
        await refused(site, "bob", token(**good), 0x87)
        await client.nothing()


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": -10},
        {"key": "another secret of thirty-two bytes or more"},
        {"iss": "them"},
        {"aud": "http"},
        {"user": None},
        {"user": 7},
        {"nbf": 8e9},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
async def test_tokens_that_are_worth_nothing(folder: Path, wrong: dict[str, Any]):
    async with Site(access=access(folder, tokens={"key": "key", "issuer": "us", "audience": "mqtt"})) as site:
        await refused(site, None, token(**{"iss": "us", "aud": "mqtt", **wrong}), 0x86)


async def test_a_token_without_an_end_or_a_signature_is_none(folder: Path):
    async with Site(access=access(folder, tokens={"key": "key"})) as site:
        await refused(site, None, jwt.encode({"sub": "alice"}, SECRET).encode(), 0x86)
        await refused(site, None, jwt.encode({"sub": "alice", "exp": time.time() + 60}, None, "none").encode(), 0x86)
        await refused(site, None, b"a.b.c", 0x86)


async def test_a_connection_ends_with_its_token(folder: Path):
    async with Site(access=access(folder, tokens={"key": "key"})) as site:
        client = await let_in(site, None, token(seconds=600), "c")
        await site.later(590)
        await client.nothing()
        await site.later(11)
        await client.closed(0xA0)


async def test_a_public_key_judges_tokens_and_is_no_secret(folder: Path):
    private = ec.generate_private_key(ec.SECP256R1())
    pem = private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "key").write_bytes(pem)
    async with Site(access=access(folder, tokens={"key": "key"})) as site:
        await let_in(site, None, token(key=private, algorithm="ES256"), "c1")
        assert site.broker.site.guard.authenticator is not None
        # the classical attack: the public key, which everybody has, used as the secret of HS256
        import base64
        import hashlib
        import hmac
        import json

        def part(data: bytes) -> bytes:
            return base64.urlsafe_b64encode(data).rstrip(b"=")

        body = part(json.dumps({"alg": "HS256", "typ": "JWT"}).encode()) + b"." + part(json.dumps({"sub": "a", "exp": 9e9}).encode())
        await refused(site, None, body + b"." + part(hmac.new(pem, body, hashlib.sha256).digest()), 0x86)


@pytest.mark.parametrize(
    ("content", "text"), [(b"short", "at least 32 bytes"), (b"-----BEGIN PUBLIC KEY-----\nx\n", "no public key in PEM")]
)
async def test_keys_that_are_of_no_use(folder: Path, content: bytes, text: str):
    (folder / "key").write_bytes(content)
    with pytest.raises(StartError, match=text):
        await Site(access=access(folder, tokens={"key": "key"})).broker.start()


# Certificates


async def test_the_common_name_of_a_certificate_is_the_user(folder: Path):
    made = Certificates(folder)
    made.broker("porto")
    made.client("alice")
    settings = parse({"access": {"certificates": True, "rule": [OWN]}}).access
    tls = TlsSettings(made.certificate("porto"), made.key("porto"), None, made.ca, "optional")
    site = Site("mqtts://127.0.0.1:0", tls, access=settings)
    site.context = made.context("alice")
    async with site:
        client = await let_in(site, None, None, "c1")
        assert await client.publish("u/alice/x", b"x", 1) == 0x10
        assert await client.publish("u/bob/x", b"x", 1) == 0x87
        await refused(site, "bob", None, 0x87)
        site.context = made.context()
        await refused(site, None, None, 0x87)


# Rules

OWN = {"allow": ["publish", "subscribe"], "topics": ["u/%u/#"]}
ALL = {"allow": ["subscribe"], "users": ["bob"], "topics": ["#"]}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
async def test_forbidden_topics_are_refused_and_nobody_gets_their_messages(folder: Path, qos: int, version: int):
    async with Site(access=access(folder, OWN, ALL)) as site:
        bob = await let_in(site, "bob", b"builder", "watcher")
        await bob.subscribe("#", qos=2)
        alice = await let_in(site, "alice", b"wonderland", "c", version=version)
        for _ in range(3):  # more than once: what is remembered must not let it through
            answer = await alice.publish("elsewhere", b"x", qos)
            assert answer == (0x87 if qos and version == 5 else 0)
            await alice.publish("u/alice/x", b"mine", qos)
        assert [message.topic for message in await bob.messages(3)] == ["u/alice/x"] * 3
        await bob.nothing()
        assert site.broker.context.counters.denied_messages == 3


async def test_a_mixed_stream_on_the_fast_path_lets_only_the_allowed_topics_through(folder: Path):
    """Many frames of different topics in one chunk, again and again."""
    async with Site(access=access(folder, OWN, ALL)) as site:
        bob = await let_in(site, "bob", b"builder", "watcher")
        await bob.subscribe("#")
        alice = await let_in(site, "alice", b"wonderland", "c")
        topics = [f"u/{user}/{number}" for number in range(10) for user in ("alice", "bob", "alice")]
        wanted = []
        for turn in range(5):
            alice.send(*(Publish(topic, b"%d" % turn) for topic in topics))
            wanted += [(topic, b"%d" % turn) for topic in topics if topic.startswith("u/alice/")]
        assert [(message.topic, message.payload) for message in await bob.messages(len(wanted))] == wanted
        await bob.nothing()


async def test_subscriptions_and_wills(folder: Path):
    async with Site(access=access(folder, OWN, ALL)) as site:
        alice = await let_in(site, "alice", b"wonderland")
        suback = await alice.subscribe("u/alice/#", "u/+/x", "#", "$share/g/u/alice/x", "$share/g/#")
        assert [int(reason) for reason in suback.reasons] == [0, 0x87, 0x87, 0, 0x87]
        await refused(site, "alice", b"wonderland", 0x87, name="d", will=Will("elsewhere", b"x"))
        await let_in(site, "alice", b"wonderland", "d", will=Will("u/alice/gone", b"x"))


async def test_rules_alone_need_no_names(tmp_path: Path):
    rules = [{"deny": ["publish"], "topics": ["alarms/#"]}, {"allow": ["publish", "subscribe"], "topics": ["#"]}]
    async with Site(access=parse({"access": {"rule": rules}}).access) as site:
        client = await site.client()
        assert await client.publish("alarms/fire", b"x", 1) == 0x87
        assert await client.publish("readings", b"x", 1) == 0x10


async def test_rules_that_are_read_anew_hold_at_once(folder: Path):
    async with Site(access=access(folder, OWN, ALL)) as site:
        alice, bob = await let_in(site, "alice", b"wonderland", "a"), await let_in(site, "bob", b"builder", "b")
        await bob.subscribe("#")
        assert await alice.publish("u/alice/x", b"1", 1) == 0
        await bob.messages(1)
        assert site.broker.renew_access(access(folder, {"allow": ["publish"], "topics": ["new"]})) == 1
        site.broker.context.flush()
        assert await alice.publish("u/alice/x", b"2", 1) == 0x87
        assert await alice.publish("new", b"3", 1) == 0x10
        await bob.nothing()
        passwords.change(folder / "users", "bob", None)
        site.broker.renew_access(access(folder))
        site.broker.context.flush()
        await bob.closed(0x98)
        await alice.nothing()


async def test_a_broken_file_of_users_changes_nothing_when_it_is_read_anew(folder: Path):
    settings = access(folder)
    async with Site(access=settings) as site:
        await let_in(site, "alice", b"wonderland", "a")
        (folder / "users").write_text("alice\n")
        with pytest.raises(AuthError, match=r"users line 1: a line is name:hash"):
            site.broker.renew_access(access(folder))
        await let_in(site, "alice", b"wonderland", "b")
        await let_in(site, "bob", b"builder", "c")


async def test_subscriptions_of_an_earlier_life_are_judged_by_the_rules_of_this_one(folder: Path):
    store = MemoryStore()
    async with Site(store=store, access=access(folder)) as site:
        alice = await let_in(site, "alice", b"wonderland", "a", clean=False, properties={17: FOREVER})
        await alice.subscribe("u/alice/x", "elsewhere")
        await alice.leave()
        await site.gone("a")
    async with Site(store=store, access=access(folder, OWN)) as site:
        assert list(site.broker.site.sessions.get("a").subscriptions) == ["u/alice/x"]


# What was shown ends


async def test_who_is_removed_from_the_file_is_gone_though_tokens_are_taken_too(folder: Path):
    async with Site(access=access(folder, tokens={"key": "key"})) as site:
        alice, bob = await let_in(site, "alice", b"wonderland", "a"), await let_in(site, "bob", b"builder", "b")
        carol = await let_in(site, None, token("carol"), "c")
        passwords.change(folder / "users", "bob", None)
        site.broker.renew_access(access(folder, tokens={"key": "key"}))
        site.broker.context.flush()
        await bob.closed(0x98)
        await alice.nothing()
        await carol.nothing()


@pytest.mark.parametrize("what", ["password", "key", "tokens"])
async def test_who_has_shown_what_is_no_longer_right_is_gone(folder: Path, what: str):
    async with Site(access=access(folder, tokens={"key": "key"})) as site:
        alice = await let_in(site, "alice", b"wonderland", "a")
        carol = await let_in(site, None, token("carol"), "c")
        if what == "password":
            passwords.change(folder / "users", "alice", b"looking glass")
        elif what == "key":
            (folder / "key").write_bytes(b"another secret of the token's issuer, 32 bytes")
        site.broker.renew_access(access(folder) if what == "tokens" else access(folder, tokens={"key": "key"}))
        site.broker.context.flush()
        gone, stays = (alice, carol) if what == "password" else (carol, alice)
        await gone.closed(0x98)
        await stays.nothing()


async def test_a_password_is_compared_with_the_file_as_it_is_when_the_comparison_ends(folder: Path, monkeypatch: pytest.MonkeyPatch):
    async with Site(access=access(folder)) as site:
        real = passwords.right

        def removed(hash_: str, password: bytes) -> bool:
            passwords.change(folder / "users", "alice", None)
            asyncio.run_coroutine_threadsafe(renew(), loop).result()
            return real(hash_, password)

        async def renew() -> None:
            site.broker.renew_access(access(folder))

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(passwords, "right", removed)
        await refused(site, "alice", b"wonderland", 0x86)


async def test_a_connection_ends_with_its_certificate(folder: Path):
    made = Certificates(folder)
    made.broker("porto")
    made.odd("alice", days=(-1, 0.5), uses=("client",))
    tls = TlsSettings(made.certificate("porto"), made.key("porto"), None, made.ca, "required")
    site = Site("mqtts://127.0.0.1:0", tls)
    site.context = made.context("alice")
    async with site:
        client = await site.client("c")
        await site.later(0.5 * 86_400 - 60)
        await client.nothing()
        await site.later(120)
        await client.closed(0xA0)


async def test_who_waits_for_the_mesh_is_looked_at_again(folder: Path):
    """A token that ends and a user who is removed while their clients wait."""
    mesh = 1, MeshSettings("m", "a key of sixteen bytes", start_wait=300.0)
    async with Site(access=access(folder, tokens={"key": "key"}), mesh=mesh) as site:
        alice, bob, carol = [
            await connect(site, user, password, user or "carol")
            for user, password in (("alice", b"wonderland"), ("bob", b"builder"), (None, token("carol", 200)))
        ]
        await until(lambda: len(site.broker.site.mesh._early) == 3)
        passwords.change(folder / "users", "bob", None)
        site.broker.renew_access(access(folder, tokens={"key": "key"}))
        await site.later(301)
        await alice.expect(Connack, reason=0)
        await bob.expect(Connack, reason=0x87)
        await carol.expect(Connack, reason=0x87)


@pytest.mark.parametrize("name", ["\0metabroker", "a\0b", "\ud800"])
async def test_names_that_can_be_nobodys(folder: Path, name: str):
    async with Site(access=access(folder, tokens={"key": "key"})) as site:
        await refused(site, None, token(name), 0x86)
