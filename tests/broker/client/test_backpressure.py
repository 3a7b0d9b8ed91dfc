"""Bounded memory: clients that do not read, do not acknowledge, or are away, and what the others notice of it."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

import pytest
from mqmesh.broker.client import backpressure
from mqmesh.broker.client.connection import Connection
from mqmesh.broker.ledger import IN_FLIGHT, QUEUED, RECEIVED, RETAINED, ROUTES, UNSENT, WILLS
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Pingreq, Puback, Publish, Pubrec, Subscribe, Subscription, Will
from mqmesh.mqtt.reasons import Reason
from support.broker_site import TIMEOUT, Client, Site, until

KIB, MIB = 2**10, 2**20


class Flood:
    """A publisher that always has more: frames of 1 KiB as fast as the broker takes them."""

    def __init__(self, client: Client, topic: str, qos: int) -> None:
        self.client = client
        self.topic = topic
        self.qos = qos
        self.sent = 0
        self.answers: Counter[int] = Counter()

    async def go(self, count: int, window: int = 200) -> None:
        """Send `count` more; QoS 1: never more than `window` without an answer."""
        for _ in range(count):
            self.sent += 1
            self.client.send(
                Publish(self.topic, b"%016d" % self.sent + bytes(1000), self.qos, packet_id=self.sent % 65535 + 1 if self.qos else 0)
            )
            if self.qos and self.sent - self.answers.total() >= window:
                self.answers[(await self.client.expect(Puback)).reason] += 1
            while self.qos and self.client.waiting():
                self.answers[(await self.client.expect(Puback)).reason] += 1
            if not self.qos and self.sent % 64 == 0:
                await until(lambda: self.client.transport.get_write_buffer_size() < 256 * KIB)
        while self.qos and self.answers.total() < self.sent:
            self.answers[(await self.client.expect(Puback)).reason] += 1


def narrow(transport: asyncio.Transport) -> None:
    """Let the kernel keep little of what is sent, so that little has to be sent to fill it.

    Its window for what comes stays as it is: if that shrinks while the connection is used, the kernel may drop segments with the
    acknowledgements in them, and nothing moves either way for a minute.
    """
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * KIB)


def stop_reading(site: Site, client: Client) -> Connection:
    """The client takes nothing from now on; its connection at the broker."""
    session = site.broker.site.sessions.get(client.name)
    assert session is not None
    assert session.connection is not None
    narrow(session.connection.transport)
    client.transport.pause_reading()
    return session.connection


async def stalled(site: Site, name: str, topic: str, qos: int) -> Client:
    client = await site.client(name)
    await client.subscribe(topic, qos=qos)
    stop_reading(site, client)
    return client


@pytest.mark.any_loop
async def test_qos_0_for_one_that_does_not_read_is_dropped_and_counted():
    async with Site(unsent_bytes=512 * KIB) as site:
        stuck = await stalled(site, "stuck", "t", 0)
        reader = await site.client("reader")
        await reader.subscribe("t")
        publisher = await site.client("p")
        flood = Flood(publisher, "t", 0)
        got = []
        for _ in range(80):  # each time half of what may be unsent: the one that reads misses nothing, however slow the machine is
            await flood.go(250)
            got += await reader.messages(250)
        await publisher.nothing()
        connection = site.broker.site.sessions.get("stuck").connection
        assert connection.congested
        assert connection.unsent < 512 * KIB + 300 * KIB  # the bound and one chunk
        assert connection.dropped == site.broker.context.counters.dropped > 5000
        assert [int(message.payload[:16]) for message in got] == list(range(1, 20_001))
        stuck.transport.resume_reading()
        await until(lambda: not connection.congested)
        await publisher.publish("t", b"end")
        while (await stuck.receive()).payload != b"end":
            pass


async def test_qos_1_for_one_that_does_not_read_waits_up_to_the_bound_then_is_refused():
    async with Site(unsent_bytes=64 * KIB, session_queue_messages=5000, session_queue_bytes=4 * MIB, in_flight=100) as site:
        stuck = await stalled(site, "stuck", "t", 1)
        other, own = await site.client("other"), await site.client("own")
        await own.subscribe("own", qos=1)
        publisher = await site.client("p")
        flood = Flood(publisher, "t", 1)
        running = asyncio.ensure_future(flood.go(6000))
        session = site.broker.site.sessions.get("stuck")
        connection = site.broker.site.sessions.get("p").connection
        await until(lambda: session in connection.pauses)  # slowed at half of the bound; it may pause for its turn before
        assert session.pressing
        assert not session.full
        for n in range(50):  # the others do not notice
            assert await other.publish("own", b"%d" % n, 1) == 0
            await own.messages(1)
        await site.later(backpressure.STALLED + 1)
        await running  # it was let go on, because the queue did not move
        assert set(flood.answers) == {0, Reason.QUOTA_EXCEEDED}
        assert session.queued_bytes <= 4 * MIB + 2 * KIB
        assert site.broker.context.counters.dropped == flood.answers[Reason.QUOTA_EXCEEDED] > 1000
        stuck.transport.resume_reading()
        kept = flood.answers[0]
        assert [int(message.payload[:16]) for message in await stuck.messages(kept)] == list(range(1, kept + 1))
        await stuck.nothing()
        assert (session.queued, session.queued_bytes, site.broker.context.ledger.held[QUEUED], session.outbound.in_flight) == (0, 0, 0, 0)


@pytest.mark.any_loop
@pytest.mark.parametrize("share", ["", "$share/g/"])
async def test_a_slow_reader_slows_its_publisher_and_gets_everything(share):
    async with Site(unsent_bytes=64 * KIB, session_queue_messages=200, in_flight=20) as site:
        slow = await site.client("slow")
        await slow.subscribe(share + "t", qos=1)
        publisher = await site.client("p")
        flood = Flood(publisher, "t", 1)
        running = asyncio.ensure_future(flood.go(5000, window=150))
        for n in range(1, 5001):
            message = await slow.expect(Publish)
            assert int(message.payload[:16]) == n
            slow.send(Puback(message.packet_id))
        await running
        assert flood.answers == {0: 5000}
        assert site.broker.context.counters.dropped == 0
        await until(lambda: not site.broker.site.sessions.get("p").connection.pauses)


@pytest.mark.parametrize("version", [4, 5])
async def test_the_queue_of_one_that_is_away(version):
    async with Site(session_queue_messages=10) as site:
        away = await site.client("away", version, clean=False, expiry=1000)
        await away.subscribe("t", qos=1)
        await away.leave()
        publisher, old = await site.client("p"), await site.client("old", 4)
        publisher.send(*[Publish("t", b"%02d" % n, 1, packet_id=n + 1) for n in range(15)])
        reasons = [(await publisher.expect(Puback, packet_id=n + 1)).reason for n in range(15)]
        assert reasons == [0] * 10 + [Reason.QUOTA_EXCEEDED] * 5
        assert await publisher.publish("t", b"15", 2) == Reason.QUOTA_EXCEEDED
        assert await old.publish("t", b"16", 1) == 0  # MQTT 3.1.1 has no way to say it
        assert await old.publish("t", b"17", 2) == 0
        assert site.broker.context.counters.dropped == 8
        await until(lambda: not site.broker.site.sessions.get("p").connection.pauses)
        assert site.broker.site.sessions.get("p").inbound.open == set()
        away = await site.client("away", version, clean=False, expiry=1000)
        assert [message.payload for message in await away.messages(10)] == [b"%02d" % n for n in range(10)]
        await away.nothing()
        assert await publisher.publish("t", b"18", 1) == 0


async def test_a_refused_qos_2_message_may_be_sent_again_with_the_same_identifier():
    async with Site(session_queue_messages=2) as site:
        away = await site.client("away", 4, clean=False)
        await away.subscribe("t", qos=2)
        await away.leave()
        publisher = await site.client("p")
        publisher.send(*[Publish("t", b"%d" % n, 2, packet_id=n + 1) for n in range(4)])
        for packet_id, reason in ((1, 0), (2, 0), (3, Reason.QUOTA_EXCEEDED), (4, Reason.QUOTA_EXCEEDED)):
            await publisher.expect(Pubrec, packet_id=packet_id, reason=reason)
        away = await site.client("away", 4, clean=False)
        await away.messages(2)
        publisher.send(*[Publish("t", b"%d" % n, 2, packet_id=n + 1, dup=n < 2) for n in range(4)])
        for packet_id in (1, 2, 3, 4):
            await publisher.expect(Pubrec, packet_id=packet_id, reason=0)
        assert [message.payload for message in await away.messages(2)] == [b"2", b"3"]
        await away.nothing()


async def test_a_queue_is_bounded_in_bytes():
    async with Site(session_queue_bytes=100 * KIB) as site:
        away = await site.client("away", 4, clean=False)
        await away.subscribe("t", qos=1)
        await away.leave()
        publisher = await site.client("p")
        publisher.send(*[Publish("t", bytes(10 * KIB), 1, packet_id=n + 1) for n in range(20)])
        reasons = Counter([(await publisher.expect(Puback)).reason for _ in range(20)])
        assert reasons == {0: 10, Reason.QUOTA_EXCEEDED: 10}
        publisher.send(*[Publish("other", b"", 1, packet_id=n + 1) for n in range(3)])
        session = site.broker.site.sessions.get("away")
        assert 100 * KIB <= session.queued_bytes <= 111 * KIB
        await site.client("away", 4, clean=True)
        assert site.broker.context.ledger.held[QUEUED] == 0


async def test_what_is_in_flight_is_bounded_in_bytes_too():
    async with Site(session_queue_bytes=100 * KIB) as site:
        client = await site.client("c")
        await client.subscribe("t", qos=1)
        publisher = await site.client("p")
        for n in range(15):
            await publisher.publish("t", b"%02d" % n + bytes(10 * KIB), 1)
        session = site.broker.site.sessions.get("c")
        assert session.outbound.in_flight == 10
        assert session.queued == 5
        assert [message.payload[:2] for message in await client.messages(15)] == [b"%02d" % n for n in range(15)]
        await client.nothing()
        assert session.outbound.bytes == 0


async def test_one_message_larger_than_the_bound_still_passes():
    async with Site(session_queue_bytes=10 * KIB, max_packet_size=2 * MIB) as site:
        client = await site.client("c", clean=False, expiry=100)
        await client.subscribe("t", qos=1)
        publisher = await site.client("p")
        assert await publisher.publish("t", bytes(MIB), 1) == 0
        await client.messages(1)
        await client.leave()
        assert await publisher.publish("t", bytes(MIB), 1) == 0
        assert await publisher.publish("t", b"", 1) == Reason.QUOTA_EXCEEDED
        client = await site.client("c", clean=False, expiry=100)
        await client.messages(1)


async def test_two_clients_that_publish_to_each_other_do_not_wait_for_each_other():
    async with Site(session_queue_messages=50, in_flight=10) as site:
        one, two = await site.client("one", 4), await site.client("two", 4)
        await one.subscribe("to/one", qos=1)
        await two.subscribe("to/two", qos=1)
        frames = {
            client: b"".join(encode(Publish(topic, b"%d" % n, 1, packet_id=n + 1), 4) for n in range(400))
            for client, topic in ((one, "to/two"), (two, "to/one"))
        }
        for client, data in frames.items():
            client.send(data)

        async def run(client: Client) -> int:
            got = acknowledged = 0
            while acknowledged < 400:
                packet = await client.receive()
                if isinstance(packet, Puback):
                    acknowledged += 1
                else:
                    got += 1
                    client.send(Puback(packet.packet_id))
            return got

        await asyncio.gather(run(one), run(two))


async def test_a_client_that_floods_itself_is_not_stopped():
    async with Site(session_queue_messages=50, in_flight=10) as site:
        client = await site.client("c", 4)
        await client.subscribe("t", qos=1)
        client.send(*[Publish("t", b"%d" % n, 1, packet_id=n + 1) for n in range(100)])
        acknowledged = 0
        while acknowledged < 100:
            packet = await client.receive()
            if isinstance(packet, Puback):
                acknowledged += 1
            else:
                client.send(Puback(packet.packet_id))


@pytest.mark.slow
@pytest.mark.any_loop
async def test_one_that_asks_and_does_not_take_the_answers_is_not_read():
    async with Site(unsent_bytes=16 * KIB) as site:
        client = await site.client("c", 4)
        connection = stop_reading(site, client)
        client.count_only = True
        pings = encode(Pingreq(), 4) * 8192
        sent = 0
        async with asyncio.timeout(TIMEOUT):
            while connection not in connection.pauses:
                if client.transport.get_write_buffer_size() < MIB:
                    client.send(pings)
                    sent += 1
                await asyncio.sleep(0)
        assert connection.unsent < 512 * KIB
        other = await site.client("other")
        await other.nothing()
        client.transport.resume_reading()
        await until(lambda: not connection.pauses)
        await until(lambda: len(client.raw) == 4 + sent * len(pings))


async def test_one_that_never_takes_its_answers_is_closed_after_its_keep_alive():
    async with Site(unsent_bytes=16 * KIB) as site:
        client = await site.client("c", 4, keep_alive=10)
        connection = stop_reading(site, client)
        async with asyncio.timeout(TIMEOUT):
            while connection not in connection.pauses:
                if client.transport.get_write_buffer_size() < MIB:
                    client.send(encode(Pingreq(), 4) * 8192)
                await asyncio.sleep(0)
        for _ in range(100):  # the kernel may still take a little, in its own time
            if not connection.closing:
                await site.later(8)
        assert connection.closing
        assert site.broker.site.sessions.get("c") is None


@pytest.mark.any_loop
async def test_all_messages_together_are_bounded():
    async with Site(broker_bytes=8 * MIB, session_queue_bytes=4 * MIB) as site:
        for n in range(4):
            away = await site.client(f"away {n}", 4, clean=False)
            await away.subscribe(f"t/{n}", qos=1)
            await away.leave()
        publisher = await site.client("p")
        refused = Counter()
        for n in range(4):
            flood = Flood(publisher, f"t/{n}", 1)
            await flood.go(4000)
            refused[n] = flood.answers[Reason.QUOTA_EXCEEDED]
        assert site.broker.context.ledger.held[QUEUED] <= 8 * MIB + 2 * KIB
        assert refused[3] > refused[0]
        assert site.broker.context.counters.dropped == refused.total()
        reader = await site.client("away 0", 4, clean=False)
        while site.broker.site.sessions.get("away 0").queued:
            await reader.messages(1)
        assert await publisher.publish("t/1", b"", 1) == 0 or site.broker.site.sessions.get("away 1").full


@pytest.mark.slow
@pytest.mark.any_loop
async def test_many_that_do_not_read_share_the_bound(monkeypatch):
    monkeypatch.setattr(backpressure, "SHARE_MIN", 16 * KIB)
    async with Site(broker_bytes=8 * MIB, unsent_bytes=16 * MIB) as site:
        stuck = [await stalled(site, f"stuck {n}", "t", 0) for n in range(10)]
        publisher = await site.client("p")
        narrow(publisher.transport)  # small pieces: ten copies of one of them are little beside what may be held
        await Flood(publisher, "t", 0).go(20_000)
        await publisher.nothing()
        site.broker.site.backpressure.check(site.broker.site.connections)
        assert site.broker.context.ledger.held[UNSENT] < 16 * MIB
        assert site.broker.context.counters.dropped > 10_000
        for client in stuck:
            client.count_only = True
            client.transport.resume_reading()
        await until(lambda: all(not connection.unsent for connection in site.broker.site.connections))
        site.broker.site.backpressure.check(site.broker.site.connections)
        assert not site.broker.site.backpressure._squeezed


async def test_messages_that_are_gone_leave_nothing_behind():
    async with Site() as site:
        client = await site.client("c", clean=False, expiry=100)
        client.send(Subscribe(1, [Subscription(f"t/{n}", 2) for n in range(20)]))
        await client.receive()
        publisher = await site.client("p")
        for n in range(200):
            await publisher.publish(f"t/{n % 20}", bytes(n), n % 3)
            if n % 50 == 25:
                await client.cut()
                await site.gone("c")
                client = await site.client("c", clean=False, expiry=100)
            if n % 50 == 40:
                while client.waiting():
                    await client.messages(1)
        await client.cut()
        await site.gone("c")
        await site.later(101)
        site.broker.site.backpressure.check(site.broker.site.connections)
        held = site.broker.context.ledger.held
        assert [held[kind] for kind in (QUEUED, RETAINED, UNSENT, IN_FLIGHT, RECEIVED)] == [0] * 5
        assert len(site.broker.site.sessions) == 1


async def test_packets_in_part_are_bounded_and_their_clients_named(caplog):
    async with Site(broker_bytes=4 * MIB) as site:
        ledger = site.broker.context.ledger
        halves = [await site.client(f"half {n}") for n in range(8)]
        for client in halves:
            client.send(b"\x30\x80\x80\x3c" + bytes(980_000))  # the last bytes never come
        evicted = site.broker.context.counters
        await until(lambda: evicted.evicted >= 5)
        assert ledger.held[RECEIVED] <= 2 * MIB + 64 * KIB
        assert caplog.text.count("event=evicted") == 1, "one line a minute"
        other = await site.client("other")
        assert await other.publish("t", b"x", 1) < 0x80


async def test_wills_count():
    async with Site(broker_bytes=4 * MIB) as site:
        ledger = site.broker.context.ledger
        before = ledger.total
        client = await site.client("c", will=Will("w", bytes(60_000), 1))
        assert site.broker.context.ledger.held[WILLS] > 60_000
        await client.leave()
        await site.gone("c")
        assert site.broker.context.ledger.held[WILLS] == 0
        await until(lambda: ledger.total - ledger.held[ROUTES] <= before)
