"""`mqmesh cert`: certificates that openssl and a whole mesh take, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.command import run, start
from support.services import PATIENCE, free_port, wait_until

pytestmark = pytest.mark.process

TEXT = """
[mesh]
name = "two"
auth = "certificate"
silence = 60
[tls]
certificate = "secret/{{name}}.crt"
key = "secret/{{name}}.key"
ca = "trust/ca.crt"
client_certificates = "required"
[[broker]]
name = "porto"
number = 1
listen = "mqtts://127.0.0.1:{0}"
[[broker]]
name = "lyon"
number = 2
listen = "mqtts://0.0.0.0:{1}"
[[link]]
between = ["porto", "lyon"]
"""


def topology(folder: Path) -> tuple[Path, int, int]:
    ports = free_port(), free_port()
    file = folder / "two.toml"
    file.write_text(TEXT.format(*ports))
    return file, *ports


def made(*arguments: object) -> dict[str, Any]:
    done = run("cert", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    return json.loads(done.stdout)


def openssl(*arguments: object) -> str:
    return subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def test_a_topology_gets_its_files_where_it_looks_for_them(tmp_path: Path) -> None:
    file, _, _ = topology(tmp_path)
    result = made(file, "--client", "desk", "--host", "broker.example", "--days", 30)
    ca = tmp_path / "trust/ca.crt"
    assert result["authority"]["certificate"] == str(ca)
    assert [one["name"] for one in result["certificates"]] == ["porto", "lyon", "desk"]
    assert all(one["new"] for one in (result["authority"], *result["certificates"]))
    for one in result["certificates"]:
        folder = tmp_path / ("tls" if one["name"] == "desk" else "secret")
        assert (one["certificate"], one["key"]) == (f"{folder}/{one['name']}.crt", f"{folder}/{one['name']}.key")
        purpose = "sslclient" if one["name"] == "desk" else "sslserver"
        assert "OK" in openssl("verify", "-x509_strict", "-purpose", purpose, "-CAfile", ca, one["certificate"])
        assert os.stat(one["key"]).st_mode & 0o777 == 0o600
    assert (tmp_path / "trust/ca.key").stat().st_mode & 0o777 == 0o600
    assert [one["names"] for one in result["certificates"]] == [
        ["porto", "localhost", "127.0.0.1", "::1", "broker.example"],
        ["lyon", "localhost", "127.0.0.1", "::1", "broker.example"],
        ["desk"],
    ]
    desk = tmp_path / "tls/desk.crt"
    failed = subprocess.run(["openssl", "verify", "-purpose", "sslserver", "-CAfile", ca, desk], capture_output=True)
    assert failed.returncode != 0  # a client's certificate is no server's


def test_what_is_there_is_kept_and_renewed_by_the_same_authority(tmp_path: Path) -> None:
    first = made("--broker", "porto", "--out", tmp_path)
    before = [(tmp_path / name).read_bytes() for name in ("ca.crt", "ca.key", "porto.crt", "porto.key")]
    second = made("--broker", "porto", "--broker", "lyon", "--out", tmp_path)
    assert [one["new"] for one in (second["authority"], *second["certificates"])] == [False, False, True]
    assert second["certificates"][0]["names"] == first["certificates"][0]["names"]
    assert [(tmp_path / name).read_bytes() for name in ("ca.crt", "ca.key", "porto.crt", "porto.key")] == before
    third = made("--broker", "porto", "--out", tmp_path, "--renew")
    assert [one["new"] for one in (third["authority"], *third["certificates"])] == [False, True]
    after = [(tmp_path / name).read_bytes() for name in ("ca.crt", "ca.key", "porto.crt", "porto.key")]
    assert after[:2] == before[:2]
    assert after[2] != before[2]
    assert after[3] != before[3]
    assert "OK" in openssl("verify", "-CAfile", tmp_path / "ca.crt", tmp_path / "porto.crt")


def test_it_teaches_what_to_write(tmp_path: Path) -> None:
    done = run("cert", "--broker", "porto", "--out", tmp_path / "tls")
    text = done.stdout.decode()
    assert text.startswith("made authority: ")
    assert f'[tls]\ncertificate = "{tmp_path}/tls/{{name}}.crt"' in text
    again = run("cert", "--broker", "porto", "--out", tmp_path / "tls").stdout.decode()
    assert "kept porto: " in again
    assert "--renew" in again


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half/ca.crt").write_text("nonsense")
    made("--broker", "a", "--out", tmp_path / "one")
    made("--broker", "a", "--out", tmp_path / "two")
    (tmp_path / "one/ca.key").write_bytes((tmp_path / "two/ca.key").read_bytes())
    bad = tmp_path / "bad.toml"
    bad.write_text("[mesh]\n")
    cases: list[tuple[list[object], int, str]] = [
        ([], 2, "for whom? Give a topology, --broker NAME or --client NAME"),
        (["--broker", "../x"], 2, "--broker ../x: a name has 1 to 64 letters"),
        (["--broker", "x", "--client", "x"], 2, "would be written for x twice"),
        (["--broker", "x", "--out", tmp_path / "half"], 1, "half/ca.crt holds no certificate in PEM form"),
        (["--broker", "x", "--out", tmp_path / "one"], 1, "does not belong to"),
        ([bad], 2, "bad.toml: mesh.name is missing"),
        (["--broker", "x", "--out", "/proc/nowhere"], 1, "No such file or directory"),
    ]
    for arguments, status, text in cases:
        done = run("cert", *arguments, cwd=tmp_path)
        assert (done.returncode, done.stderr.count(b"\n")) == (status, 1), done.stderr
        assert text in done.stderr.decode(), done.stderr


@pytest.mark.slow
def test_a_mesh_runs_on_them_and_on_new_ones(tmp_path: Path) -> None:
    """Nothing but TLS: links, clients, and the watch of `mqmesh up` itself."""
    file, porto, lyon = topology(tmp_path)
    missing = run("up", file, "--data", tmp_path / "data")
    assert missing.returncode == 2
    assert b"secret/porto.crt" in missing.stderr
    assert b"cannot be read: No such file or directory" in missing.stderr
    made(file, "--client", "desk")
    process = start("up", file, "--data", tmp_path / "data", stderr=tmp_path / "err")
    line = process.stdout.readline()  # type: ignore[union-attr]
    assert line.startswith("ready mesh=two brokers=2 links=1 "), (line, (tmp_path / "err").read_text())
    secret = ["--cafile", tmp_path / "trust/ca.crt", "--cert", tmp_path / "tls/desk.crt", "--key", tmp_path / "tls/desk.key"]

    def crosses(payload: str) -> None:
        run("pub", "-h", f"mqtts://localhost:{porto}", *secret, "-t", "t", "-m", payload, "-q", 1)
        reader = start("sub", "-h", f"mqtts://127.0.0.1:{lyon}", *secret, "-t", "t", "-C", 1, "-W", 90, "-q", 1)
        while reader.poll() is None:  # interest has to reach the other broker first
            run("pub", "-h", f"mqtts://localhost:{porto}", *secret, "-t", "t", "-m", payload, "-q", 1)
        assert reader.communicate()[0] == f"{payload}\n"

    crosses("one")
    made(file, "--renew")
    for name in ("porto", "lyon"):
        os.kill(int((tmp_path / f"data/{name}.pid").read_text()), signal.SIGHUP)
        log = tmp_path / f"data/{name}.log"
        wait_until(lambda log=log: "event=tls-reloaded" in log.read_text(), PATIENCE, "reload")
    crosses("two")
    assert "event=link-closed" not in (tmp_path / "data/porto.log").read_text()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    process.communicate()
