"""A service that moves: the directory says where it is now, and sessions go on there."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.base.metabroker import Code
from support.brokers import running_broker
from support.directories import Directory
from support.paho_client import Paho
from support.remotes import Member, running_metabroker
from support.services import PATIENCE, wait_until

pytestmark = pytest.mark.process


def test_sessions_follow_a_service_that_has_moved(tmp_path: Path) -> None:
    directory = Directory(f"sqlite:///{tmp_path / 'd.db'}", tmp_path / "directory.log")
    directory.accounts()
    alice = directory.client("alice")
    alice.put("mesh", "ring")
    folders = [tmp_path / name for name in ("community", "first", "second")]
    for folder in folders:
        folder.mkdir()
    with running_broker(folders[0], "mqmesh") as community, running_broker(folders[2], "mqmesh") as second:
        policy = '[[allow]]\nclients = ["*"]\nremotes = ["weather"]\nsubscribe = ["#"]\npublish = ["#"]\n'
        with running_metabroker(folders[0], community.port, policy, "", "--directory", directory.url) as log:
            member = Member(community.port, "m")
            with running_broker(folders[1], "mqmesh") as first:
                alice.put("service", "weather", "ring", addresses=[first.url])
                assert member.connect("weather")["code"] == Code.OK
                assert member.ask("subscribe", message=1, topic="a", qos=1)["code"] == Code.OK
                alice.put("service", "weather", "ring", addresses=[second.url])
            codes = [member.next()[1]["code"]]
            while codes[-1] != Code.OK:  # it is told each new reason
                codes.append(member.next()[1]["code"])
            assert set(codes) == {Code.REMOTE_UNREACHABLE, Code.OK}
            with Paho(second.port) as far:
                wait_until(lambda: _arrives(far, member), PATIENCE, "a message from where the service is now")
            directory.kill()
            assert "Traceback" not in log.read_text()
            member.close()


def _arrives(far: Paho, member: Member) -> bool:
    far.publish("a", b"here", 1)
    return not member.paho.messages.empty()
