"""The key `workers`, and the configuration of each worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.config import BrokerConfig, parse
from mqmesh.broker.server import Broker, StartError
from mqmesh.broker.settings.workers import Worker, cores, left_behind
from mqmesh.broker.workers.configuration import worker_of
from mqmesh.broker.workers.totals import WorkerTotals, added, file_of

LISTEN = ["mqtt://127.0.0.1:1883", "unix:///run/b.sock"]


def place(index: int, serving: int = 2, total: int = 2, folder: Path = Path("/run/x")) -> Worker:
    return Worker("bell", index, serving, total, folder, "k" * 32, tuple(LISTEN), 1.0)


def broker(**more: Any) -> BrokerConfig:
    table = {"name": "bell", "number": 4, "listen": LISTEN, "data": "/data", "workers": 2, **more}
    return parse(table, "b.toml", Path("/etc"))


@pytest.mark.parametrize(("value", "count"), [(1, 1), (3, 3), ("auto", cores())])
def test_how_many(value: object, count: int) -> None:
    assert parse({"workers": value}).workers == count


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"workers": 0}, "from 1 to 32"),
        ({"workers": True}, "from 1 to 32"),
        ({"workers": "many"}, '"auto"'),
        ({"mesh": {"name": "m", "key": "k" * 16}}, "a broker of a mesh is one process"),
        ({"directory": {"url": "http://127.0.0.1:1", "account": "a"}, "mesh": {"name": "m", "key": "k" * 16}}, "one process"),
        ({"recipients": {}}, "leave out workers or [recipients]"),
        ({"store": {"kind": "sqlite", "path": "x.db"}}, "store.path"),
        ({"store": {"kind": "postgresql", "url": "postgresql://h/d"}}, "store.url"),
        ({"number": 65535}, "65535 is the highest"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(table: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQMESH_DIRECTORY_SECRET", "secret")
    with pytest.raises(ConfigError) as caught:
        broker(**table)
    assert words in str(caught.value)
    assert str(caught.value).startswith("b.toml: workers")
    assert "\n" not in str(caught.value)


def test_each_is_a_member_of_a_mesh_on_the_machine() -> None:
    config = broker(access={"anonymous": True}, http={"listen": "http://127.0.0.1:0"}, queues={"q": {}}, management={"accept": ["lyon"]})
    first, second, spare = (worker_of(config, place(index, 2, 3)) for index in range(3))
    assert [(one.name, one.number) for one in (first, second, spare)] == [("bell.0", 4), ("bell.1", 5), ("bell.2", 6)]
    assert [one.data for one in (first, second)] == [Path("/data"), Path("/data/worker-1")]
    assert first.listen == [*LISTEN, "unix:///run/x/0.sock"]
    assert second.listen == [LISTEN[0], "unix:///run/x/1.sock"]
    assert spare.listen == ["unix:///run/x/2.sock"]  # it only holds what an earlier worker has left
    assert second.serves == {LISTEN[0]: "clients", "unix:///run/x/1.sock": "links"}
    assert first.mesh is not None
    assert spare.mesh is not None
    assert [peer.address for peer in spare.mesh.peers] == ["unix:///run/x/0.sock", "unix:///run/x/1.sock"]
    assert (first.mesh.peers, first.mesh.clients, first.mesh.key) == ([], "roam", "k" * 32)
    assert spare.mesh.brokers == {"bell.0": 4, "bell.1": 5, "bell.2": 6}
    assert second.management.accept == ("lyon", "bell.0", "bell.1", "bell.2")
    assert (first.http is None, first.queues is None) == (False, False)
    assert (second.http, second.queues) == (None, None)


def test_what_is_bounded_for_the_broker_is_divided() -> None:
    config = broker(limits={"connections": 101, "broker_bytes": 2**30, "session_queue_bytes": 2**20, "stored_sessions": 0})
    limits = worker_of(config, place(1)).limits
    assert (limits.connections, limits.broker_bytes, limits.stored_sessions) == (50, 2**29, 0)
    assert limits.session_queue_bytes == 2**20  # of each session


def test_a_worker_reads_its_place(tmp_path: Path) -> None:
    one = place(0, folder=tmp_path)
    one.write()
    assert Worker.read(tmp_path / "0") == one
    assert Worker.read(tmp_path / "1").index == 1
    assert not (tmp_path / "workers.json").stat().st_mode & 0o077


def test_folders_of_workers_are_found_again(tmp_path: Path) -> None:
    assert left_behind(None) == 1
    assert left_behind(tmp_path) == 1
    (tmp_path / "worker-2").mkdir()
    (tmp_path / "worker-x").mkdir()
    assert left_behind(tmp_path) == 3


async def test_a_broker_inside_a_program_has_no_workers() -> None:
    with pytest.raises(StartError, match="a program that has a broker inside"):
        await Broker(parse({"workers": 2, "listen": ["mqtt://127.0.0.1:0"]})).start()


def test_totals_are_added_up(tmp_path: Path) -> None:
    one = {"clients/connected": 3, "retained messages/count": 7, "store/messages/count": 17, "loop/stall/maximum": 5}
    other = {"clients/connected": 4, "retained messages/count": 7, "store/messages/count": 8, "loop/stall/maximum": 2, "more": 1}
    both = {"clients/connected": 7, "retained messages/count": 7, "store/messages/count": 18, "loop/stall/maximum": 5, "more": 1}
    assert added(one, [other]) == both
    totals = WorkerTotals(place(0, folder=tmp_path), lambda: one, lambda: ["the store refuses: full"])
    assert totals() == one  # the other has not said anything
    WorkerTotals(place(1, folder=tmp_path), lambda: other, lambda: ["the store has its bound"]).write()
    assert totals() == both
    assert totals.troubles() == ["the store refuses: full", "worker 1: the store has its bound"]
    file_of(tmp_path, 1).write_text("{")
    assert totals() == one
