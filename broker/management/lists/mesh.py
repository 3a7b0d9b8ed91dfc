"""Brokers, links and custody, as one broker of a mesh sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ...mesh.status import status_of
from ..listing import Field, Kind, Listing, Where
from .sessions import pieces

if TYPE_CHECKING:
    from ...mesh.shell import MeshShell

TEXT, NUMBER, FLAG = Kind.TEXT, Kind.NUMBER, Kind.FLAG


def columns(**kinds: Kind) -> tuple[Field, ...]:
    """Columns of rows that are dictionaries."""
    return tuple(Field(name, kind, itemgetter(name)) for name, kind in kinds.items())


def brokers_of(mesh: MeshShell) -> Listing:
    """All brokers that this one knows, itself included."""

    def scan(_: Where) -> Iterator[Sequence[dict[str, Any]]]:
        node = mesh.node
        yield [
            {
                "name": one.name,
                "number": one.number,
                "reachable": one.live,
                "since": one.since,
                "hops": one.hops,
                "cost": one.cost,
                "via": None if one.next is None else node.name(one.next),
                "filters": one.filters,
                "waiting": one.open,
                "epoch": one.epoch,
            }
            for one in node.members()
        ]

    fields = columns(
        name=TEXT,
        number=NUMBER,
        reachable=FLAG,
        since=NUMBER,
        hops=NUMBER,
        cost=NUMBER,
        via=TEXT,
        filters=NUMBER,
        waiting=NUMBER,
        epoch=NUMBER,
    )
    return Listing("brokers", "brokers of the mesh, as the site sees them", fields, lambda one: (one["name"], one["number"]), scan)


LINK = {
    "name": TEXT,
    "number": NUMBER,
    "address": TEXT,
    "up": FLAG,
    "cost": NUMBER,
    "round_trip": NUMBER,
    "since": NUMBER,
    "tls": TEXT,
    "policy": TEXT,
    "unsent": NUMBER,
    "full": FLAG,
    "messages_out": NUMBER,
    "messages_in": NUMBER,
    "bytes_out": NUMBER,
    "bytes_in": NUMBER,
    "dropped": NUMBER,
    "error": TEXT,
}


def links_of(mesh: MeshShell) -> Listing:
    """Links to neighbours, and peers that are dialled in vain."""

    def scan(_: Where) -> Iterator[Sequence[dict[str, Any]]]:
        rows: Any = status_of(mesh)["links"]
        traffic = {link.address: link.traffic() for link in mesh.links.values()}
        yield [{**dict.fromkeys(LINK), **row, **traffic.get(row["address"], {})} for row in rows]

    return Listing(
        "links",
        "links to neighbours, with what passed each way as this end counts it; round_trip in milliseconds",
        columns(**LINK),
        lambda one: (one["name"] or "", one["address"]),
        scan,
    )


def custody_of(mesh: MeshShell) -> Listing:
    """What is held for other brokers."""
    fields = columns(
        name=TEXT,
        number=NUMBER,
        reachable=FLAG,
        messages=NUMBER,
        bytes=NUMBER,
        waits=TEXT,
        on_disk=NUMBER,
        under_way=NUMBER,
        dropped=NUMBER,
    )
    return Listing(
        "custody",
        "messages that this site holds until another one has them, by destination",
        fields,
        lambda one: (one["name"], one["number"]),
        lambda _: pieces([one._asdict() for one in mesh.node.held()]),
    )
