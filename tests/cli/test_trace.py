"""`mqmesh trace` over journals: text, JSON, a picture, and what is wrong in one line."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from mqmesh.cli.main import app
from mqmesh.cli.moments import moment
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish, Suback, Subscribe, Subscription
from support.command import start
from support.journals import SECOND, START, JournalMaker, message
from support.raw_client import RawClient
from support.services import PATIENCE, free_port, wait_until
from typer.testing import CliRunner


@pytest.fixture
def sites(tmp_path: Path) -> list[str]:
    """The journals of two sites: the first two brokers write one, the third another."""
    makers = JournalMaker(tmp_path / "one"), JournalMaker(tmp_path / "two")
    for number in (1, 2, 3):
        rows = makers[0].way(number, at=START + number * SECOND)
        makers[0].write([row for row in rows if row["broker"] < 3])
        if number != 2:
            makers[1].write([row for row in rows if row["broker"] == 3])
    return [f"--journal={maker.root}" for maker in makers]


def trace(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["trace", *arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_a_message_over_the_journals_of_two_sites(sites: list[str], tmp_path: Path) -> None:
    said = trace(str(message(1)), *sites, f"--svg={tmp_path / 'way.svg'}")
    assert "complete" in said
    assert "acknowledged" in said
    assert "client reader" in said
    assert len(ET.parse(tmp_path / "way.svg").getroot()) > 6


def test_conditions_and_json(sites: list[str]) -> None:
    lines = [json.loads(line) for line in trace("--client", "publisher", "--json", *sites).splitlines()]
    assert [(line["status"], len(line["steps"])) for line in lines] == [("complete", 6), ("not received", 3), ("complete", 6)]
    (one,) = trace("--status", "not received", "--json", *sites).splitlines()
    assert json.loads(one)["message"] == str(message(2))
    assert len(trace("--topic", "shop/#", "--limit", "2", "--json", *sites).splitlines()) == 2


@pytest.mark.parametrize(("arguments", "status"), [
    (["7.1.1.1"], 2),
    (["x", "--journal=/nowhere"], 2),
    (["--journal=/nowhere"], 2),
    (["--since=yesterday", "--journal=/nowhere"], 2),
    (["--call=zz", "--journal=/nowhere"], 2),
    (["--status=good", "--journal=/nowhere"], 2),
    (["7.1.1.1", "--journal=/nowhere"], 1),
    (["7.1.1.1", "--tables=/nowhere"], 1),
])  # fmt: skip
def test_what_is_wrong(arguments: list[str], status: int) -> None:
    said = trace(*arguments, status=status)
    assert said.startswith("mqmesh: trace: ")
    assert len(said.splitlines()) == 1


def test_times() -> None:
    assert moment("--since", "10min", now=1000.0) == 400 * SECOND
    assert moment("--since", "1970-01-01T00:00:01") == SECOND


@pytest.mark.slow
def test_a_running_broker_is_asked_first(tmp_path: Path) -> None:
    port, config = free_port(), tmp_path / "site.toml"
    home = f"unix://{tmp_path}/s"
    config.write_text(f'listen = ["mqtt://127.0.0.1:{port}", "{home}"]\n[journal]\nfolder = "{tmp_path}/journal"\n')
    process = start("broker", "--config", config, stderr=tmp_path / "log")
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready"), (tmp_path / "log").read_text()
        client = RawClient(port)
        client.send(Connect("sensor", 5, True, 0, None, None, None, {}))
        client.expect(Connack)
        client.send(Subscribe(1, [Subscription("shop/#", 1)], {}), Publish("shop/a", b"x", 1, packet_id=2))
        client.expect(Suback)
        found = {type(packet): packet for packet in (client.expect(object), client.expect(object))}
        client.send(Puback(found[Publish].packet_id))
        client.nothing()
        said: list[str] = []

        def written() -> bool:
            found_there = CliRunner().invoke(app, ["trace", "--live", home, "--client", "sensor", "--json"])
            said.append(found_there.output)
            return found_there.exit_code == 0 and "complete" in said[-1]

        wait_until(written, PATIENCE, "end of its way in the journal, which is written off the loop")
        (line,) = said[-1].splitlines()
        one = json.loads(line)
        assert (one["status"], one["topic"], one["source"]) == ("complete", "shop/a", "live")
        assert "not permitted" in trace("--live", f"mqtt://127.0.0.1:{port}", "--client", "sensor", status=1)
        client.close()
    finally:
        process.terminate()
        process.communicate()
