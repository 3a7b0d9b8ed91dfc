"""What a node remembers by topic and properties, which clients choose: long ones are not kept, as it counts entries and not bytes."""

from __future__ import annotations

import gc

from mqmesh.mesh.node.framing import Framer
from mqmesh.mesh.node.relay import Relay
from support.models.mesh_net import Net

LONG = "t" * 10_000


def found(kind: type, net: Net) -> list[object]:
    return [one for one in gc.get_objects() if type(one) is kind and one._core in [node._core for node in net.nodes.values()]]


def test_long_topics_and_properties_are_delivered_and_not_kept() -> None:
    net = Net(1, 2)
    net.nodes[2].subscribe("#", None, 1, 0.0)
    net.link(1, 2)
    net.settle()
    block = b"\x26\0\1k" + (60_000).to_bytes(2, "big") + b"v" * 60_000  # a user property
    for number in range(3):
        for qos in (0, 1):
            net.publish(1, f"{LONG}{number}", qos)
            net.publish(1, f"short/{number}", qos, properties=block)
        net.settle()
    assert len(net.got(2)) == 12
    framers, relays = found(Framer, net), found(Relay, net)
    assert framers
    assert relays
    kept = [key for one in framers for key in (*one._templates, *one._fronts)]
    assert sum(len(part) for key in kept for part in key if isinstance(part, bytes)) < 10 * 1024
    assert sum(map(len, set().union(*[one._topics for one in relays]))) < 10_000
    ends = [end for one in relays for end in one._core.links.values()]
    assert sum(len(known) for end in ends for known in end.direct) < 10_000
