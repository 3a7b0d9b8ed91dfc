"""What a broker says of its mesh: the object at `$SYS/broker/mesh/status`, that /metrics reads too (docs/operations.md lists its keys).

Times are in seconds since 1970, so that a mesh in which nothing happens has one and the same status, which is published once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..mesh.rules import LinkRules
    from .link import LinkProtocol
    from .links import MeshShell


def status_of(shell: MeshShell) -> dict[str, object]:
    """Links, members, digest and counters of one broker's view, fit for JSON."""
    links = [_up(link) for link in shell.links.values()]
    for peer in shell.settings.peers:
        if peer.address in shell.errors and shell.dialler.standing(peer) is None:
            links.append(
                {
                    "number": peer.number,
                    "name": peer.name,
                    "address": peer.address,
                    "up": False,
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
        "links": links,
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
        "cost": link.cost,
        "incarnation": link.machine.incarnation,
        "tls": link.tls,
        "policy": words_of(link.rules),
        "since": _tenths(link.since),
        "round_trip": link.round_trip,
        "unsent": link.unsent,
        "full": link.full,
        "error": "",
    }


def _tenths(wall: float | None) -> float | None:
    return None if wall is None else round(wall, 1)


def words_of(rules: LinkRules) -> str:
    """What a link's rules are, in one word for logs and the status."""
    if rules.policy.closed:
        return "closed"
    words = [word for word, there in (("topics", not rules.policy.open), ("rate", rules.paced)) if there]
    return "+".join(words) or "none"
