"""Brokers as processes of their own: start, settle, faults, stop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet.process import Fleet, FleetError
from support.paho_client import Paho
from support.services import wait_until

pytestmark = pytest.mark.slow  # processes that start, die and settle
SETTLE = 90.0
TRIANGLE = ("porto", "lyon", "turin")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(ring(TRIANGLE), tmp_path_factory.mktemp("fleet"), proxies=True) as running:
        running.wait_settled(SETTLE)
        yield running


def through(fleet: Fleet, origin: str, site: str, name: str) -> None:
    """A message published at one broker arrives at a subscriber of another."""
    with Paho(fleet.members[site].address.port) as subscriber, Paho(fleet.members[origin].address.port) as publisher:
        subscriber.subscribe(name, 1)
        fleet.wait_settled(SETTLE)
        publisher.publish(name, b"x", 1)
        assert subscriber.next().payload == b"x"


def test_messages_cross_the_mesh(fleet: Fleet, name: str) -> None:
    through(fleet, "porto", "turin", name)


@pytest.mark.parametrize("how", ["cut", "silence"])
def test_a_broken_link_is_gone_around_and_comes_back(fleet: Fleet, name: str, how: str) -> None:
    proxy = fleet.proxies[frozenset(("porto", "turin"))]
    getattr(proxy, how)()
    wait_until(lambda: fleet._end_of(fleet.members["porto"], fleet.members["turin"]) is None, SETTLE, "link that is down")
    through(fleet, "porto", "turin", f"{name}/around")
    fleet.mend("porto", "turin")
    fleet.wait_settled(SETTLE)
    assert fleet._end_of(fleet.members["porto"], fleet.members["turin"]) is not None
    through(fleet, "porto", "turin", f"{name}/direct")


def test_a_killed_broker_is_no_surprise_and_comes_back(fleet: Fleet, name: str) -> None:
    fleet.kill("lyon")
    assert fleet.members["lyon"].exit_status == -9
    assert fleet.take_exits() == []
    fleet.wait_settled(SETTLE)
    through(fleet, "porto", "turin", f"{name}/without")
    fleet.restart("lyon")
    fleet.wait_settled(SETTLE)
    through(fleet, "porto", "lyon", f"{name}/with")


def test_a_broker_that_dies_by_itself_is_reported(fleet: Fleet) -> None:
    member = fleet.members["turin"]
    assert member.pid is not None
    os.kill(member.pid, 9)
    with fleet.changed:
        assert fleet.changed.wait_for(lambda: not member.alive, SETTLE)
    assert [one.name for one in fleet.take_exits()] == ["turin"]
    assert not (fleet.folder / "turin.pid").exists()
    assert str(fleet.log("turin")) in fleet.last_words("turin")
    fleet.restart("turin")
    fleet.wait_settled(SETTLE)


def test_the_folder_of_a_running_mesh_is_refused(fleet: Fleet) -> None:
    with pytest.raises(FleetError, match=rf"porto .* runs already \(process {fleet.members['porto'].pid}\)"):
        Fleet(fleet.topology, fleet.folder).start()
    assert len(fleet.living()) == 3


def test_a_stale_pid_file_is_no_obstacle_and_a_taken_port_is_told(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "porto.pid").write_text(f"{os.getpid()}\n")
    (tmp_path / "lyon.pid").write_text("no number\n")
    with pytest.raises(FleetError, match=r"porto did not start: .*taken.*porto\.log"):
        Fleet(fleet.topology, tmp_path).start()


def test_what_does_not_settle_is_named(fleet: Fleet) -> None:
    fleet.kill("lyon")
    topology = fleet.topology
    try:
        fleet.restart("lyon")
        fleet.topology = ring(TRIANGLE)  # another key: as if the file had changed
        fleet.kill("porto")
        fleet.members["porto"].address, address = (
            Fleet(fleet.topology, fleet.folder).members["porto"].address,
            fleet.members["porto"].address,
        )
        fleet.restart("porto")
        with pytest.raises(FleetError, match="porto"):
            fleet.wait_settled(2.0)
        fleet.kill("porto")
        fleet.members["porto"].address = address
    finally:
        fleet.topology = topology
    fleet.restart("porto")
    fleet.wait_settled(SETTLE)
