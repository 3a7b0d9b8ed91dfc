"""Topology files: the examples, what each mistake says, and what becomes of one broker."""

from __future__ import annotations

import re
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.address import parse_address
from mqmesh.base.settings import ConfigError
from mqmesh.broker.config import of_topology
from mqmesh.broker.settings.http import HttpAddress
from mqmesh.mesh.topology.topology import Topology, check_one_machine, load

FOLDER = Path(__file__).parents[3] / "topologies"
EXAMPLES = {
    "pair": nx.path_graph(2),
    "triangle": nx.cycle_graph(3),
    "ring-of-five": nx.cycle_graph(5),
    "full-mesh-of-five": nx.complete_graph(5),
    "bow-tie": nx.Graph([(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 4)]),
    "grid-3x3": nx.grid_2d_graph(3, 3),
    "hub-of-rings": nx.Graph([edge for r in (1, 4, 7) for edge in ((0, r), (r, r + 1), (r + 1, r + 2), (r + 2, 0))]),
}
MESH = '[mesh]\nname = "m"\nkey = "0123456789abcdef"\n'
TWO = '[[broker]]\nname = "a"\nnumber = 1\nlisten = "mqtt://127.0.0.1:1001"\n[[broker]]\nname = "b"\nnumber = 2\nlisten = "mqtt://127.0.0.1:1002"\n'
THREE = TWO + '[[broker]]\nname = "c"\nnumber = 3\nlisten = ["mqtt://127.0.0.1:1003", "unix:///run/c"]\n'
LINK = '[[link]]\nbetween = ["a", "b"]\n'


def write(folder: Path, text: str) -> Path:
    file = folder / "t.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_the_graph_that_it_names(name: str) -> None:
    topology = load(FOLDER / f"{name}.toml")
    assert topology.warnings == []
    assert topology.mesh.mode == "routed"
    assert nx.is_isomorphic(topology.graph(), EXAMPLES[name])
    assert (FOLDER / f"{name}.toml").read_text().startswith("# ")


def test_the_examples_can_all_run_at_once_on_this_machine() -> None:
    files = sorted(FOLDER.glob("*.toml"))
    assert {file.stem for file in files} >= set(EXAMPLES)
    addresses = [parse_address(text) for file in files for broker in load(file).brokers for text in broker.listen]
    assert len(set(addresses)) == len(addresses)
    assert {address.host for address in addresses} == {"127.0.0.1"}
    assert all(1024 < address.port < 32768 for address in addresses)  # below the ports that systems give out by themselves


def test_one_broker_of_a_topology(tmp_path: Path) -> None:
    text = (
        MESH
        + "silence = 2\n[limits]\nin_flight = 7\n"
        + THREE
        + LINK
        + '[[link]]\nbetween = ["c", "a"]\ncost = 4\naddress = "mqtt://127.0.0.1:9"\n[[link]]\nbetween = ["c", "b"]\n'
    )
    topology = load(write(tmp_path, text))
    a, b, c = (of_topology(topology, name, tmp_path / "d") for name in "abc")
    assert (c.name, c.number, c.listen, c.data) == ("c", 3, ["mqtt://127.0.0.1:1003", "unix:///run/c"], tmp_path / "d/c")
    assert a.mesh is not None
    assert b.mesh is not None
    assert c.mesh is not None
    assert c.mesh.peers == []
    assert [(p.address, p.cost, p.number) for p in a.mesh.peers] == [("mqtt://127.0.0.1:9", 4, 3)]
    assert [(p.address, p.cost, p.number) for p in b.mesh.peers] == [("mqtt://127.0.0.1:1001", 1, 1), ("mqtt://127.0.0.1:1003", 1, 3)]
    assert (a.mesh.name, a.mesh.key, a.mesh.silence, a.limits.in_flight) == ("m", "0123456789abcdef", 2.0, 7)
    assert of_topology(topology, "a").data is None
    with pytest.raises(KeyError):
        of_topology(topology, "z")


def test_each_link_is_dialled_by_one_end() -> None:
    for name in EXAMPLES:
        topology = load(FOLDER / f"{name}.toml")
        dialled = [frozenset((b.number, p.number)) for b in topology.brokers for p in of_topology(topology, b.name).mesh.peers]  # type: ignore[union-attr]
        assert len(dialled) == len(set(dialled)) == len(topology.links)


def test_a_listener_on_any_interface_is_dialled_on_the_loopback_one(tmp_path: Path) -> None:
    topology = load(write(tmp_path, MESH + TWO.replace("127.0.0.1", "0.0.0.0") + LINK))
    assert topology.dial_address(topology.links[0]) == "mqtt://127.0.0.1:1001"


def test_a_data_folder_is_relative_to_the_file(tmp_path: Path) -> None:
    topology = load(write(tmp_path, MESH + TWO.replace("number = 1", 'number = 1\ndata = "x/a"') + LINK))
    assert of_topology(topology, "a").data == tmp_path / "x/a"
    assert of_topology(topology, "a", "/d").data == Path("/d/a")


@pytest.mark.parametrize("address", ["127.0.0.1:1001", "0.0.0.0:1001"])
def test_an_address_may_be_used_again_on_another_machine_only(tmp_path: Path, address: str) -> None:
    file = tmp_path / "t.toml"
    file.write_text(MESH + TWO.replace("127.0.0.1:1002", address))
    topology = load(file)
    with pytest.raises(ConfigError, match=re.escape("listens at mqtt://127.0.0.1:1001 already: give another address")) as found:
        check_one_machine(topology)
    assert found.value.key == "broker[2].listen"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TWO, "mesh is missing: give a table [mesh] with name and key"),
        ('mesh = "m"', 'mesh = "m": make it a table: [mesh]'),
        (MESH, "broker is missing: give at least one [[broker]] with name, number and listen"),
        (
            '[mesh]\nname = "m"\n' + TWO,
            "mesh.key is missing: give the secret that all brokers of the mesh share, a string of at least 16 bytes",
        ),
        (
            '[mesh]\nname = "m"\nkey = "abc"\n' + TWO,
            "mesh.key = (3 bytes): give the secret that all brokers of the mesh share, a string of at least 16 bytes",
        ),
        (
            MESH + "[[mesh.peer]]\n" + TWO,
            "mesh.peer = [{}]: unknown key; known: ack, auth, brokers, clients, custody, deletions_kept, forget_after, key, keys, "
            "keys_held, lowest_protocol, managers, mode, name, receipt_topics, receipts_kept, receipts_wait, retained_compare, "
            "retry_first, retry_last, roam_wait, share, silence, start_wait",
        ),
        (MESH + TWO.replace("number = 2", "number = 1"), 'broker[2].number = 1: "a" has this number already: give each broker its own'),
        (MESH + TWO.replace("number = 2", "number = 65536"), "broker[2].number = 65536: give a whole number from 0 to 65535"),
        (MESH + TWO.replace("number = 2\n", ""), "broker[2].number is missing: give a whole number from 0 to 65535"),
        (MESH + TWO.replace('"b"', '"a"'), 'broker[2].name = "a": number 1 has this name already: give each broker its own'),
        (
            MESH + TWO.replace('"mqtt://127.0.0.1:1002"', '["mqtt://127.0.0.1:1002", "mqtts://0.0.0.0:1002"]'),
            'broker[2].listen = "mqtts://0.0.0.0:1002": the broker listens at mqtt://127.0.0.1:1002 already: give another address',
        ),
        (
            MESH + TWO.replace(":1002", ":0"),
            'broker[2].listen = "mqtt://127.0.0.1:0": a broker that others dial needs a fixed port, 1 to 65535',
        ),
        (
            MESH + TWO.replace("mqtt://127.0.0.1:1002", "tcp://h:1"),
            'broker[2].listen = "tcp://h:1": write '
            "mqtt://HOST:PORT, mqtts://HOST:PORT, ws://HOST:PORT/PATH, wss://HOST:PORT/PATH or unix:///PATH",
        ),
        (
            MESH + TWO.replace("mqtt://127.0.0.1:1002", "ws://127.0.0.1:1002"),
            'broker[2].listen = "ws://127.0.0.1:1002": links do not run over WebSocket: give an address such as mqtt://127.0.0.1:1883 too',
        ),
        (
            MESH + TWO.replace('"mqtt://127.0.0.1:1002"', "[]"),
            'broker[2].listen = []: give an address such as "mqtt://127.0.0.1:1883", or a list of them',
        ),
        (
            MESH + TWO.replace("number =", "numbre ="),
            'broker[1].number is missing: give a whole number from 0 to 65535; is "numbre" misspelled?',
        ),
        (MESH + TWO + "numbre = 5\n", 'broker[2].numbre = 5: unknown key; did you mean "number"?'),
        (
            MESH + TWO.replace("number =", 'data = "d"\nnumber ='),
            'broker[2].data = "d": "a" has this folder already: give each broker its own',
        ),
        (MESH + TWO + LINK.replace('"b"', '"bb"'), "link[1].between = ['a', 'bb']: no broker is called \"bb\"; did you mean \"b\"?"),
        (MESH + TWO + LINK.replace('"b"', '"zoe"'), "link[1].between = ['a', 'zoe']: no broker is called \"zoe\"; known: a, b"),
        (MESH + TWO + LINK.replace('"b"', '"a"'), "link[1].between = ['a', 'a']: a link joins two different brokers"),
        (MESH + TWO + LINK.replace(', "b"', ""), "link[1].between = ['a']: give the names of two brokers, the second dials the first"),
        (
            MESH + TWO + LINK + '[[link]]\nbetween = ["b", "a"]\n',
            "link[2].between = ['b', 'a']: link[1] joins these two already: leave one out",
        ),
        (
            MESH + 'managers = ["a"]\n' + TWO + LINK,
            "mesh.managers = ['a']: give the key of a in mesh.keys too: without it any broker can take that name",
        ),
        (MESH + TWO + LINK + "cost = 0\n", "link[1].cost = 0: give a whole number from 1 to 65535"),
        (MESH + TWO + LINK + 'adress = "x"\n', 'link[1].adress = "x": unknown key; did you mean "address"?'),
        (MESH + TWO + LINK + "[limit]\nin_flight = 1\n", "limit = {'in_flight': 1}: unknown key; did you mean \"limits\"?"),
        (MESH + TWO + "limits = 1\n" + LINK, "broker[2].limits = 1: make it a table: [broker[2].limits]"),
        (MESH + TWO + "[[lnik]]\n", 'lnik = [{}]: unknown key; did you mean "link"?'),
        (MESH + TWO + "[link]\n", "link = {}: make it a list of tables: [[link]]"),
    ],
)
def test_each_mistake_is_one_line_that_names_file_key_value_and_remedy(tmp_path: Path, text: str, line: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        load(file)
    assert str(raised.value) == f"{file}: {line}"


def test_what_is_odd_but_works_is_a_warning(tmp_path: Path) -> None:
    assert load(write(tmp_path, MESH + THREE + LINK)).warnings == ["the brokers are not all connected: no path from c to the others"]
    (warning,) = load(write(tmp_path, MESH + TWO.replace("number = 2", "number = 8000") + LINK)).warnings
    assert warning == "number 8000 of b makes the visited bits of each message 1001 bytes; small numbers keep them small"


@given(st.text(max_size=60), st.integers(0, 400))
def test_any_damage_to_a_file_is_accepted_or_a_config_error(tmp_path_factory: pytest.TempPathFactory, insert: str, at: int) -> None:
    text = MESH + THREE + LINK
    at %= len(text)
    file = tmp_path_factory.getbasetemp() / "damaged.toml"
    file.write_text(text[:at] + insert + text[at:], encoding="utf-8", errors="replace")
    said = ""
    try:
        assert isinstance(load(file), Topology)
    except ConfigError as error:
        said = str(error)
    assert not said or said.startswith(f"{file}: ")


def test_links_leave_web_listeners_alone_and_origins_are_everybodys(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    both = TWO.replace('"mqtt://127.0.0.1:1001"', '["ws://127.0.0.1:1003", "mqtt://127.0.0.1:1001"]')
    both = both.replace('"mqtt://127.0.0.1:1002"', '["ws://127.0.0.1:1004", "mqtt://127.0.0.1:1002"]')
    file.write_text(MESH + both + LINK + '[websocket]\norigins = ["https://a.example"]\n')
    topology = load(file)
    assert [topology.dial_address(link) in ("mqtt://127.0.0.1:1001", "mqtt://127.0.0.1:1002") for link in topology.links] == [True]
    assert of_topology(topology, "a").websocket.origins == ["https://a.example"]


SHARED = """
[management]
accept = ["b"]

[limits]
in_flight = 7
session_queue_bytes = "1 MiB"

[store]
path = "stores/{name}.db"

[queues.orders]
deliveries = 5
"""


def test_tables_of_a_brokers_file_are_for_all_brokers_and_a_brokers_own_go_over_them(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    own = '\n[broker.limits]\nin_flight = 9\n[broker.queues.orders]\nretention = "1h"\n[broker.http]\nlisten = "http://127.0.0.1:1009"\n'
    file.write_text(MESH + TWO + own + LINK + SHARED)
    topology = load(file)
    a, b = (of_topology(topology, name, tmp_path / "d") for name in "ab")
    assert (a.limits.in_flight, b.limits.in_flight) == (7, 9)
    assert a.limits.session_queue_bytes == b.limits.session_queue_bytes == 2**20
    assert (a.http, b.http) == (None, HttpAddress("127.0.0.1", 1009))
    assert a.store.path == tmp_path / "stores/a.db"
    assert a.queues is not None
    assert b.queues is not None
    assert (a.queues.rules["orders"].retention, b.queues.rules["orders"].retention) == (0, 3600)
    assert a.queues.rules["orders"].deliveries == b.queues.rules["orders"].deliveries == 5
    assert a.management.accept == b.management.accept


@pytest.mark.parametrize(
    ("shared", "own", "text"),
    [
        ("[limits]\nin_fligth = 7\n", "", 'limits.in_fligth = 7: unknown key; did you mean "in_flight"?'),
        ("[limits]\nin_flight = 7\n", "[broker.store]\nkind = 'sqlit'\n", 'broker[2].store.kind = "sqlit": give "sqlite" or'),
        ("", "[broker.journal]\nfolder = 7\n", "broker[2].journal.folder = 7"),
    ],
)
def test_a_mistake_in_a_brokers_table_is_named_where_it_stands(tmp_path: Path, shared: str, own: str, text: str) -> None:
    file = tmp_path / "t.toml"
    file.write_text(MESH + TWO + own + LINK + shared)
    topology = load(file)
    with pytest.raises(ConfigError, match=re.escape(text)):
        assert [of_topology(topology, name, tmp_path) for name in "ab"]


def test_a_broker_listens_at_all_addresses_of_ipv4_and_of_ipv6(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(MESH + TWO.replace('"mqtt://127.0.0.1:1002"', '["mqtt://0.0.0.0:1002", "mqtt://[::]:1002"]'))
    assert load(file).brokers[1].listen == ("mqtt://0.0.0.0:1002", "mqtt://[::]:1002")
    file.write_text(MESH + TWO.replace('"mqtt://127.0.0.1:1002"', '["mqtt://localhost:1002", "mqtt://[::]:1002"]'))
    with pytest.raises(ConfigError, match="already: give another address"):
        load(file)
