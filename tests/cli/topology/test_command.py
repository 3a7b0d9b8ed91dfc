"""`mqmesh topology`: the figures of known graphs, tables, JSON, pictures, and what wrong use says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.extras import install
from mqmesh.cli.topology import drawing
from mqmesh.cli.topology.command import app
from mqmesh.cli.topology.layout import positions
from mqmesh.mesh.topology.analysis import Analysis, analyse, flood, graph_of
from mqmesh.mesh.topology.settings import MeshSettings
from mqmesh.mesh.topology.topology import BrokerEntry, LinkEntry, Topology, load
from mqmesh.mesh.view.linkstate import Graph, shortest_paths
from typer.testing import CliRunner

FOLDER = Path(__file__).parents[3] / "topologies"
SVG = "{http://www.w3.org/2000/svg}"


def topology_of(graph: nx.Graph, cost: int = 1) -> Topology:
    graph = nx.convert_node_labels_to_integers(graph)
    brokers = [BrokerEntry(f"b{n}", n, (f"mqtt://127.0.0.1:{n + 1}",)) for n in graph]
    links = [LinkEntry(f"b{a}", f"b{b}", cost) for a, b in graph.edges]
    return Topology("t", MeshSettings("m", "k" * 16), brokers, links)


def copies(graph: nx.Graph) -> list[float]:
    analysis = analyse(topology_of(graph))
    return [round(analysis.copies(way), 1) for way in ("flood", "marked", "routed")]


def test_the_figures_of_the_design() -> None:
    assert copies(nx.cycle_graph(5)) == [1.5, 1.5, 1.0]
    assert copies(nx.complete_graph(5)) == [4.0, 1.0, 1.0]
    assert copies(nx.grid_2d_graph(5, 5)) == [2.3, 2.1, 1.0]
    assert copies(nx.random_regular_graph(4, 32, seed=1)) == [3.1, 2.8, 1.0]


GRAPHS = st.integers(1, 9).flatmap(
    lambda n: st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] < e[1])).map(
        lambda edges: make(n, edges)
    )
)


def make(count: int, edges: set[tuple[int, int]]) -> nx.Graph:
    graph = nx.empty_graph(count)
    graph.add_edges_from(sorted(edges))
    return graph


@given(GRAPHS, st.booleans())
def test_flooding_reaches_all_that_a_path_reaches_and_ends(graph: nx.Graph, marks: bool) -> None:
    plain: Graph = graph_of(topology_of(graph))
    for origin in plain:
        sent, reached = flood(plain, origin, marks)
        assert reached == len(nx.node_connected_component(graph, origin)) - 1 == len(shortest_paths(plain, origin))
        assert reached <= sent <= sum(len(near) for near in plain.values())


@given(GRAPHS)
def test_failures_cut_off_exactly_what_no_path_reaches(graph: nx.Graph) -> None:
    analysis: Analysis = analyse(topology_of(graph))
    assert len(analysis.failures) == graph.number_of_nodes() + graph.number_of_edges()
    assert set(analysis.cut_brokers) == {f"b{n}" for n in nx.articulation_points(graph)}
    for failure in analysis.failures:
        left = graph.copy()
        numbers = [int(end[1:]) for end in failure.ends]
        left.remove_node(numbers[0]) if failure.kind == "broker" else left.remove_edge(*numbers)
        parts = {frozenset(f"b{n}" for n in part) for part in nx.connected_components(left)}
        groups = {frozenset(group) for group in failure.cut_off}
        assert groups <= parts
        assert len(parts - groups) == (1 if parts else 0)
        plain = {n: dict.fromkeys(sorted(left[n]), (1, 1)) for n in sorted(left)}
        assert failure.depth == max((path.hops for n in plain for path in shortest_paths(plain, n).values()), default=0)
        if failure.kind == "link":
            assert (len(failure.cut_off) == analysis.parts) is (tuple(sorted(failure.ends)) in analysis.cut_links)


def test_costs_shape_the_tree() -> None:
    analysis = analyse(load(FOLDER / "triangle.toml"))
    assert [(one.name, one.depth, one.cost) for one in analysis.origins] == [("porto", 2, 2), ("lyon", 1, 1), ("turin", 2, 2)]


# the commands


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.toml")), ids=lambda file: file.stem)
def test_every_example_is_checked_drawn_and_simulated(file: Path, tmp_path: Path) -> None:
    topology = load(file)
    for command in ("check", "simulate"):
        status, text, errors = run(command, file)
        assert (status, errors) == (0, "")
        assert all(broker.name in text for broker in topology.brokers)
        status, text, _ = run(command, file, "--json")
        assert status == 0
        assert json.loads(text)["brokers"] == len(topology.brokers)
    picture = tmp_path / "p.svg"
    assert run("draw", file, "-o", picture)[:2] == (0, f"{picture}\n")
    document = ElementTree.parse(picture).getroot()
    width, height = float(document.get("width", 0)), float(document.get("height", 0))
    circles = document.findall(f"{SVG}circle")
    discs = {(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in circles if c.get("r") == "21"}
    assert len(discs) == len(topology.brokers)
    assert all(21 <= x <= width - 21 and 21 <= y <= height - 21 for x, y in discs)
    assert len(document.findall(f"{SVG}line")) == len(topology.links)
    assert {text.text for text in document.findall(f"{SVG}text")} >= {broker.name for broker in topology.brokers}


def test_check_names_weaknesses() -> None:
    assert "broker lyon is a cut vertex; without it are cut off: turin, milan" in run("check", FOLDER / "bow-tie.toml")[1]
    assert "link porto - lyon is a bridge; without it are cut off: lyon" in run("check", FOLDER / "pair.toml")[1]
    assert "no single link or broker cuts anything off" in run("check", FOLDER / "ring-of-five.toml")[1]


def test_policies_are_checked_drawn_and_played_through(tmp_path: Path) -> None:
    file = FOLDER / "two-companies.toml"
    text = run("check", file)[1]
    assert "parts: porto, lyon, acme-gate; bolt-gate, graz, linz" in text
    assert "out: orders/# but orders/internal/#" in text
    assert "1048576 bytes/s, 5000 messages/s" in text
    found = json.loads(run("check", file, "--json")[1])
    assert found["policy_parts"] == [["porto", "lyon", "acme-gate"], ["bolt-gate", "graz", "linz"]]
    assert [(one["at"], one["rate_out"], one["messages_out"]) for one in found["policies"]] == [
        ("acme-gate", 2**20, 5000),
        ("bolt-gate", 2**20, None),
    ]
    status, text, _ = run("simulate", file, "--topic", "orders/1", "--topic", "[x]")
    assert status == 0
    assert "suppliers/acme/orders/1" in text
    assert "[x]" in text
    topics = json.loads(run("simulate", file, "--topic", "confirm/1", "--json")[1])["topics"]
    assert topics["confirm/1"]["graz"]["porto"] == "partners/bolt/confirm/1"
    assert set(topics["confirm/1"]["porto"]) == {"lyon", "acme-gate"}
    for wrong in ("a/#", "$SYS/x", ""):
        status, _, errors = run("simulate", file, "--topic", wrong)
        assert status == 2
        assert errors.startswith(f"mqmesh: --topic = {wrong}: ") or f"--topic = {wrong}" in errors
    picture = tmp_path / "p.svg"
    run("draw", file, "-o", picture)
    assert [text.text for text in ElementTree.parse(picture).getroot().findall(f"{SVG}text")].count("policy") == 1


def test_simulate_as_json() -> None:
    found = json.loads(run("simulate", FOLDER / "bow-tie.toml", "--json")[1])
    assert found["cut_brokers"] == ["lyon"]
    assert found["cut_links"] == []
    assert found["copies_per_broker_reached"] == {"flood": 2.0, "marked": 1.0, "routed": 1.0}
    assert found["origins"][0] == {"name": "porto", "reached": 4, "flood": 8, "marked": 4, "routed": 4, "depth": 2, "cost": 2}
    broken = {(failure["kind"], *failure["ends"]): failure for failure in found["failures"]}
    assert broken["broker", "lyon"]["cut_off"] == [["turin", "milan"]]
    assert broken["link", "porto", "lyon"]["depth"] == 3


def test_a_wrong_file_gives_one_line_and_status_2(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text((FOLDER / "pair.toml").read_text().replace("number = 2", "number = 1"))
    for command in ("check", "draw", "simulate"):
        status, text, errors = run(command, file)
        assert (status, text) == (2, "")
        assert errors == f'mqmesh: {file}: broker[2].number = 1: "porto" has this number already: give each broker its own\n'
    status, text, _ = run("check", file, "--json")
    assert status == 2
    assert json.loads(text)["error"]["key"] == "broker[2].number"
    assert run("check", tmp_path / "none.toml")[2] == f"mqmesh: {tmp_path}/none.toml: cannot be read: No such file or directory\n"


def test_a_mesh_in_parts_is_shown_as_such(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    text = (FOLDER / "pair.toml").read_text()
    file.write_text(text[: text.index("# lyon")])
    status, text, _ = run("check", file)
    assert status == 0
    assert "the brokers are not all connected: no path from lyon to the others" in " ".join(text.split())
    assert run("simulate", file)[0] == run("draw", file)[0] == 0
    assert (tmp_path / "t.svg").exists()


def test_png_is_a_picture_of_the_asked_size(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "p.png"
    assert run("draw", FOLDER / "ring-of-five.toml", "-o", path, "--scale", 1)[0] == 0
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    topology = load(FOLDER / "ring-of-five.toml")
    what = drawing.picture(topology, analyse(topology))
    size = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    assert size == (pytest.approx(what.width, abs=1), pytest.approx(what.height, abs=1))


def test_png_without_matplotlib_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    path = tmp_path / "p.png"
    status, _, errors = run("draw", FOLDER / "pair.toml", "-o", path)
    hint = install("plot")
    assert (status, errors) == (2, f"mqmesh: --output = {path}: PNG needs matplotlib: {hint}, or write SVG\n")


def test_an_output_that_cannot_be(tmp_path: Path) -> None:
    assert run("draw", FOLDER / "pair.toml", "-o", tmp_path / "p.gif")[2].endswith("give a name that ends in .svg or .png\n")
    status, _, errors = run("draw", FOLDER / "pair.toml", "-o", tmp_path / "none/p.svg")
    assert (status, errors) == (1, f"mqmesh: --output = {tmp_path}/none/p.svg: cannot be written: No such file or directory\n")


# the layout


def test_a_grid_is_drawn_as_a_grid() -> None:
    grid = nx.relabel_nodes(nx.grid_2d_graph(3, 4), lambda node: f"{node[0]}{node[1]}")
    places = positions(grid)
    assert len({round(x, 6) for x, _ in places.values()}) == 4
    assert len({round(y, 6) for _, y in places.values()}) == 3


def test_a_ring_is_round_with_the_first_broker_at_the_top() -> None:
    places = positions(nx.relabel_nodes(nx.cycle_graph(5), str))
    assert min(places, key=lambda name: places[name][1]) == "0"
    x = sum(place[0] for place in places.values()) / 5
    y = sum(place[1] for place in places.values()) / 5
    assert max(abs(abs(complex(*place) - complex(x, y)) - 0.85) for place in places.values()) < 0.1


@given(GRAPHS)
def test_any_graph_has_a_place_for_each_broker(graph: nx.Graph) -> None:
    places = positions(nx.relabel_nodes(graph, str))
    points = [complex(*place) for place in places.values()]
    assert len(points) == graph.number_of_nodes()
    assert min(point.real for point in points) == min(point.imag for point in points) == pytest.approx(0)
    assert all(abs(a - b) > 0.1 for i, a in enumerate(points) for b in points[:i])


# the documentation


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.toml")), ids=lambda file: file.stem)
def test_the_documented_figures_are_those_of_the_examples(file: Path) -> None:
    page = (FOLDER.parent / "docs/topologies.md").read_text()
    analysis = analyse(load(file))
    figures = " | ".join(f"{analysis.copies(way):.2f}" for way in ("flood", "marked", "routed"))
    row = f"| [{file.stem}](../topologies/{file.name}) | {analysis.brokers} | {analysis.links} | {analysis.diameter} | {figures} | "
    assert row in page
    assert (FOLDER.parent / f"docs/pictures/{file.stem}.svg").exists()
