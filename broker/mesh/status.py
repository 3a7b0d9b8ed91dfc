"""What a broker says of its mesh: the object at `$SYS/broker/mesh/status`, that /metrics reads too (docs/monitoring.md lists its keys).

Times are in seconds since 1970, so that a mesh in which nothing happens has one and the same status, which is published once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.metabroker import CONNECT
from ...mesh.wire.visited import numbers

if TYPE_CHECKING:
    from ...mesh.topology.rules import LinkRules
    from .link import LinkProtocol
    from .shell import MeshShell


def status_of(shell: MeshShell) -> dict[str, object]:
    """Links, members, digest and counters of one broker's view, fit for JSON."""
    links = [_up(link) for link in shell.links.values()]
    for peer in shell.settings.peers:
        if peer.address in shell.errors and shell.dialler.standing(peer) is None:
            met = shell.met.get(peer.address)  # who was there last
            links.append(
                {
                    "number": peer.number if met is None else met.number,
                    "name": peer.name if met is None else met.name,
                    "address": peer.address,
                    "up": False,
                    "left": met is not None and shell.node.gone(met),
                    "cost": peer.cost,
                    "since": _tenths(shell.down_since.get(peer.address)),
                    "error": shell.errors[peer.address],
                }
            )
    return {
        "name": shell.identity.name,
        "number": shell.identity.number,
        "mesh": shell.identity.mesh,
        "epoch": shell.node.identity.epoch,
        "life": shell.identity.life.hex(),
        "fenced": shell.fenced,
        "links": links,
        "metabrokers": metabrokers(shell),
        "draining": shell.context.draining,
        "receipts": shell.receipts.status(),
        **shell.node.status(),
    }


def _up(link: LinkProtocol) -> dict[str, object]:
    assert link.peer is not None
    return {
        "number": link.peer.number,
        "name": link.peer.name,
        "address": link.address,
        "up": True,
        "left": False,
        "cost": link.cost,
        "incarnation": link.machine.incarnation,
        "version": link.machine.version,
        "tls": link.tls,
        "policy": words_of(link.rules),
        "since": _tenths(link.since),
        "round_trip": link.round_trip,
        "unsent": link.unsent,
        "full": link.full,
        "error": "",
    }


def metabrokers(shell: MeshShell) -> list[int]:
    """The brokers, by number, whose metabrokers hear what clients here ask; one of them answers."""
    router = shell.router
    if not router.access.reserved:
        return []  # topics as any others: whoever subscribes to all gets requests too
    topic = CONNECT.encode()
    here = bool((router.routes.get(topic) or router.route(topic)).targets)
    elsewhere = [number for number in numbers(shell.node.interested(CONNECT)) if shell.node.reachable(number)]
    return sorted([shell.identity.number] * here + elsewhere)


def _tenths(wall: float | None) -> float | None:
    return None if wall is None else round(wall, 1)


def words_of(rules: LinkRules) -> str:
    """What a link's rules are, in one word for logs and the status."""
    if rules.policy.closed:
        return "closed"
    words = [word for word, there in (("topics", not rules.policy.open), ("rate", rules.paced)) if there]
    return "+".join(words) or "none"
