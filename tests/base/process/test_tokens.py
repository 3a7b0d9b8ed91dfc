"""Random bytes that are fetched many at a time."""

from __future__ import annotations

import secrets

import pytest
from mqmesh.base.process.tokens import MANY, Tokens


def test_each_is_another_one_and_the_system_is_asked_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    token_bytes = secrets.token_bytes
    monkeypatch.setattr(secrets, "token_bytes", lambda size: asked.append(size) or token_bytes(size))
    tokens = Tokens(12)
    found = [tokens.next() for _ in range(2 * MANY + 1)]
    assert {len(one) for one in found} == {12}
    assert len(set(found)) == len(found)
    assert asked == [MANY * 12] * 3
