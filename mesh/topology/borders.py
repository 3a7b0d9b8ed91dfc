"""What the policies of a topology divide: its parts, the links between them, and mistakes that make a border weak.

A *part* is what links without a policy of topics connect. Messages take the shortest path whatever their topic is; so two links between
the same parts should let the same pass, and a policy inside of a part is walked around.

It knows topologies; it does not know nodes or messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx as nx

from ..wire.policy import OPEN, Policy
from .rules import UNRULED

if TYPE_CHECKING:
    from .topology import LinkEntry, Topology


def parts_of(topology: Topology) -> list[list[str]]:
    """The names of the brokers of each part, parts and names in order of number."""
    plain: nx.Graph[str] = nx.Graph()
    plain.add_nodes_from(broker.name for broker in topology.brokers)
    plain.add_edges_from((link.listener, link.dialler) for link in topology.links if not link.guarded)
    numbers = {broker.name: broker.number for broker in topology.brokers}
    parts = [sorted(part, key=numbers.__getitem__) for part in nx.connected_components(plain)]
    return sorted(parts, key=lambda part: numbers[part[0]])


def policy_of(link: LinkEntry, name: str) -> Policy:
    """The policy of one end."""
    return link.rules.get(name, UNRULED).policy


def weak_borders(topology: Topology) -> list[str]:
    """One line for each mistake that is none of form."""
    if not topology.guarded:
        return []
    where = {name: index for index, part in enumerate(parts_of(topology)) for name in part}
    warnings = []
    between: dict[tuple[int, int], tuple[LinkEntry, Policy, Policy]] = {}
    for link in topology.links:
        if not link.guarded:
            continue
        near, far = sorted((link.listener, link.dialler), key=lambda name: where[name])
        policies = policy_of(link, near), policy_of(link, far)
        if where[near] == where[far]:
            warnings.append(f"the policy of {words_of(link)} is walked around: links without one join the two as well")
            continue
        known = between.setdefault((where[near], where[far]), (link, *policies))
        if known[1:] != policies:
            other = words_of(known[0])
            warnings.append(
                f"{words_of(link)} and {other} join the same parts with different policies: what moves to the other may be returned"
            )
        if any(policy.closed for policy in policies):
            warnings.append(f"{words_of(link)} is closed: no topic passes in either direction")
    return warnings


def words_of(link: LinkEntry) -> str:
    """The link for a line of text."""
    return f"the link {link.listener} - {link.dialler}"


def describe(policy: Policy) -> list[str]:
    """What a policy says, in a few lines for people."""
    if policy == OPEN:
        return ["everything passes"]
    if policy.closed:
        return ["nothing passes"]
    lines = []
    for word, allowed, but in (("out", policy.out, policy.out_except), ("in", policy.into, policy.into_except)):
        what = "everything" if allowed is None else ", ".join(allowed) or "nothing"
        lines.append(f"{word}: {what}" + (f" but {', '.join(but)}" if but else ""))
    return lines + [f"{here or '(all)'} is {there or '(all)'} on the link" for here, there in policy.prefixes]
