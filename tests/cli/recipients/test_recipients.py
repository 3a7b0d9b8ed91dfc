"""`mqmesh recipients`: the words on the command line, and what is shown of answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from mqmesh.cli.recipients import view
from mqmesh.cli.recipients.command import _changes, request_of
from mqmesh.cli.recipients.view import details, explained, moment, seconds, table
from support.command import run, start
from support.services import PATIENCE, free_port, wait_until

ORDERS: dict[str, Any] = {
    "name": "orders",
    "site": "porto",
    "state": "fault",
    "since": "2026-11-22T10:00:03.512Z",
    "queue": 1,
    "in_flight": 1,
    "probe": False,
    "message_interval": 10,
    "fault_interval": 300.0,
    "defunct_interval": 3600,
    "alternatives": [
        {"name": "orders-lyon", "state": "operational", "site": "lyon"},
        {"name": "orders-backup", "state": "defunct", "site": "graz"},
        {"name": "typo", "state": "unknown", "site": None},
    ],
    "failed_over": 1204,
    "returned": 0,
    "repeated": 3,
    "succeeded": 81204,
    "history": [{"at": "2026-11-22T10:00:03.512Z", "from": "operational", "to": "fault", "why": "nothing was acknowledged"}],
}
LYON = {"name": "orders-lyon", "site": "lyon", "state": "operational", "since": "2026-11-22T09:00:00Z", "queue": 0, "held": True}


def test_words_are_requests() -> None:
    assert request_of([]) == {"do": "list"}
    assert request_of(["orders"]) == {"do": "show", "name": "orders"}
    assert request_of(["show", "hold"]) == {"do": "show", "name": "hold"}
    assert request_of(["explain", "orders"]) == {"do": "explain", "name": "orders"}
    assert request_of(["move", "orders"]) == {"do": "move", "name": "orders"}
    assert request_of(["move", "orders", "lyon"]) == {"do": "move", "name": "orders", "to": "lyon"}


@pytest.mark.parametrize("words", [["hold"], ["move"], ["orders", "lyon"], ["hold", "a", "b"], ["move", "a", "b", "c"]])
def test_other_words_are_wrong_use(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        request_of(words)
    assert left.value.exit_code == 2
    assert "give nothing, NAME, or one of" in capsys.readouterr().err


def test_who_is_in_trouble_stands_first() -> None:
    head, orders, lyon, end = table([LYON, ORDERS]).splitlines()
    assert head.split() == ["NAME", "SITE", "STATE", "SINCE", "QUEUE", "IN", "FLIGHT", "FAILED", "OVER", "RETURNED", "ALTERNATIVES"]
    assert orders.startswith("orders       porto  fault              2026-11-22 10:00:03      1          1        1,204         0")
    assert orders.endswith("orders-lyon, orders-backup (defunct), typo (unknown)")
    assert "operational, held" in lyon
    assert end == "2 recipients, 1 in fault or defunct"
    assert table([]) == "no recipients"


def test_one_is_shown_with_its_history() -> None:
    shown = details(ORDERS)
    assert "state         fault since 2026-11-22 10:00:03" in shown
    assert "message 10 s, fault 5 min, defunct 1 h" in shown
    assert "probe         none" in shown
    assert "81,204 succeeded, 1,204 failed over, 0 returned, 3 repeated" in shown
    assert shown.splitlines()[-1] == "  2026-11-22 10:00:03  operational -> fault  nothing was acknowledged"
    assert "history" not in details(LYON)


def test_why_a_message_goes_where() -> None:
    steps = [
        {"recipient": "orders", "site": "porto", "state": "fault", "answer": "in fault"},
        {"recipient": "a\x1b", "site": None, "state": "?"},
    ]
    shown = explained({"name": "orders", "steps": steps, "goes_to": "orders-lyon"})
    assert shown.splitlines()[-1] == "a message for it goes to orders-lyon"
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "broken", [{"name": "a"}, {"name": "\n", "since": 3, "queue": "x", "alternatives": [{}], "probe": [], "history": [{}]}]
)
def test_an_answer_of_another_version_is_shown_as_far_as_it_goes(broken: dict[str, Any]) -> None:
    assert table([broken])
    assert details(broken)


def test_sessions_that_declared_nothing_are_a_line() -> None:
    assert view.others(None) == view.others({"fault": 0, "clients": []}) == []
    assert view.others({"fault": 2, "clients": ["a", "b"]}) == ["2 sessions that declared nothing take no messages: a, b"]


def test_times_are_short() -> None:
    assert [seconds(one) for one in (0.5, 10, 90, 300, 3600, None)] == ["0.5 s", "10 s", "90 s", "5 min", "1 h", "-"]
    assert [moment(one) for one in ("2026-11-22T10:00:03+00:00", None, "")] == ["2026-11-22 10:00:03", "-", "-"]
    assert view.name_of("") == "''"


def test_watching_tells_changes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[dict[str, Any]] = [{"recipients": []}, {"recipients": []}, {"recipients": [LYON]}, {"error": "it is gone"}]

    class Asked:
        def request(self, request: dict[str, object]) -> dict[str, Any]:
            return answers.pop(0)

    changes = _changes(Asked(), {"do": "list"}, 0.0)  # type: ignore[arg-type]
    assert [next(changes), next(changes)] == [{"recipients": []}, {"recipients": [LYON]}]
    with pytest.raises(ConnectionError, match="it is gone"):
        next(changes)


@pytest.mark.process
def test_without_a_broker_there_is_one_line() -> None:
    done = run("recipients", "-h", f"mqtt://127.0.0.1:{free_port()}")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"mqmesh: recipients: ")
    assert run("recipients", "hold", "orders", "--watch").returncode == 2


@pytest.mark.slow
def test_a_broker_that_is_a_process(tmp_path: Path) -> None:
    home = f"unix://{tmp_path}/s"
    head = f'name = "porto"\nlisten = ["{home}"]\nlimits.sys_interval = 1\n'
    (tmp_path / "broker.toml").write_text(head + '[recipients]\n[[recipients.application]]\nname = "orders"\nalternatives = ["backup"]\n')
    broker = start("broker", "--config", tmp_path / "broker.toml", stderr=tmp_path / "log")
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready "), (tmp_path / "log").read_text()
        assert b"orders  porto  operational" in run("recipients", "-h", home).stdout
        found = json.loads(run("recipients", "-h", home, "--json", "orders").stdout)
        assert found["recipients"][0]["alternatives"] == [{"name": "backup", "state": "unknown", "site": None}]
        assert b"a message for it goes to orders" in run("recipients", "-h", home, "explain", "orders").stdout
        assert b"held" in run("recipients", "-h", home, "hold", "orders").stdout
        done = run("recipients", "-h", home, "move", "orders", "backup")
        assert (done.returncode, done.stderr) == (1, b"mqmesh: recipients: there is no recipient 'backup'\n")
        assert b"defunct since" in run("recipients", "-h", home, "defunct", "orders").stdout
        wait_until(lambda: run("status", "-h", home, "--check").returncode == 1, PATIENCE, "the next values of $SYS")
        shown = run("status", "-h", home)
        assert b"0 operational, 0 in fault, 1 defunct" in shown.stdout
        assert b"not well: no messages are taken by 1 recipient: orders (mqmesh recipients)" in shown.stdout
    finally:
        broker.terminate()
        broker.communicate()
