"""Processes that are killed, and several over one database: SQLite and a PostgreSQL server of the tests' own."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.directory.client import Client, ClientError
from support.directories import Directory
from support.peers import postgres
from support.peers.uddi_clients import fault, uddi_client

pytestmark = pytest.mark.process


def test_what_was_answered_survives_kill_9(tmp_path: Path) -> None:
    first = Directory(f"sqlite:///{tmp_path / 'd.db'}", tmp_path / "log")
    first.accounts()
    alice = first.client("alice")
    alice.put("mesh", "ring")
    alice.put("broker", "porto", "ring", number=1, addresses=["mqtt://127.0.0.1:1883"])
    listen = first.url.removeprefix("http://")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("d.db*")}
    assert set(modes.values()) == {0o600}, modes
    first.kill()
    with pytest.raises(ClientError, match="does not answer"):
        alice.get("broker", "porto", "ring")
    first.start(listen)
    assert alice.get("broker", "porto", "ring")["number"] == 1
    alice.put("broker", "lyon", "ring", number=2)  # the token is as good as it was
    first.kill()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Directory, Directory]]:
    folder = tmp_path_factory.mktemp("pair")
    with postgres.server() as server:
        one, two = (Directory(server.url, folder / f"log{number}") for number in (1, 2))
        one.accounts()
        two.secrets = one.secrets
        yield one, two
        one.kill()
        two.kill()


@pytest.mark.service
def test_two_processes_over_one_postgresql_are_equal(pair: tuple[Directory, Directory]) -> None:
    one, two = pair
    alice = one.client("alice")
    alice.put("mesh", "ring")
    alice.put("broker", "porto", "ring", number=1, addresses=["mqtt://127.0.0.1:1883"])
    other = two.client()
    assert other.get("broker", "porto", "ring")["addresses"] == ["mqtt://127.0.0.1:1883"]
    other._token = alice._token  # a token of one is good at the other
    other.put("broker", "porto", "ring", number=5)
    assert one.client().get("broker", "porto", "ring")["number"] == 5
    with pytest.raises(ClientError, match="number 5"):
        alice.put("broker", "lyon", "ring", number=5)


@pytest.mark.service
def test_two_processes_are_equal_for_uddi_clients_too(pair: tuple[Directory, Directory]) -> None:
    one, two = (uddi_client(directory.url, "own") for directory in pair)
    token = one.security.get_authToken(userID="alice", cred=pair[0].secrets["alice"])
    service = {"name": [{"_value_1": "weather"}], "bindingTemplates": {"bindingTemplate": [{"accessPoint": {"_value_1": "mqtt://a"}}]}}
    business = {"name": [{"_value_1": "both"}], "businessServices": {"businessService": [service]}}
    [saved] = two.publish.save_business(authInfo=token, businessEntity=[business]).businessEntity
    [info] = one.find.find_service(name=[{"_value_1": "weather"}], businessKey=saved.businessKey).serviceInfos.serviceInfo
    one.publish.delete_service(authInfo=token, serviceKey=[info.serviceKey])
    assert two.find.find_service(businessKey=saved.businessKey).serviceInfos is None
    two.security.discard_authToken(authInfo=token)
    fault("E_authTokenExpired", one.publish.delete_business, authInfo=token, businessKey=[saved.businessKey])


@pytest.mark.service
def test_writers_at_two_processes_get_one_number_once(pair: tuple[Directory, Directory]) -> None:
    clients = [directory.client("alice") for directory in pair * 3]
    clients[0].put("mesh", "rush")
    outcomes: list[int] = []
    together = threading.Barrier(len(clients))

    def write(client: Client, name: str) -> None:
        together.wait()
        try:
            client.put("broker", name, "rush", number=1)
            outcomes.append(200)
        except ClientError as error:
            outcomes.append(error.status)

    threads = [threading.Thread(target=write, args=(client, f"b{at}")) for at, client in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [200, *[409] * 5]


@pytest.mark.service
def test_brokers_at_two_processes_get_numbers_of_their_own(pair: tuple[Directory, Directory]) -> None:
    clients = [directory.client("alice") for directory in pair * 3]
    holders = [str(uuid.uuid4()) for _ in range(24)]
    got: dict[str, int] = {}
    together = threading.Barrier(len(clients))

    def register(client: Client, mine: list[str]) -> None:
        together.wait()
        for holder in mine:
            got[holder] = client.claim("crowd", holder, f"b-{holder}", 600)["number"]

    threads = [threading.Thread(target=register, args=(client, holders[at::6])) for at, client in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got.values()) == list(range(1, 25)), "each number once, and the lowest"
    for directory in pair:
        assert {broker["number"] for broker in directory.client().find("broker", "crowd")} == set(range(1, 25))
    one, two = clients[:2]
    one.leave("crowd", holders[0])
    assert [broker["number"] for broker in two.find("broker", "crowd", f"b-{holders[0]}")] == []
    assert two.claim("crowd", holders[0], f"b-{holders[0]}", 600)["number"] == got[holders[0]], "known to the other process"
    assert two.claim("crowd", str(uuid.uuid4()), "late", 600)["number"] == 25
