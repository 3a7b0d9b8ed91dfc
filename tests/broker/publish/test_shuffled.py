"""Acknowledgements in a row are taken together, in whatever order they come."""

from __future__ import annotations

import random

import pytest
from mqmesh.mqtt.packets import Disconnect, Puback
from support.broker_site import Client, Site

COUNT = 60


async def filled(site: Site) -> tuple[Client, list[int]]:
    """A client with messages that it has not acknowledged, and their packet identifiers."""
    a, shop = await site.client("a"), await site.client("shop")
    await a.subscribe("t", qos=1)
    for at in range(COUNT):
        await shop.publish("t", b"%d" % at, qos=1)
    return a, [one.packet_id for one in await a.messages(COUNT, acknowledge=False)]


@pytest.mark.parametrize("seed", range(3))
async def test_each_counts_once_whatever_the_order(seed: int) -> None:
    rng = random.Random(seed)
    async with Site() as site:
        a, numbers = await filled(site)
        left = set(rng.sample(numbers, 7))
        sent = [number for number in numbers if number not in left]
        sent += rng.sample(sent, 5)  # again, which is ignored
        rng.shuffle(sent)
        a.send(*map(Puback, sent))
        outbound = next(one for one in site.broker.site.sessions if one.client_id == "a").outbound
        await site.until(lambda: outbound.in_flight == len(left))
        assert {number for flight in outbound.flights() for number in range(flight.first, flight.first + flight.count)} >= left
        assert {number for number in numbers if outbound._states[number]} == left


async def test_the_identifier_0_is_an_error_among_others_too() -> None:
    async with Site() as site:
        a, numbers = await filled(site)
        data = b"".join([b"\x40\x02" + number.to_bytes(2, "big") for number in [*numbers[20:], 0, *numbers[:20]]])
        a.send(data)
        await a.expect(Disconnect, reason=0x81)
