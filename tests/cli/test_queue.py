"""`mqmesh queue`: the words on the command line, and what is shown of a broker's queues and of those of other sites."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import typer
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.cli.main import app
from mqmesh.cli.queue.command import request_of
from mqmesh.cli.queue.view import done, messages, table
from mqmesh.mqtt.packets import Puback
from support.broker_site import Client, JumpingLoop, Site, until
from support.command import run, start
from support.management import BELIEVING, EVERYBODY
from typer.testing import CliRunner

KEY = "a key of sixteen bytes"


@pytest.fixture(autouse=True)
def _in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run beside the broker's loop, where signals are not theirs."""
    monkeypatch.setattr("mqmesh.cli.connection.end_on_sigterm", lambda: None)


def beside_a_broker(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in the loop of its brokers; commands run in threads."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            runner.run(test(**arguments))

    return run


def settings(folder: Path, **rules: Rules) -> QueueSettings:
    return QueueSettings(dict(rules), folder=folder / "queues", durability="os")


async def command(site: Site, *words: object, status: int = 0) -> list[str]:
    """The lines that a command prints."""
    arguments = ["queue", *map(str, words), "-h", site.broker.addresses[0]]
    found = await asyncio.to_thread(CliRunner().invoke, app, arguments, env={"COLUMNS": "200"})
    assert found.exit_code == status, found.output
    return str(found.output).splitlines()


def cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


async def filled(site: Site) -> Client:
    """A queue with one message that is done, one that worker-1 has, and one that waits."""
    shop, worker = await site.client("shop"), await site.client("worker-1", receive_maximum=2)
    for payload in (b"first", b"second", b"third"):
        await shop.publish("$queue/orders", payload, qos=1)
    await worker.subscribe("$queue/orders", qos=1)
    taken = await worker.messages(2, acknowledge=False)
    await worker.unsubscribe("$queue/orders")
    assert [one.payload for one in taken] == [b"first", b"second"]
    again = await site.client("worker-2", receive_maximum=1)
    await again.subscribe("$queue/orders", qos=1)
    (one,) = await again.messages(1, acknowledge=False)
    again.send(Puback(one.packet_id))
    await again.messages(1, acknowledge=False)
    return again


def test_words_are_requests() -> None:
    assert request_of([]) == request_of(["ls"]) == {"do": "list"}
    assert request_of(["show", "orders"]) == {"do": "show", "name": "orders"}
    assert request_of(["trace", "orders", "17"]) == {"do": "trace", "name": "orders", "position": 17}
    assert request_of(["redrive", "dead"]) == {"do": "redrive", "name": "dead"}
    assert request_of(["redrive", "dead", "orders"]) == {"do": "redrive", "name": "dead", "to": "orders"}
    declared = request_of(["declare", "orders", "deliveries=5", "age=7d", "single=true", 'subscribers=["a"]', "plan=a | b", "bytes=1 GiB"])
    settings = {"deliveries": 5, "age": "7d", "single": True, "subscribers": ["a"], "plan": "a | b", "bytes": "1 GiB"}
    assert declared == {"do": "declare", "name": "orders", "settings": settings}
    assert request_of(["declare", "orders"]) == {"do": "declare", "name": "orders", "settings": {}}
    assert request_of(["delete", "orders"]) == {"do": "delete", "name": "orders"}
    assert request_of(["again", "orders", "17", "a"]) == {"do": "again", "name": "orders", "position": 17, "member": "a"}


MOVES = "new {} to sqlite; mqmesh queue show says how far it is"


@pytest.mark.parametrize(
    "words",
    [
        ["bring"],
        ["show"],
        ["ls", "orders"],
        ["trace", "orders"],
        ["trace", "orders", "x"],
        ["again", "a", "1"],
        ["declare"],
        ["declare", "a", "b"],
        ["delete", "a", "b=1"],
    ],
)
def test_other_words_are_wrong_use(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left:
        request_of(words)
    assert left.value.exit_code == 2
    assert "give" in capsys.readouterr().err


@pytest.mark.parametrize(("wrong", "right"), [("pek", "peek"), ("list", "ls"), ("archiv", "archive")])
def test_a_word_that_is_nearly_right_gets_the_right_one(wrong: str, right: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        request_of([wrong, "orders"])
    assert capsys.readouterr().err == f'mqmesh: queue: {wrong} orders; did you mean "{right}"?\n'


@beside_a_broker
async def test_kept_messages_are_read_given_to_others_and_edited(tmp_path: Path) -> None:
    rules = {"orders": Rules(retention=3600), "others": Rules()}
    async with Site(f"unix://{tmp_path}/socket", queues=settings(tmp_path, **rules)) as site:
        await filled(site)
        head, first, second, more = await command(site, "read", "orders", "--since", "1h", "--most", 2)
        assert cells(head) == ["POSITION", "PUT", "PUBLISHER", "BYTES", "STATE", "PAYLOAD"]
        assert cells(first)[::5] == ["1", "first"]
        assert (cells(first)[4], cells(second)[4]) == ("at an end", "REVEALED")
        assert more == "more from position 3 on"
        assert await command(site, "read", "orders", "--from", 9) == ["no messages"]
        assert cells((await command(site, "needed", "orders"))[1])[:2] == ["worker-2", "1"]
        assert await command(site, "distribute", "orders", "$queue/others", "--last", 2) == ["2 messages distributed"]
        await command(site, "distribute", "orders", "$queue/others", status=2)
        assert await command(site, "edit", "orders", 3, "--text", "drei") == ["message 4 is in the place of message 3"]
        assert cells((await command(site, "read", "orders", "--from", 4))[1])[5] == "drei"
        await command(site, "edit", "orders", 4, status=2)
        await command(site, "edit", "orders", 4, "--file", tmp_path / "none", status=2)


@beside_a_broker
async def test_tables_of_one_broker(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path, orders=Rules(deliveries=5), spare=Rules())) as site:
        await filled(site)
        head, orders, spare = await command(site)
        assert cells(head) == ["QUEUE", "SITE", "PLAN", "WAITING", "IN FLIGHT", "MEMBERS", "OLDEST", "PUT", "DONE", "RETURNED", "DEAD"]
        assert cells(orders)[:6] == ["orders", "site0", "pool", "1", "1", "1"]
        assert cells(orders)[-4:] == ["3", "1", "2", "0"]
        assert cells(spare) == ["spare", "site0", "pool", "0", "0", "0", "-", "0", "0", "0", "0"]
        shown = await command(site, "show", "orders")
        assert [cells(line)[0] for line in shown[:10]] == [
            *("queue", "site", "plan", "waiting", "in flight", "dead letters", "since the start", "declared", "store", "settings")
        ]
        assert "3 put, 1 done, 2 returned" in shown[6]
        assert (cells(shown[7])[1], "deliveries 5" in shown[9]) == ("in the file", True)
        assert cells(shown[8]) == ["store", "log"]
        assert [cells(line) for line in shown[10:]] == [["MEMBER", "STATE", "IN FLIGHT"], ["worker-2", "there", "1"]]
        head, second, third = await command(site, "peek", "orders", "--from", 2)
        assert cells(head)[:3] == ["POSITION", "PUT", "PUBLISHER"]
        assert (cells(second)[0], cells(second)[-2:]) == ("2", ["worker-1 EXPIRED, worker-2 GET", "second"])
        assert (cells(third)[0], cells(third)[-1]) == ("3", "third")
        assert (await command(site, "peek", "orders", "--most", 1, "--from", 2))[-1] == "more from position 3 on"
        first, head, *states, last = await command(site, "trace", "orders", 1)
        assert first.startswith("message 1 of orders, 5 bytes")
        assert [cells(line)[:2] for line in states if "worker-2" in line] == [
            ["subscriber worker-2", state] for state in ("EXPIRED", "GET", "FETCHED", "DONE", "JOURNALLED (IMPLIED)")
        ], "it could not have the message while worker-1 had it"
        assert last == "nobody needs it any more"
        assert (await command(site, "trace", "orders", 2))[-1] == "worker-2 has it"
        assert json.loads((await command(site, "show", "orders", "--json"))[0])["queue"]["waiting"] == 1


@beside_a_broker
async def test_changes_and_refusals(tmp_path: Path) -> None:
    rules = {"orders": Rules(reveal=False), "dead": Rules(), "small": Rules(messages=1)}
    async with Site(f"unix://{tmp_path}/socket", queues=settings(tmp_path, **rules)) as site:
        shop = await site.client("shop")
        for payload in (b"1", b"2", b"3"):
            await shop.publish("$queue/orders", payload, qos=1)
        assert await command(site, "reveal", "orders", 1) == ["message 1 is REVEALED"]
        assert await command(site, "withdraw", "orders", 2) == ["message 2 is UNAVAILABLE"]
        await shop.publish("$queue/orders", b"4", qos=1)
        assert await command(site, "priority", "orders", 4, 9) == ["message 4 is PUT, with priority 9"]
        assert await command(site, "expire", "orders", 4) == ["message 4 is JOURNALLED"]
        assert "priority from 0 to 9" in (await command(site, "priority", "orders", 4, "high", status=2))[-1]
        await shop.publish("$queue/orders", b"5", qos=1)
        found = "put right: 0 children with their parents, 2 messages revealed, 0 taken back from members that are gone"
        assert await command(site, "recover", "orders", "--dry-run") == [f"would be {found}"]
        assert await command(site, "recover", "orders") == [found]
        assert await command(site, "purge", "orders", "--dry-run") == ["3 messages would be purged"]
        assert await command(site, "purge", "orders") == ["3 messages purged"]
        assert await command(site, "redrive", "dead") == ["0 messages redriven"]
        for payload in (b"1", b"2"):
            await shop.publish("$queue/dead", payload, qos=1)
        left = "there are more: small: the queue holds 1 of 1 messages"
        assert await command(site, "redrive", "dead", "small") == [f"1 message redriven; {left}"]
        assert "there is no queue 'none' at site0" in (await command(site, "show", "none", status=1))[-1]
        assert "never was" in (await command(site, "trace", "orders", 9, status=1))[-1]
        assert "leave it out with reveal" in (await command(site, "reveal", "orders", 1, "--dry-run", status=2))[-1]
        assert await command(site, "declare", "new", "deliveries=3", "--dry-run") == ["queue new would be declared"]
        assert await command(site, "declare", "new", "deliveries=3") == ["queue new is declared"]
        assert await command(site, "move", "new", "--store", "sqlite", "--dry-run") == [MOVES.format("would go")]
        assert await command(site, "move", "new", "--store", "sqlite") == [MOVES.format("goes")]
        assert "give log, sqlite" in (await command(site, "move", "new", "--store", "disk", status=1))[-1]
        assert "give --store" in (await command(site, "move", "new", status=2))[-1]
        assert "deliveries = 0.5" in (await command(site, "declare", "odd", "deliveries=0.5", status=1))[-1]
        await shop.publish("$queue/new", b"1", qos=1)
        assert "not at an end" in (await command(site, "delete", "new", status=1))[-1]
        assert await command(site, "delete", "new", "--force", "--dry-run") == ["queue new would be deleted, with 1 message"]
        assert await command(site, "delete", "new", "--force") == ["queue new is deleted, with 1 message"]
        assert await command(site, "pause", "orders", "--dry-run") == ["queue orders would be paused"]
        assert await command(site, "pause", "orders") == ["queue orders is paused"]
        assert cells((await command(site, "ls"))[2])[:3] == ["orders", "site0", "pool, paused"]
        assert await command(site, "resume", "orders") == ["queue orders is worked again"]
        assert "--force goes with delete" in (await command(site, "purge", "orders", "--force", status=2))[-1]
        await shop.publish("$queue/orders", b"6", qos=1)
        for option in (("--from", 6), ("--last", 6), ("--most", 20), ("--since", "1h"), ("--store", "lmdb")):
            said = (await command(site, "purge", "orders", *option, status=2))[-1]
            assert f"{option[0]} goes with" in said, "it would purge everything"
        assert (await command(site, "trace", "orders", 6))[-1] == "it is not revealed yet"
        assert await command(site, "reveal", "orders", 6) == ["message 6 is REVEALED"]
        assert (await command(site, "trace", "orders", 6))[-1] == "any member may take it", "no member is there"
    async with Site() as site:
        assert "has no queues" in (await command(site, status=1))[-1]


@beside_a_broker
async def test_queues_of_other_sites(tmp_path: Path) -> None:
    here = MeshSettings("m", KEY)
    async with Site(mesh=(1, here), management=EVERYBODY) as one:
        there = MeshSettings("m", KEY, peers=[PeerSettings(one.broker.addresses[0])])
        queues = settings(tmp_path, orders=Rules(messages=9))
        async with Site(mesh=(2, there), management=BELIEVING, queues=queues) as two:
            await until(lambda: all(sum(m.live for m in site.broker.site.mesh.node.members()) == 2 for site in (one, two)))
            await filled(two)
            head, row, end = await command(one, "ls", "--at", "*")
            assert cells(head)[:6] == ["SITE", "NAME", "PLAN", "WAITING", "IN FLIGHT", "MEMBERS"]
            assert cells(row)[:6] == ["site2", "orders", "pool", "1", "1", "1"]
            assert end == "1 of 1 at 2 sites"
            head, row, bounds, head, member = await command(one, "show", "orders", "--at", "site2")
            assert bounds.startswith("site2: messages 9, when_full refuse")
            assert cells(member) == ["site2", "orders", "worker-2", "yes", "1", "yes"]
            _, third, end = await command(one, "peek", "orders", "--at", "site2", "--from", 3, "--payload")
            assert (cells(third)[1], cells(third)[-1]) == ("3", "third")
            shown = await command(one, "trace", "orders", 1, "--at", "site2")
            assert [cells(line)[1:4] for line in shown[1:4]] == [
                ["shop", "publisher", state] for state in ("PUT", "REVEALED", "JOURNALLED")
            ]
            assert "there is no queue 'none' at site2" in (await command(one, "show", "none", "--at", "site2", status=1))[-1]
            assert "leave out --at" in (await command(one, "read", "orders", "--at", "site2", status=2))[-1]
            text = "withdrawn from queue orders: 1 message"
            assert await command(one, "purge", "orders", "--at", "site2", "--dry-run") == [f"site2: would: {text}"]
            assert await command(one, "purge", "orders", "--at", "site2") == [f"site2: {text}"]
            assert await command(one, "declare", "new", "deliveries=3", "--at", "2") == ["site2: queue new is declared"]
            said = await command(one, "pause", "new", "--at", "*", status=1)
            assert any("site1: this broker has no queues" in line for line in said)
            assert "site2: queue new is paused" in said
            assert (await command(one, "ls", "--at", "2"))[1].split()[-1] == "yes", "site2 has paused it"
            assert "to a queue of that site" in (await command(one, "distribute", "new", "a/b", "--last", 1, "--at", "2", status=2))[-1]


def test_tables_take_what_strangers_choose() -> None:
    """Names, handles and payloads are those of clients: no control character and no second line reaches the terminal."""
    one: dict[str, Any] = {"position": 1, "put": None, "publisher": "a\x1b[2J\nb", "payload": "x" * 100, "subscribers": {"\t": "GET"}}
    assert "\x1b" not in messages({"messages": [one]})
    assert len(messages({"messages": [one]}).splitlines()) == 2
    assert messages({"messages": []}) == "no messages"
    assert table({"queues": []}) == "no queues"
    assert done({}) == "message ? is -"


@pytest.mark.slow
def test_a_declared_queue_survives_kill_9(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(f'listen = ["unix://{tmp_path}/s"]\ndata = "{tmp_path}/data"\n[queues]\n')
    for declared in (False, True):
        process = start("broker", "--config", tmp_path / "site.toml")
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        shown = run("queue", *(("ls",) if declared else ("declare", "orders", "deliveries=5")), "-h", f"unix://{tmp_path}/s")
        process.kill()
        process.communicate()
        assert shown.returncode == 0, shown.stderr
        assert b"orders" in shown.stdout
