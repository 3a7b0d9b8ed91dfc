"""`mqmesh directory` as its users call it: an account, a server, an import, what is found; and what each mistake says."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import pytest
from support import command
from support.services import PATIENCE
from support.storage.disks import fill, mounted

pytestmark = pytest.mark.process

RING = Path(__file__).parents[2] / "topologies" / "ring-of-five.toml"


def test_a_topology_is_imported_and_found(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'd.db'}"
    made = command.run("directory", "account", "plant-a", "--organisation", "acme", "--database", database)
    assert made.returncode == 0, made.stderr
    env = os.environ | {"MQMESH_DIRECTORY_ACCOUNT": "plant-a", "MQMESH_DIRECTORY_SECRET": made.stdout.decode().strip()}
    log = tmp_path / "log"
    server = command.start("directory", "serve", "--listen", "127.0.0.1:0", "--database", database, stderr=log)
    assert server.stdout is not None
    url = env["MQMESH_DIRECTORY_URL"] = server.stdout.readline().split()[1]
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), PATIENCE) as stranger:
        stranger.sendall(b"\0\0\0\r\n\r\n")
        assert stranger.recv(1000).startswith(b"HTTP/1.1 400")
    for _ in range(2):  # the second time it is written over the first
        done = command.run("directory", "import", RING, env=env)
        assert done.returncode == 0, done.stderr
    options = ("--mesh", "ring-of-five", "--alternative", "lyon", "--alternative", "porto", "--interval", "30")
    assert command.run("directory", "register", "application", "gauges", *options, env=env).returncode == 0
    options = (
        "--mesh",
        "ring-of-five",
        "--broker",
        "porto",
        "--client",
        "till-7",
        "--alternative",
        "orders-lyon",
        "--consent",
        "*",
        "--probe",
    )
    intervals = ("--message-interval", "1", "--fault-interval", "3", "--defunct-interval", "10")
    done = command.run("directory", "register", "application", "orders", *options, *intervals, env=env)
    assert done.returncode == 0, done.stderr
    itself = ("--mesh", "ring-of-five", "--alternative", "orders")
    wrong = command.run("directory", "register", "application", "orders", *itself, env=env)
    assert (wrong.returncode, wrong.stdout) == (1, b"")
    assert b"alternatives = 'orders': an application is no alternative of its own" in wrong.stderr
    env.pop("MQMESH_DIRECTORY_ACCOUNT")
    (orders,) = json.loads(command.run("directory", "find", "orders", "--sort", "application", "--json", env=env).stdout)
    assert (orders["broker"], orders["clients"], orders["consents"], orders["probe"]) == ("porto", ["till-7"], ["*"], True)
    assert [orders[f"{one}_interval"] for one in ("message", "fault", "defunct")] == [1, 3, 10]
    found = json.loads(command.run("directory", "find", "--json", env=env).stdout)
    assert [broker["name"] for broker in found] == ["gdansk", "graz", "lyon", "porto", "turin"]
    assert found[3]["addresses"] == ["mqtt://127.0.0.1:18301"]
    assert b"lyon, porto" in command.run("directory", "find", "g*", "--sort", "application", env=env).stdout
    nothing = command.run("directory", "find", "x*", env=env)
    assert (nothing.returncode, nothing.stderr) == (1, b"mqmesh: no broker found\n")
    server.terminate()
    assert server.wait(PATIENCE) == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["d.db", "log"]  # the database was closed in order
    form = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z level=\w+ directory=127.0.0.1:0 logger=[\w.]+ event=(\S+)( |$)")
    lines = [form.match(line) for line in log.read_text().splitlines()]
    assert [line and line[1] for line in lines] == ["listening", "http-refused", "stopping", "stopped"], log.read_text()
    assert f"event=listening url={url}" in log.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("serve", "--listen", "0.0.0.0:0"), "in the clear"),
        (("serve", "--listen", "nowhere"), "HOST:PORT"),
        (("serve", "--cert", "a.pem"), "belong together"),
        (("account", "mqmesh", "--organisation", "o", "--database", "sqlite://"), "a name has"),
        (("register", "broker", "a"), "--mesh"),
        (("register", "mesh", "a"), "MQMESH_DIRECTORY_SECRET"),
        (("import", "missing.toml"), "missing.toml"),
        (("find", "--url", "127.0.0.1:8090"), "http://"),
    ],
)
def test_a_mistake_is_named(arguments: tuple[str, ...], says: str) -> None:
    done = command.run("directory", *arguments)
    assert done.returncode == 2
    assert says in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with mounted(tmp_path / "disk", 4) as disk:
        database = f"sqlite:///{disk / 'd.db'}"
        account = ("directory", "account", "plant-a", "--organisation", "acme", "--database", database)
        made = command.run(*account)
        server = command.start("directory", "serve", "--listen", "127.0.0.1:0", "--database", database, stderr=log)
        assert server.stdout is not None
        url = server.stdout.readline().split()[1]
        env = os.environ | {"MQMESH_DIRECTORY_SECRET": made.stdout.decode().strip()}
        importing = ("directory", "import", RING, "--account", "plant-a", "--url", url)
        with pytest.raises(OSError, match="No space left"):
            fill(disk / "fill")
        done = command.run(*importing, env=env)
        assert done.returncode == 1
        assert b"the disk of the directory is full; try again when there is room\n" in done.stderr
        assert "text=database or disk is full" in log.read_text()
        done = command.run(*account)
        assert done.returncode == 1
        assert done.stderr == b"mqmesh: the database: the disk of the directory is full; try again when there is room\n"
        (disk / "fill").unlink()
        assert command.run(*importing, env=env).returncode == 0, "it goes on by itself"
        server.terminate()
        server.wait()
