"""The metabroker's topics: who may come in as the metabroker, who reads requests and answers, who writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker.mesh.test_retained import linked, settings
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.metabroker import IDENTITY, SITE
from mqmesh.broker.auth import metabroker_secret as secret
from mqmesh.broker.auth.metabroker_secret import SecretError, make_shared, read_shared
from mqmesh.broker.auth.permissions import Access
from mqmesh.broker.config import MetabrokerSettings
from mqmesh.mqtt.packets import Connack, Connect, Pingreq, Pingresp, Puback, Pubcomp, Publish, Pubrec, Pubrel, Will
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from mqmesh.mqtt.topics import matches
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until

PASSWORD = b"a password of the metabroker"
RULE = MetabrokerSettings(password=PASSWORD)
HEX = "0123456789abcdef" * 2
MINE = f"me/{HEX}"  # a session of the client `me`
FOREVER = 0xFFFFFFFF


def protected(**site: object) -> Site:
    return Site(metabroker=RULE, **site)  # type: ignore[arg-type]


async def metabroker(site: Site, *filters: str, version: int = 5) -> Client:
    client = await site.client("metabroker", version, password=PASSWORD)
    await client.subscribe("metabroker/request/#", *filters, qos=2)
    return client


# The rule alone

LEVELS = st.lists(
    st.sampled_from(["metabroker", "request", "response", "connect", "connack", "me", "you", HEX, "+", "x"]), min_size=1, max_size=6
)
NAMES = ["request/connect", f"request/{MINE}/publish"] + [
    f"response/{name}{rest}" for name in ("me", "you", HEX, HEX[::-1], "x" * 32) for rest in ("", "/connack", "/publish", "/connack/x")
]


@given(LEVELS, st.sampled_from(["", "/#"]), st.booleans(), st.sampled_from(["me", HEX]), st.booleans())
def test_no_filter_brings_what_is_not_for_its_client(levels, end, shared, client, rooted):
    """Whatever a client is granted, it sees answers to itself; never more."""
    access = Access(RULE)
    bare = "/".join((["metabroker", "response"] if rooted else []) + levels) + end
    if access.subscribe(client, f"$share/g/{bare}" if shared else bare) is not None:
        return
    for topic in [f"metabroker/{name}" for name in NAMES]:
        if not matches(bare, topic) or not access.sees(topic, bare, None if shared else client):
            continue
        _, which, name, *_ = topic.split("/")
        assert which == "response"
        assert name in bare.split("/"), "spelled out"
        assert name == client


@pytest.mark.parametrize(
    ("topic_filter", "granted"),
    [
        ("#", True),
        ("+/#", True),
        ("+/response/#", True),
        ("+/request/#", True),
        ("$share/g/#", True),
        ("metabroker", True),
        ("metabroker/news", True),
        ("metabrokers/response/#", True),
        ("metabroker/#", False),
        ("metabroker/+/connect", False),
        ("metabroker/request/#", False),
        ("metabroker/request/connect", False),
        ("$share/g/metabroker/request/#", False),
        ("metabroker/response", False),
        ("metabroker/response/#", False),
        ("metabroker/response/+/publish", False),
        ("$share/g/metabroker/response/#", False),
        ("metabroker/response/me/connack", True),
        ("metabroker/response/me/#", True),
        ("$share/g/metabroker/response/me/connack", False),
        ("metabroker/response/you/connack", False),
        (f"metabroker/response/{MINE}/#", True),
        (f"$share/g/metabroker/response/{MINE}/#", False),
        (f"metabroker/response/you/{HEX}/#", False),
        (f"metabroker/response/{HEX}/#", False),
    ],
)
@pytest.mark.parametrize("version", [4, 5])
async def test_subscriptions(topic_filter, granted, version):
    async with protected() as site:
        client = await site.client("me", version)
        suback = await client.subscribe("other", topic_filter)
        refused = Reason.NOT_AUTHORIZED if version == 5 else 0x80
        assert list(suback.reasons) == [0, 0 if granted else refused]
        assert site.broker.sys_topics.values()["access/subscriptions/refused"] == str(int(not granted))
        session = site.broker.site.sessions.get("me")
        assert session is not None
        assert (topic_filter in session.subscriptions) is granted
        assert list((await (await metabroker(site)).subscribe(topic_filter)).reasons) == [0]


def test_without_the_rule_these_are_topics_as_any_others():
    access = Access(None)
    assert access.subscribe("me", "metabroker/#") is None
    assert access.rights("metabroker/response/x/publish") is None
    assert access.sees("metabroker/request/connect", "#", "me")
    assert access.login("metabroker", None) is None


# Who reads

WIDE = ("#", "+/#", "+/request/#", "+/response/+/+", "+/+/+/connack", "$share/g/#", "$share/h/+/+/#")


def say(client: Client, topic: str, payload: bytes, qos: int) -> None:
    """PUBLISH; what comes back `heard` leaves out."""
    client.send(Publish(topic, payload, qos, packet_id=client.next_id() if qos else 0))


async def heard(client: Client, count: int) -> list[Publish]:
    """The next messages, acknowledged, among answers to what the client itself has sent; PUBRECs are answered."""
    found: list[Publish] = []
    while len(found) < count:
        packet = await client.receive()
        if isinstance(packet, Publish):
            found.append(packet)
            if packet.qos:
                client.send(Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id))
        elif isinstance(packet, Pubrec):
            client.send(Pubrel(packet.packet_id))
        elif isinstance(packet, Pubrel):
            client.send(Pubcomp(packet.packet_id))
    return found


async def quiet(client: Client) -> None:
    """No message has come, and none is on the way; answers may be."""
    client.send(Pingreq())
    while not isinstance(packet := await client.receive(), Pingresp):
        assert not isinstance(packet, Publish), packet


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_wide_filters_bring_everything_else(version, qos):
    """By every way through the broker: alone, in a run, and in a span of different topics."""
    async with protected() as site:
        spy = await site.client("spy", version)
        await spy.subscribe(*WIDE, qos=2)
        me = await site.client("me", version)
        await me.subscribe("metabroker/response/me/connack", f"metabroker/response/{MINE}/#", qos=2)
        server = await metabroker(site, version=version)
        for number in range(3):
            say(me, "metabroker/request/connect", b"secret", qos)
            say(me, f"metabroker/request/{MINE}/publish", b"%d" % number, qos)
            await heard(server, 2)
            say(server, "metabroker/response/me/connack", b"session", qos)
            say(server, f"metabroker/response/{MINE}/publish", b"%d" % number, qos)
            assert [one.payload for one in await heard(me, 2)] == [b"session", b"%d" % number]
        many = [(f"{MINE}/{verb}", b"." * size) for size, verb in enumerate(["publish", "puback"] * 12)] + [
            (f"{MINE}/publish", b"alike")
        ] * 40
        for client, other, root in ((me, server, "request"), (server, me, "response")):
            client.send(
                *[
                    Publish(f"metabroker/{root}/{topic}", payload, qos, packet_id=1000 + n if qos else 0)
                    for n, (topic, payload) in enumerate(many)
                ]
            )
            assert [one.payload for one in await heard(other, len(many))] == [payload for _, payload in many]
        say(me, "metabroker/news", b"for all", qos)
        assert {one.topic for one in await heard(spy, 3)} == {"metabroker/news"}, "once for itself, once for each group"
        await quiet(spy)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("place", [HEX, "connect", "x/y"])
async def test_what_is_below_a_clients_name_is_that_clients(version, place):
    """Its connect requests and its sessions, whether it is there or not; another client that knows a session neither reads nor writes."""
    async with protected() as site:
        server = await metabroker(site)
        other = await site.client("other", version)
        request, refused = f"metabroker/request/me/{place}", Reason.NOT_AUTHORIZED if version == 5 else 0x80
        for there in (False, True):
            if there:
                me = await site.client("me", version)
            for topic_filter in ("#", "publish", "+"):
                assert list((await other.subscribe(f"metabroker/response/me/{place}/{topic_filter}")).reasons) == [refused]
            for qos in (1, 2):
                assert await other.publish(request, b"not its own", qos) == (Reason.NOT_AUTHORIZED if version == 5 else 0)
            other.send(*[Publish(request, b"." * size) for size in range(20)])
            await other.nothing()
        assert await me.publish(request, b"its own", 1) == 0
        assert [one.payload for one in await server.messages(1)] == [b"its own"]
        stranger = await site.dial(version)
        stranger.send(Connect("stranger", version, will=Will(request)))
        assert (await stranger.expect(Connack)).reason == (Reason.NOT_AUTHORIZED if version == 5 else 5)
        await server.nothing()


async def test_retained_messages_from_before_the_rule_are_not_shown():
    """And none are made: a request that asks for it is refused."""
    async with protected() as site:
        for topic in ("metabroker/request/connect", "metabroker/response/me/connack", "metabroker/news"):
            site.broker.site.router.access, rule = Access(None), site.broker.site.router.access
            await (await site.client("old")).publish(topic, b"kept", 1, retain=True)
            site.broker.site.router.access = rule
            site.broker.site.router.filters_changed(None)
        spy, me = await site.client("spy"), await site.client("me")
        await spy.subscribe("#", "+/request/#", qos=1)
        assert [one.topic for one in await spy.messages(1)] == ["metabroker/news"]
        await spy.nothing()
        await me.subscribe("metabroker/response/me/#", qos=1)
        assert [one.topic for one in await me.messages(1)] == ["metabroker/response/me/connack"]
        assert await me.publish("metabroker/request/connect", b"x", 1, retain=True) == Reason.NOT_AUTHORIZED
        assert len(site.broker.site.retained) == 3


# Who writes


@pytest.mark.parametrize("version", [4, 5])
async def test_forged_answers_are_refused_on_every_way(version):
    async with protected() as site:
        me = await site.client("me", version)
        topics = ["metabroker/response/me/connack", f"metabroker/response/{MINE}/publish"]
        await me.subscribe(*topics, qos=2)
        server = await metabroker(site)
        for topic in topics:  # both are known topics, with fans of their own
            await server.publish(topic, b"genuine", 1)
        await heard(me, 2)
        forger = await site.client("forger", version)
        answers = [await forger.publish(topic, b"forged", qos) for topic in topics for qos in (1, 2)]
        assert answers == [Reason.NOT_AUTHORIZED if version == 5 else 0] * 4
        await forger.publish(topics[0], b"forged", 0)
        spanned = [Publish(topic, b"f" * n, 0) for n, topic in enumerate(topics * 20)] + [Publish(topics[0], b"forged")] * 30
        forger.send(*spanned)
        await forger.nothing()
        if version == 5:
            forger.send(Publish(topics[0], b"forged", properties={Property.TOPIC_ALIAS: 1}))
            forger.send(Publish("", b"forged", properties={Property.TOPIC_ALIAS: 1}))
            await forger.nothing()
        await me.nothing()
        count = 4 + 1 + len(spanned) + (2 if version == 5 else 0)
        assert site.broker.sys_topics.values()["access/publish/refused"] == str(count)
        await server.publish(topics[0], b"genuine", 1)
        assert [one.payload for one in await heard(me, 1)] == [b"genuine"]


async def test_a_flood_of_forged_answers_is_few_lines_in_the_log(caplog):
    async with protected() as site:
        forger = await site.client("forger")
        forger.send(*[Publish(f"metabroker/response/me/{n}", b"f") for n in range(1500)])
        await forger.nothing()
    lines = [one for one in caplog.messages if one.startswith("event=publish-refused")]
    assert 1 <= len(lines) <= 4
    assert "client=forger" in lines[0]
    assert "topic=metabroker/response/me/0" in lines[0]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("topic", "retain", "allowed"),
    [
        ("metabroker/response/me/connack", False, False),
        ("metabroker/request/connect", False, False),  # it could not say who asks
        (f"metabroker/request/{MINE}/disconnect", False, True),
        (f"metabroker/request/{MINE}/disconnect", True, False),
        (f"metabroker/request/you/{HEX}/disconnect", False, False),
    ],
)
async def test_wills(topic, retain, allowed, version):
    async with protected() as site:
        server = await metabroker(site)
        client = await site.dial(version)
        client.send(Connect("me", version, will=Will(topic, b"", 1, retain)))
        connack = await client.expect(Connack)
        if not allowed:
            assert connack.reason == (Reason.NOT_AUTHORIZED if version == 5 else 5)
            await client.closed()
            return
        assert connack.reason == 0
        await client.cut()
        assert (await server.messages(1))[0].topic == topic


@pytest.mark.parametrize("version", [4, 5])
async def test_the_metabroker_hears_that_a_client_has_vanished(version):
    """One that listened to it, and did not say DISCONNECT, when its MQTT session ends; its own will goes out, too."""
    async with protected() as site:
        server = await metabroker(site)
        for listens, cut in ((True, False), (False, True), (True, True)):
            me = await site.client("me", version, will=Will("other"))
            await me.subscribe(f"metabroker/response/{MINE}/#" if listens else "metabroker/status/#")
            await (me.cut() if cut else me.leave())
            await site.gone("me")
        assert [one.topic for one in await server.messages(1)] == ["metabroker/request/me/disconnect"]
        await server.nothing()


async def test_a_client_whose_session_stays_has_not_vanished():
    async with protected() as site:
        server = await metabroker(site)
        me = await site.client("me", clean=False, expiry=FOREVER)
        await me.subscribe(f"metabroker/response/{MINE}/#")
        await me.cut()
        me = await site.client("me", clean=False, expiry=FOREVER)
        await server.nothing()
        await me.cut()
        await site.client("me")  # a clean start: a new life
        assert [one.topic for one in await server.messages(1)] == ["metabroker/request/me/disconnect"]


async def test_a_will_from_before_the_rule_is_not_published():
    async with protected() as site:
        reader = await site.client("reader")
        await reader.subscribe("metabroker/response/reader/#")
        site.broker.site.router.access, rule = Access(None), site.broker.site.router.access
        forger = await site.client("forger", will=Will("metabroker/response/reader/connack", b"forged"))
        site.broker.site.router.access = rule
        site.broker.site.router.filters_changed(None)
        await forger.cut()
        await site.gone("forger")
        await reader.nothing()


# Who is the metabroker


@pytest.mark.parametrize("version", [4, 5])
async def test_nobody_comes_in_as_the_metabroker_without_its_password(version):
    async with protected() as site:
        server = await metabroker(site, version=version)
        for password, reason in (
            (None, Reason.NOT_AUTHORIZED),
            (b"", Reason.BAD_USER_NAME_OR_PASSWORD),
            (PASSWORD[:-1], Reason.BAD_USER_NAME_OR_PASSWORD),
        ):
            client = await site.dial(version)
            client.send(Connect("metabroker", version, user_name="metabroker" if password is not None else None, password=password))
            want = reason if version == 5 else {Reason.NOT_AUTHORIZED: 5}.get(reason, 4)
            assert (await client.expect(Connack)).reason == want
            await client.closed()
        assert site.broker.sys_topics.values()["access/connects/refused"] == "3"
        await (await site.client("me", version)).publish("metabroker/request/connect", b"x", 1)
        assert (await server.messages(1))[0].payload == b"x", "its session was not taken over"


async def test_the_password_may_stand_in_a_file_of_this_user_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(SecretError, match="No such file"):
        read_shared()
    made = make_shared()
    assert make_shared() == read_shared() == made
    assert len(made) == 64
    path = secret.shared_file()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    async with Site(metabroker=MetabrokerSettings()) as site:
        await site.client("metabroker", password=made)
        path.chmod(0o640)
        client = await site.dial()
        client.send(Connect("metabroker", user_name="m", password=made))
        assert (await client.expect(Connack)).reason == Reason.BAD_USER_NAME_OR_PASSWORD


def test_a_password_that_can_be_read_again_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, as that it cannot be read; whoever tries."""
    access = Access(MetabrokerSettings(file=tmp_path / "secret"))
    for _ in range(2):
        assert access.login("metabroker", PASSWORD) is not None
    (tmp_path / "secret").write_bytes(PASSWORD)
    assert access.login("metabroker", b"another one") is not None
    assert access.login("metabroker", PASSWORD) is None
    assert [one.split()[0] for one in caplog.messages] == ["event=no-metabroker", "event=metabroker-password-back"]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_connect_request_says_who_sent_it(version, qos):
    """In a user property that no client can write, whatever else it says."""
    async with protected() as site:
        server = await metabroker(site)
        me = await site.client("me", version)
        claims = {Property.CONTENT_TYPE: "x", Property.USER_PROPERTY: [("a", "1"), (IDENTITY, "you"), ("b", "2"), (IDENTITY, "me")]}
        for properties in [{}, claims] if version == 5 else [{}]:
            for _ in range(2):
                await me.publish("metabroker/request/connect", b"x", qos, properties=properties)
        messages = await server.messages(4 if version == 5 else 2)
        said = [one.properties[Property.USER_PROPERTY] for one in messages]
        assert said[:2] == [[(IDENTITY, "me")]] * 2
        assert said[2:] == [[("a", "1"), ("b", "2"), (IDENTITY, "me")]] * (len(said) - 2)
        assert [one.properties.get(Property.CONTENT_TYPE) for one in messages[2:]] == ["x"] * (len(said) - 2)


# What outlives the connection


async def test_subscriptions_from_before_the_rule_count_no_longer():
    store = MemoryStore()
    async with Site(metabroker=MetabrokerSettings(client="elsewhere", password=PASSWORD), store=store) as site:
        site.broker.site.router.access = Access(None)
        spy = await site.client("spy", clean=False, expiry=FOREVER)
        await spy.subscribe("metabroker/request/#", "$share/g/metabroker/request/#", "metabroker/response/+/connack", "#", qos=1)
        await spy.leave()
        await site.gone("spy")
    async with protected(store=store) as site:
        server = await metabroker(site)
        spy = await site.client("spy", clean=False, expiry=FOREVER)
        assert spy.connack is not None
        assert spy.connack.session_present
        await (await site.client("me")).publish("metabroker/request/connect", b"secret", 1)
        await server.messages(1)
        await server.publish("metabroker/response/me/connack", b"session", 1)
        await spy.nothing()
        await spy.unsubscribe("metabroker/request/#")
        await server.publish("other", b"x", 1)
        assert [one.topic for one in await spy.messages(1)] == ["other"]


# Over the mesh


@pytest.mark.parametrize("mode", ["routed", "flood"])
async def test_other_sites_keep_to_it_too(mode):
    """A metabroker at one site serves clients of both; nobody at either reads or writes what is not his."""
    here, there = settings(), settings()
    here.mode = there.mode = mode
    async with protected(mesh=(1, here)) as one:
        there.peers = settings(one).peers
        async with protected(mesh=(2, there)) as two:
            await linked(one, two)
            spies = [await site.client("spy") for site in (one, two)]
            for spy in spies:
                await spy.subscribe(*WIDE, qos=2)
            server = await metabroker(one)
            me = await two.client("me")
            await me.subscribe("metabroker/response/me/connack", f"metabroker/response/{MINE}/#", qos=2)
            node = [site.broker.site.mesh.node for site in (one, two)]  # type: ignore[union-attr]
            await until(lambda: node[1].route(b"metabroker/request/connect") is not None)
            await until(lambda: node[0].route(f"metabroker/response/{MINE}/publish".encode()) is not None)
            if mode == "routed":
                assert node[0].route(b"metabroker/request/connect") is None, "a wildcard at the other site is no interest"
            for qos in (0,) if mode == "flood" else (0, 1, 2):
                await me.publish("metabroker/request/connect", b"secret", qos)
                await (await one.client("near")).publish(f"metabroker/request/near/{HEX}/publish", b"near", qos)
                got = await server.messages(2)
                assert {one.payload for one in got} == {b"secret", b"near"}
                stamped = next(one for one in got if one.payload == b"secret")
                assert stamped.properties[Property.USER_PROPERTY] == [(SITE, "site2"), (IDENTITY, "me")]
                await server.publish("metabroker/response/me/connack", b"session", qos)
                await server.publish(f"metabroker/response/{MINE}/publish", b"news", qos)
                assert [one.payload for one in await me.messages(2)] == [b"session", b"news"]
            forger = await two.client("forger")
            assert await forger.publish("metabroker/response/me/connack", b"forged", 1 if mode == "routed" else 0) in (
                0,
                Reason.NOT_AUTHORIZED,
            )
            await server.publish("end", b"", 0)
            for spy in spies:
                first = await spy.expect(Publish)
                assert first.topic == "end"
            await me.nothing()
            refused = two.broker.context.counters.denied_messages
            assert refused == 1


async def test_a_site_without_the_rule_cannot_have_shared_subscriptions_served_elsewhere():
    """Its picks for a group with a wildcard over the metabroker's topics come to nobody."""
    async with protected(mesh=(1, settings())) as one, Site(mesh=(2, settings(one))) as two:
        two.broker.site.router.access = Access(None)
        two.broker.site.mesh.node.reserve(())  # type: ignore[union-attr]
        await linked(one, two)
        spy = await one.client("spy")
        await spy.subscribe("$share/g/#", "#", qos=1)
        node = two.broker.site.mesh.node  # type: ignore[union-attr]
        await until(lambda: node.route(b"metabroker/request/connect") is not None)
        await (await two.client("me")).publish("metabroker/request/connect", b"secret", 1)
        await (await two.client("you")).publish("other", b"x", 1)
        assert {one.topic for one in await spy.messages(2)} == {"other"}
        await spy.nothing()


async def test_only_the_metabroker_says_how_it_is():
    """What anyone may read at `metabroker/status/...`, retained or not, comes from the metabroker."""
    async with protected() as site:
        reader, liar, owner = await site.client("reader"), await site.client("liar"), await metabroker(site)
        assert list((await reader.subscribe("metabroker/status/#", "#", qos=1)).reasons) == [1, 1]
        liar.send(Publish("metabroker/status/metabroker", b"forged", 1, packet_id=7))
        assert (await liar.receive()).reason == Reason.NOT_AUTHORIZED
        owner.send(Publish("metabroker/status/metabroker", b"true", 1, True, packet_id=7))
        assert [message.payload for message in await heard(reader, 1)] == [b"true"]
        late = await site.client("late")
        await late.subscribe("metabroker/status/+")
        assert [(message.payload, message.retain) for message in await heard(late, 1)] == [(b"true", True)]
