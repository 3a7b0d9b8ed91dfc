"""Subscribers of a queue that comes to another home, whose sessions have ended with their site (docs/queues.md, "Several homes")."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.queues.sites.unclaimed import Unclaimed
from mqmesh.broker.queues.sites.wire import ALL, AllPost, HomesPost, JoinPost, decode_all, encode
from mqmesh.mqtt.packets import Subscription
from support.broker_site import Site

from .test_members_that_move import leave, mesh, news, shell, token

HERE, OTHERS = 1, (2, 3, 4)
TERM = 5


@given(st.lists(st.tuples(st.sampled_from(["begin", "gone", "heard"]), st.integers(1, 3), st.sampled_from(OTHERS)), max_size=25))
def test_it_is_over_when_each_site_was_heard_by_the_term_of_now(steps: list[tuple[str, int, int]]) -> None:
    unclaimed = Unclaimed()
    now, heard = 0, set[int]()
    for what, term, site in steps:
        if what == "begin":
            unclaimed.begin("news", term, ["a", "b"])
            now, heard = term, set()
        elif what == "gone":
            unclaimed.gone("news")
            now = 0
        else:
            unclaimed.heard("news", term, site)
            heard |= {site} if term == now else set()
        assert not unclaimed.over(0), "a broker that knows of no other one knows nothing"
        over = unclaimed.over(0b11100)
        assert over == ([("news", "a"), ("news", "b")] if now and heard == {*OTHERS} else [])
        now = 0 if over else now


async def taken_over(home: Site, *ends: str) -> None:
    """The queue has come here, with these subscribers whose sessions end with their connections."""
    sites = shell(home).sites
    sites._node = SimpleNamespace(known=lambda: 0b11110, live=lambda: 0, identity=SimpleNamespace(number=HERE))  # type: ignore[assignment]
    for name in ends:
        news(home).subscribe(name, ends=True)
    shell(home).sharing.terms["news"] = TERM
    sites.own_changed("news")


def comes(home: Site, client: str, origin: int, ends: bool) -> None:
    post = JoinPost(7, "news", client, token(client, origin, 0), 10, ends=ends)
    shell(home).sites._join(origin, encode(post))


def all_said(home: Site, origin: int, term: int = TERM) -> None:
    shell(home).sites._all(origin, encode(AllPost("news", term)))


def subscribers(home: Site) -> set[str]:
    return set(news(home).subscribers)


async def test_who_is_at_no_site_is_a_subscriber_no_more(tmp_path: Path) -> None:
    async with mesh(tmp_path, "site", subscribers=("from-the-file",)) as (home,):
        news(home).subscribe("kept", ends=False)
        local = await home.client("local")
        await local.subscribe("$queue/news", qos=1)
        await taken_over(home, "killed", "far", "cut", "longer")
        for client, ends in (("far", True), ("cut", True), ("longer", False), ("new", True)):
            comes(home, client, 3, ends)
        all_said(home, 3)
        shell(home).sites._drop(3)  # it is cut off: its clients may be there still
        all_said(home, 4)
        all_said(home, 2, term=TERM - 1)
        assert "killed" in subscribers(home), "site 2 was not heard"
        all_said(home, 2)
        assert subscribers(home) == {"from-the-file", "kept", "local", "far", "cut", "longer", "new"}
        shell(home).sites._homes(3, encode(HomesPost(8, {}, {})))  # it lives anew
        assert subscribers(home) == {"from-the-file", "kept", "local", "longer"}


async def test_a_site_that_is_forgotten_is_not_waited_for(tmp_path: Path) -> None:
    async with mesh(tmp_path, "site") as (home,):
        await taken_over(home, "killed", "left")
        comes(home, "left", 3, True)
        leave(home, "left", 3, for_good=True)
        all_said(home, 3)
        all_said(home, 4)
        assert subscribers(home) == {"killed"}
        sites = shell(home).sites
        sites._node = SimpleNamespace(known=lambda: 0b11010, live=lambda: 0, identity=SimpleNamespace(number=HERE))  # type: ignore[assignment]
        sites.event(SimpleNamespace(name="member_forgotten", fields={"number": 2}))  # type: ignore[arg-type]
        assert not subscribers(home)


async def test_a_home_that_loses_the_queue_ends_nothing(tmp_path: Path) -> None:
    async with mesh(tmp_path, "site") as (home,):
        await taken_over(home, "killed")
        all_said(home, 3)
        all_said(home, 4)
        del shell(home).sharing.terms["news"]
        shell(home).sites.own_changed("news")
        all_said(home, 2)
        assert subscribers(home) == {"killed"}


@pytest.mark.parametrize(("client", "term", "said"), [("c", TERM, True), ("\0leaving.5.2.c", TERM, False), ("c", 0, False)])
async def test_a_site_says_that_these_were_all_of_its_clients(tmp_path: Path, client: str, term: int, said: bool) -> None:
    """Not of a queue with one home, and not while a session is on its way to another site: nobody would have it."""
    async with mesh(tmp_path, "roam") as (home,):
        sites = shell(home).sites
        posts: list[tuple[str, bytes]] = []
        sites._post = lambda name, kind, body: posts.append((kind, body))  # type: ignore[method-assign]
        session, _ = home.broker.site.sessions.open(client, False, 60.0)
        session.subscriptions["$queue/far"] = Subscription("$queue/far", 1)
        sites.homes.told(2, {"far": False}, {"far": TERM - 1})
        shell(home).subscribed(session, "$queue/far", 1, 0)
        sites._homes(2, encode(HomesPost(1, {"far": False}, {"far": term} if term else {})))
        found = [decode_all(body) for kind, body in posts if kind == ALL]
        assert (found == [AllPost("far", term)]) is said
