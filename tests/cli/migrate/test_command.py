"""`mqmesh migrate` on the command line: what it writes, where, and with which status."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from mqmesh.broker.config import load
from mqmesh.cli.main import app
from mqmesh.mesh.topology.topology import load as load_topology
from typer.testing import CliRunner, Result


def migrate(*words: object) -> Result:
    return CliRunner().invoke(app, ["migrate", *map(str, words)])


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


OPEN = "listener 1883\nallow_anonymous true\n"


def test_without_out_the_file_is_printed(tmp_path: Path) -> None:
    result = migrate(written(tmp_path, "plant.conf", OPEN))
    assert result.exit_code == 0
    table = tomllib.loads(result.stdout)
    assert table["name"] == "plant"
    assert "2 lines read, 0 without equivalent" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["plant.conf"]


def test_what_is_lost_is_the_status_and_stands_in_the_file_and_in_the_table(tmp_path: Path) -> None:
    result = migrate(written(tmp_path, "mosquitto.conf", f"{OPEN}mount_point x/\n"), "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "mosquitto.conf:3" in result.stderr
    assert "mount_point" in result.stderr
    (made,) = (tmp_path / "out").iterdir()
    assert "lost: " in made.read_text()
    assert load(made).limits.max_packet_size == 268_435_460


def test_as_json(tmp_path: Path) -> None:
    text = f"{OPEN}mount_point x/\nconnection c\naddress far.example.com\nremote_password secret\nlocal_password secret\n"
    result = migrate(written(tmp_path, "a.conf", text), "--json", "--out", tmp_path / "out")
    report = json.loads(result.stdout)
    assert [(one["kind"], one["line"], one["option"], one["value"]) for one in report["remarks"]] == [
        ("lost", 3, "mount_point", "x/"),
        ("note", 5, "address", "far.example.com"),
    ]
    assert list(report["files"]) == [str(tmp_path / "out" / "a.toml")]
    assert "secret" not in result.output


def test_what_was_edited_is_written_over_only_if_that_is_said(tmp_path: Path) -> None:
    source = written(tmp_path, "plant.conf", OPEN)
    assert migrate(source, "--out", tmp_path / "out").exit_code == 0
    made = tmp_path / "out/plant.toml"
    first = made.read_text()
    made.write_text("# edited\n")
    again = migrate(source, "--out", tmp_path / "out")
    assert (again.exit_code, made.read_text()) == (2, "# edited\n")
    assert f"migrate: {made} is there already, with another text; give another --out, or --force" in again.stderr
    assert (migrate(source, "--out", tmp_path / "out", "--force").exit_code, made.read_text()) == (0, first)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a.conf", "other/a.conf"], 'other/a.conf: another file\'s broker is called "a" already'),
        (["a.conf", "--host", "b=1.2.3.4"], "--host b=1.2.3.4: give NAME=ADDRESS with one of a"),
        (["nowhere.conf"], "nowhere.conf: No such file or directory"),
        (["bad.conf"], "bad.conf:1: port x: a whole number is right"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(
    words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (("a.conf", OPEN), ("other/a.conf", OPEN), ("bad.conf", "port x\n")):
        written(tmp_path, name, content)
    result = migrate(*words, "--out", "out")
    assert result.exit_code == 2
    assert text in result.stderr
    assert not (tmp_path / "out").exists()


def test_brokers_that_bridges_join_are_a_topology_and_others_have_files(tmp_path: Path) -> None:
    written(tmp_path, "lyon.conf", OPEN)
    written(tmp_path, "lone.conf", OPEN)
    written(tmp_path, "porto.conf", f"{OPEN}connection up\naddress 10.0.0.2\ntopic s/# out 1 porto/ all/porto/\ntopic # both\ntopic x y\n")
    files = [tmp_path / f"{name}.conf" for name in ("porto", "lyon", "lone")]
    written(tmp_path / "out", "topology.toml", "of an earlier run").chmod(0o644)
    result = migrate(*files, "--host", "lyon=10.0.0.2", "--host", "porto=10.0.0.1", "--out", tmp_path / "out", "--force", "--json")
    assert result.exit_code == 1
    assert [one["value"] for one in json.loads(result.stdout)["remarks"] if one["kind"] == "lost"] == ["x y"]
    made = tmp_path / "out"
    assert sorted(path.name for path in made.iterdir()) == ["lone.toml", "topology.toml"]
    assert (made / "topology.toml").stat().st_mode & 0o777 == 0o600
    topology = load_topology(made / "topology.toml")
    assert [(one.name, one.listen[:1]) for one in topology.brokers] == [
        ("porto", ("mqtt://0.0.0.0:1883",)),
        ("lyon", ("mqtt://0.0.0.0:1883",)),
    ]


def test_two_bridges_between_the_same_brokers_are_one_link(tmp_path: Path) -> None:
    written(tmp_path, "a.conf", f"{OPEN}connection b\naddress b:1883\ntopic up/# out 1\n")
    written(tmp_path, "b.conf", f"{OPEN}connection a\naddress a:1883\ntopic down/# out 1\n")
    result = migrate(tmp_path / "a.conf", tmp_path / "b.conf", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    table = tomllib.loads((tmp_path / "out" / "topology.toml").read_text())
    assert [(one["between"], one["policy"]) for one in table["link"]] == [(["b", "a"], {"a": {"out": ["up/#"], "in": ["down/#"]}})]


def test_what_stands_there_is_written_anew(tmp_path: Path) -> None:
    file = written(tmp_path, "a.conf", OPEN)
    for _ in range(2):
        assert migrate(file, "--out", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / "a.toml").read_text().count("[limits]") == 1
    assert migrate(file, "--out", file).exit_code == 1


BRIDGE = "connection c 1\naddress far.example.com:8883 other.example.com\n"


def test_a_bridge_to_another_broker_attaches_it(tmp_path: Path) -> None:
    more = "topic s/# out 1 here/ there/\ntopic o/# in 0 here/ there/\nremote_username me\nremote_password p/w\nremote_clientid id\n"
    more += "bridge_cafile /ca.pem\nbridge_protocol_version mqttv50\nconnection again\naddress far.example.com:8883\ntopic #\n"
    result = migrate(written(tmp_path, "a.conf", OPEN + BRIDGE + more), "--json", "--out", tmp_path / "out")
    lost = [one["option"] for one in json.loads(result.stdout)["remarks"] if one["kind"] == "lost"]
    assert lost == ["address", "connection"]
    (attached,) = load(tmp_path / "out" / "a.toml").attach
    assert (attached.name, str(attached.address)) == ("c-1", "mqtts://far.example.com:8883")
    assert (attached.address.user, attached.address.password, attached.client_id) == ("me", "p/w", "id")
    assert (attached.version, attached.qos, str(attached.ca)) == (5, 1, "/ca.pem")
    assert (attached.policy.out, attached.policy.into, attached.policy.prefixes) == (("here/s/#",), ("here/o/#",), (("here/", "there/"),))


def test_a_bridge_with_everything_both_ways_has_no_policy(tmp_path: Path) -> None:
    text = f"{OPEN}connection c\naddress 10.0.0.7\ntopic # both 2\n"
    result = migrate(written(tmp_path, "a.conf", text), "--out", tmp_path / "out")
    assert result.exit_code == 0
    (attached,) = tomllib.loads((tmp_path / "out" / "a.toml").read_text())["attach"]
    assert attached == {"name": "c", "address": "mqtt://10.0.0.7:1883", "version": "3.1.1"}


def test_a_bridge_with_a_shared_key_is_left_out(tmp_path: Path) -> None:
    result = migrate(written(tmp_path, "a.conf", f"{OPEN}{BRIDGE}bridge_identity x\nbridge_psk aa\n"), "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert load(tmp_path / "out" / "a.toml").attach == []


def test_a_file_from_which_no_broker_starts_is_named(tmp_path: Path) -> None:
    text = "listener 8883\ncertfile c.pem\nkeyfile k.pem\nrequire_certificate true\nuse_identity_as_username true\n"
    result = migrate(written(tmp_path, "plant.conf", text), "--out", tmp_path / "out", "--json")
    assert result.exit_code == 1
    (lost,) = [one for one in json.loads(result.stdout)["remarks"] if one["kind"] == "lost"]
    assert (lost["file"], lost["line"], lost["option"]) == ("plant.toml", None, "tls.ca")
    assert "no broker starts from it yet: tls.ca is missing" in lost["text"]
    assert "# lost: plant.toml: tls.ca: " in (tmp_path / "out" / "plant.toml").read_text()


@pytest.mark.parametrize("line", ["password_file a\0b", "include_dir a\0b", "persistence_location a\x1bb"])
def test_a_control_character_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    result = migrate(written(tmp_path, "plant.conf", f"{OPEN}{line}\n"), "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "plant.conf:3: the character '\\x" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["password_file", "acl_file", "include_dir", "certfile"])
def test_a_name_too_long_for_a_file(tmp_path: Path, option: str) -> None:
    result = migrate(written(tmp_path, "plant.conf", f"{OPEN}{option} {'a' * 5000}\n"), "--out", tmp_path / "out")
    assert result.exit_code in (1, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)
