"""`mqmesh topology split`: each folder is whole, its broker is the topology's, and it moves."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest
from mqmesh.broker.auth import passwords
from mqmesh.broker.config import load, of_topology
from mqmesh.broker.mesh.identity import own_signer
from mqmesh.cli.site.split import split, weaknesses
from mqmesh.cli.site.unit import unit
from mqmesh.cli.topology.command import app
from mqmesh.mesh.topology.topology import load as load_topology
from mqmesh.mesh.wire.keys import shown
from typer.testing import CliRunner

TEXT = """
[mesh]
name = "sites"
auth = "certificate"
[tls]
certificate = "tls/{name}.pem"
key = "tls/{name}.key"
ca = "tls/authority.pem"
client_certificates = "optional"
[access]
users = "secret/users"
[store]
path = "store/{name}.db"
[[broker]]
name = "porto"
number = 1
listen = ["mqtts://10.78.1.1:8883", "mqtt://127.0.0.1:1883"]
data = "/srv/porto"
[[broker]]
name = "lyon"
number = 2
listen = ["mqtts://10.78.1.2:8883", "mqtts://127.0.0.1:8883"]
http = { listen = "http://127.0.0.1:9883" }
[broker.queues.orders]
deliveries = 5
[[link]]
between = ["porto", "lyon"]
[link.policy.porto]
out = ["orders/#"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "office"
    (folder / "secret").mkdir(parents=True)
    passwords.change(folder / "secret/users", "alice", b"pw")
    (folder / "sites.toml").write_text(TEXT)
    return folder / "sites.toml"


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["split", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_a_folder_that_was_moved_is_the_topologys_broker(file: Path, tmp_path: Path) -> None:
    status, said, _ = run(file, "--out", tmp_path / "out")
    assert (status, said.split()) == (0, [str(tmp_path / "out/porto"), str(tmp_path / "out/lyon")])
    topology = load_topology(file)
    keys = {name: shown(own_signer(tmp_path / "out" / name / "data").public) for name in ("porto", "lyon")}
    for name in ("porto", "lyon"):
        wanted = of_topology(topology, name, tmp_path)
        there = tmp_path / "machine" / name
        shutil.copytree(tmp_path / "out" / name, there)
        config = load(there / "broker.toml")
        assert (config.name, config.number, config.listen, config.limits) == (name, wanted.number, wanted.listen, wanted.limits)
        assert config.data == there / "data"
        assert config.store.path == there / f"store/{name}.db"
        assert config.access is not None
        assert config.access.users == there / "secret/users"
        assert (config.queues and config.queues.rules) == (wanted.queues and wanted.queues.rules)
        assert config.http == wanted.http
        assert config.mesh is not None
        assert wanted.mesh is not None
        assert (config.mesh.peers, config.mesh.rules, config.mesh.brokers) == (wanted.mesh.peers, wanted.mesh.rules, wanted.mesh.brokers)
        assert config.mesh.keys == keys
        assert config.tls is not None
        for path, source in ((config.tls.certificate, f"{name}.pem"), (config.tls.key, f"{name}.key"), (config.tls.ca, "authority.pem")):
            assert path is not None
            assert path.parent == there / "tls"
            assert path.read_bytes() == (file.parent / "tls" / source).read_bytes()
        assert (there / "mqmesh-broker.service").read_text() == unit()


def test_secrets_are_for_the_owner_and_the_authoritys_key_stays(file: Path, tmp_path: Path) -> None:
    assert run(file, "--out", tmp_path / "out")[0] == 0
    found = {path.relative_to(tmp_path / "out/porto").as_posix(): path for path in (tmp_path / "out/porto").rglob("*") if path.is_file()}
    open_to_all = {name for name, path in found.items() if stat.S_IMODE(path.stat().st_mode) & 0o077}
    assert open_to_all == {"README.md", "mqmesh-broker.service", "tls/porto.crt", "tls/ca.crt"}
    assert set(found) - open_to_all == {"broker.toml", "secret/users", "tls/porto.key", "data/identity.key"}
    assert stat.S_IMODE((tmp_path / "out/porto").stat().st_mode) == 0o700


def test_keys_and_certificates_stay_when_the_topology_grows(file: Path, tmp_path: Path) -> None:
    status, _, said = run(file, "--out", tmp_path / "out")
    assert (status, "written anew" in said) == (0, False)
    kept = {path: path.read_bytes() for name in ("data/identity.key", "tls/porto.crt") for path in [tmp_path / "out/porto" / name]}
    third = '[[broker]]\nname = "turin"\nnumber = 3\nlisten = "mqtts://10.78.1.3:8883"\n[[link]]\nbetween = ["porto", "turin"]\n'
    file.write_text(TEXT + third)
    status, _, said = run(file, "--out", tmp_path / "out")
    assert status == 0
    assert f"written anew, except keys and certificates: {tmp_path / 'out/porto'}, {tmp_path / 'out/lyon'}\n" in said
    assert {path: path.read_bytes() for path in kept} == kept
    config = load(tmp_path / "out/porto/broker.toml")
    assert config.mesh is not None
    assert set(config.mesh.keys) == {"porto", "lyon", "turin"}


def test_a_key_that_the_topology_gives_is_not_made(file: Path, tmp_path: Path) -> None:
    file.write_text(TEXT.replace('auth = "certificate"', f'auth = "certificate"\nkeys = {{ porto = "{"ab" * 32}" }}'))
    assert run(file, "--out", tmp_path / "out")[0] == 0
    assert not (tmp_path / "out/porto/data").exists()
    config = load(tmp_path / "out/lyon/broker.toml")
    assert config.mesh is not None
    assert config.mesh.keys["porto"] == "ab" * 32


def test_the_instructions_name_what_is_needed(file: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "users"
    elsewhere.write_text("")
    file.write_text(TEXT.replace('"secret/users"', f'"{elsewhere}"'))
    assert run(file, "--out", tmp_path / "out")[0] == 0
    text = (tmp_path / "out/lyon/README.md").read_text()
    for part in (
        "WHEEL[speed,http,access]",
        "status -h mqtts://10.78.1.2:8883 --cafile /var/lib/mqmesh/tls/ca.crt -u USER",
        "- porto at `mqtts://10.78.1.1:8883`",
        "through the firewall:\n\n- `mqtts://10.78.1.2:8883`\n",
        f"- `{elsewhere}`",
    ):
        assert part in text
    assert "dialled by lyon" in (tmp_path / "out/porto/README.md").read_text()
    assert "127.0.0.1:1883`" not in (tmp_path / "out/porto/README.md").read_text()  # no firewall is in its way


POLICY = """
[[allow]]
clients = ["*"]
remotes = ["mqtts://broker.example.com:8883"]
publish = ["readings/#"]
ca = "authorities.pem"
username = "site"
password_file = "passwords/remote"
"""


def test_files_that_a_policy_names_come_with_it(file: Path, tmp_path: Path) -> None:
    folder = file.parent / "policies"
    (folder / "passwords").mkdir(parents=True)
    (folder / "policy.toml").write_text(POLICY)
    (folder / "authorities.pem").write_text("a PEM")
    (folder / "passwords/remote").write_text("secret\n")
    file.write_text(f'{TEXT}\n[metabroker]\npolicy = "policies/policy.toml"\n')
    assert run(file, "--out", tmp_path / "out")[0] == 0
    for name in ("policy.toml", "authorities.pem", "passwords/remote"):
        assert (tmp_path / "out/porto/policies" / name).read_bytes() == (folder / name).read_bytes()


def test_files_of_a_policy_that_is_not_copied_are_listed(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    (folder / "passwords").mkdir(parents=True)
    (folder / "policy.toml").write_text(POLICY)
    (folder / "authorities.pem").write_text("a PEM")
    (folder / "passwords/remote").write_text("secret\n")
    file.write_text(f'{TEXT}\n[metabroker]\npolicy = "{folder}/policy.toml"\n')
    assert run(file, "--out", tmp_path / "out")[0] == 0
    text = (tmp_path / "out/porto/README.md").read_text()
    assert all(f"- `{folder / name}`" in text for name in ("policy.toml", "authorities.pem", "passwords/remote"))


def test_what_works_on_one_machine_only_is_said(tmp_path: Path) -> None:
    status, said, _ = run(Path(__file__).parents[3] / "topologies/pair.toml", "--out", tmp_path / "out", "--json")
    found = json.loads(said)
    assert (status, len(found["weaknesses"]), set(found["folders"].values())) == (0, 1, {str(p) for p in (tmp_path / "out").iterdir()})
    assert "which other machines cannot reach" in found["weaknesses"][0]
    text = (tmp_path / "out/porto/README.md").read_text()
    assert ("Only this machine reaches it" in text, "firewall" in text) == (True, False)


def test_a_link_that_is_not_encrypted_is_said(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "topologies/pair.toml").read_text()
    (tmp_path / "pair.toml").write_text(text.replace("127.0.0.1", "10.78.1.1"))
    topology = load_topology(tmp_path / "pair.toml")
    assert ["is not encrypted" in line for line in weaknesses(topology)] == [True]
    folders = split(topology, tmp_path / "out")
    assert not any((folder / "tls").exists() for folder in folders)


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        (("secret/users", "../users"), 2, 'access.users = "../users": is not in the folder of sites.toml'),
        (("[tls]", "[tls]\nrevoked = 'gone.pem'"), 2, 'gone.pem": cannot be copied'),
        (("numbers", "number"), 1, "tls/authority.pem holds no certificate"),
    ],
)
def test_what_cannot_be_made_is_one_line(file: Path, tmp_path: Path, change: tuple[str, str], status: int, says: str) -> None:
    passwords.change(file.parents[1] / "users", "alice", b"pw")
    if status == 1:
        (file.parent / "tls").mkdir()
        (file.parent / "tls/authority.pem").write_text("no PEM")
        (file.parent / "tls/authority.key").write_text("")
    file.write_text(TEXT.replace(*change))
    found, _, said = run(file, "--out", tmp_path / "out")
    assert (found, said.count("\n")) == (status, 1)
    assert says in said
