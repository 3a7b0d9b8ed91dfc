"""Spark's source and sink beside a broker, all killed (SIGKILL), counted at both ends: `python -m benchmarks.trials.spark_kill`.

A query reads a topic through a durable session and publishes each row to another topic. A publisher sends numbered messages, each with a
handle. In turn Spark with its JVM is killed, every other time between a micro-batch's offset and its commit, and the broker; both are
started again, on the same checkpoint and the same data folder. In the end the query reads what is left. Then each number has to be in a
durable session of a reader exactly once, and the source's session has to be empty. Exit status 1 if not.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import paho.mqtt.client as paho
import typer
from mqmesh.pipeline.source.options import BrokerOptions
from mqmesh.pipeline.source.publisher import Message, Publisher
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from rich.console import Console
from rich.progress import Progress

from benchmarks.peers import ROOT
from benchmarks.trials.kill import Broker

PATIENCE = 300.0  # seconds without any progress
IDLE = 2.0  # seconds without a message after which a session has no more
SOURCE, READER, IN, OUT = "spark-source", "reader", "in/numbers", "out/numbers"
app = typer.Typer(add_completion=False)


class Query:
    """Spark as a process group of its own, so that the JVM dies with it."""

    def __init__(self, folder: Path, port: int, once: bool = False) -> None:
        self.checkpoint = folder / "checkpoint"
        self._log = (folder / "spark.log").open("ab")
        command = [sys.executable, "-m", "benchmarks.trials.spark_kill", "stream", str(port), str(folder), *(["--once"] if once else [])]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, cwd=ROOT, start_new_session=True)

    def kill(self) -> bool:
        """SIGKILL; whether that was between an offset and its commit. The processes are stopped while that is looked at."""
        for what in (signal.SIGSTOP, signal.SIGKILL):
            between = self.between
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, what)
        self.process.wait()
        self._log.close()
        return between

    def newest(self, kind: str) -> int:
        """The highest number in the checkpoint's offsets or commits, -1 for none."""
        return max((int(path.name) for path in (self.checkpoint / kind).glob("[0-9]*") if path.name.isdigit()), default=-1)

    @property
    def between(self) -> bool:
        """Whether a micro-batch has an offset and no commit."""
        return self.newest("offsets") > self.newest("commits")


class Session:
    """A durable session of an MQTT 5 client."""

    def __init__(self, port: int, name: str) -> None:
        self.got: list[bytes] = []
        self._port, self._last = port, time.monotonic()
        self._subscribed = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        self._client.on_message = self._message
        self._client.on_subscribe = lambda *_: self._subscribed.set()

    def _message(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        self._last = time.monotonic()
        if not message.topic.startswith("mqmesh-fence/"):  # by which the source has learned that all has come
            self.got.append(bytes(message.payload))

    def __enter__(self) -> Session:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 0xFFFFFFFE
        self._client.connect("127.0.0.1", self._port, clean_start=False, properties=properties)
        self._client.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def subscribe(self, topic: str) -> None:
        """Get what is published from now on."""
        self._client.subscribe(topic, options=SubscribeOptions(qos=1))
        if not self._subscribed.wait(PATIENCE):
            raise RuntimeError("no SUBACK")

    def drain(self) -> list[bytes]:
        """Everything that it has."""
        self._last = time.monotonic()
        while time.monotonic() - self._last < IDLE:
            time.sleep(0.05)
        return self.got


class Site:
    """The broker, the query and the publisher of one trial."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self._chance = folder, chance
        self.broker = Broker(folder, [])
        self.sent = self.between = self.elsewhere = self.brokers = 0
        self.query: Query | None = None

    def begin(self) -> None:
        """Start the broker."""
        self.broker.start()
        asyncio.run(self.broker.ready())

    def publish(self, count: int) -> threading.Thread:
        """Publish so many more messages, whatever happens to the broker meanwhile."""
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        options = BrokerOptions.of({"broker": f"mqtt://127.0.0.1:{self.broker.port}", "timeout": "120"})

        def go() -> None:
            with Publisher(options) as publisher:
                for number in numbers:
                    message = Message(IN, b"%d" % number, 1, False, [], None, None, None, None, "")
                    publisher.publish(message, f"number {number}")
                publisher.finish()

        thread = threading.Thread(target=go)
        thread.start()
        return thread

    def running(self) -> Query:
        """The query, which is started if it does not run. A broker that is away ends it."""
        if self.query is None or self.query.process.poll() is not None:
            self.query = Query(self.folder, self.broker.port)
        return self.query

    def wait_for(self, condition: Any) -> None:
        """Have the query run until something is so. RuntimeError when nothing happens for long."""
        ends = time.monotonic() + PATIENCE
        while not condition(self.running()):
            if time.monotonic() > ends:
                raise RuntimeError(f"nothing happens: see {self.folder / 'spark.log'}")
            time.sleep(0.005)

    def kill_spark(self, between: bool) -> None:
        """At a random moment, or between an offset and its commit."""
        before = self.running().newest("offsets")
        if between:
            self.wait_for(lambda query: query.newest("offsets") > before and query.between)
        else:
            time.sleep(self._chance.uniform(1.0, 20.0))
        if self.running().kill():
            self.between += 1
        else:
            self.elsewhere += 1

    def kill_broker(self) -> None:
        """At a random moment while the query goes on."""
        before = self.running().newest("commits")
        self.wait_for(lambda query: query.newest("offsets") > before)
        time.sleep(self._chance.uniform(0.0, 0.5))
        self.broker.kill()
        self.brokers += 1
        self.begin()

    def finish(self) -> None:
        """Have the query read what is left, and acknowledge it."""
        if self.query is not None and self.query.process.poll() is None:
            self.query.kill()
        for _ in range(2):  # Spark commits the last batch when it plans the next one
            if Query(self.folder, self.broker.port, once=True).process.wait():
                raise RuntimeError(f"the query failed: see {self.folder / 'spark.log'}")


@app.command()
def stream(port: int, folder: Path, once: Annotated[bool, typer.Option("--once")] = False) -> None:
    """What is killed: from one topic to another."""
    from mqmesh.pipeline.session import spark_session
    from mqmesh.pipeline.source.datasource import register

    spark = spark_session("local[2]", quick=True)
    register(spark)
    broker = f"mqtt://127.0.0.1:{port}"
    rows = spark.readStream.format("mqmesh").options(broker=broker, topic=IN, client=SOURCE, maxRows=100, partitions=2).load()
    writer = rows.select("payload").writeStream.format("mqmesh").options(broker=broker, topic=OUT)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="200 milliseconds")
    writer.start().awaitTermination()


@app.callback(invoke_without_command=True)
def trial(
    context: typer.Context,
    kills: Annotated[int, typer.Option(help="How often Spark is killed, and how often the broker.", min=1)] = 10,
    messages: Annotated[int, typer.Option(help="Messages that are published for each kill.", min=1)] = 150,
    seed: Annotated[int, typer.Option(help="Where chance begins.")] = 1,
) -> None:
    """Kill Spark and the broker in turn, and count what went in and what came out."""
    if context.invoked_subcommand:
        return
    folder = Path(tempfile.mkdtemp(prefix="mqmesh-spark-"))
    site = Site(folder, random.Random(seed))
    site.begin()
    try:
        for name, topic in ((SOURCE, IN), (READER, OUT)):
            with Session(site.broker.port, name) as session:
                session.subscribe(topic)
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task("kills", total=2 * kills + 1)
            for number in range(kills):
                for kill in (lambda number=number: site.kill_spark(number % 2 == 0), site.kill_broker):
                    publishing = site.publish(messages)
                    kill()
                    publishing.join()
                    progress.advance(task)
            site.finish()
            progress.advance(task)
        with Session(site.broker.port, READER) as session:
            came = Counter(session.drain())
        with Session(site.broker.port, SOURCE) as session:
            left = session.drain()
    finally:
        if site.query is not None and site.query.process.poll() is None:
            site.query.kill()
        site.broker.kill()
    expected = {b"%d" % number for number in range(site.sent)}
    lost, twice = len(expected - set(came)), sum(count - 1 for count in came.values())
    strange = len(set(came) - expected)
    spark = site.between + site.elsewhere
    print(f"Spark killed {spark} times, {site.between} of them between a batch's offset and its commit; the broker {site.brokers} times")
    counted = f"{lost} lost, {twice} twice, {strange} strange, {len(left)} left at the source"
    print(f"{site.sent:,} messages went in, {came.total():,} came out: {counted}")
    if lost or twice or strange or left:
        print(f"wrong; look in {folder}")
        raise typer.Exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    app()
