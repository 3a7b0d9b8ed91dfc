"""What the documents show of files in TOML and JSON is taken as it stands: whole files, and parts of a file in a whole one."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import nkeys
import pytest
from mqmesh.base.settings import merged
from mqmesh.broker import config as broker_file
from mqmesh.interchange.registry import file as registry
from mqmesh.mesh.topology import topology
from mqmesh.metabroker import policy
from mqmesh.metabroker.shell.resolver import Services
from mqmesh.pipeline.billing.tariff import read_tariffs
from support.certificates import Certificates
from support.command import run
from support.documents import Block, of

KEY = "a secret of 16 bytes or more"
MEMBER = {"name": "porto", "number": 1, "mesh": {"name": "sites", "key": KEY}}
SITES = '[mesh]\nname = "sites"\nkey = "a secret of 16 bytes or more"\n'
BOUNDARY = SITES + "".join(
    f'[[broker]]\nname = "{name}"\nnumber = {number}\nlisten = "mqtt://127.0.0.1:{number}"\n'
    for number, name in enumerate(("acme-gate", "bolt-gate"), 1)
)
OTHERS = {  # what stands beside a part of a file: first words of the block -> a table
    "[mesh.custody]": MEMBER,
    "[[mesh.peer]]": MEMBER,
    "[mesh]\nclients": MEMBER,
    "[management]\naccept": {**MEMBER, "access": {"users": "users"}},
    "[recipients]": MEMBER,
    'listen = ["mqtts://0.0.0.0:8883", {': {**MEMBER, "tls": {"certificate": "tls/porto.crt", "key": "tls/porto.key", "ca": "tls/ca.crt"}},
    'listen = ["mqtt://127.0.0.1:1883", "wss': {"tls": {"certificate": "tls/porto.crt", "key": "tls/porto.key"}},
    'listen = ["mqtts://0.0.0.0:8883", "mqtt': {"name": "porto", "number": 1},
    '[directory]\nurl = "http://127.0.0.1:8090"\nmesh': {"name": "porto", "number": 1, "interchange": {}, "data": "data"},
    "[directory]": MEMBER,
    '[queues.orders]\nstore = "postgresql': {**MEMBER, "data": "data"},
    "[queues": {"data": "data", "queues": {"orders-dead": {}}},
    "[[access.rule]]": {"access": {"users": "users"}},
    "[journal]": {"data": "data"},
    "[metabroker]\npassword": {"listen": ["mqtt://127.0.0.1:1883"]},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that blocks name."""
    (tmp_path / "tls").mkdir()
    made = Certificates(tmp_path / "tls")
    for name in ("porto", "lyon"):
        made.broker(name)
    (tmp_path / "ca.crt").write_text((tmp_path / "tls" / "ca.crt").read_text())
    for name in ("secret", "directory.secret", "orders.key", "metabroker.password", "site-12.password"):
        (tmp_path / name).write_text("0123456789abcdef0123456789abcdef\n")
        (tmp_path / name).chmod(0o600)
    (tmp_path / "site.creds").write_bytes(nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER))
    (tmp_path / "site.creds").chmod(0o600)
    (tmp_path / "order.schema.json").write_text('{"type": "object"}')
    (tmp_path / "users").write_text("")
    (tmp_path / "policy.toml").write_text("")
    (tmp_path / "services.toml").write_text("[services]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def whole(block: Block) -> dict[str, Any]:
    """The block's table, in what has to stand beside it."""
    table = tomllib.loads(block.text)
    for words, others in OTHERS.items():
        if block.text.startswith(words):
            return merged(others, table)
    return table


@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_settings_are_taken_as_they_are_shown(block: Block, folder: Path) -> None:
    table = whole(block)
    if "tariff" in table:
        (folder / "tariffs.toml").write_text(block.text)
        assert read_tariffs(folder / "tariffs.toml")
    elif "allow" in table or "remotes" in table:
        assert policy.parse(table if "allow" in table else {"allow": [{"clients": ["*"], **table}]}, folder=folder)
    elif block.page.startswith("docs/interchange") and "services" in table:
        (folder / "services.toml").write_text(block.text)
        assert registry.load(folder / "services.toml", "porto").services
    elif "services" in table:
        (folder / "services.toml").write_text(block.text)
        assert Services.load(folder / "services.toml")
    elif "broker" in table or "link" in table:
        others = "" if "mesh" in table else BOUNDARY if "link" in table else SITES
        (folder / "sites.toml").write_text(others + block.text)
        topology.load(folder / "sites.toml")
        done = run("topology", "check", folder / "sites.toml")
        assert done.returncode == 0, done.stderr
    else:
        assert broker_file.parse(table, block.page, folder)


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_objects_are_json(block: Block) -> None:
    assert isinstance(json.loads(block.text), dict)
