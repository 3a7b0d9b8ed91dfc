"""The sessions of a metabroker inside a broker, as a list of management (docs/management.md).

The identifier of a session is a secret of its client, so neither rows nor cursors have it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ...broker.management.listing import Field, Kind, Listing, Where

if TYPE_CHECKING:
    from ..core.sessions import Session

PIECE = 250  # rows
NAME = "metabroker-sessions"


def sessions_listing(sessions: Callable[[], Mapping[str, Session]]) -> Listing:
    """The list. sessions: those that there are now, by identifier."""

    def scan(_: Where) -> Iterator[Sequence[Session]]:
        found = list(sessions().values())
        for start in range(0, len(found), PIECE):
            yield found[start : start + PIECE]

    return Listing(
        NAME,
        "sessions of clients at remote brokers, through the metabroker of the site",
        (
            Field("client", Kind.TEXT, lambda one: one.client, lambda one: one.client),
            Field("remote", Kind.TEXT, lambda one: one.remote.credentials.remote),
            Field("username", Kind.TEXT, lambda one: one.remote.credentials.username),
            Field("up", Kind.FLAG, lambda one: one.remote.up),
            Field("sharers", Kind.NUMBER, lambda one: len(one.remote.sessions)),
            Field("filters", Kind.NUMBER, lambda one: len(one.filters)),
            Field("open", Kind.NUMBER, lambda one: one.open),
            Field("incoming", Kind.NUMBER, lambda one: one.number),
            Field("durable", Kind.FLAG, lambda one: one.durable is not None),
            Field("kept", Kind.NUMBER, lambda one: None if one.durable is None else len(one.durable.kept)),
            Field("bytes", Kind.NUMBER, lambda one: None if one.durable is None else one.durable.bytes),
            Field("dropped", Kind.NUMBER, lambda one: None if one.durable is None else one.durable.dropped),
            Field("error", Kind.TEXT, lambda one: one.remote.reason),
        ),
        lambda one: hashlib.sha256(one.id.encode()).digest()[:12],
        scan,
    )
