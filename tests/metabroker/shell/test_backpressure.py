"""A community broker that stands still: remotes are read no longer, and nothing is lost or doubled when it goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.brokers import running_broker
from support.paho_client import Paho
from support.remotes import POLICY, Member, running_metabroker
from support.services import PATIENCE, wait_until

pytestmark = pytest.mark.service
COUNT, SIZE = 300, 20_000


def test_remotes_wait_for_the_community(tmp_path: Path) -> None:
    for name in ("community", "remote"):
        (tmp_path / name).mkdir()
    policy = "[limits]\nbuffer = 100000\n" + POLICY
    with (
        running_broker(tmp_path / "community", "mosquitto") as here,
        running_broker(tmp_path / "remote", "mosquitto") as there,
        running_metabroker(tmp_path, here.port, policy) as log,
        Paho(there.port) as far,
    ):
        member = Member(here.port, "slow")
        member.connect(there.url)
        assert member.ask("subscribe", message=1, topics=["much"], qos=1)["code"] == 0
        here.process.send_signal(signal.SIGSTOP)
        try:
            for number in range(COUNT):
                far.publish("much", number.to_bytes(4, "big") + bytes(SIZE), 1)
            wait_until(lambda: "event=remotes-paused" in log.read_text(), PATIENCE, "pause")
        finally:
            here.process.send_signal(signal.SIGCONT)
        bodies = [member.next()[1] for _ in range(COUNT)]
        assert [int.from_bytes(body["payload"][:4], "big") for body in bodies] == list(range(COUNT))
        assert [body["id"] for body in bodies] == list(range(1, COUNT + 1))
        wait_until(lambda: "event=remotes-resumed" in log.read_text(), PATIENCE, "end of the pause")
        assert member.ask("publish", message=2, topic="x", qos=1)["code"] == 0
        member.close()
