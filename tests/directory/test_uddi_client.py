"""Services found with zeep: in our directory by its own WSDL and by that of OASIS, and at servers that mean no good."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mqmesh.directory import uddi_client
from mqmesh.directory.client import ClientError
from mqmesh.directory.storage.store import Store
from mqmesh.directory.storage.tables import Account
from mqmesh.directory.uddi import saving
from mqmesh.directory.uddi.documents import add, make
from mqmesh.directory.uddi_client import Inquiry
from support.directories import Directory
from support.peers.uddi_clients import OASIS

pytestmark = pytest.mark.process


@contextlib.contextmanager
def serving(handler: Callable[..., Any]) -> Iterator[str]:
    """An HTTP server of the test's own."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module", params=["own", "oasis"])
def wsdl(request: pytest.FixtureRequest, directory: Directory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the WSDL of the directory is: its own, or a foreign registry's, which is that of OASIS with the address in it."""
    if request.param == "own":
        yield directory.url
        return
    folder = tmp_path_factory.mktemp("oasis") / "uddi"
    shutil.copytree(OASIS.parent, folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    file = folder / "uddi_v3_service.wsdl"
    text = file.read_text()
    for face in ("inquire", "publish", "security"):
        text = text.replace(f"http://localhost/uddi/{face}/", f"{directory.url}/uddi")
    file.write_text(text)

    class Files(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with serving(functools.partial(Files, directory=folder)) as url:
        yield f"{url}/uddi_v3_service.wsdl"


@pytest.fixture(scope="module")
def world(directory: Directory) -> Directory:
    alice, bob = directory.client("alice"), directory.client("bob")
    alice.put("mesh", "ring")
    alice.put("service", "weather", "ring", addresses=["mqtt://a:1883", "mqtts://b:8883"])
    alice.put("broker", "porto", "ring", number=1, addresses=["mqtt://porto:1883"])
    alice.put("application", "gauges", "ring", alternatives=["porto"])
    alice.put("broker", "both", "ring", addresses=["mqtt://broker:1883"])
    alice.put("service", "both", "ring", addresses=["mqtt://service:1883"])
    alice.put("service", "shy", "ring", addresses=["mqtt://shy:1883"], visibility="organisation")
    bob.put("mesh", "other")
    bob.put("service", "weather", "other", addresses=["mqtt://c:1883"])
    return directory


def found(asked: Inquiry, name: str, mesh: str | None = None) -> list[list[str]]:
    return sorted(one["addresses"] for one in asked.find("service", mesh, name))


def test_services_are_found_by_name(wsdl: str, world: Directory) -> None:
    asked = Inquiry(wsdl)
    assert found(asked, "weather") == [["mqtt://a:1883", "mqtts://b:8883"], ["mqtt://c:1883"]]
    assert found(asked, "weather", "ring") == [["mqtt://a:1883", "mqtts://b:8883"]]
    assert found(asked, "weather", "nowhere") == found(asked, "nothing") == found(asked, "weathe%") == found(asked, "Weather") == []
    assert found(asked, "porto") == [["mqtt://porto:1883"]], "a broker is one too"
    assert found(asked, "both") == [["mqtt://service:1883"]]
    assert found(asked, "gauges") == []


def test_what_is_for_an_organisation_takes_an_account(wsdl: str, world: Directory) -> None:
    assert found(Inquiry(wsdl), "shy") == found(Inquiry(wsdl, ("bob", world.secrets["bob"])), "shy") == []
    asked = Inquiry(wsdl, ("anna", world.secrets["anna"]))
    assert found(asked, "shy") == [["mqtt://shy:1883"]]
    with contextlib.closing(sqlite3.connect(world.database.removeprefix("sqlite:///"))) as database, database:
        database.execute("DELETE FROM directory_tokens")
    assert found(asked, "shy") == [["mqtt://shy:1883"]], "it draws another token"
    with pytest.raises(ClientError, match="E_unknownUser"):
        found(Inquiry(wsdl, ("anna", "wrong")), "shy")


def test_a_binding_that_points_to_another_is_followed(wsdl: str, world: Directory) -> None:
    """A service as UDDI clients make them: without our categories, with other kinds of access points."""
    store, alice = Store(world.database), Account("alice", "acme")
    with store.writing(alice) as records:
        target = saving.whole(records, [records.record(records.record("", "mesh", "ring").key, "service", "weather")])[0]  # type: ignore[union-attr,list-item]
        key = target.find(".//{*}bindingTemplate").get("bindingKey")
        name = f"pointing-{time.monotonic_ns()}"
        element = make("businessService")
        add(element, "name", name)
        templates = add(element, "bindingTemplates")
        for kind, text in (("bindingTemplate", key), ("wsdlDeployment", "http://x/y.wsdl"), (None, " mqtt://plain:1 ")):
            add(add(templates, "bindingTemplate"), "accessPoint", text, useType=kind)
        saving.save(records, alice, "service", element, parent=records.record("", "mesh", "ring").key)  # type: ignore[union-attr]
    store.close()
    assert found(Inquiry(wsdl), name) == [["mqtt://a:1883", "mqtt://plain:1"]]


def test_a_registry_that_is_away(tmp_path: Path) -> None:
    own = Directory(f"sqlite:///{tmp_path / 'd.db'}", tmp_path / "log")
    asked = Inquiry(own.url)
    assert found(asked, "x") == []
    listen = own.url.removeprefix("http://")
    own.kill()
    for one in (asked, Inquiry(own.url)):
        with pytest.raises(ClientError, match="does not answer") as caught:
            found(one, "x")
        assert caught.value.status == 0
    own.start(listen)
    assert found(asked, "x") == []
    own.kill()


DTD = b'<!DOCTYPE d [<!ENTITY a "b">]><definitions xmlns="http://schemas.xmlsoap.org/wsdl/">&a;</definitions>'
EMPTY = b'<definitions xmlns="http://schemas.xmlsoap.org/wsdl/"/>'


@pytest.mark.parametrize("body", [b"", b"no XML", b"<html/>", DTD, EMPTY, b"<a>" * 3000, None])
def test_a_server_that_means_no_good_is_no_answer(monkeypatch: pytest.MonkeyPatch, body: bytes | None) -> None:
    monkeypatch.setattr(uddi_client, "LONGEST", 0.3)
    monkeypatch.setattr(uddi_client, "LARGEST", 100_000)
    ended = threading.Event()

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while body is None and not ended.wait(0.01):
                    self.wfile.write(b" ")  # for ever
                self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            pass

    with serving(Server) as url:
        with pytest.raises(ClientError, match="does not answer") as caught:
            found(Inquiry(f"{url}/?wsdl"), "x")
        ended.set()
    assert caught.value.status == 0


def test_an_answer_has_a_limit(monkeypatch: pytest.MonkeyPatch, world: Directory) -> None:
    asked = Inquiry(world.url)
    assert found(asked, "porto") != []
    monkeypatch.setattr(uddi_client, "LARGEST", 100)
    with pytest.raises(ClientError, match="100 bytes"):
        found(asked, "porto")


@pytest.mark.parametrize("url", ["x", "ftp://x", "http://", "127.0.0.1:8090"])
def test_a_url_that_cannot_be(url: str) -> None:
    with pytest.raises(ValueError, match="write http"):
        Inquiry(url)
