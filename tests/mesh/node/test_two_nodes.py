"""Two nodes and a link, driven by hypothesis into whatever state it finds: once, in order, and in the end complete."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from mqmesh.mesh.node.actions import Send, Verdict
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.node.node import Node
from support.examples import examples
from support.models.mesh_net import Net


class TwoNodes(RuleBasedStateMachine):
    """Node 1 publishes, node 2 has subscribers of "a"; both can restart with their state."""

    @initialize(credit=st.sampled_from([1, 3, 1000]), custody=st.sampled_from([5, 1000]))
    def begin(self, credit: int, custody: int) -> None:
        self.net = Net(1, 2, config=MeshConfig(credit_messages=credit, custody_messages=custody, destination_part=1.0), durable=True)
        self.net.hold = True
        self.epoch = 1000
        self.net.nodes[2].subscribe("a", None, 1, 0.0)
        self.up: int | None = self.net.link(1, 2)
        self.net.settle()
        self.serial = 0
        self.taken: list[bytes] = []
        self.known = 0  # deliveries looked at
        self.open: list[tuple[int, list[bytes]]] = []  # tokens that are not committed
        self.committed: list[bytes] = []
        self.quick: list[bytes] = []

    def run(self) -> None:
        self.net.settle()
        for number, deliver in self.net.delivered[self.known :]:
            assert number == 2
            if deliver.token is None:
                self.quick += deliver.run.payloads
            else:
                self.open.append((deliver.token, deliver.run.payloads))
        self.known = len(self.net.delivered)

    @rule(qos=st.integers(0, 2), count=st.integers(1, 4))
    def publish(self, qos: int, count: int) -> None:
        payloads = [b"%06d" % (self.serial + i) for i in range(count)]
        self.serial += count
        if self.net.publish(1, "a", qos, payloads=payloads) is Verdict.TAKEN and qos:
            self.taken += payloads

    @rule(qos=st.integers(0, 1))
    def publish_one(self, qos: int) -> None:
        """By the direct lane; what it leaves unstirred, and the commit after it, has nothing more to say."""
        node, route = self.net.nodes[1], self.net.nodes[1].route(b"a")
        if route is None:
            return
        while actions := node.take():
            for action in actions:
                self.net._do(1, action)
        payload = b"%06d" % self.serial
        sends = node.publish_one(route.mask, b"a", qos, payload, self.net.now)
        if sends is None:
            return
        self.serial += 1
        for link, frame in sends:
            self.net._do(1, Send(link, bytes(frame), False))
        if qos:
            node.keep_one()
            self.taken.append(payload)
        self.quiet(node)
        self.net.save(1)
        self.quiet(node)

    def quiet(self, node: Node) -> None:
        """What says that nothing is to be done has nothing to do, and no new deadline."""
        if not node.stirred:
            deadline = node.next_deadline()
            node._core.stirred = True
            assert not node.take()
            assert node.next_deadline() == deadline

    @rule()
    def settle(self) -> None:
        self.run()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, len(self.open)))):
            token, payloads = self.open.pop(0)
            self.committed += payloads
            self.net.commit(2, token)
            self.quiet(self.net.nodes[2])

    @precondition(lambda self: self.up is not None)
    @rule(number=st.sampled_from([1, 2]))
    def stall(self, number: int) -> None:
        """What this node sends stays on the way until the next cut or flow."""
        self.net.stuck.add((number, self.up))  # type: ignore[arg-type]

    @rule()
    def flow(self) -> None:
        self.net.stuck.clear()

    @precondition(lambda self: self.up is not None)
    @rule(full=st.booleans())
    def fill(self, full: bool) -> None:
        self.net.nodes[1].link_full(self.up, full, self.net.now)  # type: ignore[arg-type]

    @precondition(lambda self: self.up is not None)
    @rule()
    def cut(self) -> None:
        self.net.stuck.clear()
        self.net.cut(self.up)  # type: ignore[arg-type]
        self.up = None

    @precondition(lambda self: self.up is None)
    @rule()
    def mend(self) -> None:
        self.up = self.net.link(1, 2)

    @rule(number=st.sampled_from([1, 2]))
    def restart(self, number: int) -> None:
        """What was delivered and not committed is forgotten with the life."""
        if self.up is not None:
            self.cut()
        self.epoch += 1000
        node = self.net.add(number, epoch=self.epoch)
        if number == 2:
            self.open.clear()
            node.subscribe("a", None, 1, 0.0)

    @invariant()
    def once_and_in_order(self) -> None:
        for got in (self.committed, self.quick):
            assert got == sorted(set(got))

    def teardown(self) -> None:
        if not hasattr(self, "net"):
            return
        self.net.stuck.clear()
        if self.up is None:
            self.mend()
        self.net.nodes[1].link_full(self.up, False, self.net.now)  # type: ignore[arg-type]
        self.run()
        while self.open:
            while self.open:
                token, payloads = self.open.pop(0)
                self.committed += payloads
                self.net.commit(2, token)
            self.run()
        self.once_and_in_order()
        assert self.committed == self.taken
        assert self.net.nodes[1].custody() == (0, 0)


TestTwoNodes = TwoNodes.TestCase
TestTwoNodes.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
