"""A client that roams is one subscriber of a queue; two clients of one identifier are two (docs/queues.md, "Across sites")."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.queues.core.plan import ALL
from mqmesh.broker.queues.core.queue import Queue
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.queues.shell import Queues
from mqmesh.broker.queues.sites.fleeting import Fleeting
from mqmesh.broker.queues.sites.wire import HomesPost, JoinPost, LeavePost, decode_join, encode
from mqmesh.mqtt.packets import Subscription
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until

KEY = "0123456789abcdef"
LIFE = 7


def shell(site: Site) -> Queues:
    queues = site.broker.site.queues
    assert queues is not None
    return queues


def news(site: Site) -> Queue:
    return shell(site).store.queues["news"]


@asynccontextmanager
async def mesh(folder: Path, clients: str, count: int = 1, subscribers: tuple[str, ...] = ()) -> AsyncIterator[list[Site]]:
    """Sites in a star, or one that knows of sites 2 to 4; the first one is the home of `news`, which gives each message to everybody."""
    settings = QueueSettings({"news": Rules(plan=ALL)}, folder=folder / "queues", durability="os")
    settings.subscribers["news"] = list(subscribers)
    found: list[Site] = []
    async with AsyncExitStack() as stack:
        for number in range(1, count + 1):
            peers = [PeerSettings(found[0].broker.addresses[0])] if found else []
            of_mesh = MeshSettings("m", KEY, peers=peers, silence=1000, start_wait=0.0, clients=clients)
            site = Site(mesh=(number, of_mesh), store=MemoryStore(), queues=settings if number == 1 else None)
            found.append(await stack.enter_async_context(site))
        if count == 1:  # others are spoken for by the test
            shell(found[0]).sites._node = SimpleNamespace(known=lambda: 0b11100, live=lambda: 0)  # type: ignore[assignment]
        await until(lambda: all(shell(one).name_of("$queue/news") is not None for one in found))
        yield found


def token(client: str, origin: int, turn: int) -> bytes:
    return f"{client} {origin} {turn}".encode()


def join(home: Site, client: str, origin: int, turn: int = 0) -> None:
    shell(home).sites._join(origin, encode(JoinPost(LIFE, "news", client, token(client, origin, turn), 10)))


def leave(home: Site, client: str, origin: int, turn: int = 0, for_good: bool = False) -> None:
    shell(home).sites._leave(origin, encode(LeavePost("news", client, token(client, origin, turn), for_good)))


@pytest.mark.parametrize("seed", range(40))
async def test_a_client_that_roams_is_one_subscriber_in_whatever_order_its_sites_are_heard(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    async with mesh(tmp_path, "roam") as (home,):
        said: dict[int, list[tuple[bool, int]]] = {2: [], 3: [], 4: []}  # site -> what it says, in order: (joins, which turn)
        turns = chance.randint(1, 6)
        at = 0
        for turn in range(turns):
            at = chance.choice([one for one in said if one != at])
            said[at].append((True, turn))
            if turn + 1 < turns:
                said[at].append((False, turn))
        while origins := [one for one, left in said.items() if left]:
            origin = chance.choice(origins)
            joins, turn = said[origin].pop(0)
            (join if joins else leave)(home, "c", origin, turn)
            if chance.random() < 0.1:  # this site is cut off; what it has said before it says again when it is back
                shell(home).sites._drop(origin)
                if joins:
                    join(home, "c", origin, turn)
        queue = news(home)
        assert list(queue.subscribers) == ["c"]
        assert {key[2] for key in shell(home).sites._guests} == {at}
        assert queue.members["c"].active
        leave(home, "c", at, turns - 1, for_good=True)
        assert not queue.subscribers
        assert not queue.members["c"].active


async def test_a_session_that_ends_where_its_client_was_ends_nothing_where_it_is(tmp_path: Path) -> None:
    async with mesh(tmp_path, "roam") as (home,):
        join(home, "c", 2)
        join(home, "c", 3)
        leave(home, "c", 2, for_good=True)
        queue = news(home)
        assert list(queue.subscribers) == ["c"]
        assert queue.members["c"].active


async def test_a_session_that_ends_late_ends_nothing_while_its_client_is_away(tmp_path: Path) -> None:
    """A site that was cut discards a session that a Clean Start elsewhere has ended."""
    async with mesh(tmp_path, "roam") as (home,):
        queue = news(home)
        join(home, "c", 2)
        shell(home).sites._drop(2)
        join(home, "c", 3)
        leave(home, "c", 3)
        leave(home, "c", 2, for_good=True)
        assert list(queue.subscribers) == ["c"]
        client = await home.client("c", clean=False, expiry=1000)
        await client.subscribe("$queue/news", qos=1)
        await client.cut()
        await until(lambda: not queue.members["c"].active)
        leave(home, "c", 3, for_good=True)
        assert list(queue.subscribers) == ["c"]
        join(home, "c", 3, turn=1)
        leave(home, "c", 3, turn=1)
        again = await home.client("c", clean=True)  # the session here ends, and no other one
        assert list(queue.subscribers) == ["c"]
        await again.cut()
        leave(home, "c", 3, for_good=True)
        assert not queue.subscribers


async def test_a_session_that_ends_where_its_client_was_never_heard_is_the_end(tmp_path: Path) -> None:
    """The client was gone before its session had moved."""
    async with mesh(tmp_path, "roam") as (home,):
        join(home, "c", 2)
        leave(home, "c", 2)
        leave(home, "c", 3, for_good=True)
        assert not news(home).subscribers


async def test_a_roaming_client_gets_everything_once_while_it_goes_around(tmp_path: Path) -> None:
    async with mesh(tmp_path, "roam", 3, subscribers=("c",)) as found:
        shop = await found[0].client("shop")
        got: list[bytes] = []
        client: Client | None = None
        for number in range(9):
            client = await found[number % 3].client("c", clean=False, expiry=1000)
            await client.subscribe("$queue/news", qos=1)
            assert await shop.publish("$queue/news", b"%d" % number, qos=1) == 0
            got += [one.payload for one in await client.messages(1)]
            await until(lambda: not news(found[0]).held and not news(found[0]).waiting)
        assert got == [b"%d" % number for number in range(9)]
        assert list(news(found[0]).subscribers) == ["c"]


async def test_two_clients_of_one_identifier_stay_two_when_either_is_away(tmp_path: Path) -> None:
    async with mesh(tmp_path, "site") as (home,):
        queue = news(home)
        join(home, "c", 2)
        join(home, "c", 3)
        assert list(queue.subscribers) == ["c", "c@3"]
        leave(home, "c", 2)
        join(home, "c", 3, turn=1)  # its site was cut off, and is back
        assert shell(home).sites.member("news", "c", 3) == "c@3"
        assert not queue.members["c"].active
        join(home, "c", 2, turn=1)
        assert shell(home).sites.member("news", "c", 2) == "c"
        assert list(queue.subscribers) == ["c", "c@3"]


async def test_a_second_client_of_an_identifier_that_ends_while_its_site_is_cut_leaves_nothing(tmp_path: Path) -> None:
    async with mesh(tmp_path, "site") as (home,):
        shop = await home.client("shop")
        join(home, "c", 2)
        join(home, "c", 3)
        shell(home).sites._drop(3)
        assert await shop.publish("$queue/news", b"1", qos=1) == 0
        queue = news(home)
        leave(home, "c", 3, for_good=True)
        assert list(queue.subscribers) == ["c"]
        leave(home, "c", 2, for_good=True)
        assert not queue.subscribers
        await until(lambda: not queue.blocks)


async def test_a_subscriber_of_the_file_stays_one_when_its_client_elsewhere_leaves(tmp_path: Path) -> None:
    async with mesh(tmp_path, "site", 2, subscribers=("c",)) as found:
        client = await found[1].client("c")
        await client.subscribe("$queue/news", qos=1)
        await until(lambda: bool(shell(found[0]).sites._guests))
        await client.unsubscribe("$queue/news")
        await until(lambda: not shell(found[0]).sites._guests)
        assert list(news(found[0]).subscribers) == ["c"]


async def test_what_a_client_is_given_where_it_is_stays_with_it_when_the_other_site_is_heard_last(tmp_path: Path) -> None:
    """A queue with one active member: who has moved is the active one still."""
    async with mesh(tmp_path, "roam") as (home,):
        news(home).rules.single = True
        join(home, "c", 2)
        join(home, "c", 3)
        leave(home, "c", 2)
        queue = news(home)
        assert queue.first_active is queue.members["c"]


def lives(home: Site, origin: int, life: int, **queues: bool) -> None:
    """A site is heard under another life. queues: that it is the home of, and whether they are full."""
    shell(home).sites._homes(origin, encode(HomesPost(life, queues, {})))


class Far:
    """What is true at another site. kept: sessions, with whether they end with their connection; connected: those with one."""

    def __init__(self, home: Site, number: int) -> None:
        self.home, self.number, self.life = home, number, 1
        self.kept: dict[str, bool] = {}
        self.connected: dict[str, int] = {}
        self._turns = 0

    def come(self, client: str, ends: bool) -> None:
        self._turns += 1
        self.kept[client], self.connected[client] = ends, self._turns
        post = JoinPost(self.life, "news", client, token(client, self.number, self._turns), 10, ends=ends)
        shell(self.home).sites._join(self.number, encode(post))

    def go(self, client: str, for_good: bool) -> None:
        """Its connection ends, or the client unsubscribes."""
        turn = self.connected.pop(client, 0)
        leave(self.home, client, self.number, turn, for_good=for_good or self.kept[client])
        if for_good or self.kept[client]:
            del self.kept[client]

    def cut(self) -> None:
        """Away for some time: those who are connected say so again. Who left meanwhile has said that, too."""
        shell(self.home).sites._drop(self.number)
        for client in list(self.connected):
            self.come(client, self.kept[client])

    def die(self) -> None:
        self.life += 1
        self.connected.clear()
        self.kept = {client: ends for client, ends in self.kept.items() if not ends}

    def begin(self) -> None:
        lives(self.home, self.number, self.life)


@pytest.mark.parametrize("clients", ["roam", "site"])
@pytest.mark.parametrize("seed", range(10))
async def test_sessions_that_ended_with_their_site_are_subscribers_no_more(tmp_path: Path, seed: int, clients: str) -> None:
    chance = Random(seed)
    async with mesh(tmp_path, clients) as (home,):
        sites = [Far(home, number) for number in (2, 3, 4)]
        for _ in range(200):
            site = chance.choice(sites)
            client = f"{chance.choice('abc')}{site.number}"
            what = chance.choice(["come", "come", "come", "go", "go", "cut", "die", "forget"])
            if what == "come":
                site.come(client, chance.random() < 0.5)
            elif what == "go" and client in site.kept:
                site.go(client, chance.random() < 0.3)
            elif what == "cut":
                site.cut()
            elif what == "die":
                site.die()
                if chance.random() < 0.5:  # the home starts anew, and knows what its store has
                    shell(home).sites._drop(site.number)
                    found, sites_of_home = dict(shell(home).sites.fleeting._where), shell(home).sites
                    sites_of_home.fleeting = Fleeting(sites_of_home.keeping.put_fleeting)
                    sites_of_home.fleeting.restore(found)
                site.begin()
            elif what == "forget":
                site.die()
                shell(home).sites._drop(site.number, forgotten=True)
            assert set(news(home).subscribers) == {client for one in sites for client in one.kept}
            assert {one.name for one in news(home).members.values() if one.active} == {client for one in sites for client in one.connected}


async def test_a_client_that_went_elsewhere_stays_a_subscriber_when_its_first_site_dies(tmp_path: Path) -> None:
    async with mesh(tmp_path, "roam") as (home,):
        first, second = Far(home, 2), Far(home, 3)
        first.come("c", True)
        second.come("c", False)
        second.go("c", False)
        first.die()
        first.begin()
        assert list(news(home).subscribers) == ["c"]


@pytest.mark.parametrize(("client", "joins"), [("c", True), ("\0leaving.5.2.c", False)])
async def test_a_session_on_its_way_to_another_site_is_no_member(tmp_path: Path, client: str, joins: bool) -> None:
    """What it still has is drained over something like a connection."""
    async with mesh(tmp_path, "roam") as (home,):
        sites, posts = shell(home).sites, []
        session = SimpleNamespace(client_id=client, connection=object(), outbound=SimpleNamespace(limit=10), expiry=60.0)
        seat = sites.seat(SimpleNamespace(session=session), "far", 1, b"", False, None)  # type: ignore[arg-type]
        seat._post = lambda name, kind, body: posts.append(kind)
        lives(home, 2, 1, far=False)
        assert (seat.token is not None, len(posts)) == (joins, joins)


async def test_a_session_on_its_way_is_no_subscriber_after_a_restart(tmp_path: Path) -> None:
    """Its client is one at the other site, or none; under the name of the session it would be another one, for whom messages wait."""
    async with mesh(tmp_path, "roam") as (home,):
        queues = shell(home)
        for client in ("c", "\0leaving.5.2.d"):
            session, _ = home.broker.site.sessions.open(client, False, 60.0)
            session.subscriptions["$queue/news"] = Subscription("$queue/news", 1)
            queues.subscribed(session, "$queue/news", 1, 0)
        assert list(news(home).subscribers) == ["c"]
        assert "d" in news(home).members, "it is the client's seat if the session comes back"


async def test_a_site_that_is_only_away_may_still_have_its_clients(tmp_path: Path) -> None:
    async with mesh(tmp_path, "site") as (home,):
        far = Far(home, 2)
        far.come("c", True)
        shell(home).sites._drop(2)
        assert list(news(home).subscribers) == ["c"]
        lives(home, 2, far.life)
        assert list(news(home).subscribers) == ["c"]
        lives(home, 2, far.life + 1)
        assert not news(home).subscribers


async def test_an_earlier_version_does_not_say_whether_sessions_end(tmp_path: Path) -> None:
    async with mesh(tmp_path, "site") as (home,):
        join(home, "c", 2)
        said = JoinPost(1, "news", "d", token("d", 2, 0), 10)
        assert decode_join(encode(said[:8])) == said
        lives(home, 2, LIFE + 1)
        assert list(news(home).subscribers) == ["c"]
