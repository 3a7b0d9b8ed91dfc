"""The tables of one home: what is written twice, erased, forgotten; and the audit, which says where it was changed."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from mqmesh.interchange.calls import Branch, Call, Hop, State, Step
from mqmesh.interchange.correlation import audit, tables
from mqmesh.interchange.correlation.questions import Question
from mqmesh.interchange.message import Declaration, Header, Kind
from support.command import run

SESSION = "0001" + "0" * 27 + "1"


def call_of(number: int, state: State = State.ANSWERED, recipient: str = "bank/credit") -> Call:
    """A request of the shop, posted at `number` seconds."""
    at = 1000 * number
    hops = [Hop(f"{2 * number:016x}", recipient, at, at + 1 if state.ended else 0, 0, "request", 5)]
    header = Header(Kind.REQUEST, "shop/orders", (Declaration(recipient),), handle=f"h-{number}")
    branch = Branch((Step(Declaration(recipient)),), state=state, hops=hops)
    ended = at + 1 if state.ended else 0
    return Call(f"{number:016x}", SESSION, header, at, at + 9, [branch], ended, (("shop/orders", "order", str(number)),))


@pytest.fixture
def home(tmp_path: Path) -> sqlite3.Connection:
    connection = tables.connect(tmp_path / "correlation.db")
    tables.prepare(connection)
    return connection


def found(home: sqlite3.Connection, organisation: str = "shop") -> list[str]:
    return [one["call"] for one in tables.find(home, [organisation], Question())]


def test_a_call_is_there_once_as_it_was_last(home: sqlite3.Connection) -> None:
    for state in (State.OUT, State.ANSWERED, State.ANSWERED):
        tables.write(home, [call_of(1, state)])
    [one] = tables.find(home, ["bank"], Question())
    assert one["status"] == "answered"
    whats = [row[0] for row in home.execute("SELECT what FROM audit ORDER BY number")]
    assert whats == ["given", "ended"]


@pytest.mark.parametrize("known", [False, True])
def test_later_calls_are_written_as_without_what_is_known_of_earlier_ones(home: sqlite3.Connection, known: bool) -> None:
    """Also those whose session began with them, and earlier ones that have changed."""
    own = call_of(5, State.OUT)
    own.session = f"{6:016x}" + "f" * 16
    later = call_of(7, recipient="map/ids")
    later.session = own.session
    done = call_of(5)
    done.session = own.session
    tables.write(home, [call_of(1), call_of(3, State.OUT)])
    tables.write(home, [call_of(3), own], since=call_of(3).id if known else "")
    tables.write(home, [done, call_of(6), later], since=own.id if known else "")
    assert found(home, "map") == [later.id, done.id]
    assert found(home, "bank") == [later.id, call_of(6).id, done.id, call_of(3).id, call_of(1).id]
    rows = home.execute("SELECT call, what FROM audit ORDER BY call, number").fetchall()
    assert rows == [(call_of(one).id, what) for one in (1, 3, 5, 6, 7) for what in ("given", "ended")]
    assert audit.verify(home).broken is None


def test_a_commit_that_fails_leaves_no_transaction_open(home: sqlite3.Connection) -> None:
    home.executescript(
        """
        PRAGMA foreign_keys = ON;
        CREATE TABLE other (call TEXT REFERENCES erased (service) DEFERRABLE INITIALLY DEFERRED);
        CREATE TRIGGER wrong AFTER INSERT ON calls BEGIN INSERT INTO other VALUES ('is not there'); END;
        """
    )
    with pytest.raises(sqlite3.IntegrityError):
        tables.write(home, [call_of(1)])
    assert not home.in_transaction
    home.execute("DROP TRIGGER wrong")
    tables.write(home, [call_of(2)])
    assert found(home) == [call_of(2).id]


def test_who_comes_to_a_session_later_sees_what_was_before(home: sqlite3.Connection) -> None:
    tables.write(home, [call_of(1)])
    assert found(home, "map") == []
    tables.write(home, [call_of(2, recipient="map/ids")])
    assert found(home, "map") == [call_of(2).id, call_of(1).id]


def test_an_erased_service_is_named_nowhere_also_after_it_is_written_again(home: sqlite3.Connection) -> None:
    tables.write(home, [call_of(1), call_of(2)])
    assert tables.erase(home, "shop/orders", 3000) == 2
    tables.write(home, [call_of(1), call_of(4)])
    kept = json.dumps([home.execute(f"SELECT * FROM {table}").fetchall() for table in ("participants", "identifiers", "audit")])
    assert kept.count("shop/orders") == 2, "the call of after the erasure has it, as a participant and as an identifier"
    texts = dict(home.execute("SELECT call, shown FROM calls"))
    named = {call for call, text in texts.items() if "shop/orders" in text or '"handle"' in text}
    assert named == {call_of(4).id}
    assert len(found(home, "bank")) == 3
    assert audit.verify(home).broken is None


def test_what_is_old_is_forgotten_and_what_is_open_is_not(home: sqlite3.Connection) -> None:
    tables.write(home, [call_of(1, State.OUT), call_of(2), call_of(9)], [(2000, "u", "c", "duplicate", "text")])
    assert tables.forget(home, 5000) == 1
    assert found(home) == [call_of(9).id, call_of(1).id]
    assert home.execute("SELECT COUNT(*) FROM refused").fetchone() == (0,)
    checked = audit.verify(home)
    assert (checked.broken, checked.rows) == (None, 3)
    tables.write(home, [call_of(10)])
    assert audit.verify(home).broken is None


@pytest.mark.process
@pytest.mark.parametrize("change", ["UPDATE audit SET at = 1 WHERE number = 2", "DELETE FROM audit WHERE number = 2"])
def test_the_audit_says_which_row_is_not_as_it_was(home: sqlite3.Connection, tmp_path: Path, change: str) -> None:
    tables.write(home, [call_of(1), call_of(2)])
    whole = run("interchange", "audit", "verify", "--data", tmp_path)
    assert (whole.returncode, whole.stdout.decode().split(";")[0]) == (0, "4 rows whole")
    head = whole.stdout.decode().split()[-1]
    assert run("interchange", "audit", "verify", "--data", tmp_path, "--head", head).returncode == 0
    home.execute(change)
    broken = run("interchange", "audit", "verify", "--data", tmp_path)
    assert (broken.returncode, "row 2 " in broken.stderr.decode()) == (1, True)


@pytest.mark.process
def test_an_audit_that_was_cut_off_at_its_end_is_found_by_its_head(home: sqlite3.Connection, tmp_path: Path) -> None:
    tables.write(home, [call_of(1), call_of(2)])
    head = run("interchange", "audit", "verify", "--data", tmp_path).stdout.decode().split()[-1]
    home.execute("DELETE FROM audit WHERE number = 4")
    cut = run("interchange", "audit", "verify", "--data", tmp_path, "--head", head)
    assert (cut.returncode, "row 4 " in cut.stderr.decode()) == (1, True)


@pytest.mark.process
def test_a_service_is_erased_by_a_command(home: sqlite3.Connection, tmp_path: Path) -> None:
    tables.write(home, [call_of(1)])
    done = run("interchange", "erase", "shop/orders", "--data", tmp_path)
    assert (done.returncode, "1 call" in done.stderr.decode()) == (0, True), done
    assert found(home, "bank") == [call_of(1).id]
    assert run("interchange", "erase", "shop/orders", "--data", tmp_path / "none").returncode == 2
