"""Whether time tells what an answer does not: posts that name what is not there, and what is there for others only.

    python -m benchmarks.interchange.unknown

A shop posts to services that it may not call, and to services that do not exist; the same for sessions and calls of others. Each name is
used once, in random order of the two kinds. Answers are the same; so should be the times, up to what a stranger can see among a thousand.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time

from mqmesh.base.interchange import POST
from mqmesh.mqtt.properties import Property

from benchmarks.interchange import mqtt
from benchmarks.interchange.brokers import brokers

CLOSED = '[services."closed/service-{number}"]\nusers = ["*"]\ncallers = ["closed/*"]\n'
ANSWERS = "answers/"


class Poster:
    """A client that posts as one service, and waits for each answer."""

    def __init__(self, party: mqtt.Party, name: str) -> None:
        self._party, self._name = party, name
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        party.taken = lambda publish: self._answers.put_nowait(publish.payload)

    async def post(self, **fields: str) -> dict[str, str]:
        """What the answer says."""
        pairs = [("kind", "notification"), ("sender", self._name), *fields.items()]
        self._party.post(POST, b"?", {Property.USER_PROPERTY: pairs, Property.RESPONSE_TOPIC: ANSWERS + self._name})
        answer: dict[str, str] = json.loads(await self._answers.get())
        return answer


async def measure(port: int, count: int) -> None:
    """Print how long the refusals take."""
    shop, bank = [Poster(await mqtt.party(port, ANSWERS + name, 0), name) for name in (mqtt.SHOP, mqtt.BANK)]
    theirs = [await bank.post(recipient=mqtt.MAP) for _ in range(count)]  # the shop takes no part in them
    kinds = {
        "services": [({"recipient": f"closed/service-{n}"}, {"recipient": f"closed/absentee-{n}"}) for n in range(count)],
        "sessions": [_pair("session", one["session"]) for one in theirs],
        "calls": [_pair("call", one["call"]) for one in theirs],
    }
    for name, pairs in kinds.items():
        times: tuple[list[float], list[float]] = ([], [])
        codes = set()
        for pair in pairs:
            for kind in random.sample((0, 1), 2):
                begin = time.perf_counter()
                answer = await shop.post(**pair[kind])
                times[kind].append(1e6 * (time.perf_counter() - begin))
                codes.add(answer["code"])
        assert len(codes) == 1, codes
        there, absent = map(statistics.median, times)
        spread = statistics.stdev(times[0])
        print(f"{name}: {codes.pop()}; of others {there:.1f} us, not there {absent:.1f} us (standard deviation {spread:.0f} us)")


def _pair(name: str, known: str) -> tuple[dict[str, str], dict[str, str]]:
    """One that is there, and one of the same home that is not: its last digits are others."""
    other = f"{int(known, 16) ^ random.randrange(1 << 40, 1 << 44):0{len(known)}x}"
    return tuple({"recipient": mqtt.BANK, name: one} for one in (known, other))  # type: ignore[return-value]


def main() -> None:
    """Print what is measured."""
    parser = argparse.ArgumentParser(description="refusals of what is not there, and of what is others'")
    parser.add_argument("--count", type=int, default=1000, help="names of each kind")
    count: int = parser.parse_args().count
    records = "".join(CLOSED.format(number=number) for number in range(count))
    with brokers(["home"], [sys.executable], records=records) as (ports, _):
        asyncio.run(measure(ports[0], count))


if __name__ == "__main__":
    main()
