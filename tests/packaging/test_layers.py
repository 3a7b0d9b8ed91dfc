"""Imports point down only: cli -> metabroker -> directory -> broker -> mesh, client -> store -> mqtt -> base; nothing imports upwards.

Read from the syntax tree, so that imports inside functions and under TYPE_CHECKING count too.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("cli", "metabroker", "directory", "client", "broker", "mesh", "store", "mqtt", "base")  # the upper ones may import the lower ones
CORES = ("mesh", "mqtt")
# What a core may not touch: sockets, clocks, tasks, logs. `mesh` reads files of configuration, so pathlib is no sign.
EFFECTS = {"asyncio", "socket", "selectors", "threading", "time", "logging", "subprocess", "uvloop", "paho", "psutil", "random"}


def modules(layer: str) -> list[Path]:
    return sorted((ROOT / layer).rglob("*.py"))


def imported(path: Path) -> set[tuple[str, ...]]:
    """What a module imports, as absolute dotted paths in parts: ("mqmesh", "mesh", "node") or ("json",)."""
    package = ("mqmesh", *path.relative_to(ROOT).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {tuple(name.name.split(".")) for name in node.names}
        elif isinstance(node, ast.ImportFrom):
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
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and not node.level:
                    assert not (node.module or "").startswith("mqmesh"), f"{path.relative_to(ROOT)}: from {node.module}"


def test_every_folder_with_modules_has_a_layer() -> None:
    """A new sub-package must be put into its place above."""
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders - {"benchmarks", "tests"} == set(LAYERS)
