"""Topic filters, asked which of them have a topic in common with another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ...mqtt.topics import overlaps

END = None  # the key of what ends at a node


class OverlapIndex:
    """A multiset of topic filters: a tree of levels."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()
        self._root: dict[str | None, Any] = {}  # level -> the same; `END` -> the filter that ends there

    def add(self, filter_: str) -> None:
        """Add one, once more."""
        self._count[filter_] += 1
        node = self._root
        for level in filter_.split("/"):
            node = node.setdefault(level, {})
        node[END] = filter_

    def remove(self, filter_: str) -> None:
        """Remove one that is there, once."""
        self._count[filter_] -= 1
        if self._count[filter_]:
            return
        del self._count[filter_]
        levels = filter_.split("/")
        path = [self._root]
        for level in levels:
            path.append(path[-1][level])
        del path[-1][END]
        for node, level in zip(reversed(path[:-1]), reversed(levels), strict=True):
            if node[level]:
                break
            del node[level]

    def find(self, filter_: str) -> list[str]:
        """Those that overlap a filter, each once."""
        return [one for one in _walk(self._root, filter_.split("/"), 0) if overlaps(one, filter_)]  # `$` is another matter than `+`


def _walk(node: dict[str | None, Any], levels: list[str], at: int) -> Iterator[str]:
    if at == len(levels):
        if END in node:
            yield node[END]
        if "#" in node:  # `a/#` matches `a` too
            yield node["#"][END]
    elif levels[at] == "#":
        yield from _all(node)
    else:
        if "#" in node:
            yield node["#"][END]
        for level in [one for one in node if one not in (END, "#")] if levels[at] == "+" else {levels[at], "+"} & node.keys():
            yield from _walk(node[level], levels, at + 1)


def _all(node: dict[str | None, Any]) -> Iterator[str]:
    for level, found in node.items():
        if level is END:
            yield found
        else:
            yield from _all(found)
