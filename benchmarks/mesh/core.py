"""How fast the mesh core is, without sockets: origin -> relay -> destination in one process.

    python -m benchmarks.mesh.core [--seconds 1] [--payload 64] [--policy]

Each line is one way that messages come: in runs of so many, QoS, and what changes from run to run. The figures are
microseconds a message in each of the three roles; a role's share of a core at a given rate is the product. Rough on a busy
machine: compare lines of one run, not runs. With --policy each of the two links renames every topic.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from uuid import UUID

from mqmesh.mesh.node.actions import Deliver, Send
from mqmesh.mesh.node.node import Node, Verdict
from mqmesh.mesh.wire.identity import Identity
from mqmesh.mesh.wire.policy import Policy
from mqmesh.mqtt.batch.batch import Batch
from mqmesh.mqtt.batch.parts import PartsBatch
from mqmesh.mqtt.batch.run import Run

CHUNK = 262_144  # bytes that a socket gives at once


class Chain:
    """Three nodes in a row; what node 3 gets is thrown away."""

    def __init__(self, guarded: bool = False) -> None:
        """guarded: whether links have policies that rename."""
        names = ("site/", "far/", "farther/") if guarded else ()
        self.guarded = guarded
        self.nodes = {n: Node(Identity("m", f"n{n}", n, UUID(int=n), 1000)) for n in (1, 2, 3)}
        self.spent = dict.fromkeys(self.nodes, 0.0)
        self.wire: dict[tuple[int, int], list[bytes | bytearray]] = {}
        self.delivered = 0
        self.now = 0.0
        self.nodes[3].subscribe("#", None, 1, 0.0)
        for link, (a, b) in enumerate(((1, 2), (2, 3))):
            policy = Policy(prefixes=((names[link], names[link + 1]),)) if guarded else None
            self.nodes[a].link_up(link, self.nodes[b].identity, 100 + link, 1, 0.0, policy)
            self.nodes[b].link_up(link, self.nodes[a].identity, 100 + link, 1, 0.0)
        self.settle()

    def flush(self, number: int) -> None:
        """Carry out what a node wants; a delivery is committed at once."""
        node = self.nodes[number]
        while actions := node.take():
            for action in actions:
                if isinstance(action, Send):
                    self.wire.setdefault((number, action.link), []).append(action.data)
                elif isinstance(action, Deliver):
                    self.delivered += action.run.count
                    if action.token is not None:
                        node.delivered(action.token, self.now)

    def settle(self) -> None:
        """Move bytes until none are under way."""
        for number in self.nodes:
            self.flush(number)
        while self.wire:
            (sender, link), parts = self.wire.popitem()
            receiver = {(1, 0): 2, (2, 0): 1, (2, 1): 3, (3, 1): 2}[sender, link]
            data = b"".join(parts)
            began = time.perf_counter()
            self.nodes[receiver].receive(link, data, self.now)
            self.flush(receiver)
            self.spent[receiver] += time.perf_counter() - began

    def publish(self, runs: list[Batch]) -> None:
        """One chunk's worth of runs."""
        node = self.nodes[1]
        self.now += 0.001
        began = time.perf_counter()
        for run in runs:
            if isinstance(run, PartsBatch) and self.guarded:  # as a broker does it: spans do not go where a policy leads
                for index in range(run.count):
                    one = run.single(index)
                    self._publish(node, one)
                continue
            if isinstance(run, PartsBatch):
                assert node.publish_parts(1 << 3, run, self.now) is Verdict.TAKEN
                continue
            self._publish(node, run)
        self.flush(1)
        self.spent[1] += time.perf_counter() - began
        self.settle()

    def _publish(self, node: Node, run: Batch) -> None:
        route = node.route(run.topic)
        assert route is not None
        node.publish(route, run, self.now)


def runs(qos: int, count: int, topics: int, length: int, vary: bool) -> Iterator[list[Batch]]:
    """Chunks of runs without end: of `count` messages each, topics in turn, payload lengths in turn if they vary; count 0: one span."""
    if not count:
        chunk = CHUNK // (length + 25)
        topic = [b"\0\x13site/line/%03d/value" % i for i in range(topics)]
        names = [topic[i % topics] for i in range(chunk)]
        while True:
            yield [PartsBatch(names, [bytes(length + (i % 7 if vary else 0)) for i in range(chunk)], qos, 0.0)]
    payloads = [[bytes(length + (i % 7 if vary else 0))] * count for i in range(topics)]
    chunk = max(1, CHUNK // ((length + 20) * count))
    source = itertools.cycle(range(topics))
    while True:
        yield [Run(b"site/line/%03d/value" % i, qos, False, payloads[i]) for i in itertools.islice(source, chunk)]


CASES = (
    ("QoS 0, runs of 1000, one topic", 0, 1000, 1, False),
    ("QoS 0, runs of 50, one topic", 0, 50, 1, False),
    ("QoS 0, runs of 10, 20 topics", 0, 10, 20, False),
    ("QoS 0, runs of 1, 500 topics", 0, 1, 500, False),
    ("QoS 0, runs of 1, sizes vary", 0, 1, 7, True),
    ("QoS 0, spans, 500 topics", 0, 0, 500, False),
    ("QoS 0, spans, sizes vary", 0, 0, 500, True),
    ("QoS 1, spans, 500 topics", 1, 0, 500, False),
    ("QoS 1, runs of 1000, one topic", 1, 1000, 1, False),
    ("QoS 1, runs of 50, one topic", 1, 50, 1, False),
    ("QoS 1, runs of 1, 500 topics", 1, 1, 500, False),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mesh.core", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line")
    parser.add_argument("--payload", type=int, default=64, help="bytes")
    parser.add_argument("--policy", action="store_true", help="links with policies that rename")
    given = parser.parse_args()
    print(f"{'us a message at the':36} {'origin':>8} {'relay':>8} {'destination':>12} {'together':>10}")
    for name, qos, count, topics, vary in CASES:
        chain = Chain(given.policy)
        source = runs(qos, count, topics, given.payload, vary)
        chain.publish(next(source))  # the tree, the caches
        chain.spent = dict.fromkeys(chain.nodes, 0.0)
        before = chain.delivered
        sent = 0
        stop = time.perf_counter() + given.seconds
        while time.perf_counter() < stop:
            chunk = next(source)
            sent += sum(run.count for run in chunk)
            chain.publish(chunk)
        assert chain.delivered - before == sent, f"{sent} sent, {chain.delivered - before} delivered"
        each = [spent / sent * 1e6 for spent in chain.spent.values()]
        print(f"{name:36} {each[0]:8.3f} {each[1]:8.3f} {each[2]:12.3f} {1e6 / sum(each):8.0f}/s")


if __name__ == "__main__":
    main()
