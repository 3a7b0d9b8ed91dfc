"""Accounts: whom the use of a user is charged to, and whether that account is served.

    [access]
    accounts = { alice = "acme", "meter-*" = "grid" }   # the first pattern that fits; else the account has the user's name
    standing = "standing.json"                          # who has paid, written by `mqmesh billing standing`

Messages of an overdue account are refused when they are published (0x87 with the reason). Its connections are under rules as those of
`[[access.rule]]` are: a connection asks once for each topic, and others do not notice. Source: US 9,037,726 (row M14).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...base.settings import ConfigError
from ...base.standing import Standings, read_standings
from ...base.wildcards import fits

log = logging.getLogger("mqmesh.broker")

LOOK = 5.0  # seconds between two looks at the file
Signature = tuple[int, int, int]


def account_of(accounts: Mapping[str, str], user: str | None) -> str | None:
    """The account of a user; None: of one without a name."""
    if user is None:
        return None
    return next((account for pattern, account in accounts.items() if fits(pattern, user)), user)


class AccountStanding:
    """Which users are refused. path: the file; None: nobody is.

    A file that is damaged while the broker runs is logged, and all stays as it was.
    """

    def __init__(self, path: Path | None = None, accounts: Mapping[str, str] | None = None) -> None:
        """Raises ConfigError."""
        self._path = path
        self._accounts = accounts or {}
        self._seen: Signature | None = None
        self._due = 0.0
        self._standings = Standings()
        if path is not None:
            self._seen = _signature(path)
            self._standings = read_standings(path)

    def refusal(self, user: str | None) -> str | None:
        """Why a user's messages are refused; None: they are not."""
        if user is None or self._path is None:
            return None
        return self._standings.refusal(account_of(self._accounts, user))

    def look(self, now: float) -> bool:
        """Look at the file again when it is time. True: it has changed. now: seconds of a monotonic clock."""
        if self._path is None or now < self._due:
            return False
        self._due = now + LOOK
        seen = _signature(self._path)
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self._standings = read_standings(self._path)
        except ConfigError as error:
            log.error("event=standing-not-read text=%s", error)
            return False
        log.info(
            "event=standing-read accounts=%d overdue=%s", len(self._standings.accounts), ",".join(_shown(self._standings.overdue)) or "-"
        )
        return True


def _shown(accounts: Iterable[str]) -> list[str]:
    return sorted(accounts)[:10]


def _signature(path: Path) -> Signature | None:
    """What changes when a file does; None: it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
