"""A link with a rate between real brokers: nothing of QoS 1 is lost or reordered, the link stays up, and what waits is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.cli.fleet.process import Fleet
from mqmesh.mesh.topology.topology import load
from support.paho_client import Paho
from support.services import PATIENCE, free_port, wait_until

pytestmark = pytest.mark.slow
SETTLE = 90.0
SLOW = """
[mesh]
name = "slow"
key = "a secret of 16 bytes or more"
[[broker]]
name = "porto"
number = 1
listen = "mqtt://127.0.0.1:{0}"
[[broker]]
name = "lyon"
number = 2
listen = "mqtt://127.0.0.1:{1}"
[[link]]
between = ["porto", "lyon"]
[link.policy.porto]
{2}
"""


@pytest.mark.parametrize(("rules", "length"), [('messages_out = "400/s"', 10), ('rate_out = "200 kB/s"', 1000)])
def test_what_is_faster_than_the_link_waits(tmp_path: Path, rules: str, length: int) -> None:
    file = tmp_path / "slow.toml"
    file.write_text(SLOW.format(free_port(), free_port(), rules))
    for attempt in range(5):  # a busy machine may give a link up; a keep-alive that is held back does it each time
        if paced(file, tmp_path / f"fleet{attempt}", length):
            return
    pytest.fail("keep-alive was held back")


def paced(file: Path, folder: Path, length: int) -> bool:
    """Whether the link held."""
    count = 1200  # more than may wait at the link
    with Fleet(load(file), folder) as fleet:
        fleet.wait_settled(SETTLE)
        ports = {name: member.address.port for name, member in fleet.members.items()}
        with Paho(ports["lyon"]) as subscriber, Paho(ports["porto"]) as publisher:
            subscriber.subscribe("t", 1)
            fleet.wait_settled(SETTLE)
            before = [link["incarnation"] for link in fleet.members["porto"].status["links"]]
            for number in range(count):
                publisher.client.publish("t", f"{number:0{length}d}", 1)
            got = [int(subscriber.next().payload) for _ in range(count)]
            assert got == list(range(count))

            def space() -> bool:
                publisher.publish("t", b"0", 0)
                return not subscriber.messages.empty()

            wait_until(space, PATIENCE, "space again at the link")
            assert subscriber.next().payload == b"0"
            status = fleet.members["porto"].status
            assert [link["policy"] for link in status["links"]] == ["rate"]
            return [link["incarnation"] for link in status["links"]] == before
