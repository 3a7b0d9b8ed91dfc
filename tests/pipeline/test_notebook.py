"""The notebook goes from a journal to three charts: its cells are executed one after the other, as a notebook program does."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mqmesh.pipeline.synthesis.synthesize import Made
    from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).parents[2] / "packaging" / "spark" / "journal-to-charts.ipynb"
CHARTS = ("latency.png", "traffic.png", "usage.png")


def cells(kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


def test_it_is_a_notebook_without_outputs() -> None:
    whole = json.loads(NOTEBOOK.read_text())
    assert (whole["nbformat"], whole["metadata"]["kernelspec"]["language"]) == (4, "python")
    assert len({cell["id"] for cell in whole["cells"]}) == len(whole["cells"])
    for cell in cells("code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        ast.parse("".join(cell["source"]))
    assert cells("markdown")[0]["source"][0].startswith("# ")


def test_its_cells_make_three_charts(
    spark: SparkSession, journal: tuple[Path, Made], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="needs mqmesh[plot]")
    matplotlib.use("Agg")
    monkeypatch.setenv("MQMESH_JOURNAL", str(journal[0]))
    monkeypatch.setenv("MQMESH_OUT", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells("code"), 1):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    for chart in CHARTS:
        assert (tmp_path / chart).read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / chart).stat().st_size > 5_000
    names["plt"].close("all")
    assert len(names["matrix"]) == 5
    assert names["published"].to_numpy().sum() > 0
