"""A queue is read by position: each message once, though Spark begins again, the broker is killed and members work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from mqmesh.mqtt.packets import Puback, Publish, Suback, Subscribe, Subscription
from mqmesh.pipeline.source.datasource import register
from mqmesh.pipeline.source.options import BrokerOptions
from mqmesh.pipeline.source.queue_reader import QueueLog, QueueOptions
from support import streams
from support.sites_with_data import Site

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow
QUEUES = '[queues.orders]\nretention = "1h"\n'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Site]:
    register(spark)
    made = Site(tmp_path_factory.mktemp("site"), QUEUES)
    yield made
    made.kill()


def load(spark: SparkSession, site: Site, **options: Any) -> DataFrame:
    return spark.read.format("mqmesh").options(broker=site.url, **options).load()


def drain(spark: SparkSession, site: Site, folder: Path, **options: Any) -> list[tuple[int, bytes]]:
    """Read what the queue has, into a table of Parquet; then all of the table, by position."""
    streams.drain(spark, folder, broker=site.url, queue="orders", **options)
    return sorted((row.position, bytes(row.payload)) for row in spark.read.parquet(str(folder / "out")).collect())


def work(site: Site, count: int) -> None:
    """A member takes messages, and they are done."""
    member = site.client("member")
    member.send(Subscribe(1, [Subscription("$queue/orders", 1)], {}))
    early = [one for one in member.until(Suback) if isinstance(one, Publish)]
    for number in range(count):
        packet = early[number] if number < len(early) else member.expect(Publish)
        member.send(Puback(packet.packet_id))
    member.close()


def test_each_message_once(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    sent = [b"%04d" % number for number in range(1, 401)]
    site.publish("$queue/orders", sent[:250])
    work(site, 100)
    assert [payload for _, payload in drain(spark, site, tmp_path, maxRows=70, partitions=3)] == sent[:250]
    site.kill()
    site.begin()
    site.publish("$queue/orders", sent[250:])
    found = drain(spark, site, tmp_path)
    assert found == list(enumerate(sent, 1))
    last = max((tmp_path / "checkpoint" / "commits").iterdir(), key=lambda one: int(one.name) if one.name.isdigit() else -1)
    for one in (last, last.with_name(f".{last.name}.crc")):  # Spark was killed before it had committed
        one.unlink(missing_ok=True)
    assert drain(spark, site, tmp_path) == found
    rows = load(spark, site, queue="orders", maxRows=150).orderBy("position").collect()
    assert [(row.position, bytes(row.payload)) for row in rows] == found
    assert {row.publisher for row in rows} == {"publisher"}
    assert {row.topic for row in rows} == {"$queue/orders"}
    assert load(spark, site, queue="orders", since="2999-01-01T00:00:00Z").count() == 0


def test_questions_outlive_the_broker_and_late_answers_are_no_answers(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    log = QueueLog(QueueOptions(BrokerOptions(site.url), "orders"))
    try:
        end = log.end()
        site.kill()
        site.begin()
        assert log.end() == end
        publish = log.client.publish

        def late(*what: Any, **more: Any) -> Any:
            stale = SimpleNamespace(payload=b'{"queue": {"next": -1}}', properties=SimpleNamespace(CorrelationData=b"an earlier question"))
            log.client.on_message(log.client, None, stale)  # type: ignore[arg-type, misc]
            return publish(*what, **more)

        monkeypatch.setattr(log.client, "publish", late)
        assert log.end() == end
    finally:
        log.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"queue": "nowhere"}, "nowhere"),
        ({"queue": "orders", "since": "yesterday"}, "give a time such as"),
        ({"queue": "orders", "since": "2026-11-23T10:00:00"}, "no time zone"),
        ({"queue": "orders", "maxRows": "0"}, "give 1 to"),
    ],
)
def test_wrong_options_are_one_line(spark: SparkSession, site: Site, options: dict[str, str], why: str) -> None:
    with pytest.raises(Exception, match=why):
        load(spark, site, **options).collect()
