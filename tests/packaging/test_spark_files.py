"""The Spark cluster of packaging/spark: what can be held to without Docker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from mqmesh.cli.main import app
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packaging" / "spark"
COMPOSE = FOLDER / "compose.yaml"


def compose() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())


def words(service: dict[str, Any]) -> list[str]:
    command = service.get("command", [])
    assert isinstance(command, list), "a list needs no shell"
    return command


def test_services_depend_on_what_there_is() -> None:
    services = compose()["services"]
    assert {"storage", "buckets", "master", "worker", "pipeline"} == set(services)
    for service in services.values():
        assert set(service.get("depends_on", [])) <= set(services)
    assert services["worker"]["deploy"]["replicas"] == 2
    for name, condition in services["pipeline"]["depends_on"].items():
        if condition["condition"] == "service_healthy":
            assert "healthcheck" in services[name]


def test_the_build_files_are_there() -> None:
    build = compose()["x-spark"]["build"]
    assert (COMPOSE.parent / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    for line in (FOLDER / "Dockerfile").read_text().splitlines():
        found = re.fullmatch(r"COPY (packaging/\S+) \S+", line)
        assert found is None or (ROOT / found[1]).is_file()


def test_the_image_takes_extras_that_there_are() -> None:
    extras = re.search(r"'\.\[([\w,]+)\]'", (FOLDER / "Dockerfile").read_text())
    assert extras is not None
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras[1].split(",")) <= set(known)
    locks = re.findall(r"-c (requirements\S*)", (FOLDER / "Dockerfile").read_text())
    assert locks
    assert all((ROOT / lock).is_file() for lock in locks)


def test_every_secret_comes_from_the_environment() -> None:
    text = COMPOSE.read_text()
    for name, value in re.findall(r"^\s*((?:AWS|MINIO)_\w*(?:KEY|SECRET|USER|PASSWORD)\w*): (.*)$", text, re.MULTILINE):
        assert re.fullmatch(r"\$\{MQMESH_S3_(KEY|SECRET):\?[^}]+\}", value), name


def test_ports_are_published_on_loopback_only() -> None:
    for service in compose()["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_addresses_agree() -> None:
    services = compose()["services"]
    assert (
        words(services["worker"])[-1]
        == words(services["pipeline"])[words(services["pipeline"]).index("--master") + 1]
        == "spark://master:7077"
    )
    assert words(services["master"])[words(services["master"]).index("--host") + 1] == "master"
    settings = dict(line.split(None, 1) for line in (FOLDER / "spark-defaults.conf").read_text().splitlines() if line and line[0] != "#")
    assert settings["spark.hadoop.fs.s3a.endpoint"] == compose()["x-spark"]["environment"]["AWS_ENDPOINT_URL"] == "http://storage:9000"


def test_the_commands_are_those_that_there_are() -> None:
    services = compose()["services"]
    pipeline = words(services["pipeline"])
    assert pipeline[0] == "mqmesh"
    options = [word for word in pipeline if word.startswith("--")]
    shown = CliRunner().invoke(app, ["pipeline", "run", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert all(option in re.sub(r"\x1b\[[\d;]*m", "", shown) for option in options)
    jars = Path(pytest.importorskip("pyspark").__file__).parent / "jars"
    with zipfile.ZipFile(next(jars.glob("spark-core_*.jar"))) as archive:
        for service in ("master", "worker"):
            assert words(services[service])[0] == "spark-class"
            assert f"{words(services[service])[1].replace('.', '/')}.class" in archive.namelist()


def test_hadoop_is_the_one_of_this_spark() -> None:
    jars = Path(pytest.importorskip("pyspark").__file__).parent / "jars"
    client = next(jars.glob("hadoop-client-api-*.jar"))
    version = re.search(r"hadoop-aws:(\S+)", (FOLDER / "spark-defaults.conf").read_text())
    assert version is not None
    assert client.stem.removeprefix("hadoop-client-api-") == version[1]


def test_the_bundle_holds_the_package_and_is_imported_from_there(tmp_path: Path) -> None:
    bundle = tmp_path / "mqmesh.zip"
    for _ in range(2):
        before = bundle.read_bytes() if bundle.exists() else None
        subprocess.run([sys.executable, FOLDER / "bundle.py", bundle], check=True, capture_output=True)
        assert before in (None, bundle.read_bytes())
    code = "import mqmesh.pipeline.run, mqmesh.cli.main; print(mqmesh.pipeline.run.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(bundle)}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, check=True).stdout
    assert said.strip() == f"{bundle}/mqmesh/pipeline/run.py"


def test_the_bundle_wants_a_name() -> None:
    done = subprocess.run([sys.executable, FOLDER / "bundle.py"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "bundle.py: give the name of the zip, such as mqmesh.zip\n"
