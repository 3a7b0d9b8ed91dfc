"""A ring of brokers writes one journal: each message has its end, each path is a path of the ring, totals are the brokers' own."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.journal.ends import stories
from mqmesh.broker.journal.kinds import Kind
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.settings import JournalSettings
from mqmesh.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqmesh.store.memory import MemoryStore
from support.broker_site import JumpingLoop, Site, until

KEY = "a key of sixteen bytes"
EACH = 40


async def ring(root: Path, stored: bool) -> tuple[list[Site], set[frozenset[int]]]:
    """Four brokers, each linked with the next, the last with the first."""
    sites: list[Site] = []
    for number in range(1, 5):
        peers = [PeerSettings(sites[-1].broker.addresses[0])] if sites else []
        if number == 4:
            peers.append(PeerSettings(sites[0].broker.addresses[0]))
        settings = MeshSettings("m", KEY, peers=peers, start_wait=0.0)
        store = MemoryStore() if stored else None
        site = Site(mesh=(number, settings), store=store, journal=JournalSettings(str(root), batch_seconds=0.02))
        sites.append(await site.__aenter__())
    links = {frozenset((number, number % 4 + 1)) for number in range(1, 5)}
    await until(
        lambda: all(site.broker.site.mesh.node.reachable(other) for site in sites for other in range(1, 5) if other != number_of(site))
    )
    return sites, links


def number_of(site: Site) -> int:
    return site.broker.config.number


async def traffic(sites: list[Site]) -> tuple[int, int]:
    """Messages of each QoS from each broker to subscribers at all, one of which takes QoS 0 only: published, delivered."""
    subscribers = []
    for site in sites:
        client = await site.client(f"s{number_of(site)}", expiry=1000)
        await client.subscribe("t/#", qos=0 if number_of(site) == 2 else 2)
        await client.subscribe("$share/g/t/#", qos=1)
        subscribers.append(client)
    node = lambda site: site.broker.site.mesh.node  # noqa: E731
    await until(lambda: all(node(site).interested("t/x").bit_count() == 3 for site in sites))
    for site in sites:
        publisher = await site.client(f"p{number_of(site)}")
        packets: list[Publish] = []
        for index in range(EACH):
            qos = index % 3
            topic = f"t/{index % 5}"
            packets.append(Publish(topic, b"x" * index, qos, packet_id=publisher.next_id() if qos else 0))
        publisher.send(*packets)
        await taken(publisher, packets)
    expected = 4 * EACH * 5  # four subscribers and one member of the shared subscription
    got = 0
    while got < expected or any(one.queued + one.outbound.in_flight for site in sites for one in site.broker.site.sessions):
        for client in subscribers:
            waiting = client.waiting()
            if waiting:
                got += await receive(client)
        await asyncio.sleep(0)
    return 4 * EACH, got


async def taken(publisher, packets) -> None:
    """All acknowledged, QoS 2 to the end."""
    left = sum(packet.qos > 0 for packet in packets)
    while left:
        packet = await publisher.receive()
        if isinstance(packet, Pubrec):
            publisher.send(Pubrel(packet.packet_id))
        elif isinstance(packet, Puback | Pubcomp):
            left -= 1


async def receive(client) -> int:
    """One packet: whether it is a message."""
    packet = await client.receive()
    if isinstance(packet, Pubrel):
        client.send(Pubcomp(packet.packet_id))
        return 0
    assert isinstance(packet, Publish)
    if packet.qos:
        client.send((Puback if packet.qos == 1 else Pubrec)(packet.packet_id))
    return 1


@pytest.mark.parametrize("stored", [False, True])
def test_each_message_has_its_end(tmp_path: Path, stored: bool) -> None:
    totals = Counter()

    async def scene() -> set[frozenset[int]]:
        sites, links = await ring(tmp_path, stored)
        published, delivered = await traffic(sites)
        totals["published"], totals["delivered"] = published, delivered
        await until(lambda: not any(site.broker.site.mesh.node.custody()[0] for site in sites))
        for site in sites:
            node, found = site.broker.site.mesh.node.counters, site.broker.site.connections
            totals["sent"] += node.sent
            totals["packets"] += sum(one.sent for one in found) + site.broker.site.sent_before
            totals["taken"] += sum(one.received for one in found) + site.broker.site.received_before
        for site in reversed(sites):
            await site.__aexit__(None, None, None)
        return links

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        links = runner.run(scene())
    journal = Journal(str(tmp_path))
    assert journal.check() == []
    found = stories(journal.tables())
    assert len(found) == totals["published"] == totals["taken"]
    assert {story.missing for story in found.values()} == {""}
    assert {story.stray(links) for story in found.values()} == {""}
    kinds: Counter[int] = Counter()
    for table in journal.tables():
        for kind, count in zip(table.column("kind").to_pylist(), table.column("count").to_pylist(), strict=True):
            kinds[kind] += count
    assert kinds[Kind.FORWARDED] == totals["sent"]
    assert kinds[Kind.DELIVERED] == totals["delivered"] == totals["packets"]
    counted: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for row in journal.counts().to_pylist():
        counted[row["kind"]] += row["messages"]
        sizes[row["kind"]] += row["bytes"]
    assert counted[Kind.PUBLISHED] == totals["published"]
    assert counted[Kind.DELIVERED] == totals["delivered"]
    assert counted[Kind.FORWARDED] == totals["sent"]
    assert sizes[Kind.PUBLISHED] == 4 * sum(range(EACH))
    assert sizes[Kind.DELIVERED] == 5 * sizes[Kind.PUBLISHED]
