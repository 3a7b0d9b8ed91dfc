"""The TOML files that `mqmesh up` and the demo write for their brokers."""

from __future__ import annotations

import ipaddress
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.config import (
    UNASSIGNED,
    BrokerConfig,
    MeshSettings,
    PeerSettings,
    StoreSettings,
    TlsSettings,
    WebSocketSettings,
    load,
    of_topology,
)
from mqmesh.broker.journal.settings import TOPIC, JournalSettings, TopicRule
from mqmesh.broker.queues.core.plan import POOL, LoadRule, plan_of
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.recipients.settings import Application, Intervals, RecipientSettings
from mqmesh.broker.settings.directory import DirectorySettings, OfferedService
from mqmesh.broker.settings.http import HttpAddress
from mqmesh.broker.settings.interchange import InterchangeSettings
from mqmesh.cli.fleet import broker_file
from mqmesh.mesh.custody.bounds import AtBound, CustodyBounds, CustodyRule
from mqmesh.mesh.topology.topology import load as load_topology

TOPOLOGIES = sorted((Path(__file__).parents[3] / "topologies").glob("*.toml"))


@pytest.mark.parametrize("file", TOPOLOGIES, ids=lambda file: file.stem)
def test_every_broker_of_every_example_reads_back_equal(file: Path, tmp_path: Path) -> None:
    topology = load_topology(file)
    for broker in topology.brokers:
        config = of_topology(topology, broker.name, tmp_path)
        broker_file.write(tmp_path / "b.toml", config)
        assert load(tmp_path / "b.toml") == config


def test_workers_read_back_equal(tmp_path: Path) -> None:
    config = BrokerConfig("porto", workers=3)
    broker_file.write(tmp_path / "b.toml", config)
    assert load(tmp_path / "b.toml") == config


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text("old")
    file.chmod(0o644)
    broker_file.write(file, BrokerConfig())
    assert file.stat().st_mode & 0o777 == 0o600


keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=16, max_size=40)


@given(key=keys, cost=st.integers(1, 65535), number=st.none() | st.integers(0, 65535))
def test_any_key_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, key: str, cost: int, number: int | None) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    mesh = MeshSettings("m", key, "flood", [PeerSettings("mqtt://[::1]:7", cost, number)], 0.5)
    config = BrokerConfig("porto", 1, ["mqtt://127.0.0.1:1", "unix:///x y"], Path("/d é"), mesh)
    broker_file.write(file, config)
    assert load(file) == config


@pytest.mark.parametrize("brokers", [None, {}, {"porto": 1, "lyon-2.b": 2}])
def test_certificates_read_back_equal(tmp_path: Path, brokers: dict[str, int] | None) -> None:
    tls = TlsSettings(Path("/t/c.crt"), Path("/t/k"), Path("/t/p"), Path("/t/ca"), "required")
    peers = [PeerSettings("mqtts://h:1", name="lyon")]
    mesh = MeshSettings("m", peers=peers, auth="certificate", brokers=brokers)
    config = BrokerConfig("porto", 1, ["mqtts://127.0.0.1:1"], None, mesh, tls=tls)
    broker_file.write(tmp_path / "b.toml", config)
    assert load(tmp_path / "b.toml") == config


@pytest.mark.parametrize(
    "store",
    [
        StoreSettings("memory"),
        StoreSettings("sqlite", Path("/d/x.db"), durability="os", pending_bytes=2**20),
        StoreSettings("postgresql", url="postgresql://u@h/d"),
    ],
)
def test_stores_read_back_equal(tmp_path: Path, store: StoreSettings) -> None:
    config = BrokerConfig(data=Path("/d"), store=store)
    broker_file.write(tmp_path / "b.toml", config)
    assert load(tmp_path / "b.toml") == config


def test_web_listeners_read_back_equal(tmp_path: Path) -> None:
    config = BrokerConfig(listen=["ws://127.0.0.1:1/a"], websocket=WebSocketSettings(["https://a.example", "*"]))
    broker_file.write(tmp_path / "b.toml", config)
    assert load(tmp_path / "b.toml") == config


def test_a_directory_reads_back_equal(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    services = [OfferedService("weather", ["mqtt://h:1"], ["acme"], "of the roof"), OfferedService("tides")]
    directory = DirectorySettings(
        ["http://a:1", "https://b"], "m", "alice", tmp_path / "secret", 30.0, "organisation", "x", services=services
    )
    mesh = MeshSettings("m", "sixteen bytes or more", peers=[PeerSettings("directory:lyon", name="lyon")])
    config = BrokerConfig("porto", UNASSIGNED, ["mqtt://127.0.0.1:1"], tmp_path, mesh, directory=directory)
    broker_file.write(tmp_path / "b.toml", config)
    assert load(tmp_path / "b.toml") == config
    directory.neighbours, directory.register, config.number = True, False, 4
    mesh.start_wait = 1.0
    broker_file.write(tmp_path / "b.toml", config)
    assert load(tmp_path / "b.toml") == config


def test_bounds_of_custody_read_back_equal(tmp_path: Path) -> None:
    rules = (CustodyRule("ship", ("telemetry/#",), AtBound.DROP_OLDEST), CustodyRule(7, bytes=2**20, age=60.0))
    bounds = CustodyBounds(2**21, 2**31, 3600.0, AtBound.EXPIRE, rules)
    config = BrokerConfig("porto", 1, mesh=MeshSettings("m", "sixteen bytes or more", custody=bounds))
    broker_file.write(tmp_path / "b.toml", config)
    assert load(tmp_path / "b.toml") == config


def test_recipients_read_back_equal(tmp_path: Path) -> None:
    orders = Application("orders", ["one", "two"], ["shop/#"], ["lyon"], Intervals(1, 3, 10), True, ["a"], "porto")
    config = BrokerConfig(recipients=RecipientSettings("x/y", Intervals(2, 4, 8.5), "dead", [orders, Application("lyon", ["lyon"])]))
    broker_file.write(tmp_path / "b.toml", config)
    assert load(tmp_path / "b.toml") == config


def test_an_interchange_reads_back_equal(tmp_path: Path) -> None:
    settings = InterchangeSettings("", tmp_path / "services.toml", 60.0, 3600.0, 10, 20, 30, 40, HttpAddress("::1", 8090, True))
    settings.push_networks = (ipaddress.ip_network("10.1.0.0/16"),)
    config = BrokerConfig(data=tmp_path, interchange=settings)
    broker_file.write(tmp_path / "b.toml", config)
    found = load(tmp_path / "b.toml")
    assert found.interchange == replace(settings, file=str(tmp_path / "b.toml"))


def test_a_journal_reads_back_equal(tmp_path: Path) -> None:
    rules = (TopicRule("a/#", "sampled", 0.5), TopicRule("#", "counted"))
    for settings in (
        JournalSettings(str(tmp_path / "j"), topics=rules, dimension=TOPIC, retention=5.0),
        JournalSettings("s3://bucket/j", spool=tmp_path / "spool", dimension=3, options={"endpoint_url": "http://127.0.0.1:9"}),
    ):
        config = BrokerConfig(journal=settings)
        broker_file.write(tmp_path / "b.toml", config)
        assert load(tmp_path / "b.toml") == config


def test_queues_read_back_equal(tmp_path: Path) -> None:
    switch = LoadRule(plan_of("a | b, c"), POOL, 100, 20)
    rules = {
        "orders": Rules(plan_of("a | b, c"), switch, 1000, 1 << 20, 3.5, "dead-letter", "orders.dead", 3, 0.5, requests=True, reveal=False),
        "orders.dead": Rules(retention=60.0),
    }
    config = BrokerConfig(data=tmp_path, queues=QueueSettings(rules, {"orders": ["a"], "orders.dead": []}, folder=tmp_path / "queues"))
    broker_file.write(tmp_path / "b.toml", config)
    assert load(tmp_path / "b.toml").queues == config.queues


TABLES = """
[mesh]
name = "m"
key = "0123456789abcdef"
[[broker]]
name = "porto"
number = 1
listen = "mqtt://127.0.0.1:1001"
http = { listen = "http://127.0.0.1:1002" }
[broker.queues.orders]
deliveries = 5
subscribers = ["a", "b"]
largest = "1 KiB"
dead_letters = "orders.dead"
[broker.queues."orders.dead"]
[[broker.attach]]
name = "plant"
address = "mqtts://10.0.0.7:8883"
ca = "ca.pem"
in = ["plant/#"]
map = [{ here = "plant/", there = "" }]

[access]
users = "users"
[management]
accept = ["lyon"]
[metabroker]
password = "a secret of 16 bytes or more"
[store]
kind = "lmdb"
path = "stores/{name}"
[journal]
folder = "journal"
topics = [{ filter = "a/#", mode = "sampled", rate = 0.5 }, { filter = "#", mode = "counted" }]
[recipients]
fault_interval = "5m"
[[recipients.application]]
name = "orders"
clients = ["one"]
[limits]
in_flight = 7
[websocket]
origins = ["https://a.example"]
"""


def test_tables_of_a_topology_read_back_equal_with_paths_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "users").touch()
    file = tmp_path / "t.toml"
    file.write_text(TABLES)
    topology = load_topology(file)
    config = of_topology(topology, "porto", tmp_path / "data")
    (tmp_path / "elsewhere").mkdir()
    broker_file.write(tmp_path / "elsewhere/b.toml", config, topology.tables_of("porto"), tmp_path)
    found = load(tmp_path / "elsewhere/b.toml")
    assert found.access is not None
    assert found.access.users == tmp_path / "users"
    found.access = config.access
    assert found == config
    assert found.queues is not None
    assert found.queues.checks
    assert found.store.path == tmp_path / "stores/porto"
    assert [one.ca for one in found.attach] == [tmp_path / "ca.pem"]


def test_tables_of_any_depth_read_back_equal() -> None:
    tables = {
        "name": "a b",
        "list": [1, "x", {"in": "line"}],
        "one": {"of depth": {"two": True}, "rule": [{"a": 1, "more": [{"b": [2]}, {"b": []}]}, {"c": {"d": "é"}}]},
    }
    assert tomllib.loads(broker_file.tables_text(tables)) == tables
