"""Trace random messages of a ring of five while it runs and after it has ended: `python -m benchmarks.trials.traces`.

Each message has to be found whole: published where its topic says, received by all brokers over links of the ring, delivered and
acknowledged at each of the five subscribers. The time is that of the requests to all five brokers, which are made at once over connections
that stand, and afterwards that of a search in the journal.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow.compute as pc
import typer
from mqmesh.broker.journal.kinds import Kind, MessageId
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.schema import expand
from mqmesh.broker.journal.search import Query
from mqmesh.broker.journal.settings import JournalSettings
from mqmesh.cli.connection import Connection
from mqmesh.cli.connection_options import ConnectionOptions
from mqmesh.cli.mesh.requester import Requester
from mqmesh.cli.trace.live import TOPIC
from mqmesh.pipeline.trace.sources import Gathered, gather, journal_at
from mqmesh.pipeline.trace.story import COMPLETE
from rich.console import Console
from rich.progress import Progress

from benchmarks.trials.random_faults import RING, Trial
from benchmarks.trials.scene import Scene, mesh

if TYPE_CHECKING:
    from mqmesh.pipeline.trace.story import Story

LIVE_BAR = 50.0  # milliseconds
ON_ITS_WAY = 5.0  # seconds that a message may take, and its events until brokers tell them
LOT = 100  # messages that are chosen at a time
SITES = sorted({site for link in RING for site in link})
LINKS = {frozenset((SITES.index(one) + 1, SITES.index(other) + 1)) for one, other in RING}
app = typer.Typer(add_completion=False)


@dataclass
class Result:
    """times: milliseconds of each request. wrong: one line for each message that was not found whole."""

    what: str
    times: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def judge(self, message: str, found: list[Story]) -> None:
        """Note what is wrong with what was found of a message."""
        lacks = fault_of(message, found)
        if lacks:
            self.wrong.append(f"{message}: {lacks}")

    def __str__(self) -> str:
        ordered = sorted(self.times)
        late = ordered[int(len(ordered) * 0.99)]
        middle = statistics.median(ordered)
        figures = f"median {middle:.1f} ms, 99 % {late:.1f} ms, most {ordered[-1]:.1f} ms"
        return f"{self.what}: {len(ordered):,} messages, {figures}; {len(self.wrong)} wrong"


def fault_of(message: str, found: list[Story]) -> str:
    """What is wrong with the story of a message that five subscribers have got; "": nothing."""
    if [one.message for one in found] != [message]:
        return f"{len(found)} messages are found"
    (story,) = found
    if story.status != COMPLETE:
        return f"{story.status}: {story.why}"
    site = SITES[MessageId(*map(int, message.split("."))).origin - 1]
    if story.topic is None or not story.topic.startswith(f"f/{site}/"):
        return f"its topic is {story.topic}, and it comes from {site}"
    hops = [frozenset((step.broker, step.to_broker)) for step in story.steps if step.name == "forwarded"]
    if any(hop not in LINKS for hop in hops):
        return "it went where no link is"
    clients = {step.client for step in story.steps if step.name == "acknowledged"}
    if clients != {f"subscriber {site}" for site in SITES} or sorted(story.path) != list(range(1, len(SITES) + 1)):
        return f"it was acknowledged by {sorted(map(str, clients))} and reached {story.path}"
    return ""


def choose(journal: Journal, count: int, dice: random.Random) -> list[str]:
    """Random messages that were published some time ago, as the command line names them."""
    before, found = (time.time() - ON_ITS_WAY) * 1e6, []
    columns = ("published", "origin", "origin_epoch", "stream", "sequence")
    for table in journal.tables():
        made = expand(table.filter(pc.equal(table.column("kind"), int(Kind.PUBLISHED))))
        for published, *message in zip(*(made.column(name).to_pylist() for name in columns), strict=True):
            if 0 < published < before and message[0] > 0:
                found.append(MessageId(*message))
    return [str(one) for one in dice.sample(found, min(count, len(found)))]


def ask(requesters: list[Requester], pool: ThreadPoolExecutor, messages: list[str], result: Result, asked: Any) -> None:
    """Ask all brokers for each message."""
    for message in messages:
        begun = time.perf_counter()
        answers = list(pool.map(lambda one: one.request({"message": message}), requesters))  # noqa: B023  (all have ended here)
        gathered = Gathered()
        for answer in answers:
            gathered.add_live(answer["events"], {int(number): name for number, name in answer.get("names", {}).items()})
        found = gathered.stories()
        result.times.append((time.perf_counter() - begun) * 1000)
        result.judge(message, found)
        asked()


async def run(folder: Path, count: int, rate: float, seed: int, asked: Any) -> list[Result]:
    """Trace messages while the ring runs, and the same ones when it has ended."""
    dice, root = random.Random(seed), folder / "journal"
    live, ended = Result("running brokers"), Result("the journal afterwards")
    traced: list[str] = []
    topology, sockets = mesh(RING), {site: f"unix://{folder}/{site}.sock" for site in SITES}
    # over a socket of the machine the user that runs the broker may see all messages
    brokers = [replace(one, listen=(*one.listen, sockets[one.name])) for one in topology.brokers]
    scene = Scene(replace(topology, brokers=brokers), folder)
    scene.fleet.journal = JournalSettings(str(root), batch_seconds=0.1)
    with scene:
        trial = Trial(scene, dice, rate, (1, 2))
        await trial.begin()
        load = asyncio.create_task(trial.publish(), name="load")
        trial.running = True
        await asyncio.sleep(2 * ON_ITS_WAY)
        requesters = [Requester(Connection(ConnectionOptions(host=sockets[site])), TOPIC) for site in SITES]
        try:
            with ThreadPoolExecutor(len(SITES)) as pool:
                for requester in requesters:
                    requester.connection.__enter__()
                while len(traced) < count:
                    chosen = await asyncio.to_thread(choose, Journal(str(root)), min(LOT, count - len(traced)), dice)
                    await asyncio.to_thread(ask, requesters, pool, chosen, live, asked)
                    traced += chosen
            trial.running = False
        finally:
            for requester in requesters:
                requester.connection.__exit__(None, None, None)
            load.cancel()
            trial.leave()
    journal = journal_at(str(root))
    for message in traced:
        begun = time.perf_counter()
        found = gather([journal], Query.of({"message": message})).stories()
        ended.times.append((time.perf_counter() - begun) * 1000)
        ended.judge(message, found)
        asked()
    return [live, ended]


@app.command()
def main(
    messages: Annotated[int, typer.Option(min=1, help="How many are traced.")] = 1000,
    rate: Annotated[float, typer.Option(min=10, help="Messages a second, of all publishers together.")] = 500.0,
    seed: Annotated[int, typer.Option(help="Which messages are traced follows from it.")] = 1,
) -> None:
    """Trace messages of a ring of five; exit status 1 if one is not found whole."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="mqmesh-traces-") as folder, Progress(console=console, transient=True) as bar:
        task = bar.add_task("trace", total=2 * messages)
        results = asyncio.run(run(Path(folder), messages, rate, seed, lambda: bar.advance(task)))
    for result in results:
        console.print(str(result), highlight=False, soft_wrap=True)
        for line in result.wrong[:10]:
            console.print(f"[red]{line}[/]", highlight=False)
    console.print(f"bar: {LIVE_BAR:g} ms for running brokers")
    if any(result.wrong for result in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
