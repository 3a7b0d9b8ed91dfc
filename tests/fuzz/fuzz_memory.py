"""A broker whose clients take memory in every way that they have, and a meter: what its ledger says, and what is really there.

By hand:  python -m tests.fuzz.fuzz_memory --for 600           many stories; ends with 1 if one held more than the ledger knew
          python -m tests.fuzz.fuzz_memory --seed 7 --runs 1   one story again

A story is a broker without sockets and some clients that keep what they get: aliases, wills, subscriptions, packets in part, queues of
sessions that are away, subscribers of many kinds of which some do not read, retained messages, topics, identifiers and handles of all
lengths; clients go, come back and take each other's sessions over meanwhile. After each step the memory that the interpreter has traced
since the beginning is compared with `Ledger.total`, which may be less by `SLACK`.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1]))

from mqmesh.broker.config import BrokerConfig, Limits
from mqmesh.broker.ledger import KINDS
from mqmesh.broker.server import Broker
from mqmesh.mqtt.batch.forms import MOST
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.length import encode_length
from mqmesh.mqtt.packets import Connect, Disconnect, Publish, Subscribe, Subscription, Unsubscribe, Will
from mqmesh.mqtt.properties import Property
from support.models.broker_wire import Wire

from .runs import main_of

LIMIT = 32 * 2**20  # `broker_bytes` of a story
SLACK = 4 * 2**20 + MOST  # bytes that may be there and not in the ledger: what is on its way, and the forms of the last batch
READ = 256 * 1024  # bytes that a socket gives at once
STEPS = 150
KEPT = 100  # seconds for which sessions stay
LONG = 60_000  # bytes of a long topic, name or property


class Peer(Wire):
    """A client. stuck: it takes nothing that is sent, and the broker's end has that to keep."""

    stuck = False

    def read(self) -> None:
        """Take what was written, or leave it there."""
        if self.stuck:
            self.transport.buffered = sum(map(len, self.transport.written))
        else:
            self.transport.written.clear()


class Story:
    """One broker, and what its clients do."""

    def __init__(self, seed: int, broker: Broker) -> None:
        self.chance = random.Random(seed)
        self.broker = broker
        self.peers: list[Peer] = []
        self.number = 0
        self.acts: tuple[Callable[[], None], ...] = (
            self.aliases,
            self.wills,
            self.subscriptions,
            self.unsubscribe,
            self.half,
            self.away,
            self.retained,
            self.deletions,
            self.unread,
            self.unacknowledged,
            self.released_never,
            self.topics,
            self.long_names,
            self.properties,
            self.shared,
            self.kinds,
            self.handles,
            self.take_over,
            self.end,
            self.end,
        )

    # ---- clients

    def next(self) -> int:
        self.number += 1
        return self.number

    def client(self, expiry: int = 0, *subscriptions: Subscription, identifier: int = 0) -> Peer:
        peer = Peer(self.broker, 5)
        self.peers.append(peer)
        peer.connect(f"c{self.next()}", *subscriptions, identifier=identifier, session_expiry_interval=expiry)
        return peer

    def one(self) -> Peer:
        if self.peers and self.chance.random() < 0.6:
            return self.chance.choice(self.peers)
        return self.client(self.chance.choice((0, KEPT)))

    def few(self) -> range:
        return range(self.chance.choice((5, 50)))

    def length(self) -> int:
        return self.chance.choice((1, LONG))

    def give(self, peer: Peer, *packets: Any) -> None:
        data = b"".join(one if isinstance(one, bytes) else encode(one, 5) for one in packets)
        for start in range(0, len(data), READ):
            if peer.transport.reading and not peer.transport.closed:
                peer.give(data[start : start + READ])
                for other in self.peers:
                    other.read()

    def publish(self, topic: str, qos: int, retain: bool = False, **properties: Any) -> None:
        """A message whose payload is its own, by one of the clients."""
        payload = self.next().to_bytes(4, "big") + bytes(self.chance.choice((1, 100_000)))
        named = {Property[name.upper()]: value for name, value in properties.items()}
        packet_id = self.number % 60_000 + 1 if qos else 0
        self.give(self.one(), Publish(topic, payload, qos, retain, packet_id=packet_id, properties=named))

    # ---- what they do

    def aliases(self) -> None:
        count = self.chance.choice((5, 64))
        topics = [chr(97 + self.chance.randrange(26)) * self.length() for _ in range(count)]
        self.give(self.one(), *(Publish(name, b"", properties={Property.TOPIC_ALIAS: at}) for at, name in enumerate(topics, 1)))

    def wills(self) -> None:
        for _ in range(self.chance.choice((1, 10))):
            peer = Peer(self.broker, 5)
            delayed = self.chance.random() < 0.5
            will = Will("w" * self.length(), bytes(self.length()), 1, False, {Property.WILL_DELAY_INTERVAL: KEPT} if delayed else {})
            peer.send(Connect(f"c{self.next()}", 5, will=will, properties={Property.SESSION_EXPIRY_INTERVAL: KEPT} if delayed else {}))
            if delayed:
                peer.connection.connection_lost(None)
            else:
                self.peers.append(peer)

    def subscriptions(self) -> None:
        peer = self.one()
        for _ in range(self.chance.choice((1, 10))):
            start = f"{self.next()}/"
            size = self.chance.choice((10, 2000))
            self.give(peer, Subscribe(1, [Subscription(f"{start}{at}/" + "x" * size, 1) for at in range(100)]))

    def unsubscribe(self) -> None:
        peer = self.one()
        if peer.connection.session is not None:
            self.give(peer, Unsubscribe(1, [*peer.connection.session.subscriptions][:300] or ["x"]))

    def half(self) -> None:
        size = self.chance.choice((1000, 700_000))
        self.give(self.one(), b"\x30" + encode_length(size) + bytes(size - 1))

    def away(self) -> None:
        peer = self.client(KEPT, Subscription("q/#", 1))
        self.lose(peer)
        for _ in self.few():
            self.publish("q/1", 1)

    def retained(self) -> None:
        for _ in self.few():
            self.publish(f"r/{self.number}/" + "a/" * self.chance.choice((1, 150)), self.chance.randrange(2), True)

    def deletions(self) -> None:
        for _ in range(50):
            self.give(self.one(), Publish(f"r/{self.chance.randrange(self.number + 1)}/a/", b"", 0, True))

    def unread(self) -> None:
        peer = self.client(self.chance.choice((0, KEPT)), Subscription("#", self.chance.randrange(2)))
        peer.stuck = True
        for _ in self.few():
            self.publish("u", self.chance.randrange(2))

    def unacknowledged(self) -> None:
        self.client(self.chance.choice((0, KEPT)), Subscription("f/#", 2))
        for _ in self.few():
            self.publish("f/1", 1)

    def released_never(self) -> None:
        for _ in self.few():
            self.publish("f/2", 2)

    def topics(self) -> None:
        for _ in range(self.chance.choice((5, 200))):
            self.give(self.one(), Publish(f"{self.next()}" + "t" * self.length()))

    def long_names(self) -> None:
        peer = Peer(self.broker, 5)
        self.peers.append(peer)
        pairs: Any = [("k" * 30_000, "v" * 30_000)] * self.chance.choice((0, 5))
        named: Any = {Property.SESSION_EXPIRY_INTERVAL: KEPT, Property.USER_PROPERTY: pairs}
        peer.send(Connect(f"c{self.next()}" + "i" * self.length(), 5, properties=named))

    def properties(self) -> None:
        for _ in range(10):
            pairs = [("k", "v" * 500)] * self.chance.choice((1, 900))
            topic, retain = self.chance.choice(("q/9", "r/p", "u", "f/p")), self.chance.random() < 0.3
            self.publish(topic, 1, retain, user_property=pairs, response_topic="z" * self.length(), correlation_data=bytes(self.length()))

    def shared(self) -> None:
        peer = self.client(KEPT, Subscription(f"$share/g{self.chance.randrange(3)}/q/#", 1))
        if self.chance.random() < 0.5:
            self.lose(peer)

    def kinds(self) -> None:
        """Each of these gets the messages in another form: with an identifier of its own."""
        for number in range(1, self.chance.choice((2, 40))):
            self.client(0, Subscription("q/#", self.chance.randrange(2)), identifier=number)

    def handles(self) -> None:
        for _ in range(20):
            pairs: Any = {Property.USER_PROPERTY: [("mqmesh-handle", f"{self.next()}" + "h" * self.length())]}
            self.give(self.one(), Publish("h", b"", 1, packet_id=self.number % 60_000 + 1, properties=pairs))

    def take_over(self) -> None:
        peer = Peer(self.broker, 5)
        self.peers.append(peer)
        peer.connect(f"c{self.chance.randrange(self.number + 1)}", session_expiry_interval=self.chance.choice((0, KEPT)))

    def end(self) -> None:
        for _ in range(min(len(self.peers), self.chance.choice((1, 1, 10)))):
            peer = self.chance.choice(self.peers)
            if self.chance.random() < 0.5:
                self.give(peer, Disconnect())
            self.lose(peer)

    def lose(self, peer: Peer) -> None:
        peer.connection.connection_lost(None)
        if peer in self.peers:
            self.peers.remove(peer)

    # ---- the story

    async def step(self) -> str:
        """One of these, and some rounds of the loop: what it was."""
        act = self.chance.choice(self.acts)
        act()
        for _ in range(self.chance.choice((1, 20))):
            await asyncio.sleep(0)
        for peer in [one for one in self.peers if one.transport.closed]:
            self.lose(peer)
        while self.broker.context.turns._waiting:  # on a busy machine much of it waits for a later turn  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(2):  # what was sent in the first is read or counted in the second
            for peer in self.peers:
                peer.read()
            site = self.broker.site
            site.backpressure.check(site.connections)
            for _ in range(5):
                await asyncio.sleep(0)
        return act.__name__


def story_of(seed: int, steps: int = STEPS) -> Counter[str]:
    """What clients did in one story. Raises AssertionError if there was more memory than the ledger knew."""
    done: Counter[str] = Counter()

    async def story() -> None:
        limits = replace(Limits(), sys_interval=0, broker_bytes=LIMIT, max_packet_size=2**20)
        broker = Broker(BrokerConfig(listen=[], limits=limits))
        await broker.start()
        told, ledger = Story(seed, broker), broker.context.ledger
        gc.collect()
        tracemalloc.start()
        try:
            begun = tracemalloc.get_traced_memory()[0]
            for at in range(steps):
                what = await told.step()
                done[what] += 1
                if (memory := tracemalloc.get_traced_memory()[0] - begun) > ledger.total + SLACK:
                    gc.collect()
                    memory = tracemalloc.get_traced_memory()[0] - begun
                held = {kind: size for kind, size in zip(KINDS, ledger.held, strict=True) if size}
                assert memory <= ledger.total + SLACK, f"step {at}, {what}: {memory:,} bytes, and the ledger has {ledger.total:,}: {held}"
        finally:
            tracemalloc.stop()

    asyncio.run(story())
    return done


if __name__ == "__main__":
    main_of(__doc__, story_of)
