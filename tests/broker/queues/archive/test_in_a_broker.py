"""A broker whose queues have an archive: at their turn what is worked is in files, and its segment is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.broker.ports import Context
from mqmesh.broker.queues.archive import files
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.server import StartError
from support.broker_site import Site

pytest.importorskip("pyarrow")

BEGIN = 1_795_428_000.0  # 2026-11-23T10:00Z


def settings(folder: Path) -> QueueSettings:
    return QueueSettings({"orders": Rules(retention=60, archive="hourly")}, folder=folder / "queues", durability="os")


async def test_at_its_turn_a_queue_is_archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [BEGIN]
    monkeypatch.setattr(Context, "steady", lambda self: clock[0])
    async with Site(queues=settings(tmp_path)) as site:
        queues = site.broker.site.queues
        assert queues is not None
        shop, worker = await site.client("shop"), await site.client("worker")
        await worker.subscribe("$queue/orders", qos=1)
        await shop.publish("$queue/orders", b"order", qos=1)
        await worker.messages(1)
        await queues.settled(60)
        archive, log = tmp_path / "queue-archive", tmp_path / "queues"
        first = sorted(log.glob("*.queue"))
        for seconds in (10, 3600, 7200):
            clock[0] = BEGIN + seconds
            await site.until(lambda: not queues.upkeep._trimming)
            queues.upkeep.trim()
            await queues.settled(60)
        await site.until(lambda: archive.exists() and not set(first) & set(log.glob("*.queue")))
        (row,) = files.read(archive, "orders")
        assert (row["site"], row["position"], row["payload"], row["state"]) == ("site0", 1, b"order", "JOURNALLED")
        assert row["put"].timestamp() == BEGIN


async def test_a_broker_without_the_library_says_so_when_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqmesh.broker.queues.upkeep.missing", lambda: "an archive of queues needs more packages")
    site = Site(queues=settings(tmp_path))
    with pytest.raises(StartError, match="more packages"):
        await site.broker.start()
    await site.broker.stop()
