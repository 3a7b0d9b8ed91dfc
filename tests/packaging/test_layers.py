"""Imports point down only: cli -> pipeline -> interchange -> metabroker -> directory -> broker -> mesh, client -> store -> mqtt -> base.

Nothing imports upwards.
Read from the syntax tree, so that imports inside functions and under TYPE_CHECKING count too.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import cast

import networkx as nx
import pytest

ROOT = Path(__file__).parents[2]
LARGEST_CIRCLE = 6  # modules
LARGEST_FOLDER = 20  # modules
LAYERS = (
    "cli",
    "pipeline",
    "interchange",
    "metabroker",
    "directory",
    "client",
    "broker",
    "mesh",
    "store",
    "mqtt",
    "base",
)  # the upper ones may import the lower ones
CORES = ("interchange/rules", "mesh", "mqtt")
# Rooms of a layer, the upper ones first: each may import those below. Rooms of one line do not import each other.
RANKS = {
    "broker": (
        "__init__ program",
        "server",
        "client",
        "management",
        "attach embedded monitoring requests",
        "publish",
        "site",
        "mesh",
        "workers",
        "config",
        "queues recipients",
        "roaming",
        "persistence",
        "session",
        "empty routing",
        "auth",
        "settings transport write_rounds",
        "ports",
        "journal",
        "turns",
        "applications counters hooks ledger products steady",
    ),
    "cli": (
        "__init__ main",
        "attach migrate",
        "acl billing broker cert demo identity interchange journal messages metabroker passwd pipeline status store trace",
        "topology",
        "directory site",
        "authority fleet logs queue sessions workers",
        "recipients",
        "management",
        "mesh",
        "connection option_groups tables",
        "connection_options moments sockets",
        "output",
    ),
    "client": ("__init__", "metabroker", "api", "message", "paho", "core"),
    "directory": (
        "__init__",
        "server",
        "lookups registration uddi_client",
        "applications",
        "clients watch",
        "client feed rest",
        "openapi",
        "leases services",
        "records",
        "uddi",
        "turns",
        "storage",
    ),
    "interchange": (
        "__init__",
        "shell",
        "gateway",
        "correlation",
        "exchange explain rule_routes",
        "route",
        "calls faces registry",
        "rules",
        "message",
        "deadlines identifiers quota reading sessions windows",
        "refusals",
    ),
    "mesh": ("link", "roaming", "topology", "node", "custody", "retained", "view", "wire"),
    "metabroker": (
        "__init__",
        "shell",
        "connectors core",
        "mqtt peers",
        "policy",
        "credentials libraries protocol reconnect remotes sealing",
    ),
    "mqtt": (
        "__init__",
        "bounds codec framing publish session websocket",
        "batch decode encode",
        "packets topics",
        "properties",
        "fields",
        "length",
        "errors",
        "reasons",
    ),
    "pipeline": (
        "__init__",
        "streaming",
        "source trace",
        "run",
        "lineage",
        "registry",
        "health",
        "synthesis",
        "traffic",
        "audit correlation faults usage",
        "latency",
        "billing",
        "context",
        "dates reading",
        "tables",
        "schemas session",
        "errors",
    ),
    "store": (
        "__init__",
        "process salvage",
        "locations writer",
        "coalescer lmdb memory postgresql sqlite",
        "postgresql_salvage sqlite_check sqlite_migration",
        "lease_keeper postgresql_lease",
        "checksums postgresql_schema",
        "folder",
        "base",
        "records",
    ),
}
# What a core may not touch: sockets, clocks, tasks, logs. `mesh` reads files of configuration, so pathlib is no sign.
EFFECTS = {"asyncio", "socket", "selectors", "threading", "time", "logging", "subprocess", "uvloop", "paho", "psutil", "random"}


def modules(layer: str) -> list[Path]:
    return sorted((ROOT / layer).rglob("*.py"))


@cache
def statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a module, those inside functions too. An import is a statement, so expressions are passed over."""
    found, pending = [], [cast(ast.AST, ast.parse(path.read_text(encoding="utf-8")))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        pending += [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt | ast.excepthandler | ast.match_case)]
    return found


@cache
def imported(path: Path) -> set[tuple[str, ...]]:
    """What a module imports, as absolute dotted paths in parts: ("mqmesh", "mesh", "node") or ("json",)."""
    package = ("mqmesh", *path.relative_to(ROOT).parent.parts)
    found = set()
    for node in statements(path):
        if isinstance(node, ast.Import):
            found |= {tuple(name.name.split(".")) for name in node.names}
        else:
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            found |= {(*base, name.name) for name in node.names}
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_layers_below(layer: str) -> None:
    above = LAYERS[: LAYERS.index(layer)]
    for path in modules(layer):
        for target in imported(path):
            assert target[0] not in ("tests", "benchmarks"), f"{path.relative_to(ROOT)} imports {'.'.join(target)}"
            if target[0] == "mqmesh" and len(target) > 1:
                assert target[1] not in above, f"{path.relative_to(ROOT)} imports {'.'.join(target)}, which is above it"
                assert target[1] in LAYERS or len(target) == 2, f"{path.relative_to(ROOT)} imports unknown {'.'.join(target)}"


def test_the_client_stands_on_mqtt_alone() -> None:
    """It works with any broker: nothing of ours but the vocabulary of MQTT."""
    for path in modules("client"):
        for target in imported(path):
            ours = target[0] == "mqmesh" and len(target) > 1
            assert not ours or target[1] in ("base", "mqtt", "client"), f"{path.relative_to(ROOT)} imports {'.'.join(target)}"


@pytest.mark.parametrize("layer", CORES)
def test_cores_have_no_effects(layer: str) -> None:
    """The cores take bytes, events and `now`: no socket, clock, task or log."""
    for path in modules(layer):
        for target in imported(path):
            assert target[0] not in EFFECTS, f"{path.relative_to(ROOT)} imports {'.'.join(target)}"


def test_imports_inside_the_package_are_relative() -> None:
    for layer in LAYERS:
        for path in modules(layer):
            for node in statements(path):
                if isinstance(node, ast.ImportFrom) and not node.level:
                    assert not (node.module or "").startswith("mqmesh"), f"{path.relative_to(ROOT)}: from {node.module}"


def test_every_folder_with_modules_has_a_layer() -> None:
    """A new sub-package must be put into its place above."""
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders - {"benchmarks", "tests"} == set(LAYERS)


def room(path: Path) -> str:
    """The sub-folder of a layer that a module stands in; a module outside them is a room of its own."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]).removesuffix(".py")


def imports_of(path: Path) -> set[Path]:
    """The modules of ours that a module imports, annotations and imports inside functions included."""
    found = set()
    for target in imported(path):
        if target[0] == "mqmesh":
            for length in (len(target), len(target) - 1):
                base = ROOT.joinpath(*target[1:length])
                hits = [one for one in (base.with_suffix(".py"), base / "__init__.py") if length > 1 and one.is_file()]
                if hits:
                    found.add(hits[0])
                    break
    return found


@cache
def graph() -> nx.DiGraph:
    """Module -> modules that it imports."""
    made = nx.DiGraph()
    for layer in LAYERS:
        for path in modules(layer):
            made.add_edges_from((path, target) for target in imports_of(path))
    return made


def test_circles_of_imports_are_small() -> None:
    """Annotations included: who reads one file of a circle has to read them all."""
    for circle in nx.strongly_connected_components(graph()):
        names = sorted(str(path.relative_to(ROOT)) for path in circle)
        assert len(names) <= LARGEST_CIRCLE, f"these {len(names)} modules import each other in a circle: {', '.join(names)}"


def test_folders_are_small() -> None:
    """Who opens a room sees at once what there is."""
    rooms = {path.parent for layer in LAYERS for path in modules(layer)} | {ROOT / "benchmarks"}
    for folder in sorted(rooms):
        names = sorted(path.name for path in folder.glob("*.py") if path.name != "__init__.py")
        assert len(names) <= LARGEST_FOLDER, f"{folder.relative_to(ROOT)} has {len(names)} modules: make rooms in it"


@pytest.mark.parametrize("layer", sorted(RANKS))
def test_rooms_import_rooms_below(layer: str) -> None:
    """Annotations included. What a room below has to call stands in a protocol, in `broker/ports.py` or beside the caller."""
    ranks = {f"{layer}/{name}": number for number, group in enumerate(RANKS[layer]) for name in group.split()}
    for path, target in graph().edges:
        here, there = room(path), room(target)
        if here.startswith(f"{layer}/") and there.startswith(f"{layer}/") and here != there:
            names = f"{path.relative_to(ROOT)} imports {target.relative_to(ROOT)}"
            assert here in ranks, f"{here} has no rank: put it into its place in RANKS"
            assert there in ranks, f"{there} has no rank: put it into its place in RANKS"
            assert ranks[here] < ranks[there], f"{names}, which is not below it"
