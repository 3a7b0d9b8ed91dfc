"""A dictionary with a bound."""

from __future__ import annotations

from mqmesh.base.cache import Cache


def test_the_oldest_entry_makes_room() -> None:
    cache: Cache[str, int] = Cache(2)
    cache.keep("a", 1)
    cache.keep("b", 2)
    cache.keep("a", 3)
    cache.keep("c", 4)
    assert dict(cache) == {"a": 3, "c": 4}


def test_an_entry_that_is_kept_again_needs_no_room() -> None:
    cache: Cache[str, int] = Cache(2)
    for key in "abb":
        cache.keep(key, 0)
    assert list(cache) == ["a", "b"]
