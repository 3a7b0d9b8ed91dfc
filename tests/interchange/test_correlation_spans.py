"""Calls that have ended as OpenTelemetry spans, which a collector receives: each once, below the trace that came with the post."""

from __future__ import annotations

from pathlib import Path

from mqmesh.cli.main import app
from mqmesh.interchange.calls import State
from mqmesh.interchange.correlation import tables
from msgspec.structs import replace
from support.collector import Receiver, receiving
from typer.testing import CliRunner

from .test_correlation_tables import SESSION, call_of

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def export(folder: Path, receiver: Receiver) -> str:
    """What the command prints."""
    words = ["interchange", "export", "--data", str(folder), "--otlp", receiver.url, "--state", str(folder / "state.json")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.output.strip()


def test_each_call_that_has_ended_is_sent_once(tmp_path: Path) -> None:
    home = tables.connect(tmp_path / "correlation.db")
    tables.prepare(home)
    traced, failed, late = call_of(1), call_of(2, State.FAILED), call_of(3)
    for number, call in enumerate((traced, failed, late)):
        call.branches[0].hops[0].id = f"{100 + number:016x}"
    traced.header = replace(traced.header, trace=f"00-{TRACE}-{PARENT}-01")
    failed.branches[0].code, failed.branches[0].reason = "too-much", "5000 is too much"
    tables.write(home, [traced, failed, call_of(3, State.OUT)])
    with receiving() as receiver:
        assert export(tmp_path, receiver) == "2 calls, 4 spans sent"
        spans = {one["spanId"]: one for one in receiver.spans}
        whole, hop = spans[traced.id], spans[traced.branches[0].hops[0].id]
        assert (whole["traceId"], whole["parentSpanId"], whole["name"]) == (TRACE, PARENT, "request of shop/orders")
        assert (hop["traceId"], hop["parentSpanId"], hop["name"]) == (TRACE, traced.id, "request to bank/credit")
        assert hop["attributes"]["messaging.message.body.size"] == "5"
        wrong = spans[failed.id]
        assert (wrong["traceId"], "parentSpanId" in wrong, wrong["status"]["code"]) == (SESSION, False, 2)
        assert spans[failed.branches[0].hops[0].id]["parentSpanId"] == failed.id
        assert export(tmp_path, receiver) == "0 calls, 0 spans sent"
        tables.write(home, [late])
        assert export(tmp_path, receiver) == "1 call, 2 spans sent"
        assert len({one["spanId"] for one in receiver.spans}) == len(receiver.spans) == 6
    home.close()


def test_what_is_wrong_is_said_in_a_line(tmp_path: Path) -> None:
    for words, text in (
        (["--data", str(tmp_path / "none"), "--otlp", "http://127.0.0.1:9"], "is it the data folder of a broker with an interchange?"),
        (["--data", str(tmp_path), "--otlp", "ftp://x"], "is no address of a collector"),
        (["--data", str(tmp_path), "--otlp", "http://127.0.0.1:9", "--header", "x"], "NAME=VALUE"),
    ):
        done = CliRunner().invoke(app, ["interchange", "export", *words])
        assert done.exit_code == 2
        assert text in done.stderr
