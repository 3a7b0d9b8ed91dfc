"""Lines of mosquitto.conf, and what becomes of each option of its manual."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.broker.config import load
from mqmesh.cli.fleet.broker_file import tables_text
from mqmesh.cli.migrate.broker_tables import tables_of
from mqmesh.cli.migrate.mosquitto_conf import OF_BRIDGES, MigrateError, options_of, parse, read_options
from mqmesh.cli.migrate.remarks import Remarks

# The options that the manual page of Mosquitto 2.0.11 and its example file name.
_WORDS = """
acl_file address allow_anonymous allow_duplicate_messages allow_zero_length_clientid auth_plugin
auth_plugin_deny_special_chars auto_id_prefix autosave_interval autosave_on_changes bind_address bind_interface
bridge_alpn bridge_attempt_unsubscribe bridge_bind_address bridge_cafile bridge_capath bridge_certfile bridge_identity
bridge_insecure bridge_keyfile bridge_max_packet_size bridge_outgoing_retain bridge_protocol_version bridge_psk
bridge_require_ocsp bridge_tls_version cafile capath certfile check_retain_source ciphers ciphers_tls1.3 cleansession
clientid_prefixes connection connection_messages crlfile dhparamfile http_dir idle_timeout include_dir
keepalive_interval keyfile listener local_cleansession local_clientid local_password local_username log_dest
log_facility log_timestamp log_timestamp_format log_type max_connections max_inflight_bytes max_inflight_messages
max_keepalive max_packet_size max_qos max_queued_bytes max_queued_messages max_topic_alias memory_limit
message_size_limit mount_point notification_topic notifications notifications_local_only password_file
per_listener_settings persistence persistence_file persistence_location persistent_client_expiration pid_file port
protocol psk_file psk_hint queue_qos0_messages remote_clientid remote_password remote_username require_certificate
restart_timeout retain_available round_robin set_tcp_nodelay socket_domain start_type sys_interval threshold tls_engine
tls_engine_kpass_sha1 tls_keyform tls_version topic try_private upgrade_outgoing_qos use_identity_as_username
use_subject_as_username use_username_as_clientid user websockets_headers_size websockets_log_level
"""
MANUAL = _WORDS.split()
VALUES = {"persistent_client_expiration": "1d", "protocol": "mqtt", "socket_domain": "ipv4", "tls_version": "tlsv1.3"}
FILES = ("acl_file", "password_file", "include_dir")  # these are read


def tables(text: str, remarks: Remarks) -> dict[str, object]:
    return tables_of(parse(options_of(text, "f.conf"), "f.conf"), "b", remarks, ipv6=False)


@pytest.mark.parametrize("name", sorted(set(MANUAL) - OF_BRIDGES - {*FILES, "listener", "connection", "psk_hint"}))
def test_each_option_of_the_manual_is_known(name: str, tmp_path: Path) -> None:
    remarks = Remarks()
    value = VALUES.get(name, "1")
    table = tables(f"listener 1883\nallow_anonymous true\n{name} {value}\n", remarks)
    assert not [one for one in remarks.found if "has no such option" in one.text]
    (tmp_path / "b.toml").write_text(tables_text(table))
    if name not in ("certfile", "cafile", "crlfile", "keyfile"):  # these are files that are not there
        load(tmp_path / "b.toml")


def test_an_option_that_there_is_not() -> None:
    remarks = Remarks()
    tables("listener 1883\nallow_anonymous true\nmax_conections 5\n", remarks)
    assert [(one.kind, one.place, one.text) for one in remarks.found] == [("lost", "f.conf:3", "Mosquitto 2.0 has no such option")]


def test_limits_that_are_not_taken_as_they_are() -> None:
    remarks = Remarks()
    text = "port 1883\nallow_anonymous true\nmemory_limit 5\nmax_packet_size 2000\nmessage_size_limit 5000\nmax_inflight_messages 0\n"
    assert tables(text, remarks)["limits"] == {"max_packet_size": 2000, "broker_bytes": 1048576, "in_flight": 65535}
    assert [one.option.name for one in remarks.found] == ["memory_limit", "memory_limit", "message_size_limit"]


def test_where_the_database_is_stands_in_the_report() -> None:
    remarks = Remarks()
    text = "port 1883\nallow_anonymous true\npersistence true\npersistence_location /var/lib/m/\n"
    assert tables(text, remarks)["data"] == "data/b"
    assert [one.text.partition(" --config")[0] for one in remarks.found] == ["mqmesh migrate --database /var/lib/m/mosquitto.db"]


def test_without_a_listener_only_this_machine_may_connect() -> None:
    conf = parse(options_of("log_type all\n", "f"), "f")
    assert conf.local
    assert [(one.port, one.host) for one in conf.listeners] == [(1883, "")]
    table = tables_of(conf, "b", Remarks(), ipv6=True)
    assert table["listen"] == ["mqtt://127.0.0.1:1883", "mqtt://[::1]:1883"]
    assert "access" not in table


def test_a_listener_lets_nobody_in_without_a_name_unless_it_says_so() -> None:
    remarks = Remarks()
    assert tables("listener 1883\n", remarks)["access"] == {"anonymous": False}
    assert [one.text.partition(":")[0] for one in remarks.found] == ["nobody may connect"]


def test_listeners_keep_the_rules_that_they_have(tmp_path: Path) -> None:
    """What `per_listener_settings true` says of rules, and of clients without a name, each listener has here too."""
    (tmp_path / "passwd").write_text("")
    (tmp_path / "hall.acl").write_text("topic read hall/#\n")
    text = (
        f"per_listener_settings true\npassword_file {tmp_path}/passwd\nallow_anonymous false\nport 1883\n"
        f"listener 1884\nallow_anonymous true\nacl_file {tmp_path}/hall.acl\n"
    )
    remarks = Remarks()
    table = tables(text, remarks)
    assert table["listen"] == [
        {"address": "mqtt://0.0.0.0:1883", "name": "listener-1"},
        {"address": "mqtt://0.0.0.0:1884", "name": "listener-2"},
    ]
    (tmp_path / "b.toml").write_text(tables_text(table))
    config = load(tmp_path / "b.toml")
    assert config.access is not None
    assert [config.access.admits_anonymous(name) for name in config.listeners.values()] == [False, True]
    rules = config.access.rules
    for listener, action, topic, allowed in [
        ("listener-1", rules.publish, "any/topic", True),
        ("listener-1", rules.subscribe, "#", True),
        ("listener-2", rules.subscribe, "hall/#", True),
        ("listener-2", rules.subscribe, "any/topic", False),
        ("listener-2", rules.publish, "hall/lamp", False),
    ]:
        assert action(None, "c", topic, listener).allowed == allowed, (listener, topic)
    assert not [one for one in remarks.found if one.kind == "lost"]


def test_listeners_that_say_the_same_need_no_names(tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("topic read hall/#\n")
    own = f"acl_file {tmp_path}/acl\nallow_anonymous true\n"
    table = tables(f"per_listener_settings true\nlistener 1883\n{own}listener 1884\n{own}", Remarks())
    assert table["listen"] == ["mqtt://0.0.0.0:1883", "mqtt://0.0.0.0:1884"]
    assert "listeners" not in str(table["access"])


def test_without_names_the_strictest_listener_decides_who_may_come_in() -> None:
    remarks = Remarks()
    text = "per_listener_settings true\nlistener 1883\nallow_anonymous true\nlistener 1884\nallow_anonymous false\n"
    assert tables(text, remarks)["access"] == {"anonymous": False}
    assert remarks.found[0].place == "f.conf:3"


def test_an_option_belongs_to_the_last_listener() -> None:
    conf = parse(options_of("port 1\nmax_connections 4\nlistener 2\nmax_connections 5\nprotocol websockets\nlistener 3\n", "f"), "f")
    assert [(one.port, one.value("max_connections"), one.value("protocol")) for one in conf.listeners] == [
        (1, "4", None),
        (2, "5", "websockets"),
        (3, None, None),
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("listener x", "f.conf:1: listener x: a port is right"),
        ("listener 0", "f.conf:1: listener 0: a port is right"),
        ("listener 70000", "f.conf:1: listener 70000: a port is right"),
        ("alice:$6$x$y\nbob:$6$x$z", "f.conf: no line of it is an option of Mosquitto's: is it a mosquitto.conf?"),
        ("port 65536", "f.conf:1: port 65536: 1 to 65535 is right"),
        ("port one", "f.conf:1: port one: a whole number is right"),
        ("\ntopic # both", "f.conf:2: topic stands before any connection"),
        ("persistence yes", "f.conf:1: persistence yes: true or false is right"),
        ("persistent_client_expiration 5", "f.conf:1: persistent_client_expiration 5: a number and one of h, d, w, m, y is right"),
        ("listener 1\npsk_hint x", "f.conf: no listener is left"),
        ("password_file /nowhere", "f.conf:1: password_file /nowhere: No such file or directory"),
        ("acl_file /nowhere", "/nowhere: No such file or directory"),
        ("allow_anonymous", "f.conf:1: allow_anonymous : true or false is right"),
    ],
)
def test_mistakes_are_named(text: str, error: str) -> None:
    with pytest.raises(MigrateError) as caught:
        tables(text, Remarks())
    assert str(caught.value).startswith(error)


def test_included_files_come_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    for name in ("b.conf", "A.conf", "a.conf", "B.conf", "c.txt"):
        (tmp_path / "conf.d" / name).write_text(f"connection {name}\n")
    (tmp_path / "m.conf").write_text("port 1\ninclude_dir conf.d\n")
    assert [one.value for one in read_options(tmp_path / "m.conf")] == ["1", "A.conf", "a.conf", "B.conf", "b.conf"]
    (tmp_path / "m.conf").write_text("include_dir nowhere\n")
    with pytest.raises(MigrateError, match="there is no such folder"):
        read_options(tmp_path / "m.conf")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MigrateError, match="No such file"):
        read_options(tmp_path / "m.conf")
    (tmp_path / "m.conf").write_bytes(b"\xff")
    with pytest.raises(MigrateError, match="UTF-8"):
        read_options(tmp_path / "m.conf")
