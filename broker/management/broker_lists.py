"""Which lists a broker has from its start. Rooms with rows of their own add theirs to `Management.work.lists` (docs/management.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lists.mesh import brokers_of, custody_of, links_of
from .lists.queues import Find, members_of, messages_of, queues_of, states_of
from .lists.retained import retained_of, routes_of
from .lists.sessions import clients_of, groups_of, sessions_of, subscriptions_of
from .lists.settings import configuration_of, recipients_of

if TYPE_CHECKING:
    from ..mesh.shell import MeshShell
    from ..site import Site
    from .site_work import SiteWork


def add_lists(work: SiteWork, site: Site) -> None:
    """The lists of any broker."""
    for make in (clients_of, sessions_of, subscriptions_of, groups_of, retained_of, routes_of, recipients_of, configuration_of):
        work.lists.add(make(site))


def add_mesh_lists(work: SiteWork, mesh: MeshShell) -> None:
    """Those of a broker in a mesh."""
    for make in (brokers_of, links_of, custody_of):
        work.lists.add(make(mesh))


def add_queue_lists(work: SiteWork, site: Site, find: Find) -> None:
    """Those of queues; they have no rows while the broker has no queues. find: how to look at messages."""
    for listing in (queues_of(site), members_of(site), messages_of(site, find), states_of(site, find)):
        work.lists.add(listing)
