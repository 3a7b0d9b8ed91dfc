"""What operators change of one broker's mesh: whom they mean, and what stays changed."""

from __future__ import annotations

from types import SimpleNamespace as Fake
from typing import Any
from uuid import UUID

import pytest
from mqmesh.base.backoff import Backoff
from mqmesh.broker.mesh.management import Management
from mqmesh.broker.mesh.shell import MeshShell
from mqmesh.mesh.topology.settings import MeshSettings, PeerSettings
from mqmesh.mesh.wire.identity import Identity
from mqmesh.mqtt.errors import UsageError

HERE, B = (Identity("m", name, number, UUID(int=number), 1000) for name, number in (("a", 1), ("b", 2)))
DIALLED = "mqtt://b:1883"


def link_to(address: str, dialled: bool) -> Any:
    said: list[str] = []
    machine = Fake(dialled=dialled)
    return Fake(address=address, peer=B, cost=1, id=1, machine=machine, said=said, close=lambda reason, text: said.append(text))


def broker_with(link: Any, *peers: PeerSettings) -> Any:
    """A broker's shell with one link that is up, and what was done: addresses no longer dialled, costs said."""
    shell = Fake(settings=MeshSettings("m", peers=list(peers)), identity=HERE, links={1: link}, by_number={2: link})
    shell.costs, shell.met, shell.errors, shell.down_since = {}, {}, {}, {}
    shell.ended, shell.priced = [], []
    shell.dialler = Fake(end=lambda peer: shell.ended.append(peer.address))
    shell.node = Fake(link_cost=lambda id_, cost, now: shell.priced.append(cost), members=list, renew=lambda keys, managers, brokers: None)
    shell.cost_of, shell.now, shell.drain, shell.status_soon = (lambda one: one.cost), (lambda: 0.0), (lambda: None), (lambda: None)
    shell.set_rules = lambda rules: 0
    return shell


@pytest.mark.parametrize("who", ["b", "2", DIALLED, "10.0.0.2:50000"])
def test_a_peer_is_removed_whose_own_connection_is_the_link(who: str) -> None:
    shell = broker_with(link_to("10.0.0.2:50000", dialled=False), PeerSettings(DIALLED))
    shell.met[DIALLED] = B
    Management(shell).remove_peer(who, dry=False)
    assert (shell.settings.peers, shell.ended) == ([], [DIALLED])


@pytest.mark.parametrize("who", ["²", "9" * 5000])
def test_what_is_no_number_is_a_name(who: str) -> None:
    with pytest.raises(UsageError, match="is not known here"):
        Management(broker_with(link_to(DIALLED, True)))._number(who)


def test_a_cost_outlives_the_connection_until_the_file_is_read_again() -> None:
    accepted = link_to("10.0.0.2:50000", dialled=False)
    shell = broker_with(accepted, PeerSettings(DIALLED))
    shell.met[DIALLED] = B
    management = Management(shell)
    management.set_cost("b", 7, dry=False)
    assert (accepted.cost, shell.costs, [one.cost for one in shell.settings.peers]) == (7, {2: 7}, [7])
    accepted.machine.incarnation = 1
    shell.node.why_not = lambda peer: None
    management.renew(MeshSettings("m", peers=[PeerSettings(DIALLED)]))
    assert (accepted.cost, shell.costs, [one.cost for one in shell.settings.peers]) == (1, {}, [1])
    assert shell.priced == [7, 1]


class Stop(Exception):
    """The link went on."""


def comes_up(shell: Any, link: Any) -> None:
    def stop(number: int) -> None:
        raise Stop

    shell.by_number = Fake(get=stop)
    MeshShell.link_up(shell, link, B, 1)


def test_a_link_that_comes_up_costs_what_was_said_last() -> None:
    shell = broker_with(None, PeerSettings(DIALLED, 7))
    shell.costs[2] = 5
    for link, cost in ((link_to(DIALLED, True), 7), (link_to("10.0.0.2:50000", False), 5)):
        with pytest.raises(Stop):
            comes_up(shell, link)
        assert link.cost == cost


def test_a_link_whose_peer_was_removed_during_its_handshake_ends() -> None:
    link = link_to(DIALLED, dialled=True)
    comes_up(broker_with(None), link)
    assert link.said == [f"{HERE} does not dial {DIALLED} any more"]


def test_other_pauses_count_from_the_next_attempt() -> None:
    backoff = Backoff(0.1, 5.0)
    for _ in range(8):
        backoff.next()
    backoff.bound(0.1, 5.0)
    assert backoff.next() == 5.0
    backoff.bound(0.5, 1.0)
    assert [backoff.next() for _ in range(3)] == [0.5, 1.0, 1.0]
