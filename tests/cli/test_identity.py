"""`mqmesh identity show|new|claim`: what an operator decides about a copy of a data folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mqmesh.broker.mesh.identity import FILE, KEY_FILE, NOTHING, Fenced, Standing, keep_identity, own_identity, own_signer, read_identity
from mqmesh.mesh.wire.control import ALL
from support.command import run

pytestmark = pytest.mark.process

STOPPED = Fenced("ab" * 16, 1_700_000_000.0, ((1_000, ALL), (900, 7)))


def folder(tmp_path: Path, standing: Standing = NOTHING, number: int = 3) -> Path:
    """A broker's file; the data folder has lived as number 3."""
    signer = own_signer(tmp_path / "data")
    identity = own_identity(tmp_path / "data", "mesh", "porto", 3, key=signer.public)
    keep_identity(tmp_path / "data", identity, standing)
    file = tmp_path / "porto.toml"
    file.write_text(f'name = "porto"\nnumber = {number}\ndata = "{tmp_path / "data"}"\n[mesh]\nname = "mesh"\nkey = "{"k" * 32}"\n')
    return file


def test_show_says_whether_a_broker_has_stopped(tmp_path: Path) -> None:
    file = folder(tmp_path)
    done = run("identity", "show", "--config", file)
    assert done.returncode == 0
    assert done.stdout.decode().startswith("porto (number 3) uuid=")
    table, _ = read_identity(tmp_path / "data")
    (tmp_path / "data" / FILE).write_text(json.dumps({**table, "fenced": STOPPED._asdict()}))
    done = run("identity", "show", "--config", file)
    assert done.returncode == 1
    assert f"life {STOPPED.twin} was alive" in done.stdout.decode()
    done = run("identity", "show", "--json", "--config", file)
    assert (done.returncode, json.loads(done.stdout)["fenced"]["twin"]) == (1, STOPPED.twin)


def test_new_makes_another_broker_that_remembers_what_it_was(tmp_path: Path) -> None:
    file = folder(tmp_path, Standing(fenced=STOPPED), number=4)
    before, _ = read_identity(tmp_path / "data")
    done = run("identity", "new", "--config", file)
    assert (done.returncode, done.stderr) == (0, b"")
    after, standing = read_identity(tmp_path / "data")
    assert (after["number"], after["uuid"] != before["uuid"]) == (4, True)
    assert standing.fenced is None
    assert standing.former is not None
    assert (standing.former.number, standing.former.common) == (3, STOPPED.common)
    assert not (tmp_path / "data" / KEY_FILE).exists()  # the next start makes a new key pair


def test_new_wants_another_number(tmp_path: Path) -> None:
    file = folder(tmp_path)
    done = run("identity", "new", "--config", file)
    assert done.returncode == 2
    assert "number is 3, as before: give the copy a number and a name of its own in the broker's file" in done.stderr.decode()
    assert (tmp_path / "data" / KEY_FILE).exists()


def test_a_later_claim_is_higher_and_lifts_the_fence(tmp_path: Path) -> None:
    file = folder(tmp_path, Standing(fenced=STOPPED))
    claims = []
    for _ in range(2):
        assert run("identity", "claim", "--config", file).returncode == 0
        _, standing = read_identity(tmp_path / "data")
        assert standing.fenced is None
        claims.append(standing.claim)
    assert 0 < claims[0] < claims[1]
    assert run("identity", "show", "--config", file).returncode == 0


def test_without_an_identity_there_is_nothing_to_decide(tmp_path: Path) -> None:
    file = folder(tmp_path)
    (tmp_path / "data" / FILE).unlink()
    for command in ("new", "claim"):
        done = run("identity", command, "--config", file)
        assert done.returncode == 2
        assert f"{tmp_path / 'data' / FILE} does not exist" in done.stderr.decode()
    (tmp_path / "data" / FILE).write_text("{}")
    done = run("identity", "show", "--config", file)
    assert done.returncode == 2
    assert "is not a broker's identity" in done.stderr.decode()
    file.write_text('name = "porto"\nnumber = 3\n')
    done = run("identity", "claim", "--config", file)
    assert done.returncode == 2
    assert "broker.data is not set" in done.stderr.decode()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (FILE, "{"),
        (FILE, "[]"),
        (FILE, "null"),
        (FILE, '{"uuid": 5}'),
        (FILE, '{"uuid": "98d581a9-ece2-439f-b5ed-614a2ffb118a", "epoch": 1, "name": "a", "number": 1e400, "mesh": "s"}'),
        (FILE, "[" * 100_000),
        (KEY_FILE, "zz"),
        (KEY_FILE, ""),
    ],
    ids=["half", "a list", "null", "no identity", "no number", "deep", "no key", "empty key"],
)
def test_a_broker_with_a_damaged_file_says_which_and_what_to_do(tmp_path: Path, name: str, text: str) -> None:
    file = folder(tmp_path)
    (tmp_path / "data" / name).write_text(text)
    for command in ("broker", "identity show") if name == FILE else ("broker",):
        done = run(*command.split(), "--config", file)
        errors = [line for line in done.stderr.decode().splitlines() if "level=info" not in line]
        assert done.returncode == 2
        assert len(errors) == 1, errors
        assert name in errors[0]
        assert "restore it, or remove it" in errors[0]
