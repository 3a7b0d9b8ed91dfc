"""A broker whose clients do their worst, and a meter on its event loop: the longest slice of processor time, and what it was spent on.

By hand:  python -m tests.fuzz.fuzz_slices --for 600           many stories; prints the longest slices, ends with 1 above 20 ms
          python -m tests.fuzz.fuzz_slices --seed 7 --runs 1   one story again
          python -m tests.fuzz.fuzz_slices --bound 10          the causes of shorter slices, too

A story is a broker without sockets, in every other story with a store, some clients, and some dozen things that they do: pieces of many
packets, packets of many filters or properties, wide fan-outs of messages, handles and wills, filters of many wildcards, retained messages
by the thousand, sessions that end with all of that. Every call of the loop and every piece of bytes is a slice. A slice above the bound is
measured again in the same story: what the machine did does not count. Of a slice that takes longer, the report says where it was when it
passed the bound, how much of it the system and the collector of garbage took, how many pages came to the process, and how slow the machine
was just then.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1]))

from mqmesh.base.process.collector import Collector
from mqmesh.broker.config import BrokerConfig, Limits
from mqmesh.broker.server import Broker
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connect, Disconnect, Pingreq, Publish, Subscribe, Subscription, Unsubscribe, Will
from mqmesh.mqtt.properties import Property
from mqmesh.store.memory import MemoryStore
from support.models.broker_wire import Wire

BOUND = 0.020  # seconds of processor time that no slice may take
SHOWN = 5
PATIENT = 100  # rounds of the loop for which a client waits that is not read
TOGETHER = 50  # clients that connect in one round of the loop
STACK = 6  # frames of a slice above the bound that are shown, the innermost first
DEEP = 12  # levels of a filter made of wildcards
WIDE = 4000  # subscribers of one topic, at most
HANDLE = "mqmesh-handle"  # the user property of a message that its publisher may send again


class Slice(NamedTuple):
    """seconds: of processor time. what: a client did, or the loop. seed, step: when. why: what is known of a slice above the bound."""

    seconds: float
    what: str
    seed: int
    step: int
    why: str = ""


class Sampler:
    """Looks where a slice is that passes the bound, and how long collections of garbage take."""

    def __init__(self) -> None:
        self.bound = BOUND
        self.collecting = 0.0  # seconds of processor time, in all
        self._began = 0.0
        self._where = ""
        self._installed = False
        self._usual = 0.0  # seconds that a fixed piece of work takes

    def install(self) -> None:
        """Before the first slice, in the main thread of a program that runs nothing else."""
        self._installed = True
        self._usual = min(self._work() for _ in range(50))
        signal.signal(signal.SIGPROF, self._look)
        gc.callbacks.append(self._collection)

    def begin(self) -> tuple[float, float, int]:
        """A slice begins: what `why` wants."""
        self._where = ""
        if self._installed:
            signal.setitimer(signal.ITIMER_PROF, self.bound)
        used = resource.getrusage(resource.RUSAGE_THREAD)
        return self.collecting, used.ru_stime, used.ru_minflt

    def end(self) -> None:
        """The slice is over."""
        if self._installed:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def why(self, begun: tuple[float, float, int]) -> str:
        """What is known of the slice."""
        used = resource.getrusage(resource.RUSAGE_THREAD)
        collecting, system, pages = self.collecting - begun[0], used.ru_stime - begun[1], used.ru_minflt - begun[2]
        slow = f"the machine {self._work() / self._usual:.1f} times as slow as at the start; " if self._usual else ""
        return f"{slow}collector {1000 * collecting:.1f} ms, system {1000 * system:.1f} ms, {pages} pages; {self._where}"

    @staticmethod
    def _work() -> float:
        begun = time.thread_time()
        for n in range(20_000):
            str(n)
        return time.thread_time() - begun

    def _look(self, _: int, frame: Any) -> None:
        stack = [f"{Path(one.filename).stem}:{one.lineno} {one.name}" for one in traceback.extract_stack(frame)]
        self._where = " < ".join(stack[: -STACK - 1 : -1])

    def _collection(self, phase: str, _: Any) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.collecting += time.thread_time() - self._began


SAMPLER = Sampler()


class Meter:
    """The longest slices of a story, longest first."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.step = 0
        self.what = "start"
        self.longest: list[Slice] = []
        self.count = 0

    def run(self, call: Callable[..., Any], *args: Any, what: str = "") -> Any:
        """Call it as one slice."""
        before = SAMPLER.begin()
        begun = time.thread_time()
        try:
            return call(*args)
        finally:
            seconds = time.thread_time() - begun
            SAMPLER.end()
            self.count += 1
            why = SAMPLER.why(before) if seconds > SAMPLER.bound else ""
            self._note(seconds, what or f"{getattr(call, '__qualname__', call)}, later: {self.what}", why)

    def _note(self, seconds: float, what: str, why: str) -> None:
        if len(self.longest) < SHOWN or seconds > self.longest[-1].seconds:
            self.longest = sorted([*self.longest, Slice(seconds, what, self.seed, self.step, why)], reverse=True)[:SHOWN]


class MeteredLoop(asyncio.SelectorEventLoop):
    """Measures what the broker does in it: not tasks, which are the story."""

    meter: Meter | None = None

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return super().call_soon(self._metered(callback), *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return super().call_at(when, self._metered(callback), *args, context=context)

    def _metered(self, callback: Any) -> Any:
        meter = self.meter
        if meter is None or not getattr(callback, "__module__", "").startswith("mqmesh"):
            return callback
        return lambda *args: meter.run(callback, *args)


class Story:
    """One broker and what happens to it."""

    def __init__(self, seed: int, broker: Broker, meter: Meter) -> None:
        self.chance = random.Random(seed)
        self.broker, self.meter = broker, meter
        self.wires: list[Wire] = []
        self.names = 0
        self.acts: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            self.burst,
            self.filters,
            self.deep,
            self.wide,
            self.will,
            self.retain,
            self.properties,
            self.end,
            self.flows,
            self.garbage,
        )

    def client(self, expiry: int = 0) -> Wire:
        self.names += 1
        wire = Wire(self.broker, self.chance.choice((4, 5)) if not expiry else 5)
        self.wires.append(wire)
        more = {"session_expiry_interval": expiry} if expiry else {}
        return wire.connect(f"c{self.names}", **more)

    def some(self) -> Wire:
        live = [wire for wire in self.wires if not wire.transport.closed]
        return self.chance.choice(live) if live and self.chance.random() < 0.8 else self.client()

    async def give(self, wire: Wire, data: bytes, what: str) -> None:
        """Bytes as one piece, or in chunks as a socket reads them."""
        self.meter.what = what
        for start in range(0, len(data), 256 * 1024):
            for _ in range(PATIENT):
                if not wire.transport.reading:
                    await asyncio.sleep(0)
            if not wire.transport.closed:
                self.meter.run(wire.give, data[start : start + 256 * 1024], what=what)

    def topic(self) -> str:
        return "/".join(self.chance.choices("abc", k=self.chance.choice((1, 2, 3, DEEP))))

    # ---- what clients do

    async def burst(self) -> None:
        wire, chance = self.some(), self.chance
        count, qos, retain = chance.choice((10, 1000, 20_000)), chance.choice((0, 0, 1, 2)), chance.random() < 0.2
        packets = (Publish(self.topic(), b"x" * 20, qos, retain, packet_id=1 + n % 60_000 if qos else 0) for n in range(count))
        await self.give(wire, b"".join(encode(packet, wire.version) for packet in packets), f"{count} PUBLISH of QoS {qos} retain={retain}")

    async def filters(self) -> None:
        wire, chance = self.some(), self.chance
        count = chance.choice((100, 4000))
        wanted = [Subscription(f"{self.topic()}/{n}/{chance.choice('+#')}", chance.randrange(3)) for n in range(count)]
        await self.give(wire, encode(Subscribe(1, wanted), wire.version), f"SUBSCRIBE with {count} filters")
        if chance.random() < 0.3:
            gone = Unsubscribe(2, [one.filter for one in wanted])
            await self.give(wire, encode(gone, wire.version), f"UNSUBSCRIBE with {count} filters")

    async def deep(self) -> None:
        wire, chance = self.some(), self.chance
        count = chance.choice((100, 4000))
        wanted = [Subscription("/".join(chance.choices("a+", k=DEEP))) for _ in range(count)]
        await self.give(wire, encode(Subscribe(1, wanted), wire.version), f"SUBSCRIBE with {count} filters of a and +")
        topic = "/".join("a" * DEEP)
        await self.give(self.some(), encode(Publish(topic, b"x"), 4), "PUBLISH that many filters of a and + match")

    async def wide(self) -> None:
        chance = self.chance
        qos = chance.randrange(3)
        kept = chance.choice((0, 0, 100))
        for number in range(chance.choice((50, 250, 3000))):
            if number % TOGETHER == 0:
                await asyncio.sleep(0)
            if len(self.wires) < WIDE:
                topic_filter = "wide" if chance.random() < 0.95 else f"$share/g{self.names}/wide"
                subscriber = self.client(kept)
                subscriber.send(Subscribe(1, [Subscription(topic_filter, qos)]))
                if kept and chance.random() < 0.5:
                    self.meter.run(subscriber.connection.connection_lost, None, what="the end of a connection")
                    self.wires.remove(subscriber)
        publisher = self.client(chance.choice((0, 100)))
        qos = chance.randrange(3)
        properties = {Property.USER_PROPERTY: [(HANDLE, str(self.names))]} if publisher.version == 5 and chance.random() < 0.3 else {}
        packet = Publish("wide", b"x" * 64, qos, packet_id=7 if qos else 0, properties=properties)  # type: ignore[arg-type]
        what = f"PUBLISH of QoS {qos} to many" + (" with a handle" if properties else "")
        await self.give(publisher, encode(packet, publisher.version), what)

    async def will(self) -> None:
        wire = Wire(self.broker, 4)
        self.names += 1
        qos = self.chance.randrange(3)
        wire.send(Connect(f"c{self.names}", 4, will=Will("wide", b"gone", qos)))
        self.meter.what = f"a will of QoS {qos} to many"
        self.meter.run(wire.connection.connection_lost, None, what=self.meter.what)

    async def retain(self) -> None:
        wire = self.some()
        count = self.chance.choice((100, 3000))
        data = b"".join(encode(Publish(f"r/{self.chance.randrange(10_000)}", b"x", 0, True), wire.version) for _ in range(count))
        await self.give(wire, data, f"{count} retained messages")
        asker = self.client()
        await self.give(
            asker, encode(Subscribe(1, [Subscription("#"), Subscription("r/+")]), asker.version), "SUBSCRIBE to all retained messages"
        )

    async def properties(self) -> None:
        wire = self.client(expiry=100)
        pairs = {Property.USER_PROPERTY: [("k", "v" * self.chance.choice((1, 500)))] * self.chance.choice((10, 900))}
        await self.give(wire, encode(Publish(self.topic(), b"x", 0, properties=pairs), 5) * 20, "PUBLISH with many properties")  # type: ignore[arg-type]

    async def end(self) -> None:
        wire = self.some()
        if self.chance.random() < 0.5:
            await self.give(wire, encode(Disconnect(), wire.version), "DISCONNECT")
        self.meter.what = "the end of a connection"
        self.meter.run(wire.connection.connection_lost, None, what="the end of a connection")
        self.wires.remove(wire)

    async def flows(self) -> None:
        wire = self.some()
        await self.give(wire, encode(Pingreq(), wire.version) * self.chance.choice((1, 5000)), "many PINGREQ")

    async def garbage(self) -> None:
        wire = self.client()
        await self.give(wire, self.chance.randbytes(self.chance.choice((10, 100_000))), "garbage")

    # ---- the story

    async def tell(self, steps: int) -> None:
        for step in range(steps):
            self.meter.step = step
            await self.chance.choice(self.acts)()
            for _ in range(self.chance.choice((0, 1, 20))):
                await asyncio.sleep(0)
            for wire in self.wires:
                wire.transport.written.clear()
            self.wires = [wire for wire in self.wires if not wire.transport.closed]


def story_of(seed: int, steps: int = 60) -> Meter:
    """The meter of one story."""
    meter = Meter(seed)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MeteredLoop)
        loop.meter = meter
        limits = replace(Limits(), sys_interval=0, max_packet_size=2**20)
        broker = Broker(BrokerConfig(listen=[], limits=limits), MemoryStore() if seed % 2 else None)
        await broker.start()
        collector = Collector(loop.call_soon)
        collector.begin()
        try:
            await Story(seed, broker, meter).tell(steps)
        finally:
            collector.end()
            if broker.site.persistence is not None:
                broker.site.persistence.close()

    with asyncio.Runner(loop_factory=MeteredLoop) as runner:
        runner.run(story())
    return meter


def main() -> None:
    """The command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for", dest="seconds", type=float, default=60.0, help="seconds to run (60)")
    parser.add_argument("--seed", type=int, default=None, help="first seed (random)")
    parser.add_argument("--runs", type=int, default=None, help="stories; without it, as many as fit the time")
    parser.add_argument("--bound", type=float, default=1000 * BOUND, help="milliseconds that no slice may take (20)")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    SAMPLER.bound = bound = options.bound / 1000
    SAMPLER.install()
    seed = options.seed if options.seed is not None else random.randrange(2**31)
    end = time.monotonic() + options.seconds
    longest: dict[str, Slice] = {}
    stories = slices = 0
    while stories < options.runs if options.runs is not None else time.monotonic() < end:
        meter = story_of(seed + stories)
        if meter.longest[0].seconds > bound:  # what comes again is the broker's
            again = {(one.what, one.step): one.seconds for one in story_of(seed + stories).longest}
            others = min(again.values())  # it is below these then
            meter.longest = [one._replace(seconds=min(one.seconds, again.get((one.what, one.step), others))) for one in meter.longest]
        for one in meter.longest:
            longest[one.what] = max(longest.get(one.what, one), one)
        stories += 1
        slices += meter.count
    found = sorted(longest.values(), reverse=True)
    if options.json:
        print(json.dumps({"seed": seed, "stories": stories, "slices": slices, "longest": [one._asdict() for one in found]}, indent=1))
    else:
        print(f"{slices} slices in {stories} stories from seed {seed}; the longest, by cause:")
        for one in found[:20]:
            print(f"{1000 * one.seconds:8.1f} ms  {one.what}  (--seed {one.seed} --runs 1, step {one.step})")
            if one.why:
                print(f"{'':12} {one.why}")
    if found and found[0].seconds > bound:
        sys.exit(f"a slice took more than {1000 * bound:.0f} ms of processor time")


if __name__ == "__main__":
    main()
