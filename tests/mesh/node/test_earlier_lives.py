"""A broker that takes over a number goes above every life that had it before, also above one that is known beside another."""

from __future__ import annotations

from mqmesh.mesh.wire.identity import CAPABILITIES
from support.models.mesh_net import Net


def test_a_new_broker_goes_above_a_life_that_did_not_hold_its_uuid() -> None:
    """2 knows the first life of the earlier broker, 3 the second one only; neither is there any more."""
    net = Net(2, 3, able=CAPABILITIES)
    for number in (2, 3):
        net.nodes[number].subscribe("#", None, 1, net.now)
    for epoch, peer in ((1000, 2), (2000, 3)):
        net.add(1, uuid=99, epoch=epoch)
        link = net.link(1, peer)
        net.settle()
        net.publish(1, "t", 1, payloads=[b"of %d" % epoch])
        net.settle()
        net.cut(link)
        net.settle()
    net.add(1, uuid=98, epoch=1500)
    net.link(1, 2)
    net.settle()
    net.link(2, 3)
    net.settle()
    assert net.nodes[1].identity.epoch > 2000
    net.publish(1, "t", 1, payloads=[b"of the new one"])
    net.settle()
    assert net.got(3) == [b"of 2000", b"of the new one"]
