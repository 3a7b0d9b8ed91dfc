"""What is measured, and the ratios that must be reached (`mqmesh` to a peer, in one run on one machine)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers import Peer


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table.

    spec: fields of `spec.Spec` that differ from their defaults.
    brokers: 1, or 3 in a chain.
    bars: peer -> ratio that mqmesh must reach: at least, of a rate; at most, of a latency.
    peers: the only brokers that run it, or () for all.
    durable: mqmesh has a data folder and acknowledges after fsync what it must keep; the others keep everything in memory.
    way_in: the row shows how fast stored messages came in; the row with the same spec measures both ways.
    gateway: "out" or "in": from a client of a community to a client of a remote Mosquitto, or back. mqmesh does it with its broker and
        metabroker, the others with a bridge. The row of a latency compares what is added to that of a single Mosquitto.
    apart: the metabroker is a process of its own, and not inside the broker.
    """

    name: str
    title: str
    spec: dict[str, Any] = field(default_factory=dict)
    brokers: int = 1
    bars: dict[str, float] = field(default_factory=dict)
    peers: tuple[str, ...] = ()
    durable: bool = False
    way_in: bool = False
    gateway: str = ""
    apart: bool = False

    @property
    def latency(self) -> bool:
        """Whether one message at a time is timed."""
        return self.spec.get("kind") == "latency"

    def fits(self, peer: Peer) -> bool:
        """Whether that broker can do it."""
        wanted = not self.peers or peer.name in self.peers
        able = self.spec.get("qos", 0) <= peer.qos and self.spec.get("version", 4) in peer.versions
        return wanted and able and (peer.chains or (self.brokers == 1 and not self.gateway))


ACKNOWLEDGED = 1000  # messages in flight at QoS 1 and 2
ENCRYPTED = ("mqmesh", "mqmesh-asyncio", "mosquitto", "nats")
STORED = {"kind": "stored", "qos": 1, "window": ACKNOWLEDGED, "persistent": True, "messages": 1_000_000}
DURABLE = {"qos": 1, "window": ACKNOWLEDGED, "persistent": True}
QUEUES = ("mqmesh", "mqmesh-asyncio", "mosquitto")
GATEWAYS = ("mqmesh", "mqmesh-asyncio", "mosquitto")
METABROKERS = (("", "metabroker"), ("-apart", "metabroker as a process"))
BESIDE_MOSQUITTO = ("mqmesh", "mqmesh-asyncio", "mqmesh-access", "mosquitto")
FAST = ("mqmesh", "mqmesh-asyncio", "mqmesh-access", "mosquitto", "nats", "forward")

SINGLE = "one-in-flight"
PAIRS = {"kind": SINGLE, "publishers": 200, "subscribers": 200, "pairs": True, "window": 200}
TWENTY = {"kind": SINGLE, "publishers": 20, "window": 20}
MIXED = {"kind": SINGLE, "publishers": 100, "subscribers": 10, "topics": 50, "sizes": (20, 200), "window": 100}

SCENARIOS = (
    Scenario("qos0-1to1", "QoS 0, 1 publisher, 1 subscriber", bars={"mosquitto": 4, "nats": 0.8}),
    Scenario("qos0-fanout10", "QoS 0, fan-out to 10", {"subscribers": 10}, bars={"mosquitto": 8, "nats": 2}),
    Scenario("qos0-10pairs", "QoS 0, 10 pairs", {"publishers": 10, "subscribers": 10, "pairs": True}, bars={"mosquitto": 5}),
    Scenario("qos0-10to1", "QoS 0, 10 publishers, 1 subscriber", {"publishers": 10}),
    Scenario("qos1-1to1", "QoS 1, 1:1, in memory", {"qos": 1, "window": ACKNOWLEDGED}, bars={"mosquitto": 5}),
    Scenario("qos2-1to1", "QoS 2, 1:1, in memory", {"qos": 2, "window": ACKNOWLEDGED}, bars={"mosquitto": 3}),
    Scenario("durable-qos1-1to1", "QoS 1, 1:1, durable (fsync), others in memory", DURABLE, bars={"mosquitto": 1}, durable=True),
    Scenario("stored-in", "subscriber away, QoS 1: in", STORED, bars={"mosquitto": 0.5}, peers=QUEUES, durable=True, way_in=True),
    Scenario("stored-out", "subscriber back: out", STORED, bars={"mosquitto": 1}, peers=QUEUES, durable=True),
    Scenario("chain3-durable-qos1", "chain of three, QoS 1, durable, others in memory", DURABLE, 3, durable=True),
    Scenario("latency-qos0", "one message at a time, QoS 0", {"kind": "latency"}, bars={"mosquitto": 1.2}),
    Scenario("latency-qos1", "one message at a time, QoS 1", {"kind": "latency", "qos": 1}, bars={"mosquitto": 1.2}),
    Scenario("chain3-qos0", "chain of three brokers, QoS 0", brokers=3, bars={"mosquitto": 4}),
    Scenario("chain3-qos1", "chain of three brokers, QoS 1", {"qos": 1, "window": ACKNOWLEDGED}, brokers=3),
    Scenario("chain3-topics-qos0", "chain of three, 1,000 topics in turn, QoS 0", {"topics": 1000}, brokers=3, bars={"mosquitto": 2}),
    Scenario(
        "chain3-topics-qos1",
        "chain of three, 1,000 topics in turn, QoS 1",
        {"topics": 1000, "qos": 1, "window": ACKNOWLEDGED},
        brokers=3,
        bars={"mosquitto": 2},
    ),
    *(
        Scenario(
            f"single-{clients}-qos{qos}{'-durable' if durable else ''}",
            f"one message in flight each, {title}, QoS {qos}{', data folder' if durable else ''}",
            {**spec, "qos": qos},
            bars={"mosquitto": 0.9 if durable else 1.0} if qos else {},
            peers=BESIDE_MOSQUITTO,
            durable=durable,
        )
        for clients, title, spec in (("200pairs", "200 pairs", PAIRS), ("20to1", "20 publishers, 1 subscriber", TWENTY))
        for qos in (0, 1)
        for durable in (False, True)
    ),
    Scenario(
        "single-100to10-mixed",
        "one message in flight each, 100 publishers of 50 topics, 20 to 200 bytes, 10 wildcard subscribers, QoS 0",
        MIXED,
        bars={"nats": 1.0},
        peers=(*BESIDE_MOSQUITTO, "nats"),
    ),
    *(
        Scenario(
            f"chain3-latency-qos{qos}-durable",
            f"chain of three with data folders, one at a time, QoS {qos}",
            {"kind": "latency", "qos": qos},
            3,
            bars={"mosquitto": bar},
            peers=QUEUES,
            durable=True,
        )
        for qos, bar in ((0, 1.2), (1, 1.8))
    ),
    Scenario(
        "chain3-single-20to1-qos1-durable",
        "one message in flight each, 20 publishers, chain of three with data folders, 1 subscriber, QoS 1",
        {**TWENTY, "qos": 1},
        3,
        peers=QUEUES,
        durable=True,
    ),
    Scenario("chain3-latency-qos0", "chain of three, one at a time, QoS 0", {"kind": "latency"}, brokers=3),
    Scenario("chain3-latency-qos1", "chain of three, one at a time, QoS 1", {"kind": "latency", "qos": 1}, brokers=3),
    Scenario("qos0-1to1-tls", "QoS 0, 1:1, TLS", {"tls": True}, bars={"mosquitto": 2}, peers=ENCRYPTED),
    Scenario("qos0-1to1-ws", "QoS 0, 1:1, WebSocket", {"web": True}, bars={"mosquitto": 2}, peers=QUEUES),
    Scenario("qos0-v5", "QoS 0, 1:1, MQTT 5", {"version": 5}, peers=FAST),
    Scenario("qos1-v5", "QoS 1, 1:1, MQTT 5", {"version": 5, "qos": 1, "window": ACKNOWLEDGED}, peers=FAST),
    Scenario("qos0-topics", "QoS 0, 1:1, 1,000 topics in turn", {"topics": 1000}, peers=FAST),
    Scenario("qos0-window100", "QoS 0, 1:1, 100 messages in flight", {"window": 100}, peers=FAST),
    Scenario("qos0-1KiB", "QoS 0, 1:1, 1 KiB payloads", {"sizes": (1024, 1024), "window": 10_000}, peers=FAST),
    Scenario("qos0-sizes", "QoS 0, 1:1, payloads of 16 to 512 bytes", {"sizes": (16, 512)}, peers=FAST),
    *(
        Scenario(
            f"mb{apart}-{direction}-qos{qos}",
            f"{title}: {direction}, QoS {qos}",
            spec,
            bars={} if apart else {"mosquitto": bar},
            peers=GATEWAYS,
            gateway=direction,
            apart=bool(apart),
        )
        for apart, title in METABROKERS
        for direction in ("out", "in")
        for qos, spec, bar in ((0, {}, 1.0), (1, {"qos": 1, "window": ACKNOWLEDGED}, 0.7))
    ),
    *(
        Scenario(
            f"mb{apart}-{direction}-latency",
            f"{title}: {direction}, one at a time, added",
            {"kind": "latency"},
            bars={} if apart else {"mosquitto": 3},
            peers=GATEWAYS,
            gateway=direction,
            apart=bool(apart),
        )
        for apart, title in METABROKERS
        for direction in ("out", "in")
    ),
)
