"""A directory that serves https, and clients that trust its authority or do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mqmesh.directory.client import Client, ClientError
from support.certificates import Certificates
from support.directories import Directory
from support.services import PATIENCE

pytestmark = pytest.mark.process


def test_who_trusts_its_authority_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Certificates(tmp_path / "tls")
    made.broker("directory", "127.0.0.1")
    options = ("--cert", str(made.certificate("directory")), "--key", str(made.key("directory")))
    directory = Directory(f"sqlite:///{tmp_path / 'd.db'}", tmp_path / "log", options=options)
    assert directory.url.startswith("https://")
    with pytest.raises(ClientError, match="CERTIFICATE_VERIFY_FAILED"):
        Client(directory.url, PATIENCE).find()
    monkeypatch.setenv("SSL_CERT_FILE", str(made.ca))
    program = "import sys; from mqmesh.directory.client import Client; print(Client(sys.argv[1], float(sys.argv[2])).find())"
    # a process of its own: urllib reads the variable once
    found = subprocess.run([sys.executable, "-c", program, directory.url, str(PATIENCE)], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
    directory.kill()
