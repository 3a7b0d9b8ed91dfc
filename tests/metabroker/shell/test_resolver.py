"""Services by name: from a file, and from a real directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.metabroker.shell.resolver import Chain, Directory, Services
from support.directories import Directory as Running


def test_a_directory_and_a_file_before_it(tmp_path: Path) -> None:
    running = Running(f"sqlite:///{tmp_path / 'd.db'}", tmp_path / "log")
    running.accounts()
    alice, bob = running.client("alice"), running.client("bob")
    alice.put("mesh", "ring")
    alice.put("service", "weather", "ring", addresses=["mqtt://a:1883", "mqtts://b:8883"])
    resolver = Chain(Services({"stocks": ["mqtt://c:1883"]}), Directory(running.url))
    assert resolver.resolve("weather") == ["mqtt://a:1883", "mqtts://b:8883"]
    assert resolver.resolve("stocks") == ["mqtt://c:1883"]
    assert resolver.resolve("weathe*") == []
    assert resolver.resolve("no-mesh/weather") == []
    bob.put("mesh", "rogue")
    bob.put("service", "weather", "rogue", addresses=["mqtt://evil:1883"])
    with pytest.raises(LookupError, match="MESH/NAME"):
        Directory(running.url).resolve("weather")
    assert Directory(running.url).resolve("ring/weather") == ["mqtt://a:1883", "mqtts://b:8883"]
    running.kill()
    with pytest.raises(LookupError, match="does not answer"):
        Directory(running.url).resolve("weather")
    assert resolver.resolve("weather") == ["mqtt://a:1883", "mqtts://b:8883"]  # it has been asked before


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", ""),
        ("[services]\na = []", "services.a"),
        ('[services]\na = ["tcp://x"]', "services.a"),
        ("[services]\nb = [1]", "services.b"),
        ("[", ""),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "services.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Services.load(file)
    assert caught.value.key == key
