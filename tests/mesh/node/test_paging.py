"""What waits for a site that is away: pages on the disk, and what happens at the bound (docs/custody.md)."""

from __future__ import annotations

from itertools import groupby

import pytest
from mqmesh.mesh.custody import custody
from mqmesh.mesh.custody.bounds import AtBound, CustodyBounds, CustodyRule
from mqmesh.mesh.custody.journal import decode_values, encode_window
from mqmesh.mesh.node.actions import Action, GivenUp, ReadPage, Returned, Send, Verdict
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.node.paging import AHEAD
from mqmesh.mesh.wire.control import Refusal
from support.models.mesh_net import Net, line

EACH = 96 + 1 + 3  # what a message of these tests counts


def away(bounds: CustodyBounds | None = None, durable: bool = True) -> Net:
    """Two wants "a" and "b" of one and is away; three wants them too, and is there."""
    config = MeshConfig(bounds=bounds or CustodyBounds(), keep_messages=10, page_messages=5, custody_messages=60)
    net = line(2, 1, 3, config=config, durable=durable)
    for number in (2, 3):
        for topic in ("a", "b"):
            net.nodes[number].subscribe(topic, None, 1, 0.0)
    net.settle()
    net.cut(1)
    net.settle()
    return net


def publish(net: Net, first: int, stop: int, topic: str = "a") -> list[Verdict | None]:
    """One message after the other."""
    answers = []
    for number in range(first, stop):
        answers.append(net.publish(1, topic, 1, payloads=[b"%03d" % number]))
        net.settle()
    return answers


def back(net: Net) -> list[bytes]:
    """Two returns: what it gets."""
    net.link(2, 1)
    net.settle()
    return net.got(2)


def numbers(first: int, stop: int) -> list[bytes]:
    """Payloads."""
    return [b"%03d" % number for number in range(first, stop)]


def test_what_waits_for_a_site_that_is_away_leaves_the_memory_and_comes_back_in_order() -> None:
    """It used to stop all who publish what that site wants, at half of what custody may hold."""
    net = away()
    assert set(publish(net, 0, 300)) == {Verdict.TAKEN}
    assert net.got(3) == numbers(0, 300)
    assert net.nodes[1].custody_in_memory()[0] <= 15
    assert net.nodes[1].custody()[0] == 300
    assert back(net) == numbers(0, 300)
    assert net.nodes[1].custody() == (0, 0)
    assert not net.disks[1].pages
    assert not net.disks[1].bodies


def publish_lone(net: Net, count: int) -> int:
    """Lone messages of one, but for the first by the direct lane; the node is asked for more only where it says that there may be. How
    often it was."""
    node, asked = net.nodes[1], 0
    route = node.route(b"a")
    assert route is not None
    assert publish(net, 0, 1) == [Verdict.TAKEN]
    for number in range(1, count):
        sends = node.publish_one(route.mask, b"a", 1, b"%03d" % number, net.now)
        assert sends is not None
        for link, frame in sends:
            net._do(1, Send(link, bytes(frame), False))
        node.keep_one()
        net.save(1)
        if node.stirred:
            asked += 1
            net.settle()
    return asked


def test_lone_messages_for_a_site_that_is_away_leave_the_memory_too() -> None:
    net = away()
    assert publish_lone(net, 300)
    assert net.nodes[1].custody_in_memory()[0] <= 15
    assert back(net) == numbers(0, 300)


def test_a_lone_message_that_was_sent_leaves_nothing_to_do() -> None:
    net = line(1, 3, durable=True)
    net.nodes[3].subscribe("a", None, 1, 0.0)
    net.settle()
    assert publish_lone(net, 5) == 0
    net.settle()
    assert net.got(3) == numbers(0, 5)


def test_a_restart_finds_the_pages() -> None:
    net = away()
    publish(net, 0, 100)
    for end in [end for end in net.ends if end[0] == 1]:
        net.cut(end[1])
    net.add(1, epoch=2000)
    assert net.nodes[1].custody()[0] == 100
    net.link(1, 3)
    assert back(net) == numbers(0, 100)
    assert net.got(3) == numbers(0, 100)
    assert net.nodes[1].custody() == (0, 0)


def test_at_the_bound_a_message_is_refused_for_everybody_until_there_is_room() -> None:
    net = away(CustodyBounds(bytes=50 * EACH))
    answers = publish(net, 0, 60)
    assert answers == [Verdict.TAKEN] * 50 + [Verdict.REFUSED] * 10
    assert net.got(3) == numbers(0, 50)
    assert back(net) == numbers(0, 50)
    assert net.unblocked == [1]
    assert publish(net, 60, 61) == [Verdict.TAKEN]


def test_the_oldest_go_where_a_policy_says_so_and_others_stay() -> None:
    rule = CustodyRule(site="b2", topics=("a",), at_bound=AtBound.DROP_OLDEST)
    net = away(CustodyBounds(bytes=50 * EACH, rules=(rule,)))
    kept = []
    for number in range(0, 120, 2):
        assert publish(net, number, number + 1, "a") == [Verdict.TAKEN]
        if number < 40:
            assert publish(net, number + 1, number + 2, "b") == [Verdict.TAKEN]
            kept.append(b"%03d" % (number + 1))
    dropped = sum(given.messages for _, given in net.given_up) + sum(one.run.count for _, one in net.returned)
    got = back(net)
    assert [payload for payload in got if int(payload) % 2] == kept
    assert got == sorted(got)
    assert got[-1] == b"118"
    assert len(got) + dropped == 80
    assert len(got) <= 50
    assert {given.reason for _, given in net.given_up} == {"dropped"}
    assert len(net.got(3)) == 80


def test_what_goes_for_a_message_of_the_direct_lane_is_told() -> None:
    rule = CustodyRule(site="b2", topics=("a",), at_bound=AtBound.DROP_OLDEST)
    net = away(CustodyBounds(bytes=50 * EACH, rules=(rule,)))
    publish(net, 0, 50)
    node = net.nodes[1]
    route = node.route(b"a")
    assert route is not None
    assert node.publish_one(route.mask, b"a", 1, b"050", net.now)
    assert not node.keep_one()
    assert [one for one in node.take() if isinstance(one, GivenUp | Returned)]


def test_a_site_that_expires_gets_nothing_new_at_its_bound_and_others_do() -> None:
    for durable in (True, False):
        net = away(CustodyBounds(bytes=30 * EACH, at_bound=AtBound.EXPIRE), durable)
        assert set(publish(net, 0, 60)) == {Verdict.TAKEN}
        assert net.got(3) == numbers(0, 60)
        assert net.nodes[1].counters.custody_expired == 30
        assert back(net) == numbers(0, 30)


def test_what_is_older_than_it_may_be_goes() -> None:
    net = away(CustodyBounds(age=60.0, at_bound=AtBound.EXPIRE))
    publish(net, 0, 40)
    net.now += 50
    publish(net, 40, 80)
    net.now += 20
    net.nodes[1].handle_timer(net.now)
    net.settle()
    got = back(net)
    assert got[-40:] == numbers(40, 80)
    assert len(got) + sum(given.messages for _, given in net.given_up) + sum(one.run.count for _, one in net.returned) == 80
    assert len(got) < 60


def test_a_site_that_is_given_up_leaves_nothing_behind() -> None:
    net = away()
    publish(net, 0, 100)
    net.nodes[1].forget(2, net.now)
    net.settle()
    assert net.nodes[1].custody() == (0, 0)
    assert sum(given.messages for _, given in net.given_up) + sum(one.run.count for _, one in net.returned) == 100
    assert not net.disks[1].pages


def refused(messages: int) -> Net:
    """Two has refused messages for a shared subscription, all that it was sent, and is away before one knows. Its link had the number 1."""
    net = line(2, 1, config=MeshConfig(keep_messages=10, page_messages=5, custody_messages=600), durable=True)
    net.nodes[2].subscribe("a", "g", 1, 0.0)
    net.settle()
    net.hold = True
    publish(net, 0, messages)
    net.stuck.add((2, 1))
    net.nodes[2].unsubscribe("a", "g", net.now)
    for _, deliver in net.delivered:
        assert deliver.token is not None
        net.nodes[2].refuse(deliver.token, ("g", "a"), net.now)
        net.commit(2, deliver.token)
    net.hold = False
    net.settle()
    return net


def test_a_join_that_refuses_messages_of_a_page_waits_for_the_commit_of_the_page_only() -> None:
    """It used to be lost when the page was not written yet: the site got nothing any more."""
    net = refused(14)
    net.cut(1)
    net.save(1)
    net.full.add(1)
    net.settle()
    assert net.nodes[1].custody_in_memory()[0] < 14
    assert not net.disks[1].pages
    net.link(2, 1)
    net.settle()
    assert net.nodes[1].custody()[0] == 14
    net.full.discard(1)
    net.save(1)
    actions = net.nodes[1].take()
    assert sum(isinstance(action, ReadPage) for action in actions) == 1
    for action in actions:
        net._do(1, action)
    net.settle()
    assert [(r.run.payloads, r.reason) for _, r in net.returned] == [([payload], "refused") for payload in numbers(0, 14)]
    assert net.nodes[1].custody() == (0, 0)


def test_a_site_that_refuses_what_it_was_never_sent_has_nothing_read_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to have all read at once that waits for it."""
    net = line(2, 1, config=MeshConfig(keep_messages=10, page_messages=5, custody_messages=600), durable=True)
    net.nodes[2].subscribe("a", "g", 1, 0.0)
    net.settle()
    publish(net, 0, 1)
    net.cut(1)
    net.settle()
    publish(net, 1, 100)
    values = net.disks[2].values
    [(owner, window)] = decode_values(values).windows.items()
    window.kept = [Refusal(1000, 1, 2**31, ("g", "a"))]
    values[b"w" + owner[0].to_bytes(2, "big") + owner[1]] = encode_window(window)
    net.add(2, epoch=2000).subscribe("a", "g", 1, net.now)
    done: list[type[Action]] = []

    def do(number: int, action: Action) -> None:
        done.append(type(action))
        Net._do(net, number, action)

    monkeypatch.setattr(net, "_do", do)
    assert back(net) == numbers(0, 100)
    assert max(len(list(same)) for kind, same in groupby(done) if kind is ReadPage) <= 1 + AHEAD
    assert net.nodes[1].custody() == (0, 0)


def test_the_pages_of_one_site_do_not_bound_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """They used to be counted together."""
    monkeypatch.setattr(custody, "PAGES_MOST", 10)
    net = line(2, 1, 3, config=MeshConfig(keep_messages=10, page_messages=5, custody_messages=60), durable=True)
    net.nodes[2].subscribe("a", None, 1, 0.0)
    net.nodes[3].subscribe("b", None, 1, 0.0)
    net.settle()
    net.cut(1)
    net.cut(2)
    net.settle()
    taken = [publish(net, 0, 80, topic).count(Verdict.TAKEN) for topic in ("a", "b")]
    assert 10 * 5 < min(taken) <= max(taken) < 80
    assert back(net) == numbers(0, taken[0])
    assert publish(net, 80, 100, "a") == [Verdict.TAKEN] * 20


def test_pages_expire_after_a_restart_too() -> None:
    """They used to stay until the site came back."""
    net = away()
    for payload in numbers(0, 60):
        net.publish(1, "a", payloads=[payload], expiry=30)
        net.settle()
    assert net.disks[1].pages
    for end in [end for end in net.ends if end[0] == 1]:
        net.cut(end[1])
    net.add(1, epoch=2000)
    net.now += 100
    net.nodes[1].handle_timer(net.now)
    net.settle()
    assert net.nodes[1].custody() == (0, 0)
    assert not net.disks[1].pages
