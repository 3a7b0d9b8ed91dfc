"""Exchanges of MQTT clients: over an interchange, with a service on the way or without, and plain ones between the same two clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from mqmesh.base.interchange import INBOX, POST
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.decode import decode
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.packets import Connack, Connect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property

SHOP, BANK, MAP = "shop/orders", "bank/credit", "map/ids"
REQUEST = [("kind", "request"), ("sender", SHOP), ("recipient", BANK)]
ON_THE_WAY = [*REQUEST, ("service", MAP)]


class Party(asyncio.Protocol):
    """One of the two clients. taken: gets each message."""

    def __init__(self, name: str, topic: str, qos: int = 1) -> None:
        self._name, self._topic, self._qos = name, topic, qos
        self._framer = Framer()
        self._number = 0
        self.ready = asyncio.get_running_loop().create_future()
        self.taken: Callable[[Publish], None] = lambda publish: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.send(Connect(self._name, 5, True, 0, properties={Property.SESSION_EXPIRY_INTERVAL: 3600}))

    def data_received(self, data: bytes) -> None:
        out: list[object] = []
        for first, body in self._framer.feed(data):
            packet = decode(first, body, 5)
            if isinstance(packet, Publish):
                self.taken(packet)
                if packet.qos:
                    out.append(Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id))
            elif isinstance(packet, Pubrec):
                assert packet.reason < 0x80, packet
                out.append(Pubrel(packet.packet_id))
            elif isinstance(packet, Pubrel):
                out.append(Pubcomp(packet.packet_id))
            elif isinstance(packet, Connack):
                out.append(Subscribe(1, [Subscription(self._topic, self._qos)]))
            elif isinstance(packet, Suback):
                assert packet.reasons[0] < 0x80, packet
                self.ready.set_result(None)
            elif isinstance(packet, Puback):
                assert packet.reason < 0x80, packet
        if out:
            self.send(*out)

    def send(self, *packets: object) -> None:
        self._transport.write(b"".join([encode(one, 5) for one in packets]))  # type: ignore[arg-type, attr-defined]

    def close(self) -> None:
        self._transport.close()

    def post(self, topic: str, body: bytes, properties: dict[int, object]) -> None:
        self._number = self._number % 60_000 + 2
        self.send(Publish(topic, body, self._qos, packet_id=self._number if self._qos else 0, properties=properties))


async def over_interchange(
    shop_port: int, bank_port: int, transit: bool, body: bytes, count: int, at_once: int
) -> tuple[float, list[float]]:
    """Exchange so many: seconds in all, and those of each. The bank, and a service on the way, answer as MQTT 5 describes it."""
    shop = await party(shop_port, f"$queue/{INBOX}{SHOP}")
    others = [await party(bank_port, f"$queue/{INBOX}{name}") for name in ([BANK, MAP] if transit else [BANK])]
    for name, other in zip((BANK, MAP), others, strict=False):
        other.taken = _answering(other, [("sender", name)])
    about: dict[int, object] = {Property.USER_PROPERTY: ON_THE_WAY if transit else REQUEST}
    return await _exchange(shop, lambda: shop.post(POST, body, about), count, at_once)


async def plain(port: int, body: bytes, qos: int, count: int, at_once: int) -> tuple[float, list[float]]:
    """The same without an interchange: to a topic of the responder, and back to the Response Topic."""
    shop, bank = await party(port, "answers/shop", qos), await party(port, "bank", qos)
    bank.taken = _answering(bank, [])
    about: dict[int, object] = {Property.RESPONSE_TOPIC: "answers/shop", Property.CORRELATION_DATA: b"1"}
    return await _exchange(shop, lambda: shop.post("bank", body, about), count, at_once)


async def party(port: int, topic: str, qos: int = 1) -> Party:
    _, made = await asyncio.get_running_loop().create_connection(lambda: Party(topic, topic, qos), "127.0.0.1", port)
    await made.ready
    return made


def _answering(one: Party, pairs: list[tuple[str, str]]) -> Callable[[Publish], None]:
    def answer(publish: Publish) -> None:
        found = publish.properties
        more: dict[int, object] = {Property.CORRELATION_DATA: found[Property.CORRELATION_DATA]}
        if pairs:
            more[Property.USER_PROPERTY] = pairs
        one.post(found[Property.RESPONSE_TOPIC], publish.payload, more)

    return answer


async def _exchange(shop: Party, ask: Callable[[], None], count: int, at_once: int) -> tuple[float, list[float]]:
    begun: list[float] = []
    times: list[float] = []
    done = asyncio.get_running_loop().create_future()

    def again() -> None:
        begun.append(time.perf_counter())
        ask()

    def came(publish: Publish) -> None:
        times.append(time.perf_counter() - begun[len(times)])
        if len(times) == count:
            done.set_result(None)
        elif len(begun) < count:
            again()

    shop.taken = came
    start = time.perf_counter()
    for _ in range(min(at_once, count)):
        again()
    await done
    return time.perf_counter() - start, times
