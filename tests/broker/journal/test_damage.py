"""Files of a journal that are damaged: they are named, and what is whole is read all the same."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from mqmesh.broker.journal.following import Follower
from mqmesh.broker.journal.place import Place
from mqmesh.broker.journal.reading import Journal, Wrong, read_open
from mqmesh.broker.journal.schema import EVENTS, arrow_schema
from mqmesh.cli.main import app
from mqmesh.pipeline.reading.names import names_of
from support.written_journal import NOVEMBER, Written
from typer.testing import CliRunner

OPEN = "open/broker=1/1000-9.arrows"
# Eight programs that read the journal and end. Each is a fork of one that has loaded what they need, which takes most of a start.
READ_AND_END = """
import os, sys
import pyarrow.compute, pyarrow.dataset, pyarrow.parquet
from mqmesh.broker.journal.reading import Journal
for _ in range(8):
    if (child := os.fork()) == 0:
        journal = Journal(sys.argv[1])
        journal.names()
        list(journal.tables())
        break
    if status := os.waitpid(child, 0)[1]:
        sys.exit(f"the program ended with {status}")
"""


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Three segments of one client each, the second one damaged; a damaged file of names beside a whole one."""
    made = Written(tmp_path)
    segments = [made.events({"kind": 14, "client": f"client-{number}"}) for number in (1, 2, 3)]
    made.close()
    (tmp_path / segments[1].path).write_bytes(b"PAR1")
    (tmp_path / "names/broker=1/1000-0.parquet").write_bytes(b"PAR1")
    made.counts({"kind": 1, "messages": 3})
    return made


def files(wrong: Wrong) -> list[str]:
    return [name.rpartition("/")[2] for name, _ in wrong]


def test_a_damaged_segment_is_left_out_and_named(written: Written) -> None:
    wrong: Wrong = []
    tables = list(Journal(written.place).tables(wrong=wrong))
    assert [table.column("event").to_pylist() for table in tables] == [[1], [3]]
    assert files(wrong) == ["1000-2-2.parquet"]
    follower = Follower(Journal(written.place))
    assert [table.column("event").to_pylist() for table, _ in follower.read()] == [[1], [3]]
    assert files(follower.wrong) == ["1000-2-2.parquet"]
    assert not list(follower.read()), "it goes on behind the damaged one"


def test_names_of_whole_files_are_there_beside_a_damaged_one(written: Written) -> None:
    names, wrong = names_of(written.place)
    assert sorted(names.values()) == ["client-1", "client-2", "client-3"]
    assert files(wrong) == ["1000-0.parquet"]


def test_check_looks_at_names_and_counters_too(written: Written) -> None:
    counts = written.counts({"kind": 1, "messages": 3, "minute": 1})
    (Path(written.place.root) / counts).write_bytes(b"PAR1")
    assert sorted(files(Journal(written.place).check())) == ["1000-0.parquet", "1000-1-1.parquet", "1000-2-2.parquet"]


def test_cat_prints_the_rest_and_names_what_it_leaves_out(written: Written) -> None:
    (Path(written.place.root) / "manifest/broker=1/1000-3-3.json").write_bytes(b"{")
    found = CliRunner().invoke(app, ["journal", "cat", written.place.root])
    assert found.exit_code == 1
    assert [line.rpartition("=")[2] for line in found.stdout.splitlines()] == ["client-1"]
    assert found.stderr.count("left out") == 3


def test_follow_goes_on_beside_damaged_files(written: Written) -> None:
    found = CliRunner().invoke(app, ["journal", "follow", written.place.root, "--for", "0.1"])
    assert found.exit_code == 0
    assert found.stderr.count("left out") == 1, "the names; closed segments are older than what it follows"


def test_an_open_segment_gives_valid_events_whatever_its_bytes_are(tmp_path: Path) -> None:
    place, count = Place(tmp_path), 6
    defaults = {name: default for name, _, default in EVENTS}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow_schema()) as stream:
        for number in range(1, count):
            row = defaults | {"kind": 1, "event": number, "time": NOVEMBER, "detail": "é" * 9, "trace": "a" * 32}
            stream.write_table(pa.Table.from_pylist([row], arrow_schema()))
    whole, chance = sink.getvalue().to_pybytes(), random.Random(1)
    for _ in range(400):
        data = bytearray(whole)
        data[chance.randrange(len(data))] = chance.randrange(256)
        place.write(OPEN, bytes(data))
        found = read_open(place, OPEN)
        found.validate(full=True)
        assert found.num_rows < count


@pytest.mark.process
def test_a_program_that_has_read_a_journal_ends_in_order(tmp_path: Path) -> None:
    """Threads of pyarrow that still hold bytes of Python abort a program that ends."""
    made = Written(tmp_path)
    made.events({"kind": 14, "client": "one"})
    made.close()
    subprocess.run([sys.executable, "-c", READ_AND_END, str(tmp_path)], check=True, timeout=60)
