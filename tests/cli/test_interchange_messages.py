"""`mqmesh interchange post` and `poll`: services on the command line, at a broker with an interchange."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mqmesh.client import ConnectionFactory, Delivered, Service, ServiceError
from support.command import run, start

pytestmark = pytest.mark.process

SERVICES = "".join(f'[services."{name}"]\nusers = ["*"]\n' for name in ("shop/orders", "bank/credit", "bank/other", "map/ids", "news/desk"))
SHOP, BANK = ("--as", "shop/orders"), ("--as", "bank/credit")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with an interchange."""
    folder = tmp_path_factory.mktemp("broker")
    (folder / "services.toml").write_text(SERVICES)
    (folder / "site.toml").write_text('listen = ["mqtt://127.0.0.1:0"]\ndata = "data"\n[interchange]\nservices = "services.toml"\n')
    with start("broker", "--config", folder / "site.toml") as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]
        process.terminate()


def said(address: str, command: str, *words: str) -> tuple[int, list[dict[str, Any]], str]:
    """Status, the JSON lines, what stands on stderr."""
    done: subprocess.CompletedProcess[bytes] = run("interchange", command, *words, "-h", address)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def test_a_request_is_posted_taken_and_answered(address: str) -> None:
    ask = (*SHOP, "--to", "bank/credit", "-m", '{"amount": 100}', "--content-type", "application/json", "--handle", "h-1")
    status, (told,), _ = said(address, "post", *ask)
    assert (status, set(told)) == (0, {"session", "call"})
    status, (request,), _ = said(address, "poll", "bank/credit")
    assert (status, request["kind"], request["sender"], request["body"]) == (0, "request", "shop/orders", '{"amount": 100}')
    assert (request["call"], request["content_type"]) == (told["call"], "application/json")
    said(address, "post", *SHOP, "--to", "bank/credit", "--kind", "notification", "-m", "second")
    assert said(address, "poll", "bank/credit")[1][0]["body"] == "second", "the first one was acknowledged"
    assert said(address, "post", *BANK, "--kind", "response", "--hop", request["hop"], "-m", "granted")[0] == 0
    status, (response,), _ = said(address, "poll", "shop/orders", "--selector", "handle = 'h-1'", "--keep")
    assert (status, response["kind"], response["body"], response["call"]) == (0, "response", "granted", told["call"])
    assert said(address, "poll", "shop/orders")[1][0]["hop"] == response["hop"], "it was kept"


def test_wait_prints_the_end_of_each_recipient(address: str) -> None:
    def refuse(request: Delivered) -> str:
        raise ServiceError(f"{request.text} is too much", "too-much")

    factory = ConnectionFactory(address)
    with Service("bank/other", factory) as bank, Service("map/ids", factory) as ids:
        bank.serve(lambda request: "granted")
        ids.serve(refuse)
        status, (told, *ends), _ = said(address, "post", *SHOP, "--to", "bank/other", "--to", "map/ids", "-m", "100", "--wait", "60")
    assert status == 1
    response, error = sorted(ends, key=lambda one: one["sender"])
    assert (response["body"], response["sender"], response["call"]) == ("granted", "bank/other", told["call"])
    assert (error["kind"], error["code"], error["reason"], error["sender"]) == ("error", "too-much", "100 is too much", "map/ids")


def test_a_wait_that_is_over_says_where_the_end_comes(address: str) -> None:
    status, (told,), text = said(address, "post", *SHOP, "--to", "bank/other", "-m", "1", "--wait", "0.1")
    assert (status, text) == (27, "mqmesh: interchange post: no end within 0.1 s: it will come to the inbox of shop/orders\n")
    assert said(address, "poll", "bank/other")[1][0]["call"] == told["call"]


def test_a_file_is_posted_and_options_count_more(address: str, tmp_path: Path) -> None:
    file = tmp_path / "message.toml"
    file.write_text('kind = "notification"\nsender = "shop/orders"\nrecipients = ["bank/credit"]\nbody = {amount = 5}\n')
    assert said(address, "post", str(file), "--to", "news/desk", "--topic", "news")[0] == 0
    _, (got,), _ = said(address, "poll", "news/desk")
    assert (got["kind"], got["topic"], got["body"]) == ("notification", "news", '{"amount": 5}')
    assert got["content_type"] == "application/json"


WRONG = [
    ("post", (*SHOP, "--to", "bank/none", "-m", "x"), 1, "unknown-service: there is no service 'bank/none'"),
    ("post", (*SHOP, "-m", "x"), 1, "recipients"),
    ("post", ("--to", "bank/credit", "--wait", "1"), 2, "--as SERVICE"),
    ("post", ("none.json",), 2, "none.json: cannot be read"),
    ("poll", ("bank/none",), 1, "Is there a service of this name"),
]


def test_what_is_wrong_is_said_in_a_line(address: str) -> None:
    with ThreadPoolExecutor(len(WRONG)) as threads:
        found = list(threads.map(lambda one: said(address, one[0], *one[1]), WRONG))
    for (_, words, status, text), (was, _, stderr) in zip(WRONG, found, strict=True):
        assert (was, len(stderr.splitlines())) == (status, 1), (words, stderr)
        assert text in stderr


def test_a_broker_without_an_interchange_is_named() -> None:
    with start("broker", "--listen", "mqtt://127.0.0.1:0") as process:
        assert process.stdout is not None
        status, _, text = said(process.stdout.readline().split()[1], "post", *SHOP, "--to", "bank/credit", "-m", "x")
        process.terminate()
    assert (status, "[interchange] in its file starts one" in text) == (1, True), text


def test_a_session_is_shown_as_a_picture(address: str) -> None:
    ask = ("--to", "bank/credit", "--to", "bank/other", "--via", "map/ids")
    _, (told,), _ = said(address, "post", *SHOP, *ask, "-m", "?", "--topic", "credit")
    for service in ("map/ids", "map/ids", "bank/credit"):
        _, (request,), _ = said(address, "poll", service, "--selector", "topic = 'credit'")
        assert said(address, "post", "--as", service, "--kind", "response", "--hop", request["hop"], "-m", "!")[0] == 0
    assert said(address, "post", *SHOP, "--kind", "cancel", "--call", told["call"], "--reason", "too slow")[0] == 0
    shown = run("interchange", "session", told["session"], "-h", address).stdout.decode()
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[0].startswith(f"session {told['session']} 20")
    assert lines[1] == f"request of shop/orders call {told['call']} cancelled topic credit"
    credit, other = lines.index("to bank/credit: answered"), lines.index("to bank/other: cancelled (too slow)")
    ways = [line.split(" s ", 1)[1].split(" B")[0] for line in lines[credit + 1 : other]]
    assert ways == [
        "shop/orders -> map/ids request 1",
        "map/ids -> bank/credit request 1",
        "bank/credit -> shop/orders response 1",
    ]
    assert [line.split(" s ", 1)[1] for line in lines[other + 2 :]] == [
        "map/ids -> bank/other request 1 B cancelled",
        "shop/orders -> bank/other cancel 0 B cancelled",
    ]
    status, (answer,), _ = said(address, "session", "--call", told["call"], "--json")
    assert (status, [one["call"] for one in answer["calls"]]) == (0, [told["call"]])
    status, _, text = said(address, "session", "--service", "map/none", "--status", "open")
    assert (status, "nothing is found" in text) == (1, True), text
    wrongs = {"status": ("--status", "odd"), "--since never: give a time": ("--since", "never"), "NAME=VALUE": ("--identifier", "x")}
    for wrong, words in wrongs.items():
        status, _, text = said(address, "session", *words)
        assert (status > 0, wrong in text, len(text.splitlines())) == (True, True, 1), text
