"""Topic names and topic filters (4.7): what is well-formed, what matches what, and two trees that answer that quickly.

`FilterTree` holds subscriptions and is asked with a topic; `TopicTree` holds retained messages and is asked with a filter.
Both cost the number of levels, not the number of entries.

Strategy of `FilterTree`: a filter without wildcards matches the one topic that is spelled like it, so such filters live in a
plain dict and cost one lookup. Only filters with wildcards stand in the trie. A filter with one subscriber, the common case,
stores its (key, value) as a tuple; a dict is made for the second.

Invariants
- no empty node stays in a tree: what is removed takes its path with it up to the first node that is still needed;
- a wildcard in the first level never matches a topic that begins with `$` [MQTT-4.7.2-1].

What they do not know: sessions, QoS, shared groups (`split_share` is for the caller), versions.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator
from itertools import zip_longest
from typing import Any, Generic, TypeVar

from ..base.cache import Cache
from ..base.pieces import pieces
from ..base.process.collector import LargeDict
from .errors import MalformedPacket, protocol_error
from .fields import text

V = TypeVar("V")

_SHARE = "$share/"
_CROWDED = re.compile(r"[^/]\+|\+[^/]", re.DOTALL)  # a + that shares its level with something

STEP = 512  # levels of filters that one step of `FilterTree.match_in_steps` visits
NAMES, SHORT = 1024, 64  # names of levels that a tree of topics knows, and the longest of these
PAUSE = 64  # levels that `TopicTree.walk` visits before it says that it goes on

MAX_LEVELS = 200
"""How many levels a server should take in a name or filter (`too_deep`). The standard sets no limit (4.7.3), but each level of a
stored filter or retained topic costs a node, so that 64 kB of slashes would cost 20 MB."""


def check_topic(raw: bytes) -> str:
    """The Topic Name as text, if it is one to publish to: not empty [MQTT-4.7.3-1], no wildcard [MQTT-3.3.2-2], good UTF-8."""
    topic = text(raw, "the Topic Name")
    if not topic:
        raise protocol_error("the Topic Name is empty", "MQTT-4.7.3-1")
    if "+" in topic or "#" in topic:
        raise MalformedPacket("the Topic Name contains a wildcard", "MQTT-3.3.2-2")
    return topic


def check_filter(filter_: str, shared: bool = True) -> None:
    """Raise `MalformedPacket` unless this is a Topic Filter: at least one character, `#` alone in the last level, `+` alone in its level.

    shared: whether ``$share/...`` must have the form of 4.8.2 too; MQTT 3.1.1 knows no shared subscriptions.
    """
    if not filter_:
        raise MalformedPacket("the Topic Filter is empty", "MQTT-4.7.3-1")
    if shared and filter_.startswith(_SHARE):
        split_share(filter_)
        return
    if "#" in filter_ and (filter_.find("#") != len(filter_) - 1 or (len(filter_) > 1 and filter_[-2] != "/")):
        raise MalformedPacket("# must stand alone in the last level of a Topic Filter", "MQTT-4.7.1-1")
    if "+" in filter_ and _CROWDED.search(filter_):
        raise MalformedPacket("+ must stand alone in its level of a Topic Filter", "MQTT-4.7.1-2")


def split_share(filter_: str) -> tuple[str, str] | None:
    """``$share/group/filter`` -> (group, filter); None for a filter that is not shared. Raises `MalformedPacket` (4.8.2)."""
    if not filter_.startswith(_SHARE):
        return None
    group, slash, rest = filter_[len(_SHARE) :].partition("/")
    if not group:
        raise MalformedPacket("the ShareName is empty", "MQTT-4.8.2-1")
    if "+" in group or "#" in group:
        raise MalformedPacket("the ShareName contains a wildcard", "MQTT-4.8.2-2")
    if not slash or not rest:
        raise MalformedPacket("no Topic Filter follows the ShareName", "MQTT-4.8.2-2")
    check_filter(rest, shared=False)
    return group, rest


def matches(filter_: str, topic: str) -> bool:
    """Whether a well-formed filter (not shared) matches a topic name (4.7.1, 4.7.2)."""
    if filter_ == topic:
        return True
    if topic.startswith("$") and filter_[0] in "+#":
        return False
    wanted = filter_.split("/")
    levels = topic.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True  # also the parent: index may equal len(levels)
        if index == len(levels) or (level != "+" and level != levels[index]):
            return False
    return len(wanted) == len(levels)


def covers(wide: str, narrow: str) -> bool:
    """Whether one filter matches every topic that another one matches."""
    if narrow.startswith("$") and wide[0] in "+#":
        return False
    levels = narrow.split("/")
    wanted = wide.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index == len(levels) or levels[index] == "#" or (level != "+" and level != levels[index]):
            return False
    return len(wanted) == len(levels)


def overlaps(one: str, other: str) -> bool:
    """Whether there is a topic that both filters match."""
    if (one.startswith("$") and other[0] in "+#") or (other.startswith("$") and one[0] in "+#"):
        return False
    if (one, other) in (("+", "/#"), ("/#", "+")):  # both match the empty name alone, which no topic has (4.7.3)
        return False
    for level, beside in zip_longest(one.split("/"), other.split("/")):
        if "#" in (level, beside):  # `a/#` matches `a` too
            return True
        if level is None or beside is None or not (level == beside or "+" in (level, beside)):
            return False
    return True


def intersection(one: str, other: str) -> str | None:
    """The filter of the topics that both filters match; None if there are none."""
    if not overlaps(one, other):
        return None
    (levels, below), (beside, beside_below) = _levels(one), _levels(other)
    if len(levels) < len(beside):
        levels, beside = beside, levels  # what is longer has levels of its own only where the other one ends with #
    narrow = [levels[at] if at >= len(beside) or levels[at] != "+" else beside[at] for at in range(len(levels))]
    return "/".join([*narrow, "#"] if below and beside_below else narrow)


def has_wildcard(filter_: str) -> bool:
    """Whether a well-formed filter contains `+` or `#`."""
    return "+" in filter_ or "#" in filter_


def too_deep(name: str, most: int = MAX_LEVELS) -> bool:
    """Whether a topic name or filter has more than `most` levels. For the caller to refuse: it is well-formed."""
    return name.count("/") >= most


# Values of one filter: None, a (key, value) tuple for one, a dict for more.
_Entry = Any


def _put(entry: _Entry, key: Hashable, value: Any) -> _Entry:
    if entry is None:
        return (key, value)
    if type(entry) is tuple:
        if entry[0] == key:
            return (key, value)
        entry = {entry[0]: entry[1]}
    entry[key] = value
    return entry


def _has(entry: _Entry, key: Hashable) -> bool:
    return entry is not None and (entry[0] == key if type(entry) is tuple else key in entry)


def _drop(entry: _Entry, key: Hashable) -> _Entry:
    """The entry without a key that it has."""
    if type(entry) is tuple:
        return None
    del entry[key]
    return next(iter(entry.items())) if len(entry) == 1 else entry


def _items(entry: _Entry) -> dict[Any, Any]:
    if entry is None:
        return {}
    return {entry[0]: entry[1]} if type(entry) is tuple else entry


def _levels(filter_: str) -> tuple[list[str], bool]:
    """The levels without a final `#`, and whether there was one."""
    levels = filter_.split("/")
    if levels[-1] == "#":
        levels.pop()
        return levels, True
    return levels, False


class _Node:
    """children: literal level -> node. plus: the node below `+`. here: values of the filter that ends here.
    below: values of the filter that goes on with `#` and ends."""

    __slots__ = ("below", "children", "here", "plus")

    def __init__(self) -> None:
        self.children: dict[str, _Node] | None = None
        self.plus: _Node | None = None
        self.here: _Entry = None
        self.below: _Entry = None

    def empty(self) -> bool:
        return not self.children and self.plus is None and self.here is None and self.below is None


class FilterTree(Generic[V]):
    """Topic filters, each with values under keys; asked which values a topic name concerns.

    Filters must be well-formed (`check_filter`) and without ``$share/group/`` in front (`split_share`).
    """

    __slots__ = ("_count", "_exact", "_root")

    def __init__(self) -> None:
        self._exact: LargeDict[str, _Entry] = LargeDict()
        self._root = _Node()
        self._count = 0

    def __len__(self) -> int:
        """The number of (filter, key) pairs."""
        return self._count

    def add(self, filter_: str, key: Hashable, value: V) -> bool:
        """Set the value of (filter, key); True if the pair is new, False if its value was replaced."""
        if not has_wildcard(filter_):
            entry = self._exact.get(filter_)
            new = not _has(entry, key)
            self._exact[filter_] = _put(entry, key, value)
        else:
            levels, below = _levels(filter_)
            node = self._root
            for level in levels:
                node = _step(node, level)
            entry = node.below if below else node.here
            new = not _has(entry, key)
            if below:
                node.below = _put(entry, key, value)
            else:
                node.here = _put(entry, key, value)
        self._count += new
        return new

    def remove(self, filter_: str, key: Hashable) -> bool:
        """Remove the value of (filter, key); False if there was none."""
        if not has_wildcard(filter_):
            entry = self._exact.get(filter_)
            if not _has(entry, key):
                return False
            left = _drop(entry, key)
            if left is None:
                del self._exact[filter_]
            else:
                self._exact[filter_] = left
        else:
            levels, below = _levels(filter_)
            path = self._path(levels)
            entry = None if path is None else path[-1].below if below else path[-1].here
            if path is None or not _has(entry, key):
                return False
            if below:
                path[-1].below = _drop(entry, key)
            else:
                path[-1].here = _drop(entry, key)
            _prune(path, levels)
        self._count -= 1
        return True

    def match(self, topic: str) -> list[V]:
        """The values of all filters that match a topic name; a value for each matching filter, in no particular order."""
        found: list[V] = []
        entry = self._exact.get(topic)
        if entry is not None:
            _collect(entry, found)
        nodes = [self._root]
        wild = not topic.startswith("$")
        for level in topic.split("/"):
            following = []
            for node in nodes:
                children = node.children
                if children is not None:
                    child = children.get(level)
                    if child is not None:
                        following.append(child)
                if wild:
                    if node.plus is not None:
                        following.append(node.plus)
                    if node.below is not None:
                        _collect(node.below, found)
            if not following:
                return found
            nodes = following
            wild = True
        for node in nodes:
            if node.here is not None:
                _collect(node.here, found)
            if node.below is not None:
                _collect(node.below, found)
        return found

    def match_in_steps(self, topic: str, found: list[V]) -> Iterator[None]:
        """`match` for whoever must not be held up: appends to `found`, and visits at most `STEP` levels of filters in each step.

        Filters made of `+` can have a topic concern very many levels. What is added or removed meanwhile may be found or not.
        """
        for entry in self._visit(topic):
            if entry is None:
                yield
            else:
                _collect(entry, found)

    def match_key_in_steps(self, topic: str, key: Hashable, found: list[V]) -> Iterator[None]:
        """The same for the values under one key."""
        for entry in self._visit(topic):
            if entry is None:
                yield
            elif _has(entry, key):
                found.append(_items(entry)[key])

    def _visit(self, topic: str) -> Iterator[_Entry]:
        """The entries of the filters that match a topic; None after every `STEP` levels."""
        entry = self._exact.get(topic)
        if entry is not None:
            yield entry
        nodes = [self._root]
        wild = not topic.startswith("$")
        visited = 0
        for level in topic.split("/"):
            following = []
            for node in nodes:
                child = node.children.get(level) if node.children is not None else None
                if child is not None:
                    following.append(child)
                if wild:
                    if node.plus is not None:
                        following.append(node.plus)
                    if node.below is not None:
                        yield node.below
                visited += 1
                if visited % STEP == 0:
                    yield None
            nodes = following
            wild = True
        for node in nodes:
            if node.here is not None:
                yield node.here
            if node.below is not None:
                yield node.below
            visited += 1
            if visited % STEP == 0:
                yield None

    def get(self, filter_: str) -> dict[Any, V]:
        """Key -> value of one filter, exactly as spelled; a copy, empty if there is none."""
        return dict(_items(self._entry(filter_)))

    def count(self, filter_: str) -> int:
        """How many keys one filter has."""
        return len(_items(self._entry(filter_)))

    def filters(self) -> Iterator[str]:
        """All filters that have a value, each once."""
        yield from self._exact
        stack: list[tuple[str, _Node]] = [("", self._root)]
        while stack:
            prefix, node = stack.pop()
            if node.here is not None:
                yield prefix[:-1]
            if node.below is not None:
                yield prefix + "#"
            if node.plus is not None:
                stack.append((prefix + "+/", node.plus))
            for level, child in (node.children or {}).items():
                stack.append((f"{prefix}{level}/", child))

    def _entry(self, filter_: str) -> _Entry:
        if not has_wildcard(filter_):
            return self._exact.get(filter_)
        levels, below = _levels(filter_)
        path = self._path(levels)
        if path is None:
            return None
        return path[-1].below if below else path[-1].here

    def _path(self, levels: list[str]) -> list[_Node] | None:
        """The nodes from the root along the levels; None if they end early."""
        node: _Node | None = self._root
        path = [self._root]
        for level in levels:
            node = path[-1].plus if level == "+" else (path[-1].children or {}).get(level)
            if node is None:
                return None
            path.append(node)
        return path


def _step(node: _Node, level: str) -> _Node:
    """The node below `node` along a level, made if it is not there."""
    if level == "+":
        if node.plus is None:
            node.plus = _Node()
        return node.plus
    if node.children is None:
        node.children = {}
    child = node.children.get(level)
    if child is None:
        child = node.children[level] = _Node()
    return child


def _prune(path: list[_Node], levels: list[str]) -> None:
    """Cut off the empty nodes at the path's end."""
    for index in range(len(levels) - 1, -1, -1):
        if not path[index + 1].empty():
            return
        parent, level = path[index], levels[index]
        if level == "+":
            parent.plus = None
        else:
            assert parent.children is not None
            del parent.children[level]
            if not parent.children:
                parent.children = None


def _collect(entry: _Entry, found: list[Any]) -> None:
    if type(entry) is tuple:
        found.append(entry[1])
    else:
        found.extend(entry.values())


class _Topics:
    """A level of the tree of topic names, with levels below it. topic: the name that ends here, None if none does.

    Below many a level there is one more only: a dictionary is made for the second.
    """

    __slots__ = ("_below", "_many", "_name", "topic")

    def __init__(self, topic: bytes | None = None) -> None:
        self.topic = topic
        self._name = b""
        self._below: _Topics | bytes | None = None  # the only one
        self._many: dict[bytes, _Topics | bytes] | None = None

    def get(self, name: bytes) -> _Topics | bytes | None:
        """What is below, by its name."""
        if self._many is not None:
            return self._many.get(name)
        return self._below if name == self._name else None

    def set(self, name: bytes, below: _Topics | bytes) -> None:
        """Add or replace what is below."""
        if self._many is not None:
            self._many[name] = below
        elif self._below is None or name == self._name:
            self._name, self._below = name, below
        else:
            self._many = {self._name: self._below, name: below}
            self._below = None

    def remove(self, name: bytes) -> bool:
        """Remove what is below: whether something is left."""
        many = self._many
        if many is None:
            self._below = None
            return False
        del many[name]
        if len(many) == 1:
            ((self._name, self._below),) = many.items()
            self._many = None
        return True

    def names(self) -> list[bytes]:
        """The names of all that is below."""
        return list(self._many) if self._many is not None else [] if self._below is None else [self._name]

    def items(self) -> Iterable[tuple[bytes, _Topics | bytes]]:
        """The same with what has them."""
        return self._many.items() if self._many is not None else () if self._below is None else ((self._name, self._below),)


class TopicTree(Generic[V]):
    """Topic names, each with one value (a retained message); asked which of them a filter matches.

    There may be millions of names. A name stands in the tree once, in UTF-8; a level without levels below it is the name that ends there.
    """

    __slots__ = ("_names", "_root", "_values", "deleted")

    def __init__(self) -> None:
        self._values: dict[bytes, V] = {}
        self._root = _Topics()
        self._names: Cache[bytes, bytes] = Cache(NAMES)  # of levels, which many topics share
        self.deleted = 0  # topics so far

    def __len__(self) -> int:
        """The number of topics."""
        return len(self._values)

    def __iter__(self) -> Iterator[bytes]:
        """All topics."""
        return iter(self._values)

    def get(self, topic: bytes) -> V | None:
        """The topic's value, or None."""
        return self._values.get(topic)

    def set(self, topic: bytes, value: V) -> None:
        """Give the topic a value, or replace it."""
        if topic not in self._values:
            *levels, last = topic.split(b"/")
            node = self._root
            for level in levels:
                child = node.get(level)
                if not isinstance(child, _Topics):
                    child = _Topics(child)
                    node.set(self._name(level), child)
                node = child
            child = node.get(last)
            if child is None:
                node.set(self._name(last), topic)
            else:
                assert isinstance(child, _Topics)
                child.topic = topic
        self._values[topic] = value

    def _name(self, level: bytes) -> bytes:
        """The name of a level, as one object for many topics."""
        if len(level) > SHORT:
            return level
        known = self._names.get(level)
        if known is None:
            self._names.keep(level, level)
        return known or level

    def delete(self, topic: bytes) -> bool:
        """Remove the topic and the levels that only it needed; False if it is not there."""
        if topic not in self._values:
            return False
        del self._values[topic]
        self.deleted += 1
        *levels, last = topic.split(b"/")
        path = [self._root]
        for level in levels:
            child = path[-1].get(level)
            assert isinstance(child, _Topics)
            path.append(child)
        node = path.pop()
        child = node.get(last)
        if isinstance(child, _Topics):
            child.topic = None
            return True
        left = node.remove(last)
        while path and not left:
            parent, level = path.pop(), levels.pop()
            if node.topic is not None:
                parent.set(level, node.topic)
                break
            left = parent.remove(level)
            node = parent
        return True

    def walk(self, filter_: str) -> Iterator[V | None]:
        """The values of the topics that a well-formed filter matches, one by one; None after every `PAUSE` levels that held none.

        The tree may change meanwhile: a topic that stays in it is found once, one that comes or goes may be found or not.
        """
        values = self._values
        if not has_wildcard(filter_):
            topic = filter_.encode()
            if topic in values:
                yield values[topic]
            return
        levels = filter_.encode().split(b"/")
        wild = levels[0] in (b"+", b"#")
        stack: list[tuple[_Topics, Iterator[bytes], int]] = []  # a node, its children to be visited, the level that they have to match
        node: _Topics | bytes | None = self._root
        at = steps = 0
        while True:
            steps += 1
            if steps % PAUSE == 0:
                yield None
            if node is not None:
                level = levels[at] if at < len(levels) else None
                here = node.topic if isinstance(node, _Topics) else node
                if here is not None and level in (None, b"#") and here in values:
                    yield values[here]
                if isinstance(node, _Topics) and level is not None:
                    stack.append((node, iter(node.names() if level in (b"+", b"#") else [level]), at))
            if not stack:
                return
            parent, names, at = stack[-1]
            name = next(names, None)
            if name is None:
                stack.pop()
                node = None
            elif wild and parent is self._root and name.startswith(b"$"):  # [MQTT-4.7.2-1]
                node = None
            else:
                node = parent.get(name)
                at += levels[at] != b"#"

    def pieces(self, size: int) -> Iterator[list[V]]:
        """The values of all topics, in lists of at most `size`, while topics come and go (`base/pieces.py`)."""
        return pieces(self._values, size, lambda: self.deleted)

    def match(self, filter_: str) -> list[tuple[bytes, V]]:
        """(topic, value) for each topic that a well-formed filter matches, in no particular order."""
        values = self._values
        if not has_wildcard(filter_):
            topic = filter_.encode()
            return [(topic, values[topic])] if topic in values else []
        nodes: list[_Topics | bytes] = [self._root]
        for index, level in enumerate(filter_.encode().split(b"/")):
            if level == b"#":
                return [(topic, values[topic]) for topic in _all_topics(nodes, hide=index == 0)]
            above = [node for node in nodes if isinstance(node, _Topics)]
            if level == b"+":
                nodes = [
                    child
                    for node in above
                    for name, child in node.items()
                    if index or not name.startswith(b"$")  # [MQTT-4.7.2-1]
                ]
            else:
                nodes = [child for node in above if (child := node.get(level)) is not None]
            if not nodes:
                return []
        topics = [node.topic if isinstance(node, _Topics) else node for node in nodes]
        return [(topic, values[topic]) for topic in topics if topic is not None]


def _all_topics(nodes: list[_Topics | bytes], hide: bool) -> Iterator[bytes]:
    """All topics at and below the nodes; hide: leave out what begins with `$` directly below them."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if not isinstance(node, _Topics):
            yield node
            continue
        if node.topic is not None:
            yield node.topic
        stack += [child for name, child in node.items() if not (hide and name.startswith(b"$"))]
        hide = False
