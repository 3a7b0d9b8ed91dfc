"""What policies let pass in the simulation, computed apart from the code under test.

A wire has a policy for each end; a connection keeps the policies that it began with. `name_at` follows an origin's tree link by link;
`possible` says whether a message could have come to a site under a name by any path at all, over connections that lived then.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from mqmesh.mesh.wire.policy import Policy
from mqmesh.mqtt.topics import matches

if TYPE_CHECKING:
    from .ledger import Message
    from .site import Site
    from .wire import Connection
    from .world import World

FAR = ("p/#", "far/#", "q/+", "far/a/1", "p/a/+")  # what is subscribed to beside the usual filters
ALLOWED = (None, None, None, ("a/#",), ("a/#", "c"), ("#",), ("+/1",), ("p/#", "a/#"), ("far/#",), ())
BUT = ((), (), (), ("a/2",), ("b/#",))
PREFIXES = (
    (),
    (),
    (("a/", "p/a/"),),
    (("", "far/"),),
    (("far/", ""),),
    (("a/", "b/"),),
    (("a/", "b/"), ("b/", "a/")),
    (("b/", "q/"), ("a/", "p/")),
    (("", "far/"), ("p/", "")),
)


def some_policy(chance: Random) -> Policy | None:
    """A policy of one end, or none."""
    if chance.random() < 0.3:
        return None
    policy = Policy(chance.choice(ALLOWED), chance.choice(BUT), chance.choice(ALLOWED), chance.choice(BUT), chance.choice(PREFIXES))
    return None if policy == Policy() else policy


def longest(name: str, pairs: list[tuple[str, str]]) -> str:
    """The name with its longest known prefix replaced."""
    fitting = [(one, other) for one, other in pairs if name.startswith(one)]
    if not fitting:
        return name
    one, other = max(fitting, key=lambda pair: len(pair[0]))
    return other + name[len(one) :]


def leaves(policy: Policy | None, topic: str) -> str | None:
    """What a topic is called on the link, if it may leave."""
    if policy is None:
        return topic
    if policy.out is not None and not any(matches(f, topic) for f in policy.out):
        return None
    if any(matches(f, topic) for f in policy.out_except):
        return None
    name = longest(topic, list(policy.prefixes))
    back = longest(name, [(there, here) for here, there in policy.prefixes])
    return name if name and back == topic else None


def enters(policy: Policy | None, name: str) -> str | None:
    """What a name on the link is called here, if it may come in."""
    if policy is None:
        return name
    topic = longest(name, [(there, here) for here, there in policy.prefixes])
    if not topic or longest(topic, list(policy.prefixes)) != name:
        return None
    if policy.into is not None and not any(matches(f, topic) for f in policy.into):
        return None
    return None if any(matches(f, topic) for f in policy.into_except) else topic


def over(connection: Connection, sender: int, topic: str) -> str | None:
    """What a topic of the sender is at the other end of a connection."""
    (receiver,) = set(connection.ways) - {sender}
    name = leaves(connection.policies.get(sender), topic)
    return None if name is None else enters(connection.policies.get(receiver), name)


class Borders:
    """What passes in one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.made: list[Connection] = []
        self.by_incarnation: dict[int, Connection] = {}
        self._possible: dict[tuple[int, str, tuple[int, ...]], set[tuple[int, str]]] = {}

    def add(self, connection: Connection) -> None:
        """A connection is made."""
        self.made.append(connection)
        self.by_incarnation[connection.incarnation] = connection

    def name_at(self, site: Site, number: int, topic: str) -> str | None:
        """What a topic of a site is at another broker, along the shortest paths that the site knows; None: it must not come there."""
        if self.world.copied:
            return topic  # there are no policies, and numbers that stand for two
        paths = site.node._states.paths  # type: ignore[union-attr]
        steps = []
        while number != site.number:
            path = paths[number]
            steps.append((path.incarnation, path.parent))
            number = path.parent
        name: str | None = topic
        for incarnation, parent in reversed(steps):
            name = None if name is None else over(self.by_incarnation[incarnation], parent, name)
        return name

    def possible(self, message: Message, number: int, topic: str) -> bool:
        """Whether a message could have come to a broker under this name."""
        alive = [c for c in self.made if c.ended >= message.at]
        key = (message.origin, message.topic, tuple(c.id for c in alive))
        if key not in self._possible:
            self._possible[key] = self._reachable(message, alive)
        return (number, topic) in self._possible[key]

    def _reachable(self, message: Message, alive: list[Connection]) -> set[tuple[int, str]]:
        found = {(message.origin, message.topic)}
        edges = [(connection, at, other) for connection in alive for at in connection.ways for other in connection.ways if at != other]
        last = set(found)
        for _ in range(len(self.world.sites) - 1):  # a path in a tree is no longer; prefixes may grow around a circle for ever
            step = {(other, over(connection, at, name)) for connection, at, other in edges for here, name in last if here == at}
            last = {(other, name) for other, name in step if name is not None} - found
            found |= last
        return found

    def check_frame(self, connection: Connection, sender: int, name: str) -> None:
        """A frame leaves: it has the name of a topic that may."""
        policy = connection.policies.get(sender)
        if policy is not None:
            topic = longest(name, [(there, here) for here, there in policy.prefixes])
            assert leaves(policy, topic) == name, f"site {sender} sent {name!r} in spite of {policy}"
