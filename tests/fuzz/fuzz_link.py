"""Fuzzing of the links between brokers: strangers and authenticated peers that say what no broker says.

By hand:  python -m tests.fuzz.fuzz_link --for 600          seeded rounds; prints the seed
          python -m tests.fuzz.fuzz_link --seed 7 --runs 1  one round again; --json for a report in JSON

`knock` is the contract for the handshake, either end of it: whoever has not the mesh's key never comes in, and every damage ends in
documented errors. `Bed` is the contract for peers that have the key: three nodes with disks, of which the third speaks honestly and has
its bytes damaged, lied about, repeated and mixed with frames of other kinds. Only `PeerError` may come of that, on that link alone: the
second never refuses what the first one passes on, their link stays, messages get through afterwards, and both start again from their disks.
`_doors` does the same at the door of a real broker, where a client must not notice and an honest broker is let in afterwards.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import msgpack

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mqmesh.broker.client.connection import Connection
from mqmesh.broker.config import BrokerConfig, Limits, MeshSettings
from mqmesh.broker.mesh import link as link_module
from mqmesh.broker.server import Broker
from mqmesh.mesh.link.link import Link, LinkConfig, LinkUp, State
from mqmesh.mesh.link.settings import LinkClosed, LinkData
from mqmesh.mesh.node.actions import Action, Send
from mqmesh.mesh.wire.control import DEFLATED, EPOCH_BITS, PREFIX, encode_raw
from mqmesh.mesh.wire.identity import CAPABILITIES, PACKED, Identity
from mqmesh.mesh.wire.packed import Packer, Unpacker
from mqmesh.mesh.wire.policy import Policy
from mqmesh.mqtt import codec
from mqmesh.mqtt import packets as p
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.framing import Framer
from support.models.broker_wire import FakeTransport, Wire
from support.models.mesh_net import Net, signer_of

from .fuzz_codec import mutate
from .runs import main_of

KEY, WRONG = b"the secret of the mesh", b"a secret of another mesh"
ATTACKS = 12  # of one bed
KNOCKS = 40  # handshakes of a round
DOORS = 12  # conversations of a round with one broker
MOST = 100_000  # actions of one attack: more is a storm
LIFE = 3000  # the epoch in which `Bed` begins; samples are of earlier ones
KINDS = ("summary", "synced", "linkstate", "interest", "want", "open", "receipts", "dropped", "noted", "retained", "later", *DEFLATED)
ABLE = (frozenset(), frozenset((PACKED,)), CAPABILITIES)  # what the brokers of a bed understand
CONFIG = LinkConfig(silence=60.0)


# ---- what is said


@cache
def samples() -> list[tuple[bytes, int]]:
    """(frames, version) that three brokers said to each other while all that a mesh has was used, in an earlier release and in this one."""
    return [(frame, 5) for frame in dict.fromkeys(frame for able in ABLE for _, frame in _said(able))]


@cache
def trees() -> list[tuple[str, Any]]:
    """(kind, body) of what is deflated there. Of the bytes by themselves nothing can be made: they are parts of their links' streams."""
    found = []
    for able in ABLE:
        streams: defaultdict[tuple[int, int], Unpacker] = defaultdict(Unpacker)
        for end, frame in _said(able):
            kind, body = control(frame) or ("", b"")
            if kind in DEFLATED:
                found.append((kind, msgpack.unpackb(streams[end].unpack(body))))
    return found


@cache
def _said(able: frozenset[str]) -> list[tuple[tuple[int, int], bytes]]:
    """((broker, link), frame) as they were sent."""
    said: list[tuple[tuple[int, int], bytes]] = []

    class Heard(Net):
        def _do(self, number: int, action: Action) -> None:
            if isinstance(action, Send):
                said.append(((number, action.link), bytes(action.data)))
            super()._do(number, action)

    net = Heard(1, 2, 3, durable=True, keyed=True, able=able)
    net.publish(1, "early/kept", 1, retain=True)
    net.link(1, 2), net.link(1, 3)
    net.link(2, 3, 7, {2: Policy(out=("a/#",), prefixes=(("a/", "b/"),))})
    net.settle()
    for number in net.nodes:
        busy(net, number, random.Random(number), 30)
        net.settle()
    net.nodes[1].unsubscribe("t/#", None, net.now)
    net.now += 40
    for node in net.nodes.values():
        node.handle_timer(net.now)
    net.settle()
    net.add(2, epoch=LIFE - 1000)
    net.cut(1)
    net.link(1, 2)
    net.settle()
    return said


def busy(net: Net, number: int, chance: random.Random, steps: int) -> None:
    """A broker does what brokers do."""
    node = net.nodes[number]
    for _ in range(steps):
        filter_ = chance.choice(("t/#", "t/+", "a/b", "#", "t/1"))
        group = chance.choice((None, None, "g", "h"))
        match chance.randrange(7):
            case 0 | 1:
                node.subscribe(filter_, group, chance.randrange(1, 5), net.now)
            case 2:
                node.unsubscribe(filter_, group, net.now)
            case 3 | 4:
                topic, qos = chance.choice(("t/1", "t/2", "a/b", "t")), chance.randrange(3)
                expiry = chance.choice((None, None, 60))
                net.publish(number, topic, qos, count=chance.choice((1, 1, 3, 40)), retain=chance.random() < 0.3, expiry=expiry)
            case 5:
                net.publish(number, chance.choice(("t/1", "a/b")), payloads=[b""], retain=True)
            case _ if node.known():
                node.send_to_brokers(node.known(), "fuzz", b"body", net.now)


def lie(value: Any, chance: random.Random) -> Any:
    """A damaged copy of a control packet's body."""
    if type(value) is list and value and chance.random() < 0.85:
        copy = list(value)
        at = chance.randrange(len(copy))
        match chance.randrange(8):
            case 0:
                del copy[at]
            case 1:
                copy.insert(at, chance.choice(copy))
            case 2:
                copy[at:at] = copy * chance.choice((1, 1, 40))
            case _:
                copy[at] = lie(copy[at], chance)
        return copy
    if type(value) is int and chance.random() < 0.8:
        edges = (0, 1, 2, 3, 4, value + 1, value - 1, value ^ 1 << chance.randrange(64), chance.getrandbits(64))
        highest = [(1 << bits) - 1 for bits in (16, 32, EPOCH_BITS - 1, 48, 63, 64)]
        return chance.choice((*edges, *edges, *highest))
    if type(value) is bytes and value and chance.random() < 0.8:
        uuids = [UUID(int=number).bytes for number in (1, 2, 3, 4)]
        return chance.choice((*uuids, value[:-1], value + b"\0", chance.randbytes(len(value)), b"\xff" * len(value), value * 3))
    if type(value) is str and chance.random() < 0.8:
        return chance.choice(("", "#", "a/#/b", "$SYS/x", "\0", "x" * 300, "+/" * 2000 + "#", value + "/#", value * 3, "\ud7ff", "g/h"))
    return chance.choice((None, True, -1, 1.5, float("nan"), [], {}, {"a": 1}, b"", "", [[]], 0, 1 << 63, msgpack.Timestamp(1)))


def body_of(chance: random.Random, depth: int = 0) -> Any:
    """A body out of nothing."""
    if depth < 4 and chance.random() < 0.6:
        return [body_of(chance, depth + 1) for _ in range(chance.randrange(12))]
    return lie(chance.choice((0, 3, b"\0" * 16, "t/#", None)), chance)


def control(frame: bytes) -> tuple[str, bytes] | None:
    """(kind, body) of the first packet if it is a control packet."""
    [(first, body), *_] = Framer().feed(frame)
    if first != 0x30 or body[2 : 2 + len(PREFIX)] != PREFIX:
        return None
    end = 2 + (body[0] << 8 | body[1])
    return body[2 + len(PREFIX) : end].decode(), body[end + 1 :]


def damaged(frame: bytes, chance: random.Random) -> bytes:
    """Another frame in place of this one."""
    found = control(frame)
    if chance.random() < 0.15:
        return encode_raw(chance.choice(KINDS), msgpack.packb(body_of(chance), strict_types=False))
    if found is None or chance.random() < 0.3:
        return mutate(frame, chance, samples())
    kind, body = found
    if kind in DEFLATED:
        kind, changed = chance.choice(trees())
    else:
        changed = msgpack.unpackb(body, strict_map_key=False)
    for _ in range(chance.choice((1, 1, 2, 4))):
        changed = lie(changed, chance)
    try:
        raw = msgpack.packb(changed)
    except OverflowError:
        raw = chance.randbytes(20)
    if kind in DEFLATED:
        return encode_raw(kind if chance.random() < 0.95 else chance.choice((*DEFLATED,)), Packer().pack(raw))
    return encode_raw(kind if chance.random() < 0.95 else chance.choice(KINDS), raw)


def attack(frames: list[bytes], chance: random.Random) -> list[bytes]:
    """What a malicious peer says where an honest one would say these frames."""
    said: list[bytes] = []
    for frame in frames or [chance.choice(samples())[0]]:
        match chance.randrange(8):
            case 0:
                said.append(damaged(frame, chance))
            case 1:
                said += [frame, damaged(chance.choice(samples())[0], chance)]
            case 2:
                said += [chance.choice(samples())[0], frame]
            case 3:
                said += [frame, frame] if chance.random() < 0.5 else []
            case _:
                said.append(frame)
    if chance.random() < 0.2:
        chance.shuffle(said)
    return said


def pieces(data: bytes, chance: random.Random) -> list[bytes]:
    """The same bytes in pieces."""
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 1, 4))))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


# ---- the handshake


def knock(chance: random.Random) -> str:
    """A handshake with damage by either end; how it ended at the other one, which is honest."""
    key = KEY if chance.random() < 0.5 else chance.choice((WRONG, b""))
    honest, other = Identity("mesh", "b1", 1, UUID(int=1), 1000), Identity("mesh", "b3", 3, UUID(int=3), 1000)
    dialled = chance.random() < 0.5  # by the honest end
    if dialled:
        link = Link.dial(honest, KEY, CONFIG, 0.0)
        peer = Link.accept(other, key, CONFIG, _connect(link.take()), b"", 0.0)
    else:
        peer = Link.dial(other, key, CONFIG, 0.0)
        said = _spoiled(peer.take(), chance)
        try:
            [(first, body), *rest] = Framer().feed(said)
            connect = codec.decode(first, body, 5)
        except (PeerError, ValueError):
            return "no CONNECT"  # the broker's front door refuses it, see fuzz_broker.py
        if not isinstance(connect, p.Connect):
            return "no CONNECT"
        link = Link.accept(honest, KEY, CONFIG, connect, b"".join(bytes((a, len(b))) + b for a, b in rest if len(b) < 128), 0.0)
        link.receive(b"", 0.0)
    for turn in range(4):
        peer.receive(link.take(), turn)
        for piece in pieces(_spoiled(peer.take(), chance), chance):
            events = link.receive(piece, turn)
            assert all(event.text and event.reason >= 0 for event in events if isinstance(event, LinkClosed))
            assert key == KEY or not any(isinstance(event, LinkUp) for event in events), "a stranger came in"
    for event in link.handle_timer(1e6) + link.connection_lost():
        assert isinstance(event, LinkClosed)
    assert link.state is State.CLOSED
    return f"handshake with {'the key' if key == KEY else 'no key'}: {'up' if link.incarnation else 'refused'}"


def _connect(data: bytes) -> p.Connect:
    [(first, body)] = Framer().feed(data)
    connect = codec.decode(first, body, 5)
    assert isinstance(connect, p.Connect)
    return connect


def _spoiled(data: bytes, chance: random.Random) -> bytes:
    return mutate(data, chance, samples()) if data and chance.random() < 0.35 else data


# ---- authenticated peers


class Bed(Net):
    """Brokers 1, 2 and 3 with disks; 1 is linked to 2, and now and then to 3, whose bytes are damaged."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(1, 2, 3, durable=True, keyed=True, able=chance.choice(ABLE))
        self.chance = chance
        self.actions = 0
        self.hung_up = False
        for number in (1, 2, 3):  # what `samples` says is signed by the same keys in earlier lives: nobody has what a later life will sign
            self.add(number, epoch=LIFE)
        self._patient(self.nodes[3])
        self.between = self.link(1, 2, policies={1: Policy(out_except=("a/#",))} if chance.random() < 0.2 else None)
        self.settle()

    def _do(self, number: int, action: Action) -> None:
        self.actions += 1
        assert self.actions < MOST, "a storm"
        super()._do(number, action)

    def _patient(self, node: Any) -> None:
        """What 1 rightly answers to what 3 never meant may be an error to 3, which hangs up."""
        receive = node.receive

        def patient(link: int, data: bytes, now: float) -> None:
            try:
                receive(link, data, now)
            except PeerError:
                self.hung_up = True

        node.receive = patient

    def attack(self) -> str:
        """One life of the link to 3. How it ended."""
        chance, self.actions = self.chance, 0
        self.hung_up = False
        self.links += 1
        link = self.links
        door, peer = handshake(self.nodes[1].identity, self.nodes[3].identity)
        self.ends[1, link], self.ends[3, link] = (3, link), (1, link)
        policy = Policy(into_except=("a/#",), prefixes=(("t/", "u/"),)) if chance.random() < 0.2 else None
        self.nodes[1].link_up(link, self.nodes[3].identity, door.incarnation, 1, self.now, policy)
        self.nodes[3].link_up(link, self.nodes[1].identity, peer.incarnation, 1, self.now)
        outcome = "open"
        for _ in range(chance.randrange(1, 8)):
            busy(self, chance.choice((1, 2, 3, 3)), chance, chance.randrange(4))
            self.stuck = {(3, link)}
            self.settle()
            said = attack(self.flying.pop((3, link), []), chance)
            outcome = self.hear(link, door, b"".join(said))
            if outcome == "open" and self.hung_up:
                outcome = "closed by the peer"
            if outcome != "open":
                break
            self.now += chance.choice((0.0, 0.1, 31.0))
        self.flying.pop((3, link), None)
        self.stuck = set()
        self.cut(link)
        self.settle()
        return outcome

    def hear(self, link: int, door: Link, data: bytes) -> str:
        """What 1 makes of it, in pieces."""
        for piece in pieces(data, self.chance):
            for event in door.receive(piece, self.now):
                if isinstance(event, LinkClosed):
                    return f"{event.reason.name.lower()} by the link"
                if isinstance(event, LinkData) and (1, link) in self.ends:
                    try:
                        self.nodes[1].receive(link, event.data, self.now)
                    except PeerError as error:
                        _check_error(error)
                        return f"{error.reason.name.lower()} by the node"
            self.settle()
            if (1, link) not in self.ends:
                return "closed by the node"
        return "open"

    def works(self, word: str) -> str:
        """Brokers 1 and 2 go on: what is published at either reaches the other, once. What that took.

        What 3 says in the name of others is signed by nobody and believed by nobody; so no restart is ever needed.
        """
        how = "goes on"
        if (1, self.between) not in self.ends:
            assert any(action.reason.name == "CLIENT_IDENTIFIER_NOT_VALID" for _, action in self.closed), self.closed
            how = "goes on behind a new link"
            self.between = self.link(1, 2)
        if self.exchange(word):
            return how
        self.cut(self.between)
        self.between = self.link(1, 2)
        if self.exchange(f"{word}/link"):
            return "goes on behind a new link"
        raise AssertionError("a lie about others is believed")

    def exchange(self, word: str) -> bool:
        """Whether messages get through in both directions."""
        self.actions = 0
        topics = {1: f"works/{word}/1", 2: f"works/{word}/2"}
        for number, topic in topics.items():
            self.nodes[number].subscribe(topic, None, 1, self.now)
        self.settle()
        for here, there in ((1, 2), (2, 1)):
            self.publish(here, topics[there], 1, payloads=[b"one", b"two"])
        self.settle()
        found = {
            number: [
                payload
                for n, action in self.delivered
                if n == number and action.run.topic == topic.encode()
                for payload in action.run.payloads
            ]
            for number, topic in topics.items()
        }
        assert all(payloads in ([], [b"one", b"two"]) for payloads in found.values()), found
        return all(found.values())

    def again(self) -> bool:
        """Brokers 1 and 2 start again from their disks; False where an epoch has no successor."""
        self.cut(self.between)
        self.actions = 0
        epochs = {number: self.nodes[number].identity.epoch for number in (1, 2)}
        if max(epochs.values()) + 2000 >> EPOCH_BITS:
            return False
        for number in epochs:
            self.add(number, epoch=max(epochs.values()) + 1000 + number)
        self.between = self.link(1, 2)
        self.settle()
        return True


def _check_error(error: PeerError) -> None:
    assert error.text
    assert error.reason >= 0x80


def handshake(one: Identity, other: Identity) -> tuple[Link, Link]:
    """Both ends of a link that `other` has dialled, up."""
    peer = Link.dial(other, KEY, CONFIG, 0.0)
    link = Link.accept(one, KEY, CONFIG, _connect(peer.take()), b"", 0.0)
    peer.receive(link.take(), 0.0)
    link.receive(peer.take(), 0.0)
    peer.receive(link.take(), 0.0)
    assert link.state is peer.state is State.UP
    return link, peer


# ---- at a broker


class Pipe(FakeTransport):
    """A transport whose protocol changes when the connection turns out to be a link."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.protocol: Any = Connection(broker.site)
        self.protocol.connection_made(self)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def give(self, data: bytes) -> bytes:
        """Bytes for the broker, and what it answers."""
        if not self.closed:
            self.protocol.data_received(data)
        said = b"".join(self.written)
        self.written.clear()
        return said


def dialled(broker: Broker, number: int, key: bytes = KEY) -> tuple[Pipe, Link]:
    """A link to a broker, as far as the key leads."""
    signer = signer_of(number)
    identity = Identity("mesh", f"b{number}", number, UUID(int=number), 1000, signer.public)
    pipe, peer = Pipe(broker), Link.dial(identity, key, CONFIG, 0.0, signer=signer)
    while data := peer.take():
        peer.receive(pipe.give(data), 0.0)
    return pipe, peer


async def _doors(chance: random.Random, outcomes: Counter[str]) -> None:
    mesh = MeshSettings("mesh", KEY.decode(), silence=3600.0)
    broker = Broker(BrokerConfig("b1", 1, listen=[], mesh=mesh, limits=Limits(sys_interval=0, connect_timeout=3600)))
    # nothing waits for a turn, which comes only when the loop runs: a busy machine must change nothing
    broker.context.turns.clock = lambda: 0.0
    await broker.start()
    other, machine = dialled(broker, 2)
    client = Wire(broker, 5).connect("bystander")
    with mock.patch.object(link_module.log, "exception", side_effect=AssertionError("an internal error")):
        for number in range(DOORS):
            key = KEY if chance.random() < 0.8 else WRONG
            pipe, peer = dialled(broker, 3, key)
            assert (peer.state is State.UP) == (key == KEY)
            for piece in pieces(b"".join(attack([chance.choice(samples())[0] for _ in range(4)], chance)), chance):
                pipe.give(piece)
            outcomes["at a broker: " + ("a stranger" if key != KEY else "closed" if pipe.closed else "open")] += 1
            pipe.protocol.connection_lost(None)
            assert not other.closed or number, "the first attack closed another's link"
    machine.receive(other.give(b"\xc0\0"), 0.0)
    assert other.closed or machine.state is State.UP
    client.send(p.Pingreq())
    assert [type(one).__name__ for one in client.packets()] == ["Pingresp"]
    good, peer = dialled(broker, 5)
    assert peer.state is State.UP
    assert not good.closed, "an honest broker is let in afterwards"
    good.protocol.connection_lost(None)
    other.protocol.connection_lost(None)
    client.connection.connection_lost(None)
    await broker.stop()


# ---- rounds


def round_of(seed: int) -> Counter[str]:
    """All three of one seed; how often each outcome came."""
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter(knock(chance) for _ in range(KNOCKS))
    bed = Bed(chance)
    for number in range(ATTACKS):
        outcomes["link: " + bed.attack()] += 1
        outcomes[f"afterwards: {bed.works(str(number))}"] += 1
    if bed.again():
        outcomes["after a restart: " + bed.works("again")] += 1
    asyncio.run(_doors(chance, outcomes))
    return outcomes


def inputs(outcomes: Counter[str]) -> int:
    """How many of the outcomes are of conversations that were damaged."""
    return sum(count for outcome, count in outcomes.items() if not outcome.startswith("after"))


if __name__ == "__main__":
    main_of(__doc__, round_of, inputs)
