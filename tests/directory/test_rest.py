"""The REST face of a directory that runs as a process, by our client and by hand-made requests."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
import uuid

import pytest
from mqmesh.directory.client import Client, ClientError
from mqmesh.directory.server import LONGEST
from support.directories import Directory
from support.services import PATIENCE

pytestmark = pytest.mark.process


def request(directory: Directory, method: str, path: str, body: bytes | None = None, token: str | None = None) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(directory.url + path, body, headers, method=method), timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def refused(status: int, code: str) -> pytest.RaisesExc[ClientError]:
    return pytest.raises(ClientError, check=lambda error: (error.status, error.code) == (status, code))


def test_what_is_registered_is_found(directory: Directory) -> None:
    alice = directory.client("alice")
    alice.put("mesh", "ring", description="five sites")
    alice.put("broker", "porto", "ring", number=1, addresses=["mqtt://127.0.0.1:1883", "mqtts://porto.example:8883"])
    alice.put("broker", "lyon", "ring", number=2, addresses=["mqtt://127.0.0.1:1884"])
    alice.put("service", "weather", "ring", addresses=["mqtt://127.0.0.1:1883", "weather/#"], permissions=["acme", "bob"])
    alice.put("application", "gauges", "ring", alternatives=["lyon", "porto"], interval=2.5)
    anybody = directory.client()
    porto = anybody.get("broker", "porto", "ring")
    assert porto["addresses"] == ["mqtt://127.0.0.1:1883", "mqtts://porto.example:8883"]
    assert (porto["number"], porto["owner"], porto["mesh"]) == (1, "alice", "ring")
    assert [one["name"] for one in anybody.find("broker", "ring")] == ["lyon", "porto"]
    assert [one["name"] for one in anybody.find("broker", "ring", "*r*o")] == ["porto"]
    assert anybody.get("service", "weather", "ring")["permissions"] == ["acme", "bob"]
    gauges = anybody.get("application", "gauges", "ring")
    assert (gauges["alternatives"], gauges["interval"]) == (["lyon", "porto"], 2.5)
    alice.put("broker", "porto", "ring", number=9)
    assert anybody.get("broker", "porto", "ring")["number"] == 9
    assert anybody.get("broker", "porto", "ring")["addresses"] == []
    alice.put("mesh", "ring")
    assert len(anybody.find("broker", "ring")) == 2, "writing a mesh anew leaves what is in it"
    alice.delete("mesh", "ring")
    assert anybody.find("broker", "ring") == []
    with refused(404, "E_invalidKeyPassed"):
        anybody.get("broker", "porto", "ring")


def test_nobody_writes_without_a_token(directory: Directory) -> None:
    for method in ("PUT", "DELETE"):
        assert request(directory, method, "/v1/meshes/open", b"{}")[0] == 401
        assert request(directory, method, "/v1/meshes/open", b"{}", token="guessed")[0] == 401
    with refused(401, "E_unknownUser"):
        Client(directory.url, PATIENCE).log_in("alice", "wrong")
    with refused(401, "E_unknownUser"):
        Client(directory.url, PATIENCE).log_in("nobody", directory.secrets["alice"])
    alice = directory.client("alice")
    token = alice._token
    alice.log_out()
    assert request(directory, "PUT", "/v1/meshes/open", b"{}", token=token)[0] == 401
    assert directory.client().find("mesh", name="open") == []


def test_only_the_owner_changes_a_record(directory: Directory) -> None:
    directory.client("alice").put("mesh", "hers")
    bob = directory.client("bob")
    with refused(403, "E_userMismatch"):
        bob.put("mesh", "hers")
    with refused(403, "E_userMismatch"):
        bob.put("broker", "intruder", "hers")
    with refused(403, "E_userMismatch"):
        bob.delete("mesh", "hers")
    assert directory.client().get("mesh", "hers")["owner"] == "alice"


def test_what_is_for_an_organisation_is_seen_there_alone(directory: Directory) -> None:
    alice = directory.client("alice")
    alice.put("mesh", "secret", visibility="organisation")
    alice.put("broker", "hidden", "secret", addresses=["mqtt://10.0.0.1"])
    alice.put("mesh", "known")
    alice.put("broker", "shy", "known", visibility="organisation")
    for stranger in (directory.client(), directory.client("bob")):
        assert stranger.find("mesh", name="secret") == []
        assert stranger.find("broker", name="hidden") == []
        assert stranger.find("broker", "known") == []
        with refused(404, "E_invalidKeyPassed"):
            stranger.get("broker", "shy", "known")
    anna = directory.client("anna")
    assert [one["name"] for one in anna.find("broker", "secret") + anna.find("broker", "known")] == ["hidden", "shy"]
    with refused(403, "E_userMismatch"):
        anna.delete("broker", "shy", "known")


def test_a_number_is_given_once_in_a_mesh(directory: Directory) -> None:
    alice = directory.client("alice")
    for mesh in ("one", "two"):
        alice.put("mesh", mesh)
        alice.put("broker", "a", mesh, number=7)
    with refused(409, "E_valueNotAllowed"):
        alice.put("broker", "b", "one", number=7)
    assert [broker["name"] for broker in alice.find("broker", "one")] == ["a"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"number": -1}',
        b'{"number": true}',
        b'{"number": 1.5}',
        b'{"addresses": "mqtt://a"}',
        b'{"addresses": ["http://a"]}',
        b'{"addresses": ["mqtt://a:0"]}',
        b'{"addresses": ["mqtt://a:65536"]}',
        b'{"addresses": [" mqtt://a"]}',
        b'{"visibility": "all"}',
        b'{"visibility": []}',
        b'{"colour": 1}',
        b'{"description": "\\u0000"}',
        b'{"description": "\\ud800"}',
        b'{"interval": NaN}',
        b"[" * 100_000,
        b"\xff",
        json.dumps({"addresses": ["mqtt://a"] * 65}).encode(),
    ],
)
def test_what_is_wrong_is_refused(directory: Directory, body: bytes) -> None:
    alice = directory.client("alice")
    alice.put("mesh", "strict")
    status, answer = request(directory, "PUT", "/v1/meshes/strict/brokers/a", body, alice._token)
    assert (status, json.loads(answer)["error"]) == (400, "E_invalidValue")


def test_a_body_has_a_limit(directory: Directory) -> None:
    assert request(directory, "POST", "/v1/tokens", b" " * (LONGEST + 1))[0] == 413


def test_a_pattern_of_many_stars_takes_no_time(directory: Directory) -> None:
    alice = directory.client("alice")
    alice.put("mesh", "a" * 250)
    assert request(directory, "GET", "/v1/records?sort=mesh&name=" + "*a" * 120 + "b")[0] == 200
    assert len(alice.find("mesh", name="*a" * 120 + "*")) == 1


def test_writers_at_the_same_time_get_one_number_once(directory: Directory) -> None:
    clients = [directory.client("alice") for _ in range(4)]  # who log in at one time may be told to come again
    clients[0].put("mesh", "rush")
    outcomes: list[int] = []

    def write(client: Client, name: str) -> None:
        try:
            client.put("broker", name, "rush", number=1)
            outcomes.append(200)
        except ClientError as error:
            outcomes.append(error.status)

    threads = [threading.Thread(target=write, args=(client, f"b{n}")) for n, client in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [200, 409, 409, 409]


def test_a_broker_registers_itself_renews_and_leaves(directory: Directory) -> None:
    alice, holder = directory.client("alice"), str(uuid.uuid4())
    services = [{"name": "weather", "addresses": ["mqtt://porto:1883"], "permissions": ["acme"]}]
    got = alice.claim("own", holder, "porto", 60, addresses=["mqtt://porto:1883"], services=services)
    assert (got["name"], got["number"], got["static"], got["refused"]) == ("porto", 1, False, [])
    assert 0 < got["expires_in"] <= 60
    anybody = directory.client()
    assert anybody.get("broker", "porto", "own")["addresses"] == ["mqtt://porto:1883"]
    assert anybody.get("service", "weather", "own")["permissions"] == ["acme"]
    assert [(one["number"], one["holder"]) for one in alice.leases("own")] == [(1, holder)]
    with refused(409, "E_valueNotAllowed"):
        alice.forget("own", 1)
    with refused(409, "E_valueNotAllowed"):
        alice.claim("own", str(uuid.uuid4()), "porto", 60)
    alice.leave("own", holder.upper())
    assert anybody.find("broker", "own") == anybody.find("service", "own") == []
    alice.forget("own", 1)
    assert alice.leases("own") == []
    with refused(404, "E_invalidKeyPassed"):
        alice.leave("own", holder)


def test_leases_want_a_token_and_the_owner(directory: Directory) -> None:
    alice, bob, holder = directory.client("alice"), directory.client("bob"), str(uuid.uuid4())
    alice.claim("guarded", holder, "porto", 60)
    for method, path, body in (
        ("PUT", f"leases/{holder}", b'{"name": "porto", "seconds": 60}'),
        ("DELETE", f"leases/{holder}", None),
        ("GET", "leases", None),
        ("DELETE", "numbers/1", None),
    ):
        assert request(directory, method, f"/v1/meshes/guarded/{path}", body)[0] == 401
        status, answer = request(directory, method, f"/v1/meshes/guarded/{path}", body, bob._token)
        assert (status, json.loads(answer)["error"]) == (403, "E_userMismatch")
    assert [one["name"] for one in alice.find("broker", "guarded")] == ["porto"]


def test_many_records_are_registered_together_or_not_at_all(directory: Directory) -> None:
    alice = directory.client("alice")
    many = [{"sort": "broker", "mesh": "big", "name": f"b{number}", "number": number} for number in range(200)]
    alice.put_all([{"sort": "mesh", "name": "big"}, *many])
    assert len(alice.find("broker", "big")) == 200
    with pytest.raises(ClientError, match=r"records\[1\] \(broker twice\)"):
        alice.put_all([{"sort": "broker", "mesh": "big", "name": "new"}, {"sort": "broker", "mesh": "big", "name": "twice", "number": 7}])
    assert alice.find("broker", "big", "new") == []
    for wrong in (
        [],
        {"records": {}},
        {"records": [{"sort": "broker", "name": "a"}]},
        {"records": [{"sort": "mesh", "name": "a", "mesh": "b"}]},
    ):
        assert request(directory, "POST", "/v1/records", json.dumps(wrong).encode(), alice._token)[0] == 400
    assert request(directory, "POST", "/v1/records", b'{"records": []}')[0] == 401
    with refused(403, "E_userMismatch"):
        directory.client("bob").put_all([{"sort": "broker", "mesh": "big", "name": "intruder"}])


def test_the_description_names_every_path(directory: Directory) -> None:
    status, text = request(directory, "GET", "/openapi.json")
    assert status == 200
    assert {"/v1/records", "/v1/tokens", "/v1/meshes/{mesh}", "/v1/meshes/{mesh}/brokers/{name}"} <= set(json.loads(text)["paths"])
    assert request(directory, "GET", "/v1/health") == (200, b'{"status":"ok"}')
