"""Whether a broker is well, for `$SYS`, `/health` and `/ready`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..persistence.quota import OK

if TYPE_CHECKING:
    from ..server import Broker


def reasons(broker: Broker) -> list[str]:
    """Why no clients should be sent to a broker; none when all is well."""
    found = []
    if broker.draining:
        found.append("the broker is stopping")
    if broker.durable is not None and broker.durable.error is not None:
        found.append(f"the store refuses: {broker.durable.error}")
    mesh = broker.mesh
    if mesh is not None and mesh.settings.peers and not mesh.node.informed:
        found.append("no neighbour has said yet what other sites want")
    return found


def troubles(broker: Broker) -> list[str]:
    """What is wrong with a broker that works, and that a restart does not mend; none when all is well."""
    durable = broker.durable
    if durable is None:
        return []
    if durable.error is not None:
        return [f"the store refuses: {durable.error}"]
    return [] if durable.bound.state == OK else [durable.bound.state]
