"""Stock SOAP clients of other languages do every operation of UDDI, with the WSDL of the directory and with that of OASIS.

zeep does so in the other tests. PHP refuses the files of OASIS themselves: they define a message twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mqmesh.directory.uddi.schema import OPERATIONS
from support.directories import Directory
from support.peers.uddi_clients import OASIS
from support.services import PATIENCE, missing, require

pytestmark = pytest.mark.service
CLIENTS = Path(__file__).parent / "clients"
JARS = [Path("/usr/share/java") / name for name in ("jaxws-tools.jar", "jaxws-rt.jar")]
EVERY = sorted(operation for operations in OPERATIONS.values() for operation in operations)


def done(*command: object, cwd: Path | None = None) -> list[str]:
    """The operations that a client has printed."""
    ran = subprocess.run([str(one) for one in command], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return sorted(ran.stdout.split())


@pytest.fixture(params=["own", "oasis"])
def wsdl(request: pytest.FixtureRequest, directory: Directory) -> str:
    return f"{directory.url}/uddi?wsdl" if request.param == "own" else OASIS.as_uri()


@pytest.fixture
def account(directory: Directory) -> tuple[str, str, str]:
    """Where to ask, the account and its secret."""
    return f"{directory.url}/uddi", "alice", directory.secrets["alice"]


def test_node(wsdl: str, account: tuple[str, str, str]) -> None:
    node = require("node")
    if not (CLIENTS / "node_modules" / "soap").is_dir():
        missing("node-soap is not installed: make services (npm, tests/directory/uddi/clients/package.json)")
    assert done(node, CLIENTS / "every_operation.mjs", wsdl.removeprefix("file://"), *account) == EVERY


def test_suds(wsdl: str, account: tuple[str, str, str]) -> None:
    assert done(sys.executable, CLIENTS / "every_operation.py", wsdl, *account) == EVERY


def test_php(directory: Directory, account: tuple[str, str, str]) -> None:
    php = require("php")
    if "soap" not in done(php, "-m"):
        missing("PHP has no SOAP: make services (Debian package php-soap)")
    assert done(php, CLIENTS / "every_operation.php", f"{directory.url}/uddi?wsdl", *account) == EVERY


def test_java(directory: Directory, account: tuple[str, str, str], tmp_path: Path) -> None:
    java, javac = require("java"), require("javac")
    if not all(jar.exists() for jar in JARS):
        missing("JAX-WS is not installed: make services (Debian package libjaxws-java)")
    path = os.pathsep.join(map(str, JARS))
    wsimport = ("-quiet", "-Xnocompile", "-keep", "-extension", "-p", "uddi", "-s", tmp_path, f"{directory.url}/uddi?wsdl")
    done(java, "-cp", path, "com.sun.tools.ws.WsImport", *wsimport)
    sources = sorted((tmp_path / "uddi").glob("*.java"))
    done(javac, "-nowarn", "-cp", path, "-d", tmp_path, *sources, CLIENTS / "EveryOperation.java")
    assert done(java, "-cp", os.pathsep.join((str(tmp_path), path)), "EveryOperation", *account) == EVERY
