"""The tables `[[attach]]`: what is read, what each mistake says, and which filters they make at the other broker."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.config import of_topology, parse
from mqmesh.broker.settings.attach import filters_here, filters_there
from mqmesh.mesh.topology.topology import load
from mqmesh.mesh.wire.policy import Policy

LEAST = """
[[attach]]
name = "plant"
address = "mqtt://10.0.0.7:1884"
"""


def test_two_lines_attach_a_broker_whole() -> None:
    (plant,) = parse(tomllib.loads(LEAST)).attach
    assert (plant.name, str(plant.address), plant.qos, plant.version, plant.policy) == ("plant", "mqtt://10.0.0.7:1884", 2, 5, Policy())
    assert (plant.client_id, plant.session, plant.user, plant.standby) == ("mqmesh-plant", "attach-plant", None, False)
    assert filters_here(plant.policy) == filters_there(plant.policy) == ["#"]


def test_what_crosses_is_said_as_for_a_link() -> None:
    more = 'in = ["plant/s/#"]\nout = []\nmap = [{ here = "plant/", there = "" }]\nqos = 1\nversion = "3.1.1"\nuser = "us"\n'
    (plant,) = parse(tomllib.loads(LEAST + more)).attach
    assert plant.policy == Policy((), (), ("plant/s/#",), (), (("plant/", ""),))
    assert (plant.qos, plant.version, plant.user) == (1, 4, "us")
    assert filters_there(plant.policy) == ["s/#"]
    assert filters_here(plant.policy) == []


@pytest.mark.parametrize(
    ("into", "prefixes", "there"),
    [
        (None, (("plant/", "far/"),), ["#"]),
        (("plant/#", "b/+"), (("plant/", "far/"),), ["far/#", "b/+"]),
        (("+/x",), (("plant/", "far/"),), ["far/#", "+/x"]),
        (("a/#", "a/b"), (), ["a/#"]),
        ((), (), []),
    ],
)
def test_filters_there_match_all_that_may_come_in(into: tuple[str, ...] | None, prefixes: tuple, there: list[str]) -> None:
    assert filters_there(Policy(None, (), into, (), prefixes)) == there


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("qos = 3", "attach[1].qos = 3: give a whole number from 0 to 2"),
        ("queue = 3", "attach[1].queue = 3: unknown key"),
        ('in = ["$SYS/#"]', "topics that begin with $ never leave a broker"),
        ('ca = "a.pem"', "it needs TLS: give an mqtts:// or wss:// address"),
        ('password_file = "p"', "give user too"),
        ("standby = true", 'give clients = "roam" in [mesh]'),
        (LEAST, "this name stands twice"),
        (LEAST.replace("plant", "other"), '"plant" is attached there already'),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_right(lines: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(tomllib.loads(LEAST + lines))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_password_in_an_address_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(tomllib.loads(LEAST.replace("mqtt://", "http://me:hidden@")))
    assert "hidden" not in str(caught.value)


def test_one_broker_of_a_topology(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    mesh = '[mesh]\nname = "m"\nkey = "0123456789abcdef"\n'
    brokers = "".join(f'[[broker]]\nname = "b{n}"\nnumber = {n}\nlisten = "mqtt://127.0.0.1:100{n}"\n' for n in (1, 2))
    attached = LEAST.replace("[[attach]]", "[[broker.attach]]")
    file.write_text(mesh + brokers + attached)
    topology = load(file)
    assert [one.name for one in of_topology(topology, "b2").attach] == ["plant"]
    assert of_topology(topology, "b1").attach == []
    file.write_text(mesh + brokers + attached + "qos = 7\n")
    with pytest.raises(ConfigError, match=r"broker\[2\]\.attach\[1\]\.qos = 7"):
        of_topology(load(file), "b2")


def test_what_comes_in_on_demand_stands_beside_what_always_does() -> None:
    (plant,) = parse(tomllib.loads(LEAST + 'in = ["s/#"]\nin_wanted = ["raw/+/#", "log/#"]\n')).attach
    assert plant.policy.into == ("s/#", "raw/+/#", "log/#")
    assert (plant.asked, plant.wanted) == (["s/#"], ("raw/+/#", "log/#"))
    (plant,) = parse(tomllib.loads(LEAST + 'in_wanted = ["raw/#"]\n')).attach
    assert (plant.asked, plant.policy.into) == ([], ("raw/#",)), "nothing else comes in"
    (plant,) = parse(tomllib.loads(LEAST + 'in = ["a/#", "a/b"]\nin_wanted = ["raw/#"]\n')).attach
    assert plant.asked == ["a/#"]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ('in = ["a/#"]\nin_wanted = ["+/b"]', "a/# and +/b match the same topics, which would come twice"),
        ('in = ["a"]\nin_wanted = ["a"]', "a and a match the same topics"),
        ('in_wanted = ["a/+", "a/b"]', "a/+ and a/b match the same topics"),
        ('in_wanted = ["a/#/b"]', "# must stand alone in the last level"),
        ('in_wanted = ["$SYS/#"]', "topics that begin with $ never leave a broker"),
        ('in_wanted = "a"', "give a list of strings"),
        (
            'in = ["+/x"]\nin_wanted = ["plant/raw/#"]\nmap = [{ here = "plant/", there = "far/" }]',
            "+/x and plant/raw/# match the same topics",
        ),
        ("in_wanted = [" + ", ".join(f'"{number}"' for number in range(33)) + "]", "give at most 32 filters"),
    ],
)
def test_mistakes_in_what_comes_in_on_demand(lines: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(tomllib.loads(LEAST + lines))
    assert "attach[1].in_wanted" in str(caught.value)
    assert text in str(caught.value)
