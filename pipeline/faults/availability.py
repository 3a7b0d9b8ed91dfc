"""How much of each month something was there, from the intervals in which it was not. Plain Python: there are few of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

Subject = tuple[str, int, int, int]  # what, a, b, recipient


class Interval(NamedTuple):
    """When something was down. Times are microseconds since 1970; ended: None while it lasts."""

    what: str
    a: int
    b: int
    recipient: int
    began: int
    ended: int | None


def availability(subjects: Iterable[Subject], intervals: Iterable[Interval], first: int, last: int) -> list[dict[str, Any]]:
    """One row for each subject and month (UTC) between first and last."""
    of: dict[Subject, list[tuple[int, int]]] = {}
    for one in intervals:
        of.setdefault(one[:4], []).append((max(first, one.began), min(last, one.ended if one.ended is not None else last)))
    rows = []
    for subject in subjects:
        down = merged(of.get(subject, []))
        for month, begin, end in months(first, last):
            lost = sum(max(0, min(end, b) - max(begin, a)) for a, b in down)
            what, a, b, recipient = subject
            share = 1 - lost / (end - begin)
            rows.append(
                {
                    "month": month,
                    "what": what,
                    "a": a,
                    "b": b,
                    "recipient": recipient,
                    "observed": end - begin,
                    "down": lost,
                    "share": share,
                }
            )
    return rows


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans without overlap, in order; empty ones are left out."""
    made: list[tuple[int, int]] = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if made and begin <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        else:
            made.append((begin, end))
    return made


def months(first: int, last: int) -> Iterator[tuple[str, int, int]]:
    """month, begin and end of each month between two times."""
    begin = first
    while begin < last:
        moment = datetime.fromtimestamp(begin / 1e6, UTC)
        year, month = (moment.year + 1, 1) if moment.month == 12 else (moment.year, moment.month + 1)
        end = min(last, int(datetime(year, month, 1, tzinfo=UTC).timestamp()) * 1_000_000)
        yield f"{moment:%Y-%m}", begin, end
        begin = end


def site_intervals(site: int, links: Iterable[tuple[int, int]], intervals: Iterable[Interval], last: int) -> list[Interval]:
    """When all links of a site were down at the same time. links: all of the mesh."""
    own = {ends for ends in links if site in ends}
    spans = {
        ends: merged((one.began, last if one.ended is None else one.ended) for one in intervals if one.what == "link" and one[1:3] == ends)
        for ends in own
    }
    if not own:
        return []
    common = spans.pop(min(own))
    for other in spans.values():
        common = [(max(a, c), min(b, d)) for a, b in common for c, d in other if max(a, c) < min(b, d)]
    return [Interval("site", site, -1, 0, begin, end) for begin, end in common]
