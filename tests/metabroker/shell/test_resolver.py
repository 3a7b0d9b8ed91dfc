"""Services by name: from a file, and from a real directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.metabroker.shell.resolver import Chain, Directory, Services
from support.directories import Directory as Running


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(f"sqlite:///{tmp_path / 'd.db'}", tmp_path / "log")
    made.accounts()
    yield made
    made.kill()


@pytest.mark.process
def test_a_directory_and_a_file_before_it(running: Running) -> None:
    alice = running.client("alice")
    alice.put("mesh", "ring")
    alice.put("service", "weather", "ring", addresses=["mqtt://a:1883", "mqtts://b:8883"])
    resolver = Chain(Services({"stocks": ["mqtt://c:1883"]}), Directory(running.url))
    assert resolver.resolve("weather") == ["mqtt://a:1883", "mqtts://b:8883"]
    assert resolver.resolve("stocks") == ["mqtt://c:1883"]
    assert resolver.resolve("weathe*") == []
    assert resolver.resolve("no-mesh/weather") == []
    running.kill()
    with pytest.raises(LookupError, match="does not answer"):
        Directory(running.url).resolve("weather")
    assert resolver.resolve("weather") == ["mqtt://a:1883", "mqtts://b:8883"]  # it has been asked before


@pytest.mark.process
def test_a_bare_name_is_of_the_account_that_had_it_first(running: Running) -> None:
    def resolved(name: str) -> list[str]:
        """By a metabroker that has not asked before."""
        resolver = Directory(running.url)
        try:
            return resolver.resolve(name)
        finally:
            resolver.end()

    alice, bob = running.client("alice"), running.client("bob")
    alice.put("mesh", "ring")
    bob.put("mesh", "rogue")
    alice.put("service", "weather", "ring", addresses=["mqtt://a:1883"])
    alice.put("broker", "porto", "ring", addresses=["mqtt://p:1883"])
    for name in ("weather", "porto"):
        bob.put("service", name, "rogue", addresses=["mqtt://evil:1883"])
        bob.put("broker", name, "rogue", addresses=["mqtt://evil:1883"])
    assert (resolved("weather"), resolved("porto")) == (["mqtt://a:1883"], ["mqtt://p:1883"])
    assert resolved("rogue/porto") == ["mqtt://evil:1883"]
    alice.put("service", "weather", "ring", addresses=["mqtt://a:1883"], visibility="organisation")
    with pytest.raises(LookupError, match="another account"):
        resolved("weather")
    alice.put("service", "weather", "ring", addresses=["mqtt://a:1883"])
    alice.put("mesh", "second")
    alice.put("service", "weather", "second", addresses=["mqtt://c:1883"])
    with pytest.raises(LookupError, match="2 meshes"):
        resolved("weather")
    assert resolved("second/weather") == ["mqtt://c:1883"]


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
