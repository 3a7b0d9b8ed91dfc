"""What a person should know about a migrated file: the options that are lost, and those that mean something else here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

LOST = "lost"  # there is no equivalent: it has no effect here
NOTE = "note"  # it was taken, or is not needed, and differs in something


class Option(NamedTuple):
    """A line of a file that is read. name: the first word. value: the others. line: from 1; 0 for the file as a whole."""

    name: str
    value: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """Where it stands, as people write it: FILE:LINE."""
        return f"{self.file}:{self.line}" if self.line else self.file


class Remark(NamedTuple):
    """kind: LOST or NOTE. text: the reason, and what to do instead."""

    kind: str
    option: Option
    text: str

    @property
    def place(self) -> str:
        return self.option.place


@dataclass(slots=True)
class Remarks:
    """All of one run. lines: how many lines were read that say something."""

    found: list[Remark] = field(default_factory=list)
    lines: int = 0
    _known: set[Remark] = field(default_factory=set)

    def lost(self, option: Option, text: str) -> None:
        self._add(Remark(LOST, option, text))

    def note(self, option: Option, text: str) -> None:
        self._add(Remark(NOTE, option, text))

    def _add(self, remark: Remark) -> None:
        if remark not in self._known:
            self._known.add(remark)
            self.found.append(remark)

    @property
    def anything_lost(self) -> bool:
        return any(one.kind == LOST for one in self.found)
