"""Reading a queue by position: every message that was put, in order, whether it waits, is worked or is at an end.

An offset is the position of the next message. The broker keeps what was put until the queue's retention is over, and gives it again, so
a batch that has to be run again has the same messages. Nothing is taken from the queue: its members get all messages as before.
"""

from __future__ import annotations

import json
import uuid
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from ..errors import PipelineError
from .connecting import Connected
from .deliveries import split
from .options import FEW, MOST, BrokerOptions, whole
from .subscriber import user_properties
from .topic_reader import RowsPartition

TOPIC = "$mqmesh/queues"
PAGE = 100  # messages of one request, at most
QUEUE_SCHEMA = (
    "position bigint, topic string, payload binary, put timestamp, expires timestamp, publisher string, handle string, group string,"
    " priority int, state string, content_type string, response_topic string, correlation binary, properties map<string,string>"
)
_Row = tuple[Any, ...]


@dataclass(frozen=True)
class QueueOptions:
    """What is read of a queue. since: only what was put then or later, a time as ISO 8601 has it. rows, partitions: of a batch."""

    broker: BrokerOptions
    queue: str
    since: str | None = None
    rows: int = FEW
    partitions: int = 1

    @classmethod
    def of(cls, options: Mapping[str, str]) -> QueueOptions:
        """Raises PipelineError."""
        since = options.get("since")
        try:
            if since is not None and datetime.fromisoformat(since).tzinfo is None:
                raise ValueError("it has no time zone")
        except ValueError as error:
            raise PipelineError(f'option since = "{since}": {error}: give a time such as "2026-11-23T10:00:00Z"') from None
        return cls(
            BrokerOptions.of(options),
            str(options["queue"]).removeprefix("$queue/"),
            since,
            whole(options, "maxrows", FEW, 1, MOST),
            whole(options, "partitions", 1, 1, 1000),
        )


class QueueLog(Connected):
    """Asks a broker for what its log has of one queue."""

    def __init__(self, options: QueueOptions) -> None:
        """Raises PipelineError."""
        super().__init__(options.broker, f"mqmesh-queue-{uuid.uuid4().hex[:16]}")
        self._queue = options
        self._question = b""  # what an answer has to belong to: one to an earlier question may come late, or twice
        self._answer: dict[str, Any] | None = None
        self.client.on_message = self._came
        self.client.on_subscribe = self._subscribed
        try:
            self.open(True)
        except PipelineError:
            self.close()
            raise

    def end(self) -> int:
        """The position after the last message that the queue has been given. Raises PipelineError."""
        return int(self._ask({"do": "show"})["queue"]["next"])

    def read(self, begin: int, end: int, most: int) -> tuple[list[_Row], int]:
        """Messages from a position on and below another one, at most so many, and the position to go on from. Raises PipelineError."""
        rows: list[_Row] = []
        at = begin
        while at < end and len(rows) < most:
            wanted: dict[str, Any] = {"do": "read", "from": at, "most": min(PAGE, most - len(rows), end - at)}
            if self._queue.since is not None:
                wanted["since"] = self._queue.since
            answer = self._ask(wanted)
            found = [one for one in answer["messages"] if one["position"] < end]
            rows += [row_of(one) for one in found]
            more = answer["more"]
            if more is None:
                return rows, found[-1]["position"] + 1 if found else at
            at = min(end, more)
        return rows, at

    def _ask(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """The answer to a question, which is asked again when the connection is lost meanwhile."""
        self._question, self._answer = uuid.uuid4().bytes, None
        properties = user_properties([], CorrelationData=self._question)
        while self._answer is None:
            self.wait(lambda: self.ready, "the session is not ready")
            self.client.publish(TOPIC, json.dumps({**wanted, "name": self._queue.queue}), 1, properties=properties)
            self.wait(
                lambda: self._answer is not None or not self.ready,
                f"no answer about the queue {self._queue.queue}: has this broker queues, and may this user see them?",
            )
        if "error" in self._answer:
            raise PipelineError(f"{self._address.endpoint}: queue {self._queue.queue}: {self._answer['error']}")
        return self._answer

    # paho's thread

    def accepted(self, present: bool) -> None:
        self.client.subscribe(f"{TOPIC}/answer", 1)

    def _subscribed(self, _client: Client, _data: object, _mid: int, reasons: list[Any], _properties: object) -> None:
        if reasons[0].is_failure:
            self.fail(f"refuses the subscription to {TOPIC}/answer: {reasons[0].getName()}: may this user see queues?")
        else:
            self.is_ready()

    def _came(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        if getattr(message.properties, "CorrelationData", None) != self._question:
            return
        with self.changed:
            self._answer = json.loads(message.payload)
            self.changed.notify_all()


def row_of(message: Mapping[str, Any]) -> _Row:
    """A message as a row of `QUEUE_SCHEMA`, from a broker's answer."""
    correlation, pairs = message["correlation"], message["user"]
    return (
        message["position"],
        message["topic"],
        b64decode(message["payload"]),
        _time(message["put"]),
        _time(message["expires"]),
        message["publisher"],
        message["handle"],
        message["group"],
        message["priority"],
        message["state"],
        message["content_type"],
        message["response_topic"],
        b64decode(correlation) if correlation is not None else None,
        dict(pairs) if pairs else None,
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One reader for each query, in Spark's planning process. Workers get copies without a connection.

    An offset has the position, and how many messages its batch has: what a batch lacks when it is run again is said.
    """

    def __init__(self, options: QueueOptions) -> None:
        self.options = options
        self._log: QueueLog | None = None
        self._planned: tuple[int, int, list[_Row]] | None = None  # positions, and their messages, which `partitions` will want
        self._until: int | None = None
        self._available = False

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}

    def initialOffset(self) -> dict[str, Any]:
        return {"position": 1, "messages": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._available = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch: what is there, at most 65,535 messages."""
        log, begin = self._open(), start["position"]
        if self._until is None or not self._available:
            self._until = log.end()
        most = MOST if isinstance(limit, ReadAllAvailable) else min(MOST, getattr(limit, "max_rows", MOST))
        rows, end = log.read(begin, self._until, most)
        if not rows:
            return start
        self._planned = begin, end, rows
        return {"position": end, "messages": len(rows)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop, count = start["position"], end["position"], end["messages"]
        if self._planned is not None and self._planned[:2] == (begin, stop):
            rows = self._planned[2]
        else:  # planned before a restart
            rows, _ = self._open().read(begin, stop, MOST)
        if len(rows) != count:
            raise PipelineError(
                f"the queue {self.options.queue} has {len(rows)} of the {count} messages of a batch from position {begin} that has to be"
                " run again: its retention is shorter than the query was away"
            )
        return [RowsPartition(part) for part in split(rows, self.options.partitions)] if rows else []

    def read(self, partition: InputPartition) -> Iterator[_Row]:
        assert isinstance(partition, RowsPartition)
        yield from partition.rows

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing was taken, so nothing is acknowledged."""

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _open(self) -> QueueLog:
        if self._log is None:
            self._log = QueueLog(self.options)
        return self._log


class QueueReader(DataSourceReader):
    """What the log has of the queue now, in parts of `rows` messages."""

    def __init__(self, options: QueueOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        log = QueueLog(self.options)
        try:
            rows, at, end = [], 1, log.end()
            while True:
                more, after = log.read(at, end, MOST)
                rows += more
                if not more or after >= end:
                    break
                at = after
        finally:
            log.close()
        if not rows:
            return [RowsPartition([])]
        parts = max(self.options.partitions, -(-len(rows) // self.options.rows))
        return [RowsPartition(part) for part in split(rows, parts)]

    def read(self, partition: InputPartition) -> Iterator[_Row]:
        assert isinstance(partition, RowsPartition)
        yield from partition.rows
