"""`mqmesh queue archive`: what is in an archive, without a broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.queues.archive import files
from mqmesh.cli.main import app
from typer.testing import CliRunner

pytest.importorskip("pyarrow")

PUT = 1_795_428_000_000


def command(*words: object, status: int = 0) -> str:
    found = CliRunner().invoke(app, ["queue", "archive", *map(str, words)], env={"COLUMNS": "250"})
    assert found.exit_code == status, found.output
    return str(found.output)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows: list[dict[str, Any]] = [
        {
            "queue": "orders",
            "site": "porto",
            "position": position,
            "publisher": "shop",
            "put": PUT + 1000 * position,
            "state": "JOURNALLED",
            "states": [{"who": "shop", "role": "publisher", "state": "PUT", "at": PUT}],
            "priority": 4,
            "topic": "$queue/orders",
            "properties": {"text": False, "user": [{"name": "color", "value": "red"}]},
            "payload": b"order %d" % position,
        }
        for position in (1, 2, 3)
    ]
    files.write(files.path_of(tmp_path, "orders", "porto-log-1", PUT), rows)
    return tmp_path


def test_files_and_messages(folder: Path) -> None:
    head, one = command("ls", folder).splitlines()
    assert head.split()[:4] == ["QUEUE", "MESSAGES", "FIRST", "LAST"]
    assert one.split()[:4] == ["orders", "3", "1", "3"]
    assert one.endswith("queue=orders/date=2026-11-23/porto-log-1.parquet")
    assert json.loads(command("ls", folder, "--json"))["files"][0]["messages"] == 3
    head, two = command("read", folder, "orders", "--from", 2, "--most", 1).splitlines()
    assert two.split()[:2] == ["porto", "2"]
    assert two.endswith("order 2")
    (row,) = json.loads(command("read", folder, "orders", "--since", "2026-11-23T10:00:03Z", "--json"))["messages"]
    assert (row["position"], row["payload"], row["properties"]["user"]) == (3, "b3JkZXIgMw==", [{"name": "color", "value": "red"}])
    assert command("read", folder, "others") == "no messages\n"


def test_what_is_wrong_is_told(folder: Path) -> None:
    assert "give archive ls FOLDER" in command("ls", status=2)
    assert "give archive ls FOLDER" in command("rm", folder, status=2)
    assert "no such folder" in command("ls", folder / "none", status=1)
    assert "give a time" in command("read", folder, "orders", "--since", "soon", status=2)
    path = folder / "queue=orders" / "date=2026-11-23" / "bad.parquet"
    path.write_bytes(b"no Parquet")
    assert str(folder) in command("ls", folder, status=1)
