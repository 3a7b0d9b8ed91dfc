"""Hashes of passwords that cost next to nothing. A hash of argon2id names its own costs, so any process can compare with them.

Those of the product take 25 and 80 ms of a processor on purpose. Tests make and compare hundreds, and hardly one is about the price.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import argon2
import pytest

_as_it_is = argon2.PasswordHasher.hash
_cheap = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def cheap_hashes() -> None:
    """From now on, in this process, every hasher makes cheap hashes."""

    def cheap(_: argon2.PasswordHasher, password: str | bytes, **more: Any) -> str:
        return _as_it_is(_cheap, password, **more)

    argon2.PasswordHasher.hash = cheap  # type: ignore[method-assign]


@contextmanager
def real_hashes() -> Iterator[None]:
    """For tests of what a hash costs. Hashes that are made once, at import, stay cheap."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argon2.PasswordHasher, "hash", _as_it_is)
        yield
