"""The audit trail as files: it only ever grows, a run goes on where the last one ended, and what comes late is added at the end.

    audit/trail/000000000001.jsonl     records, chained (chain.py); a file begins with the record that it is named after
    audit/state.json                   the head of the chain, and which events of which broker's life are in it

The state is written last. Files that begin beyond its head are of a run that did not end; the next one writes them anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...broker.journal.place import Place
from ..errors import PipelineError
from .chain import Broken, Head, chained, line, verify

FOLDER, STATE = "audit/trail", "audit/state.json"
CHUNK = 50_000  # records of one file
Life = tuple[int, int]  # a broker and its epoch
Ranges = list[tuple[int, int]]  # first and last, rising, apart


@dataclass(slots=True)
class State:
    """head: of the chain. covered: events of a life that were looked at, as ranges."""

    head: Head = field(default_factory=Head)
    covered: dict[Life, Ranges] = field(default_factory=dict)

    def dumped(self) -> bytes:
        covered = {f"{broker}.{epoch}": ranges for (broker, epoch), ranges in sorted(self.covered.items())}
        return json.dumps({"head": str(self.head), "covered": covered}).encode()

    @classmethod
    def loaded(cls, data: bytes) -> State:
        """Raises ValueError."""
        try:
            found = json.loads(data)
            covered = {}
            for key, ranges in found["covered"].items():
                broker, _, epoch = key.partition(".")
                covered[int(broker), int(epoch)] = [(int(first), int(last)) for first, last in ranges]
            return cls(Head.parse(found["head"]), covered)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"is no state of an audit trail: {error}") from None


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in order, those that touch as one."""
    made: Ranges = []
    for first, last in sorted(ranges):
        if made and first <= made[-1][1] + 1:
            made[-1] = (made[-1][0], max(made[-1][1], last))
        else:
            made.append((first, last))
    return made


def missing(first: int, last: int, covered: Ranges) -> Ranges:
    """The parts of a range that are not covered."""
    made: Ranges = []
    for begin, end in covered:
        if end < first or begin > last:
            continue
        if begin > first:
            made.append((first, begin - 1))
        first = end + 1
    return [*made, (first, last)] if first <= last else made


class Trail:
    """The audit trail below a root, a folder or URL."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def state(self) -> State:
        """What the last run left. Raises PipelineError."""
        try:
            return State.loaded(self.place.read(STATE))
        except FileNotFoundError:
            return State()
        except ValueError as error:
            raise PipelineError(f"{self.place.url(STATE)}: {error}") from None

    def append(self, state: State, records: Iterable[Mapping[str, Any]], covered: Mapping[Life, Ranges]) -> State:
        """Add records, and note which events were looked at. state: as `state` gave it. Returns the new one."""
        for name in self.files():
            if number_of(name) > state.head.number:
                self.place.remove(name)
        head, lines = state.head, []
        first = head.number + 1
        for record in chained(records, head):
            lines.append(line(record))
            head = Head(record["number"], record["hash"])
            if len(lines) == CHUNK:
                self._write(first, lines)
                first, lines = head.number + 1, []
        if lines:
            self._write(first, lines)
        lives = set(state.covered) | set(covered)
        made = State(head, {life: joined([*state.covered.get(life, []), *covered.get(life, [])]) for life in lives})
        self.place.write(STATE, made.dumped())
        return made

    def _write(self, first: int, lines: list[str]) -> None:
        self.place.write(f"{FOLDER}/{first:012}.jsonl", "".join(lines).encode())

    def files(self) -> list[str]:
        """Names of the files, in order."""
        return sorted(self.place.files(FOLDER, ".jsonl"))

    def lines(self) -> Iterator[str]:
        """Every record that the state covers, as text."""
        number = self.state().head.number
        for name in self.files():
            if number_of(name) <= number:
                yield from self.place.read(name).decode("utf-8", "replace").splitlines()

    def verify(self, noted: Head | None = None) -> Head:
        """Read it all, and compare it with the state and with a head that was noted earlier. Raises Broken, PipelineError."""
        state = self.state()
        head = verify(self.lines(), noted)
        if head != state.head:
            raise Broken(f"the trail ends with {head}, and its state says {state.head}")
        return head


def number_of(name: str) -> int:
    """The number of the first record of a file; 0 for a file of another name."""
    text = name.rpartition("/")[2].removesuffix(".jsonl")
    return int(text) if text.isdigit() else 0
