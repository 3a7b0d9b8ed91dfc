"""The configuration of one broker: what is read, the defaults, and the one line each mistake gives."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.settings import ConfigError, parse_size
from mqmesh.broker.auth import passwords
from mqmesh.broker.config import UNASSIGNED, BrokerConfig, Limits, MetabrokerSettings, load, parse

KEY = "0123456789abcdef"
FULL = """
name = "porto"
number = 1
listen = ["mqtt://127.0.0.1:1883", "unix:///run/porto.sock"]
data = "data/porto"
[mesh]
name = "sites"
key = "0123456789abcdef"
mode = "flood"
silence = 2
[[mesh.peer]]
address = "mqtt://[::1]:1884"
cost = 7
number = 2
[[mesh.peer]]
address = "unix:///run/lyon.sock"
[limits]
session_queue_bytes = "2 MiB"
in_flight = 20
sys_interval = 1.5
session_expiry_maximum = 3600
"""


def test_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "porto.toml"
    file.write_text(FULL)
    config = load(file)
    assert (config.name, config.number, config.data) == ("porto", 1, tmp_path / "data/porto")
    assert config.listen == ["mqtt://127.0.0.1:1883", "unix:///run/porto.sock"]
    assert config.mesh is not None
    assert (config.mesh.name, config.mesh.key, config.mesh.mode, config.mesh.silence) == ("sites", KEY, "flood", 2.0)
    assert [(p.address, p.cost, p.number) for p in config.mesh.peers] == [("mqtt://[::1]:1884", 7, 2), ("unix:///run/lyon.sock", 1, None)]
    limits = config.limits
    assert (limits.session_queue_bytes, limits.in_flight, limits.sys_interval, limits.session_expiry_maximum) == (2 * 2**20, 20, 1.5, 3600)
    assert limits.receive_maximum == Limits().receive_maximum


def test_nothing_said_gives_a_broker_alone_with_every_default() -> None:
    assert parse({}) == BrokerConfig()
    assert parse({"limits": {}}).limits == Limits()


def test_the_defaults_are_themselves_allowed() -> None:
    defaults = {one.name: one.default for one in fields(Limits) if one.default is not None}
    defaults["versions"] = list(Limits().versions)
    assert parse({"limits": defaults}).limits == Limits()


def test_extra_values_go_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text(FULL)
    config = load(file, {"name": "braga", "limits": {"in_flight": 5}})
    assert (config.name, config.limits.in_flight, config.limits.sys_interval) == ("braga", 5, 1.5)


MESH = {"name": "m", "key": KEY}


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"nmae": "x"}, 'F: nmae = "x": unknown key; did you mean "name"?'),
        ({"number": 70000}, "F: number = 70000: give a whole number from 0 to 65535"),
        ({"number": True}, "F: number = True: give a whole number from 0 to 65535"),
        (
            {"name": "a/b"},
            "F: name = \"a/b\": give a name of 1 to 64 letters, digits, '.', '_' and '-' that does not start with '.' or '-'",
        ),
        ({"listen": "mqtt://h:1"}, 'F: listen = "mqtt://h:1": give a list such as ["mqtt://127.0.0.1:1883"]'),
        ({"http": {}}, 'F: http.listen is missing: give the address, as "http://127.0.0.1:9883"'),
        (
            {"http": {"listen": "ws://h:1"}},
            'F: http.listen = "ws://h:1": give the address, as "http://127.0.0.1:9883"',
        ),
        ({"http": {"listen": "http://h"}}, 'F: http.listen = "http://h": give the address, as "http://127.0.0.1:9883"'),
        ({"http": {"listen": "http://h:1/x"}}, 'F: http.listen = "http://h:1/x": give the address, as "http://127.0.0.1:9883"'),
        ({"listen": []}, 'F: listen = []: give at least one address, as ["mqtt://127.0.0.1:1883"]'),
        (
            {"listen": ["localhost:1883"]},
            'F: listen = "localhost:1883": write mqtt://HOST:PORT, mqtts://HOST:PORT, ws://HOST:PORT/PATH, wss://HOST:PORT/PATH'
            ' or unix:///PATH; perhaps "mqtt://localhost:1883"',
        ),
        ({"listen": ["mqtt://h:1", "mqtt://h:1"]}, 'F: listen = "mqtt://h:1": the address stands twice: leave one out'),
        (
            {"listen": ["ws://h:1/mqtt?a"]},
            'F: listen = "ws://h:1/mqtt?a": write a path without ? and #, as ws://h:1/mqtt',
        ),
        ({"listen": ["wss://h:1"]}, 'F: listen = "wss://h:1": a TLS listener needs certificate and key in [tls]'),
        (
            {"websocket": {"origins": ["app.example.com"]}},
            'F: websocket.origins = "app.example.com": write an origin such as https://app.example.com or '
            "http://localhost:8080, null, or *",
        ),
        (
            {"websocket": {"origins": "*"}},
            'F: websocket.origins = "*": give a list of origins such as ["https://app.example.com"]',
        ),
        ({"websocket": {"origin": []}}, 'F: websocket.origin = []: unknown key; did you mean "origins"?'),
        (
            {"name": "a", "number": 1, "mesh": {**MESH, "peer": [{"address": "ws://h:1"}]}},
            'F: mesh.peer[1].address = "ws://h:1": links do not run over WebSocket: write '
            "mqtt://HOST:PORT, mqtts://HOST:PORT or unix:///PATH",
        ),
        ({"limits": {"in_fligth": 5}}, 'F: limits.in_fligth = 5: unknown key; did you mean "in_flight"?'),
        ({"limits": {"in_flight": 0}}, "F: limits.in_flight = 0: give a whole number from 1 to 65535"),
        (
            {"limits": {"unsent_bytes": "9 bits"}},
            'F: limits.unsent_bytes = "9 bits": give bytes as a whole number or a string such as "64 MiB"',
        ),
        ({"limits": 3}, "F: limits = 3: make it a table: [limits]"),
        (
            {"mesh": MESH, "number": 1},
            "F: name is missing: give a name of 1 to 64 letters, digits, '.', '_' and '-' that does not start with '.' or '-'",
        ),
        ({"mesh": MESH, "name": "a"}, "F: number is missing: give a whole number from 0 to 65535"),
        (
            {"mesh": MESH, "name": "a", "nubmer": 3},
            'F: number is missing: give a whole number from 0 to 65535; is "nubmer" misspelled?',
        ),
        (
            {"name": "a", "number": 1, "mesh": {**MESH, "mode": "route"}},
            'F: mesh.mode = "route": give "routed" or "flood"; did you mean "routed"?',
        ),
        (
            {"name": "a", "number": 1, "mesh": {**MESH, "clients": "roams"}},
            'F: mesh.clients = "roams": give "site" or "roam"; did you mean "roam"?',
        ),
        (
            {"name": "a", "number": 1, "mesh": {**MESH, "roam_wait": 61}},
            "F: mesh.roam_wait = 61: give seconds from 0 to 60",
        ),
        (
            {"name": "a", "number": 1, "mesh": {**MESH, "key": "short"}},
            "F: mesh.key = (5 bytes): give the secret that all brokers of the mesh share, a string of at least 16 bytes",
        ),
        (
            {"name": "a", "number": 1, "mesh": {**MESH, "peer": [{}]}},
            "F: mesh.peer[1].address is missing: write mqtt://HOST:PORT, mqtts://HOST:PORT or unix:///PATH",
        ),
        (
            {"name": "a", "number": 1, "mesh": {**MESH, "peer": [{"address": "mqtt://h", "cost": 0}]}},
            "F: mesh.peer[1].cost = 0: give a whole number from 1 to 65535",
        ),
        ({"name": "a", "number": 1, "mesh": {**MESH, "peers": []}}, 'F: mesh.peers = []: unknown key; did you mean "peer"?'),
        (
            {"name": "a", "number": 1, "mesh": {**MESH, "retry_first": 9, "retry_last": 1}},
            "F: mesh.retry_last = 1: give at least retry_first, 9",
        ),
    ],
)
def test_each_mistake_is_one_line_that_names_file_key_value_and_remedy(table: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(table, "F")
    assert str(raised.value) == line


WHERE = {"url": "http://d", "account": "a"}


@pytest.mark.parametrize(
    ("directory", "more", "line"),
    [
        ({}, {}, "directory.url is missing: give http://HOST:PORT or https://HOST:PORT, or a list of equal directories"),
        ({**WHERE, "url": "d:8090"}, {}, 'directory.url = "d:8090": give http://HOST:PORT or'),
        ({**WHERE, "url": []}, {}, "directory.url = []: give http://HOST:PORT or"),
        ({**WHERE, "url": ["http://d", "ftp://e"]}, {}, 'directory.url = "ftp://e": give http'),
        (
            {"url": "http://d"},
            {},
            "directory.account is missing: give the name of an account of the directory",
        ),
        (WHERE, {}, "directory.secret_file is missing: give a file with the account's secret, or set MQMESH_DIRECTORY_SECRET"),
        ({**WHERE, "secret_file": "/no/such"}, {}, 'directory.secret_file = "/no/such": cannot be used: No such file'),
        (
            {**WHERE, "secret_file": "/dev/null"},
            {},
            'directory.secret_file = "/dev/null": cannot be used: write the secret',
        ),
        ({**WHERE, "lease": 0}, {}, "directory.lease = 0: give seconds from 1 to 86400"),
        ({**WHERE, "visibility": "all"}, {}, 'directory.visibility = "all": give "public" or "organisation"'),
        ({**WHERE, "register": 1}, {}, "directory.register = 1: write true or false"),
        ({**WHERE, "mesh": "other"}, {}, 'directory.mesh = "other": the broker is a member of "m": leave this out'),
        ({**WHERE, "neighbours": "some"}, {}, 'directory.neighbours = "some": give "configured" or "all"'),
        ({**WHERE, "service": [{}]}, {}, "directory.service[1].name is missing: give the name under which the service is looked up"),
        ({**WHERE, "service": [{"name": "s"}] * 2}, {}, 'directory.service[2].name = "s": this service stands twice'),
        ({**WHERE, "user": "a"}, {}, 'directory.user = "a": unknown key'),
        (
            {**WHERE, "secret_file": __file__, "addresses": ["mqtt://0.0.0.0:1"]},
            {},
            'directory.addresses = "mqtt://0.0.0.0:1": others',
        ),
        (
            {**WHERE, "secret_file": __file__},
            {"listen": ["mqtt://[::]:1883"]},
            "directory.addresses is missing: no listener",
        ),
        ({"url": "http://d", "register": False}, {}, "number is missing: give a whole number"),
    ],
)
def test_each_mistake_about_a_directory(
    monkeypatch: pytest.MonkeyPatch, directory: dict[str, object], more: dict[str, object], line: str
) -> None:
    for variable in ("MQMESH_DIRECTORY_ACCOUNT", "MQMESH_DIRECTORY_SECRET"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigError) as raised:
        parse({"name": "a", "mesh": MESH, "directory": directory, **more}, "F")
    assert str(raised.value).startswith(f"F: {line}")


def test_a_broker_with_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQMESH_DIRECTORY_ACCOUNT", "alice")
    monkeypatch.setenv("MQMESH_DIRECTORY_SECRET", "hush")
    config = parse({"name": "a", "mesh": {**MESH, "peer": [{"name": "lyon"}]}, "directory": {"url": ["http://d", "http://e"]}})
    assert config.directory is not None
    assert config.mesh is not None
    assert (config.number, config.directory.urls, config.directory.mesh) == (UNASSIGNED, ["http://d", "http://e"], "m")
    assert (config.directory.account, config.directory.secret()) == ("alice", "hush")
    assert [(peer.name, peer.address) for peer in config.mesh.peers] == [("lyon", "directory:lyon")]
    alone = parse({"name": "a", "directory": {"url": "http://d", "mesh": "m"}})
    assert (alone.number, alone.mesh) == (0, None)
    with pytest.raises(ConfigError, match=r"directory\.mesh is missing"):
        parse({"name": "a", "directory": {"url": "http://d"}})
    (tmp_path / "s").write_text("from the file \n")
    of_file = parse({"name": "a", "mesh": MESH, "directory": {"url": "http://d", "secret_file": "s"}}, "F", tmp_path).directory
    assert of_file is not None
    assert of_file.secret() == "from the file"


@pytest.mark.parametrize("mesh", [{"key": "hush"}, {"key": ["hush"]}, {"kye": "hush"}, {**MESH, "kei": "hush"}])
def test_the_secret_stays_out_of_messages(mesh: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as raised:
        parse({"name": "a", "number": 1, "mesh": mesh})
    assert "hush" not in str(raised.value)
    assert KEY not in repr(parse({"name": "a", "number": 1, "mesh": MESH}))


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "cannot be read: No such file"), (b"name = ", "is not TOML: "), (b"\xff", "is not UTF-8 text")],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, text: str) -> None:
    file = tmp_path / "x.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        load(file)
    assert str(raised.value).startswith(f"{file}: {text}")


def test_a_file_of_an_editor_that_marks_utf_8(tmp_path: Path) -> None:
    """With a byte order mark in front, as some editors on Windows write it."""
    file, users = tmp_path / "x.toml", tmp_path / "users"
    file.write_text('name = "lyon"\r\n', encoding="utf-8-sig")
    assert load(file).name == "lyon"
    passwords.change(users, "alice", b"pw")
    users.write_text(users.read_text(), encoding="utf-8-sig")
    assert list(passwords.load(users)) == ["alice"]
    passwords.change(users, "bob", b"pw")
    assert list(passwords.load(users)) == ["alice", "bob"]


def test_origins_in_their_usual_form() -> None:
    config = parse({"websocket": {"origins": ["https://App.example.com:443", "null", "*"]}})
    assert config.websocket.origins == ["https://app.example.com", "null", "*"]


def test_sizes() -> None:
    assert [parse_size(v) for v in (0, "12", "1 KiB", "3kB", "2 GiB")] == [0, 12, 1024, 3000, 2 * 2**30]
    for wrong in (-1, True, 1.5, "", "1 XB", "-3"):
        with pytest.raises(ValueError):
            parse_size(wrong)


SCALARS = st.one_of(
    st.integers(),
    st.booleans(),
    st.text(max_size=5),
    st.floats(),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(), st.integers(), max_size=2),
)


@given(st.sampled_from(["name", "number", "listen", "data", "mesh", "limits", "other"]), SCALARS)
def test_any_value_is_taken_or_a_config_error(key: str, value: object) -> None:
    said = ""
    try:
        parse({key: value})
    except ConfigError as error:
        said = str(error)
    assert not said or (key in said and "\n" not in said)


def test_every_key_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
    for one in fields(Limits):
        default = "none" if one.default is None else f"{one.default:g}" if isinstance(one.default, float) else str(one.default)
        if isinstance(one.default, bool | tuple):
            default = json.dumps(one.default)
        assert f"| `{one.name}` | {default} | {one.metadata['text']} |" in page, one.name
    for key in (
        "name",
        "number",
        "listen",
        "data",
        "mode",
        "key",
        "silence",
        "retry_first",
        "retry_last",
        "retained_compare",
        "deletions_kept",
        "address",
        "cost",
    ):
        assert f"| `{key}` |" in page, key


# The metabroker


def test_the_metabrokers_rule(tmp_path: Path) -> None:
    assert parse({}).metabroker == MetabrokerSettings("metabroker", None, None)
    assert parse({"metabroker": {"protect": False}}).metabroker is None
    settings = parse({"metabroker": {"client": "gate", "password": "a secret of 16 bytes"}}).metabroker
    assert settings is not None
    assert (settings.client, settings.secret()) == ("gate", b"a secret of 16 bytes")
    assert "secret" not in repr(settings)
    (tmp_path / "file").write_text("another secret of 16 bytes\nand more\n")
    (tmp_path / "porto.toml").write_text('[metabroker]\npassword_file = "file"')
    settings = load(tmp_path / "porto.toml").metabroker
    assert settings is not None
    assert settings.secret() == b"another secret of 16 bytes"
    (tmp_path / "file").write_text("a new secret of 16 bytes")
    assert settings.secret() == b"a new secret of 16 bytes"


def test_a_metabroker_inside(tmp_path: Path) -> None:
    (tmp_path / "porto.toml").write_text('[metabroker]\npolicy = "policy.toml"\ndata = "kept"\nstatus_topic = ""\n')
    settings = load(tmp_path / "porto.toml").metabroker
    assert settings is not None
    assert settings.inside is not None
    assert (settings.inside.policy, settings.inside.data) == (tmp_path / "policy.toml", tmp_path / "kept")
    assert (settings.inside.services, settings.inside.directory, settings.inside.status_topic) == (None, None, "")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"protect": 1}, "metabroker.protect = 1: write true or false"),
        ({"client": "a b"}, 'metabroker.client = "a b": give a name'),
        ({"password": "short"}, "metabroker.password = (5 bytes): give a secret of at least 16 bytes"),
        ({"password": 5}, "metabroker.password = (not a string): give a secret"),
        ({"password_file": "/nowhere"}, 'metabroker.password_file = "/nowhere": /nowhere: No such file'),
        ({"password_file": "/dev/null"}, "its first line is no password"),
        ({"password": "a secret of 16 bytes", "password_file": "/dev/null"}, "there is a password already"),
        ({"user": "x"}, "metabroker.user"),
        ({"policy": 5}, "metabroker.policy = 5: give the path of the policy file"),
        (
            {"policy": "p", "protect": False},
            "metabroker.protect = False: the metabroker inside this broker",
        ),
        ({"policy": "p", "password": "a secret of 16 bytes"}, "metabroker.password = (20 bytes): the metabroker inside this broker"),
        ({"policy": "p", "data": 1}, "metabroker.data = 1: give the path of a folder"),
        ({"policy": "p", "services": []}, "metabroker.services = []: give the path of a file"),
        ({"policy": "p", "directory": 7}, "metabroker.directory = 7: give http://HOST:PORT"),
        ({"policy": "p", "status_topic": "a/#"}, 'metabroker.status_topic = "a/#": give a topic without wildcards'),
        ({"policy": "p", "status_topic": 1}, "metabroker.status_topic = 1: give a topic"),
        ({"data": "folder"}, 'metabroker.data = "folder": it means nothing without metabroker.policy'),
        ({"policy": "p", "polcy": "q"}, "metabroker.polcy"),
    ],
)
def test_mistakes_in_the_metabrokers_rule(table: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"metabroker": table})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("url", "kind", "path"),
    [
        ("sqlite:///srv/porto/store.db", "sqlite", "/srv/porto/store.db"),
        ("sqlite:////srv/porto/store.db", "sqlite", "/srv/porto/store.db"),
        ("lmdb:///srv/porto/store", "lmdb", "/srv/porto/store"),
        ("sqlite:store.db", "sqlite", "/etc/mqmesh/store.db"),
        ("memory:", "memory", None),
        ("postgresql://user@host/database?schema=porto", "postgresql", None),
    ],
)
def test_a_store_has_the_addresses_that_its_page_shows(url: str, kind: str, path: str | None) -> None:
    store = parse({"store": {"url": url}}, "broker.toml", Path("/etc/mqmesh")).store
    assert (store.kind, store.path) == (kind, None if path is None else Path(path))


@pytest.mark.parametrize(
    "table",
    [
        {"url": "mysql://user:secret@host/database"},
        {"url": "sqlite://store.db"},
        {"url": "lmdb:///srv/store", "kind": "sqlite"},
        {"url": "lmdb:///srv/store", "path": "/srv/other"},
    ],
)
def test_a_wrong_address_of_a_store_is_refused_without_showing_it(table: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as error:
        parse({"store": table}, "broker.toml")
    assert "store." in str(error.value)
    assert "secret" not in str(error.value)
