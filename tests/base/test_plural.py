"""Numbers of things."""

from __future__ import annotations

import pytest
from mqmesh.base.plural import counted


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((0, "message"), "0 messages"),
        ((1, "message"), "1 message"),
        ((1204, "retained message"), "1,204 retained messages"),
        ((1, "session", " of 5,000"), "1 of 5,000 sessions"),
    ],
)
def test_one_is_singular(given: tuple, text: str) -> None:
    assert counted(*given) == text
