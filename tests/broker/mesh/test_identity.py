"""Who a broker is, over its lives: the files in its data folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mqmesh.base.settings import ConfigError, Section
from mqmesh.broker.mesh.identity import FILE, KEY_FILE, own_identity, own_signer, read_identity, renew
from mqmesh.mesh.topology.settings import MeshSettings
from mqmesh.mesh.wire.keys import shown

MESH = {"name": "sites", "key": "a key of sixteen bytes"}


def test_a_key_pair_is_made_once_and_is_for_its_user_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = own_signer(data)
    assert first.lasting
    assert (data / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert own_signer(data).public == first.public
    identity = own_identity(data, "sites", "porto", 1, None, first.public)
    assert json.loads((data / FILE).read_text())["key"] == shown(first.public) == identity.key.hex()


def test_without_a_folder_a_key_does_not_last() -> None:
    assert not own_signer(None).lasting
    assert own_signer(None).public != own_signer(None).public


@pytest.mark.parametrize("text", ["", "no key", "ab" * 31, "ab" * 33])
def test_a_file_that_is_no_key_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / KEY_FILE).write_text(text)
    with pytest.raises(ValueError, match=r"identity.key is not a broker's key, 64 hexadecimal digits; restore it, or remove it"):
        own_signer(tmp_path)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"porto": "ab"}, "give the 64 hexadecimal digits"),
        ({"porto": "xy" * 32}, "give the 64 hexadecimal digits"),
        ({"porto": 7}, "give a string"),
        ({"porto": "ab" * 32, "lyon": "AB" * 32}, "another broker of the list has this key"),
        ({"por/to": "ab" * 32}, "give names of brokers"),
    ],
)
def test_keys_of_the_configuration_are_checked(keys: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        MeshSettings.of(Section("F", {**MESH, "keys": keys}, "mesh"))


def test_keys_of_the_configuration() -> None:
    settings = MeshSettings.of(Section("F", {**MESH, "keys": {"porto": "ab" * 32}, "keys_held": 60}, "mesh"))
    assert settings.keys == {"porto": "ab" * 32}
    assert settings.keys_held == 60.0


def test_an_identity_that_no_start_has_used_may_be_renewed(tmp_path: Path) -> None:
    signer = own_signer(tmp_path)
    first = own_identity(tmp_path, "sites", "porto", 1, None, signer.public)
    renew(tmp_path, 7)
    with pytest.raises(ValueError, match="number is 1, as before"):
        renew(tmp_path, 1)
    last = renew(tmp_path, 8)
    _, standing = read_identity(tmp_path)
    assert standing.former is not None
    assert (standing.former.number, standing.former.uuid) == (1, first.uuid.bytes)
    begun = own_identity(tmp_path, "sites", "lyon", 8, (first.uuid, first.epoch), own_signer(tmp_path).public, standing)
    assert begun.uuid == last.uuid
    renew(tmp_path, 9)
    _, standing = read_identity(tmp_path)
    assert standing.former is not None
    assert (standing.former.number, standing.former.uuid) == (8, last.uuid.bytes)


@pytest.mark.parametrize("key", ["number", "mesh", "name"])
def test_an_identity_says_its_number_mesh_and_name(tmp_path: Path, key: str) -> None:
    own_identity(tmp_path, "sites", "porto", 1)
    table = json.loads((tmp_path / FILE).read_text())
    del table[key]
    (tmp_path / FILE).write_text(json.dumps(table))
    for use in (read_identity, lambda data: renew(data, 7)):
        with pytest.raises(ValueError, match=rf"is not a broker's identity \('{key}'\)"):
            use(tmp_path)


def test_another_key_is_said_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The private key is gone, or is another's: others refuse this broker, and its own log says why. A renewed identity has a new key."""

    def start(number: int = 1) -> str:
        caplog.clear()
        own_identity(tmp_path, "m", "porto", number, key=own_signer(tmp_path).public)
        return caplog.text

    assert start() == start() == ""
    (tmp_path / KEY_FILE).unlink()
    said = start()
    assert "event=identity-key-changed" in said
    assert str(tmp_path / KEY_FILE) in said
    assert start() == ""
    renew(tmp_path, 2)
    assert start(2) == ""
