"""The load generator of queues takes every message that it has put, over the protocol of each product that is installed."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from benchmarks.peers import PeerError
from benchmarks.queues.peers import ROWS, app
from benchmarks.queues.products import DEFAULT, PRODUCTS

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")]


@pytest.mark.parametrize("product", DEFAULT)
def test_it_takes_what_it_has_put(product: str) -> None:
    try:
        PRODUCTS[product].version()
    except PeerError as error:
        pytest.skip(str(error))
    rows = list(ROWS) if product == "mqmesh" else ["at random", "alone"]
    done = CliRunner().invoke(app, ["--products", product, "--only", ",".join(rows), "--repeat", "1", "--seconds", "0.1", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found) == rows
    for row in rows:
        assert found[row][product]["messages"] > 0
        assert found[row][product]["again"] == 0
