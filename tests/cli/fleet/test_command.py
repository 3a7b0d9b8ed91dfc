"""`mqmesh up` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.command import run, start
from support.paho_client import Paho
from support.services import PATIENCE, free_port, wait_until

pytestmark = pytest.mark.slow  # processes that start, die and settle
TEXT = """
[mesh]
name = "two"
key = "sixteen bytes or more"
[[broker]]
name = "porto"
number = 1
listen = "mqtt://127.0.0.1:{0}"
[[broker]]
name = "lyon"
number = 2
listen = "mqtt://127.0.0.1:{1}"
[[link]]
between = ["porto", "lyon"]
"""


def topology(folder: Path) -> tuple[Path, int, int]:
    ports = free_port(), free_port()
    file = folder / "two.toml"
    file.write_text(TEXT.format(*ports))
    return file, *ports


def ended(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    status = process.wait(PATIENCE)
    process.communicate()
    return status


def test_up_says_ready_carries_messages_and_stops_all(tmp_path: Path, name: str) -> None:
    file, porto, lyon = topology(tmp_path)
    process = start("up", file, "--data", tmp_path / "data", stderr=tmp_path / "err")
    line = process.stdout.readline()
    assert line.startswith("ready mesh=two brokers=2 links=1 "), (line, (tmp_path / "err").read_text())
    pids = [int((tmp_path / "data" / f"{one}.pid").read_text()) for one in ("porto", "lyon")]
    with Paho(porto) as publisher, Paho(lyon) as subscriber:
        subscriber.subscribe(name, 1)
        wait_until(lambda: publisher.publish(name, b"x", 1) == 0, PATIENCE, "interest at the other broker")  # 0x10: nobody
        assert subscriber.next().payload == b"x"
    second = run("up", file, "--data", tmp_path / "data")
    assert second.returncode == 2
    assert b"runs already" in second.stderr
    assert ended(process) == 0
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()
    assert not list((tmp_path / "data").glob("*.pid"))


def test_a_dead_broker_is_reported_and_restarted(tmp_path: Path) -> None:
    file, porto, _ = topology(tmp_path)
    process = start("up", file, "--data", tmp_path / "data", "--restart", stderr=tmp_path / "err")
    assert process.stdout.readline().startswith("ready")
    pid = int((tmp_path / "data/porto.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "porto runs again" in (tmp_path / "err").read_text(), PATIENCE, "restart")
    assert "porto ended by signal 9" in (tmp_path / "err").read_text()
    with Paho(porto):
        pass
    assert ended(process) == 0


def test_brokers_end_with_an_up_that_is_killed(tmp_path: Path) -> None:
    file, _, _ = topology(tmp_path)
    process = start("up", file, "--data", tmp_path / "data")
    assert process.stdout.readline().startswith("ready")
    pids = [int(one.read_text()) for one in (tmp_path / "data").glob("*.pid")]
    process.kill()
    process.communicate()
    assert len(pids) == 2
    wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() and _runs(pid) for pid in pids), PATIENCE, "end of all brokers")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_without_restart_it_ends_when_no_broker_is_left(tmp_path: Path) -> None:
    file, _, _ = topology(tmp_path)
    process = start("up", file, "--data", tmp_path / "data", stderr=tmp_path / "err")
    assert process.stdout.readline().startswith("ready")
    for one in list((tmp_path / "data").glob("*.pid")):
        os.kill(int(one.read_text()), signal.SIGKILL)
    assert process.wait(PATIENCE) == 1
    process.communicate()
    assert "no broker is left" in (tmp_path / "err").read_text()


def test_a_wrong_file_gets_one_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(TEXT.format(1, 2).replace('"lyon"]', '"lion"]'))
    done = run("up", file)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert all(word in done.stderr for word in (b"bad.toml", b"lion", b"lyon"))


def test_a_folder_that_cannot_be_made_is_one_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("up", Path(__file__).parents[3] / "topologies/pair.toml", "--data", tmp_path / "file")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert f"{tmp_path}/file: File exists; give another folder with --data" in done.stderr.decode()


USERS = '[access]\nusers = "users"\n'
RULE = '[[access.rule]]\nusers = ["alice"]\nallow = ["publish", "subscribe"]\ntopics = ["a/#"]\n'
TLS = '[tls]\ncertificate = "tls/{name}.crt"\nkey = "tls/{name}.key"\nca = "tls/ca.crt"\nclient_certificates = "required"\n'
DENIED = '[access]\ncertificates = true\n[[access.rule]]\ndeny = ["subscribe"]\ntopics = ["$SYS/#"]\n'


@pytest.mark.parametrize(
    "tables",
    [
        pytest.param(USERS, id="users"),
        pytest.param(USERS + RULE, id="users with rules"),
        pytest.param(TLS, id="certificates"),
        pytest.param(TLS + DENIED, id="certificates with rules"),
    ],
)
def test_up_is_ready_whoever_may_come_in(tmp_path: Path, tables: str) -> None:
    file, _, _ = topology(tmp_path)
    (tmp_path / "users").write_text("")
    text = f"{file.read_text()}\n{tables}"
    file.write_text(text.replace("mqtt://", "mqtts://") if "[tls]" in tables else text)
    if "[tls]" in tables:
        assert run("cert", file).returncode == 0
    process = start("up", file, "--data", tmp_path / "data", stderr=tmp_path / "err")
    assert process.stdout.readline().startswith("ready mesh=two "), (tmp_path / "err").read_text()
    assert ended(process) == 0
