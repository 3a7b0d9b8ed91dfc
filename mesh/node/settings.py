"""What the mesh core can be told, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from ..custody.bounds import CustodyBounds


@dataclass(slots=True, frozen=True)
class MeshConfig:
    """Settings of one node.

    mode: how QoS 0 travels; QoS 1 and 2 are always routed. custody_messages, custody_bytes: how much QoS 1/2 this broker
    holds in memory as an origin before `publish` says FULL. destination_part: which part of that one destination may fill, so that
    a slow site does not stop traffic among the others. keep_messages, keep_bytes: how much of one site that is away stays in memory
    where there is a store; page_messages, page_bytes: how much of it goes to the disk as one page. bounds: of sites that are away.
    credit_messages, credit_bytes: how much of one origin may be
    under way to this broker without a receipt. credit_floor: bytes to which drops at a relay may shrink what is under way
    to one destination. share: what happens to a message whose shared subscription's member went with its broker, "once":
    it waits, "available": another one gets it, marked as possibly repeated. forget_after: seconds after which a broker
    that is not reachable loses its interest and what waits for it is returned; None: never. keys_held: seconds after which the number of a
    broker that is not reachable may be had under another key; None: never. remembered: how many filters of others
    the store keeps at most. receipt_delay: seconds that a receipt may wait for more deliveries to speak of, unless an eighth of
    the credit is used up.
    managers: names of the brokers whose orders count; None: all.
    retained_compare: seconds between two comparisons of retained messages with one neighbour. deletions_kept: seconds that a
    deletion of a retained message is remembered if not every member has confirmed it.
    """

    mode: Literal["routed", "flood"] = "routed"
    custody_messages: int = 200_000
    custody_bytes: int = 256 * 2**20
    destination_part: float = 0.5
    keep_messages: int = 10_000
    keep_bytes: int = 4 * 2**20
    page_messages: int = 1000
    page_bytes: int = 512 * 2**10
    bounds: CustodyBounds = field(default_factory=CustodyBounds)
    credit_messages: int = 50_000
    credit_bytes: int = 16 * 2**20
    credit_floor: int = 64 * 2**10
    share: Literal["once", "available"] = "once"
    forget_after: float | None = None
    keys_held: float | None = None
    remembered: int = 200_000
    managers: tuple[str, ...] | None = None
    receipt_delay: float = 0.002
    retained_compare: float = 30.0
    deletions_kept: float = 7 * 86_400.0


@dataclass(slots=True)
class Counters:
    """Totals since the node began, in messages unless a name says otherwise."""

    published: int = 0  # taken by `publish` for other brokers
    delivered: int = 0  # handed to the shell
    sent: int = 0  # data frames sent on links, as origin or relay
    received: int = 0  # data frames received
    relayed: int = 0  # data frames sent on links as relay
    resent: int = 0  # custody messages sent again in a later tree, for each destination
    dropped_no_path: int = 0  # QoS 0, for each destination without a path
    dropped_full: int = 0  # QoS 0 at a full link
    dropped_policy: int = 0  # frames that a link's policy lets neither out nor in, of origins that do not keep to it
    dropped_stale: int = 0  # frames of a tree or link that is not current
    cut: int = 0  # custody frames dropped at a full link; the origin sends them again
    duplicates: int = 0  # frames that a window refused
    returned: int = 0  # for each destination
    custody_stored: int = 0  # custody messages that went to the disk only, while nobody could be sent them
    custody_read: int = 0  # the same, read again
    custody_dropped: int = 0  # for each destination that is away: the oldest at its bound, where a policy says so
    custody_expired: int = 0  # the same: left out at its bound, or too old
    custody_refused: int = 0  # runs that were taken for nobody, because a destination that is away was at its bound
    cleared: int = 0  # sent to a life that lost its store, so nobody knows; for each destination
    refused_keys: int = 0  # statements under another key than the one known for the number they speak for
    forged: int = 0  # statements that their signatures do not cover; each ends a link
    refused: int = 0  # picks that found no member
    repicked: int = 0
    trees: int = 0  # announced as origin
    control_sent: int = 0  # control packets
    control_received: int = 0
    retained_sent: int = 0  # retained messages and deletions given to neighbours that lacked them
    retained_received: int = 0  # the same, taken from neighbours
    retained_bytes: int = 0  # sent to compare retained messages with neighbours, what they lacked included

    def as_dict(self) -> dict[str, int]:
        """Name -> value."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
