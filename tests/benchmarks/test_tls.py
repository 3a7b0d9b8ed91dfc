"""The load generator over TLS against a real broker: everything comes, and it is found faultless."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import PEERS
from benchmarks.runner import Settings, measure
from benchmarks.scenarios import Scenario


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [{}, {"qos": 1, "window": 100}, {"publishers": 3}, {"sizes": (16, 20_000), "window": 500}, {"kind": "latency", "qos": 1}],
    ids=str,
)
def test_a_broker_with_tls_is_measured(tmp_path: Path, spec: dict[str, Any]) -> None:
    result = measure(Scenario("tls", "TLS", {"tls": True, **spec}), PEERS["mqmesh"], Settings(0.1, 0.05, 1), tmp_path / "broker")
    assert result["error"] == ""
    assert result["deliveries"] > 0
    assert [result[fault] for fault in ("lost", "duplicates", "disorder", "corrupt")] == [0, 0, 0, 0]
    assert "event=tls " in (tmp_path / "broker/mqmesh0.log").read_text()
