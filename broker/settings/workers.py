"""The key `workers` of a broker's file, and what one worker is told by the process that starts it (docs/workers.md)."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...base.settings import Section

AUTO = "auto"
MOST = 32
FILE = "workers.json"  # in the folder of a running broker
RIGHT = f'give a whole number from 1 to {MOST}, or "{AUTO}" for one worker a core'
FOLDER = "worker-{}"  # in the data folder, of all workers but the first


@dataclass(frozen=True, slots=True)
class Worker:
    """One process of a broker that has several.

    name: of the broker.
    index: from 0; the first one also has what only one process can have.
    serving: how many take clients.
    total: of all, with those that only hold what earlier workers have left.
    folder: of their sockets and totals.
    key: what their links prove.
    listen: addresses of the broker, with their ports.
    started: when the broker did, seconds since 1970.
    """

    name: str
    index: int
    serving: int
    total: int
    folder: Path
    key: str = field(repr=False)
    listen: tuple[str, ...] = ()
    started: float = 0.0

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def serves(self) -> bool:
        """Whether it takes clients."""
        return self.index < self.serving

    def socket(self, index: int) -> str:
        """Where a worker listens for the others."""
        return f"unix://{self.folder / str(index)}.sock"

    def write(self) -> None:
        """Keep what is the same for all workers in their folder. Raises OSError."""
        path = self.folder / FILE
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self) | {"folder": str(self.folder)}))

    @classmethod
    def read(cls, place: Path) -> Worker:
        """The worker at FOLDER/INDEX. Raises OSError, ValueError."""
        table = json.loads((place.parent / FILE).read_text())
        return cls(**table | {"index": int(place.name), "folder": place.parent, "listen": tuple(table["listen"])})


def workers_of(section: Section) -> int:
    """How many workers a broker is to have. Raises ConfigError."""
    if not section.has("workers"):
        return 1
    value = section.table["workers"]
    if value == AUTO:
        return min(MOST, cores())
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise section.error("workers", RIGHT)
    return value


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def left_behind(data: Path | None) -> int:
    """How many workers a data folder is of: 1, if it has no folders of others."""
    if data is None:
        return 1
    numbers = [path.name.removeprefix(FOLDER.format("")) for path in data.glob(FOLDER.format("*")) if path.is_dir()]
    return 1 + max((int(one) for one in numbers if one.isdigit()), default=0)
