"""Follows a journal: Structured Streaming reads what is new, and the days that it touches are made anew by the same jobs as in a batch.

    new segments -> micro-batch -> days on which its messages were published -> the jobs of those days -> new versions of the tables

Why days and not rows: a message is complete at any later time, when a site that was away comes back. An aggregation with a watermark
would leave out what comes after it, and hold the newest rows back until the next event moves the watermark. A day that is made anew has
late events in it, is there at once, and is equal to what the batch job writes, row for row. The watermark says something else here: how
late events may be before they are counted as `late`.

A micro-batch may be run twice: Spark was killed between its offset and its commit. It makes the same days anew, and a table's version
is one file that is written or not (`tables/manifest.py`). So nothing is doubled and nothing is lost; what the first run read may be
more than its offset says, and comes again.

A bounded stream is closed explicitly (`once`): what the source had at the start is read, then the days with new counters are made. When a
broker comes that older days do not know, all days are made anew, because tables number the brokers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any

from ...broker.journal.kinds import Kind
from ...broker.journal.layout import COUNTS_FOLDER, PARQUET, Segment, date_in
from ...broker.journal.place import Place
from ..context import Context, Written, day_bound
from ..errors import PipelineError
from ..reading.segments import Looked, Rejected, Selection, look, select
from ..registry import Job, plan
from ..run import place_of, shuffle_settings, write_rejected
from ..session import DRIVER_MEMORY, LOCAL, spark_session
from ..source.datasource import register
from ..tables.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

JOBS = ("messages", "latency", "traffic", "usage")
STATE = "_follow"  # folder of the state below the tables
DAY = 86_400_000_000
UNANSWERED = "Python worker failed to connect back"  # what Spark says
STARTS = 3  # of a query, when Spark says that each time


@dataclass(frozen=True, slots=True)
class Order:
    """What is followed. checkpoint: Spark's folder; it belongs to this journal and these tables. interval: seconds between micro-batches.

    lateness: seconds after which an event counts as late. options: of jobs. rows: events of a micro-batch, at most; 0: all that is new.
    """

    journal: str
    out: str
    checkpoint: str
    jobs: tuple[str, ...] = ()
    master: str = LOCAL
    memory: str = DRIVER_MEMORY
    interval: float = 10.0
    lateness: float = 3600.0
    rows: int = 0
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Update:
    """One micro-batch. batch: Spark's number; -1: not of the stream. events, late: new ones. dates: made anew. newest: time of an event."""

    batch: int
    events: int = 0
    late: int = 0
    dates: list[str] = field(default_factory=list)
    newest: int = 0
    seconds: float = 0.0
    written: list[Written] = field(default_factory=list)


class Follower:
    """Keeps tables current. say: is told of each micro-batch, in Spark's callback thread."""

    def __init__(self, order: Order, say: Callable[[Update], None] | None = None) -> None:
        """Raises PipelineError."""
        known = {job.name for job in plan(())}
        self.order = order
        self.jobs: list[Job] = plan(order.jobs or tuple(name for name in JOBS if name in known))
        self.journal, self.tables = place_of(order.journal), Tables(order.out)
        self.updates: list[Update] = []
        self._say = say or (lambda update: None)
        self._looked: dict[tuple[str, str], Looked] = {}
        self._lock = Lock()
        self._newest = 0
        self._counters: set[str] | None = None

    # the query

    def start(self, once: bool = False) -> StreamingQuery:
        """Begin. once: read what is there now, and end. Raises PipelineError."""
        order, spark = self.order, self._spark()
        register(spark)
        stream = spark.readStream.format("mqmesh").options(journal=self.journal.root, verify="false", maxRows=str(order.rows)).load()
        writer = stream.select("kind", "published", "time", "origin").writeStream.foreachBatch(self.update)
        writer = writer.option("checkpointLocation", order.checkpoint).queryName("mqmesh-follow")
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{order.interval:g} seconds")
        return writer.start()

    def _spark(self) -> SparkSession:
        """A micro-batch is grouped by days: few parts are enough. Each run of the jobs sets its own number of them."""
        return spark_session(self.order.master, self.order.memory, settings={"spark.sql.shuffle.partitions": "2"})

    def once(self) -> list[Update]:
        """Read what the journal has now, and close: the tables are those of a batch run. Raises PipelineError."""
        self._await(lambda: self.start(once=True).awaitTermination())
        self.close(self._spark())
        return self.updates

    def run(self) -> None:
        """Follow until the query is stopped. Raises what ended the query."""
        self._await(self._follow)

    def _follow(self) -> None:
        query = self.start()
        while not query.awaitTermination(max(1, int(self.order.interval))):
            self.look_at_counters(self._spark())

    def _await(self, ended: Callable[[], object]) -> None:
        """Run a query to its end; again, some times, where Spark did not wait long enough for the Python process that reads the journal.

        Spark gives it ten seconds, which no setting changes, and on a machine that is busy that may be too little. The query goes on where
        it was. Raises what ended it.
        """
        from pyspark.errors import StreamingQueryException

        for _ in range(STARTS - 1):
            try:
                ended()
                return
            except StreamingQueryException as error:
                if UNANSWERED not in str(error):
                    raise
        ended()

    # micro-batches

    def update(self, events: DataFrame, batch: int) -> None:
        """Make the days anew that a micro-batch touches."""
        from pyspark.sql import functions as F

        began = time.monotonic()
        border = self._newest - int(self.order.lateness * 1e6)
        # a message belongs to the day of its publication, what services do to the day on which their call was begun
        begun = (F.col("origin") >= 0) | (F.col("kind") == int(Kind.INVOKED))
        day = F.when(begun, F.col("published")).otherwise(F.col("time"))
        rows = (
            events.groupBy(F.floor(day / DAY).cast("int").alias("day"))
            .agg(
                F.count("*").alias("events"),
                F.max("time").alias("newest"),
                F.sum(F.when(F.col("time") < border, 1).otherwise(0)).alias("late"),
            )
            .collect()
        )
        made = Update(batch, sum(row.events for row in rows), sum(row.late for row in rows), [_date(row.day) for row in rows])
        made.newest = self._newest = max([self._newest, *(row.newest for row in rows)])
        with self._lock:
            self._make(events.sparkSession, made.dates, made)
        made.seconds = time.monotonic() - began
        self.updates.append(made)
        self._say(made)

    def look_at_counters(self, spark: SparkSession) -> None:
        """Make the days anew whose counters have come since the last look: counters are no events."""
        with self._lock:
            fresh = self._new_counters()
            dates = sorted({found for name in fresh if (found := date_in(name)) is not None})
            if dates:
                made = Update(-1, dates=dates)
                self._make(spark, dates, made)
                self.updates.append(made)
                self._say(made)
            self._keep_counters(fresh)

    def close(self, spark: SparkSession) -> None:
        """The end of a bounded stream: what has counters and no events, and the table of what was set aside."""
        self.look_at_counters(spark)
        with self._lock:
            write_rejected(self._context(spark, self._select(), None, None))

    def _make(self, spark: SparkSession, dates: Iterable[str], made: Update) -> None:
        """Run the jobs for some days. Raises PipelineError, and what Spark raises: then the micro-batch is run again."""
        chosen = self._select()
        made.dates = self._with_older(dates, chosen)
        for key, value in shuffle_settings(chosen).items():
            spark.conf.set(key, value)
        for first, last in spans(made.dates):
            since, until = day_bound("since", first), day_bound("until", last)
            context = self._context(spark, chosen, since, until)
            for job in self.jobs:
                context.written, context.counts = [], {}
                job.function(context)
                made.written += context.written
        if self._state().get("brokers") != chosen.brokers:
            self._put_state(brokers=chosen.brokers)

    def _context(self, spark: SparkSession, selection: Selection, since: int | None, until: int | None) -> Context:
        """What jobs get for some days. Each time is a run of its own: a run's folder has files of one run only, which it replaces."""
        now = time.time_ns() // 1000
        return Context(spark, self.journal, selection, Tables(self.order.out), now, since, until, self.order.options)

    def _select(self) -> Selection:
        """All segments. Those that were whole before are not read again."""
        return select(self.journal, time.time_ns() // 1000, looking=self._look)

    def _look(self, place: Place, segment: Segment, latest: int, verify: bool) -> Looked | Rejected:
        key = segment.path, segment.sha256
        known = self._looked.get(key)
        if known is None:
            found = look(place, segment, latest, verify)
            if isinstance(found, Rejected) or found.suspect:
                return found  # a later look may say something else
            known = self._looked[key] = found
        return known

    def _with_older(self, dates: Iterable[str], selection: Selection) -> list[str]:
        """Dates, and all others too where brokers have come since those were made: the place of a broker in the list is its bit."""
        known = self._state().get("brokers")
        wanted = set(dates)
        if known != selection.brokers:
            for job in self.jobs:
                for table in job.tables:
                    version = self.tables.version(table)
                    wanted |= set(version.dates if version is not None else ())
        return sorted(wanted)

    # state

    def _new_counters(self) -> set[str]:
        if self._counters is None:
            self._counters = set(self._state().get("counters", []))
        return set(self.journal.files(COUNTS_FOLDER, PARQUET)) - self._counters

    def _keep_counters(self, fresh: set[str]) -> None:
        if fresh:
            assert self._counters is not None
            self._counters |= fresh
            self._put_state(counters=sorted(self._counters))

    def _state(self) -> dict[str, Any]:
        try:
            values = json.loads(self.tables.place.read(f"{STATE}/state.json"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise PipelineError(f"{self.tables.place.url(STATE)}/state.json: cannot be read: {error}: remove it to begin anew") from None
        return dict(values)

    def _put_state(self, **values: Any) -> None:
        self.tables.place.write(f"{STATE}/state.json", json.dumps({**self._state(), **values}).encode())


def spans(dates: Iterable[str]) -> list[tuple[str, str]]:
    """Dates as spans without gaps: the first day, and the day after the last one."""
    made: list[tuple[date, date]] = []
    for day in sorted(map(date.fromisoformat, set(dates))):
        if made and made[-1][1] == day:
            made[-1] = (made[-1][0], day + timedelta(days=1))
        else:
            made.append((day, day + timedelta(days=1)))
    return [(first.isoformat(), last.isoformat()) for first, last in made]


def _date(day: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()
