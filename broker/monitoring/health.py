"""Whether a broker is well, for `$SYS`, `/health` and `/ready`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..persistence.quota import OK

if TYPE_CHECKING:
    from ..site import Site


def reasons(site: Site) -> list[str]:
    """Why no clients should be sent to a broker; none when all is well."""
    found = []
    if site.context.stopping:
        found.append("the broker is stopping")
    if site.persistence is not None and site.persistence.error is not None:
        found.append(f"the store refuses: {site.persistence.error}")
    if site.context.draining:
        found.append("the broker is drained: mqmesh mesh resume ends that")
    mesh = site.mesh
    if mesh is not None and mesh.fenced:
        found.append(mesh.fenced)
    elif mesh is not None and mesh.settings.peers and not mesh.node.informed:
        found.append("no neighbour has said yet what other sites want")
    return found


def troubles(site: Site) -> list[str]:
    """What is wrong with a broker that works, and that a restart does not mend; none when all is well."""
    if site.mesh is not None and site.mesh.fenced:
        return [site.mesh.fenced]
    persistence = site.persistence
    if persistence is None:
        return []
    if persistence.error is not None:
        return [f"the store refuses: {persistence.error}"]
    return [] if persistence.quota.state == OK else [persistence.quota.state]
