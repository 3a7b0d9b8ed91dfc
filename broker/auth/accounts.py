"""Accounts: whom the use of a user is charged to, and whether that account is served.

    [access]
    accounts = { alice = "acme", "meter-*" = "grid" }   # the first pattern that fits; else the account has the user's name
    standing = "standing.json"                          # who has paid, written by `mqmesh billing standing`

Messages of an overdue account are refused when they are published (0x87 with the reason). Its connections are under rules as those of
`[[access.rule]]` are: a connection asks once for each topic, and others do not notice. Source: US 9,037,726 (row M14).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from ...base.settings import ConfigError
from ...base.standing import LOOK, StandingFile
from ...base.wildcards import fits

log = logging.getLogger("mqmesh.broker")

__all__ = ["LOOK", "AccountStanding", "account_of"]


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
        self._accounts = accounts or {}
        self._file = StandingFile(path)

    def refusal(self, user: str | None) -> str | None:
        """Why a user's messages are refused; None: they are not."""
        return self._file.refusal(account_of(self._accounts, user)) if user is not None else None

    def look(self, now: float) -> bool:
        """Look at the file again when it is time. True: it has changed. now: seconds of a monotonic clock."""
        try:
            if not self._file.look(now):
                return False
        except ConfigError as error:
            log.error("event=standing-not-read text=%s", error)
            return False
        found = self._file.standings
        log.info("event=standing-read accounts=%d overdue=%s", len(found.accounts), ",".join(sorted(found.overdue)[:10]) or "-")
        return True
