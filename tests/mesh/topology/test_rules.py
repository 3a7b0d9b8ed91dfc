"""Rules of links in both kinds of file: what is read, what each mistake says, what counts for which peer."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.config import load as load_broker
from mqmesh.broker.config import of_topology
from mqmesh.mesh.topology.borders import describe, parts_of
from mqmesh.mesh.topology.rehearsal import reach
from mqmesh.mesh.topology.rules import SHUT, UNRULED, LinkRules, rules_for
from mqmesh.mesh.topology.topology import load
from mqmesh.mesh.wire.identity import Identity
from mqmesh.mesh.wire.policy import CLOSED, Policy

EXAMPLE = Path(__file__).parents[3] / "topologies" / "two-companies.toml"
HEAD = """
[mesh]
name = "m"
key = "0123456789abcdef"
"""
BROKER = 'name = "a"\nnumber = 1\n' + HEAD
ABCD = HEAD + "".join(
    f'[[broker]]\nname = "{name}"\nnumber = {number}\nlisten = "mqtt://127.0.0.1:{1000 + number}"\n'
    for number, name in enumerate("abcd", 1)
)
RULES = """
out = ["o/#", "+/1"]
out_except = ["o/x"]
in = ["i/#"]
in_except = ["i/x"]
map = [{ here = "o/", there = "p/" }, { here = "q/", there = "" }]
rate_out = "1 MiB/s"
messages_out = "500/s"
"""
READ = LinkRules(Policy(("o/#", "+/1"), ("o/x",), ("i/#",), ("i/x",), (("o/", "p/"), ("q/", ""))), 2**20, 500)


def link(one: str, other: str, rules: str = "") -> str:
    return f'[[link]]\nbetween = ["{one}", "{other}"]\n{rules}\n'


def peer(number: int, name: str) -> Identity:
    return Identity("m", name, number, UUID(int=number), 1)


def write(folder: Path, text: str) -> Path:
    file = folder / "f.toml"
    file.write_text(text)
    return file


def test_all_of_a_table_in_a_topology(tmp_path: Path) -> None:
    topology = load(
        write(tmp_path, ABCD + link("a", "b", "[link.policy.a]" + RULES + "[link.policy.b]\nrate_out = 4096\nmessages_out = 7"))
    )
    (found,) = topology.links
    assert found.rules == {"a": READ, "b": LinkRules(bytes_out=4096, messages_out=7)}
    assert found.guarded


@pytest.mark.parametrize("key", ["2", "b", '"*"'])
def test_all_of_a_table_in_a_brokers_file(tmp_path: Path, key: str) -> None:
    config = load_broker(write(tmp_path, BROKER + f"[mesh.policy.{key}]" + RULES))
    assert config.mesh is not None
    assert rules_for(config.mesh.rules, peer(2, "b")) == READ
    assert rules_for(config.mesh.rules, peer(3, "c")) == (READ if "*" in key else UNRULED)


def test_a_peers_policy_counts_whoever_dials(tmp_path: Path) -> None:
    text = BROKER + '[[mesh.peer]]\naddress = "mqtt://h:1"\nnumber = 2\n[mesh.peer.policy]' + RULES
    config = load_broker(write(tmp_path, text))
    assert config.mesh is not None
    assert rules_for(config.mesh.rules, peer(2, "any")) == READ


def test_a_number_goes_before_a_name_and_a_name_before_all_others() -> None:
    rules: dict[int | str, LinkRules] = {2: READ, "b": UNRULED, "*": SHUT}
    assert rules_for(rules, peer(2, "b")) is READ
    assert rules_for(rules, peer(3, "b")) is UNRULED
    assert rules_for(rules, peer(3, "c")) is SHUT
    assert rules_for({}, peer(3, "c")) is UNRULED


def test_in_a_topology_with_policies_other_links_carry_nothing(tmp_path: Path) -> None:
    topology = load(EXAMPLE)
    gate = of_topology(topology, "acme-gate").mesh
    inner = of_topology(topology, "graz").mesh
    assert gate is not None
    assert inner is not None
    assert rules_for(gate.rules, peer(4, "bolt-gate")).policy.out == ("orders/#",)
    assert rules_for(gate.rules, peer(1, "porto")) == UNRULED
    assert rules_for(gate.rules, peer(9, "stranger")).policy == CLOSED
    assert rules_for(inner.rules, peer(9, "stranger")).policy == CLOSED
    plain = of_topology(load(write(tmp_path, ABCD + link("a", "b"))), "a").mesh
    assert plain is not None
    assert plain.rules == {}
    paced = of_topology(load(write(tmp_path, ABCD + link("a", "b", "[link.policy.a]\nmessages_out = 7"))), "a").mesh
    assert paced is not None
    assert rules_for(paced.rules, peer(9, "stranger")) == UNRULED


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ('out = "a"', '.out = "a": give a list of topic filters, as ["orders/#"]'),
        ('out = ["a/#/b"]', '.out = "a/#/b": # must stand alone in the last level of a Topic Filter'),
        ('in = ["$SYS/#"]', '.in = "$SYS/#": topics that begin with $ never leave a broker'),
        ('in_except = [""]', '.in_except = "": the Topic Filter is empty'),
        ('uot = ["a"]', ".uot = ['a']: unknown key; did you mean \"out\"?"),
        ("out = []\nout_except = ['a']", ".out_except = ['a']: out = [] lets nothing pass that could be excepted: leave one out"),
        (
            'map = [{ here = "a/" }]',
            '.map[1].there is missing: give the beginning of topics with a / at its end, as "orders/", or "" for all',
        ),
        ('map = [{ here = "a", there = "b/" }]', '.map[1].here = "a": a prefix ends with /, or is empty for all topics'),
        (
            'map = [{ here = "a/", there = "b/+/" }]',
            '.map[1].there = "b/+/": a prefix has no wildcards: it stands for all topics that begin with it',
        ),
        ('map = [{ here = "a/", there = "b/", hree = 1 }]', '.map[1].hree = 1: unknown key; did you mean "here"?'),
        (
            'map = [{ here = "a/", there = "b/" }, { here = "c/", there = "b/" }]',
            ".map = [{'here': 'a/', 'there': 'b/'}, {'here': 'c/', 'there': 'b/'}]: "
            '"b/" stands twice as "there": give each prefix once',
        ),
        ('rate_out = "fast"', '.rate_out = "fast": give bytes a second, as "1 MiB/s", at least 100'),
        ("rate_out = 1", '.rate_out = 1: give bytes a second, as "1 MiB/s", at least 100'),
        ('messages_out = "0/s"', '.messages_out = "0/s": give messages a second, as "500/s", at least 1'),
        ("messages_out = true", '.messages_out = True: give messages a second, as "500/s", at least 1'),
    ],
)
def test_each_mistake_is_one_line(tmp_path: Path, table: str, line: str) -> None:
    files = (
        (load, "link[1].policy.a", ABCD + link("a", "b", "[link.policy.a]\n" + table)),
        (load_broker, "mesh.policy.b", BROKER + "[mesh.policy.b]\n" + table),
    )
    for read, where, text in files:
        file = write(tmp_path, text)
        with pytest.raises(ConfigError) as raised:
            read(file)
        assert str(raised.value) == f"{file}: {where}{line}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (BROKER + '[mesh.policy."b c"]', 'mesh.policy.b c = {}: name the peer: its name, its number (0 to 65535), or "*" for all others'),
        (BROKER + "[mesh.policy.65536]", 'mesh.policy.65536 = {}: name the peer: its name, its number (0 to 65535), or "*" for all others'),
        (BROKER + "[mesh.policy.2]\n[mesh.policy.02]", "mesh.policy.02 = {}: number 2 has a policy already: leave one out"),
        (
            BROKER + '[[mesh.peer]]\naddress = "mqtt://h:1"\n[mesh.peer.policy]',
            "mesh.peer[1].number is missing: a policy needs the neighbour's number, so that it counts too when the neighbour dials",
        ),
        (
            BROKER + '[[mesh.peer]]\naddress = "mqtt://h:1"\nnumber = 2\n[mesh.peer.policy]\n[mesh.policy.2]',
            "mesh.policy.2 = {}: the [[mesh.peer]] with number 2 has a policy already: leave one out",
        ),
        (
            BROKER + 'mode = "flood"\n[mesh.policy.2]\nout = []',
            'mesh.mode = "flood": a mesh with policies of topics needs mode = "routed": nothing is flooded over a link with a policy',
        ),
    ],
)
def test_mistakes_in_a_brokers_file(tmp_path: Path, text: str, line: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        load_broker(file)
    assert str(raised.value) == f"{file}: {line}"


def test_a_rate_alone_may_flood(tmp_path: Path) -> None:
    assert load_broker(write(tmp_path, BROKER + 'mode = "flood"\n[mesh.policy.2]\nrate_out = 4096')).mesh is not None


def test_a_policy_of_neither_end_is_a_mistake(tmp_path: Path) -> None:
    file = write(tmp_path, ABCD + link("a", "b", "[link.policy.bb]\nout = []"))
    with pytest.raises(ConfigError) as raised:
        load(file)
    assert str(raised.value) == f"{file}: link[1].policy.bb = {{'out': []}}: the link joins a and b: name one of them; did you mean \"b\"?"


def test_weak_borders_are_warnings(tmp_path: Path) -> None:
    out, other = '[link.policy.a]\nout = ["x/#"]\n', '[link.policy.b]\nout = ["x/#"]\n'
    around = load(write(tmp_path, ABCD + link("a", "b", out) + link("b", "c") + link("c", "a") + link("c", "d")))
    assert around.warnings == ["the policy of the link a - b is walked around: links without one join the two as well"]
    differ = load(write(tmp_path, ABCD + link("a", "c", out) + link("b", "d", other.replace("x", "y")) + link("a", "b") + link("c", "d")))
    (warning,) = differ.warnings
    assert (
        warning == "the link b - d and the link a - c join the same parts with different policies: what moves to the other may be returned"
    )
    same = load(write(tmp_path, ABCD + link("a", "c", out) + link("b", "d", other) + link("a", "b") + link("c", "d")))
    assert same.warnings == []
    closed = load(write(tmp_path, ABCD + link("a", "b", "[link.policy.a]\nout = []\nin = []") + link("b", "c") + link("c", "d")))
    assert closed.warnings == ["the link a - b is closed: no topic passes in either direction"]


def test_the_example() -> None:
    topology = load(EXAMPLE)
    assert topology.warnings == []
    assert parts_of(topology) == [["porto", "lyon", "acme-gate"], ["bolt-gate", "graz", "linz"]]
    found = reach(topology, "orders/1")
    assert found["porto"] == {
        "lyon": "orders/1",
        "acme-gate": "orders/1",
        **dict.fromkeys(("bolt-gate", "graz", "linz"), "suppliers/acme/orders/1"),
    }
    assert found["linz"] == {"bolt-gate": "orders/1", "graz": "orders/1"}
    assert set(reach(topology, "orders/internal/1")["porto"]) == {"lyon", "acme-gate"}
    assert reach(topology, "confirm/1")["linz"]["porto"] == "partners/bolt/confirm/1"


def test_a_policy_in_words() -> None:
    assert describe(READ.policy) == ["out: o/#, +/1 but o/x", "in: i/# but i/x", "o/ is p/ on the link", "q/ is (all) on the link"]
    assert describe(CLOSED) == ["nothing passes"]
    assert describe(Policy()) == ["everything passes"]
    assert describe(Policy(out=())) == ["out: nothing", "in: everything"]
