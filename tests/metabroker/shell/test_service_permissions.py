"""Who reaches a service through a metabroker: those whose account its permissions name, for as long as they do."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.base.metabroker import Code
from mqmesh.metabroker.shell.resolver import Directory as Resolver
from mqmesh.metabroker.shell.resolver import NotPermitted
from support.brokers import running_broker
from support.directories import ACCOUNTS, Directory
from support.remotes import Member, running_metabroker
from support.services import PATIENCE, wait_until

pytestmark = pytest.mark.process

POLICY = '[[allow]]\nclients = ["*"]\nremotes = ["weather"]\nsubscribe = ["#"]\npublish = ["#"]\n'


def test_permissions_decide_at_connect_and_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Directory(f"sqlite:///{tmp_path / 'd.db'}", tmp_path / "directory.log")
    directory.accounts()
    alice = directory.client("alice")
    alice.put("mesh", "ring")
    folders = [tmp_path / name for name in ("named", "stranger", "remote")]
    for folder in folders:
        folder.mkdir()
    with (
        running_broker(folders[0], "mqmesh") as one,
        running_broker(folders[1], "mqmesh") as two,
        running_broker(folders[2], "mqmesh") as remote,
    ):

        def register(*permissions: str) -> None:
            alice.put("service", "weather", "ring", addresses=[remote.url], permissions=list(permissions))

        register(ACCOUNTS["bob"])
        strangers = running_metabroker(folders[1], two.port, POLICY, "", "--directory", directory.url)
        with strangers:
            monkeypatch.setenv("MQMESH_DIRECTORY_ACCOUNT", "bob")
            monkeypatch.setenv("MQMESH_DIRECTORY_SECRET", directory.secrets["bob"])
            with running_metabroker(folders[0], one.port, POLICY, "", "--directory", directory.url):
                bob, stranger = Member(one.port, "m"), Member(two.port, "s")
                answer = stranger.connect("weather")
                assert (answer["code"], "permissions" in answer["reason"]) == (Code.REFUSED_BY_POLICY, True)
                assert bob.connect("weather")["code"] == Code.OK
                assert bob.ask("subscribe", message=1, topic="a", qos=1)["code"] == Code.OK

                register("third")
                kind, status = bob.next()
                assert (kind, status["code"]) == ("status", Code.SESSION_ENDED)
                assert "permissions" in status["reason"]
                assert bob.connect("weather")["code"] == Code.REFUSED_BY_POLICY

                register()
                wait_until(lambda: stranger.connect("weather")["code"] == Code.OK, PATIENCE, "a session of everybody")
                assert bob.connect("weather")["code"] == Code.OK
                bob.close()
                stranger.close()
        directory.kill()


def test_a_resolver_says_that_addresses_are_not_for_it(tmp_path: Path) -> None:
    directory = Directory(f"sqlite:///{tmp_path / 'd.db'}", tmp_path / "directory.log")
    directory.accounts()
    alice = directory.client("alice")
    alice.put("mesh", "ring")
    alice.put("service", "weather", "ring", addresses=["mqtt://a:1883"], permissions=["bob"])
    alice.put("broker", "weather", "ring", addresses=["mqtt://b:1883"])  # no way around
    for account, found in ((None, None), ("anna", ["mqtt://a:1883"]), ("bob", ["mqtt://a:1883"])):
        resolver = Resolver(directory.url, (account, directory.secrets[account]) if account else None)
        for name in ("weather", "ring/weather"):
            if found is None:
                with pytest.raises(NotPermitted):
                    resolver.resolve(name)
            else:
                assert resolver.resolve(name) == found
        resolver.end()
    directory.kill()
