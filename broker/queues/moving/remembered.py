"""Stores beyond the data folder that have queues of this broker: a file beside the log.

So a queue is found after its table names another store, and after a crash on the way.

What it does not know: stores.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ....base.process.files import replace_file
from ....base.settings import MISSING, ConfigError


class Remembered:
    """The file `stores.json` of a folder. It may hold passwords, so nobody else may read it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "stores.json"
        self._known: set[str] | None = None

    def read(self) -> set[str]:
        """The URLs. Raises OSError, ConfigError."""
        try:
            self._known = set(map(str, json.loads(self._path.read_text(encoding="utf-8"))["stores"]))
        except FileNotFoundError:
            self._known = set()
        except (ValueError, KeyError, TypeError):
            text = "cannot be read: restore a copy, or remove it if no queue is in a store beyond this folder"
            raise ConfigError(str(self._path), "", MISSING, text) from None
        return set(self._known)

    def has(self, store: str) -> bool:
        """Whether a store is known, or has no URL: then it is in the folder."""
        return "://" not in store or (self._known is not None and store in self._known)

    def write(self, stores: Iterable[str]) -> None:
        """Those of these that have a URL are known from now on. Blocks. Raises OSError."""
        known = {one for one in stores if "://" in one}
        if known == self._known:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(self._path, json.dumps({"stores": sorted(known)}))
        self._known = known
