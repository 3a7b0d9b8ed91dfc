"""What is true about a made journal, counted while it is made: jobs are compared with it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ...broker.journal.schema import Kind
from ..latency.histogram import buckets
from .events import Columns, Messages
from .scene import DAY, Scene


class Truth:
    """Counts. Keys are numbers of brokers joined with `-`."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.kinds: Counter[str] = Counter()
        self.messages = self.incomplete = 0
        self.requests = self.answered = 0
        self.pairs: Counter[str] = Counter()
        self.links: Counter[str] = Counter()
        self.latency: dict[str, Counter[int]] = {}
        self.accounts: Counter[str] = Counter()

    def add(self, columns: Columns, messages: Messages, incomplete: np.ndarray) -> None:
        """One chunk."""
        run = self.scene.order.run
        self.messages += run * len(messages)
        self.incomplete += run * int(incomplete.sum())
        self._calls(messages, run)
        self.add_kinds(columns)
        kind, count = columns["kind"], columns["count"]
        arrived = (kind == Kind.RECEIVED) & (columns["origin"] != columns["broker"])
        _add(self.pairs, columns["origin"], columns["broker"], count, arrived)
        _add(self.links, columns["broker"], columns["to_broker"], count, kind == Kind.FORWARDED)
        published = kind == Kind.PUBLISHED
        _add(self.accounts, columns["account"], columns["published"] // DAY, columns["bytes"], published)
        delivered = kind == Kind.DELIVERED
        number = buckets(columns["time"][delivered] - columns["published"][delivered])
        pair = columns["origin"][delivered].astype(np.int64) << 40 | columns["broker"][delivered].astype(np.int64) << 20 | (number + 1)
        found, times = _weighed(pair, count[delivered])
        for key, of in zip(found, times, strict=True):
            histogram = self.latency.setdefault(f"{key >> 40}-{(key >> 20) & 0xFFFFF}", Counter())
            histogram[int(key & 0xFFFFF) - 1] += int(of)

    def add_kinds(self, columns: Columns) -> None:
        found, counts = _weighed(columns["kind"], columns["count"])
        for kind, count in zip(found, counts, strict=True):
            self.kinds[Kind(int(kind)).name.lower()] += int(count)

    def _calls(self, messages: Messages, run: int) -> None:
        """Requests are the messages of a call that is new; one with a second message is answered."""
        _, times = np.unique(messages.call[messages.call != 0], return_counts=True)
        self.requests += len(times)
        self.answered += int((times > 1).sum())

    def dumped(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "messages": self.messages,
            "incomplete": self.incomplete,
            "calls": self.requests,
            "answered": self.answered,
            "events": dict(self.kinds),
            "pairs": dict(self.pairs),
            "links": dict(self.links),
            "accounts": dict(self.accounts),
            "latency": {pair: {str(number): count for number, count in sorted(of.items())} for pair, of in self.latency.items()},
            "link_faults": [[*fault.ends, fault.begins, fault.ends_at] for fault in self.scene.link_faults],
            "recipient_faults": [
                [one.recipient, one.broker, one.began, one.fault_at, one.defunct_at, one.ends_at] for one in self.scene.recipient_faults
            ],
        }


def _weighed(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found, places = np.unique(values, return_inverse=True)
    return found, np.bincount(places, weights=weights.astype(np.float64), minlength=len(found)).astype(np.int64)


def _add(to: Counter[str], one: np.ndarray, other: np.ndarray, weights: np.ndarray, chosen: np.ndarray) -> None:
    a, b = one[chosen], other[chosen]
    if not len(a):
        return
    names, first = np.unique(a, return_inverse=True)
    more, second = np.unique(b, return_inverse=True)
    sums = np.bincount(first * len(more) + second, weights=weights[chosen].astype(np.float64), minlength=len(names) * len(more))
    for place in np.flatnonzero(sums):
        to[f"{names[place // len(more)]}-{more[place % len(more)]}"] += int(sums[place])
