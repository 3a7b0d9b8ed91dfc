"""Who has paid: a file that billing writes, and that brokers, directories and the interchange read before they serve an account.

    {"version": 1, "as_of": "2026-12-16", "accounts": {
        "acme": {"standing": "overdue", "since": "2026-12-16", "owed": "12.30 EUR", "invoices": ["INV-2026-11-acme"]}}}

An account that the file does not name has nothing to pay. Source: US 9,037,726, validation of a route (row M14).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .settings import MISSING, ConfigError

VERSION = 1
LOOK = 5.0  # seconds between two looks at the file
PAID, OPEN, OVERDUE = "paid", "open", "overdue"
STATES = (PAID, OPEN, OVERDUE)
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_RIGHT = "let `mqmesh billing standing` write it"


@dataclass(frozen=True, slots=True)
class Standing:
    """How an account stands. standing: paid, open (something is to be paid, and not yet due) or overdue.

    since: the first day of that, as 2026-12-16; "" for one that has paid. owed: what for people to read. invoices: those that are not paid.
    """

    standing: str = PAID
    since: str = ""
    owed: str = ""
    invoices: tuple[str, ...] = ()

    @property
    def overdue(self) -> bool:
        return self.standing == OVERDUE


@dataclass(frozen=True, slots=True)
class Standings:
    """The file. as_of: the day for which it was made."""

    as_of: str = ""
    accounts: Mapping[str, Standing] = field(default_factory=dict)

    def of(self, account: str | None) -> Standing:
        """How an account stands; None: one without a name, who pays nothing."""
        return self.accounts.get(account, Standing()) if account else Standing()

    def refusal(self, account: str | None) -> str | None:
        """Why an account is not served; None: it is."""
        found = self.of(account)
        if not found.overdue:
            return None
        return f"the account {account} is overdue since {found.since}: {found.owed} for {', '.join(found.invoices[:3])}"

    @property
    def overdue(self) -> frozenset[str]:
        """The accounts that are not served."""
        return frozenset(account for account, one in self.accounts.items() if one.overdue)

    def dumped(self) -> str:
        """The file's content."""
        accounts = {account: asdict(one) for account, one in sorted(self.accounts.items())}
        return json.dumps({"version": VERSION, "as_of": self.as_of, "accounts": accounts}, indent=1) + "\n"


Signature = tuple[int, int, int]


class StandingFile:
    """The file as a program sees it that runs on while billing replaces it. path: None: there is none, and everybody is served.

    A file that is damaged meanwhile leaves all as it was.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Raises ConfigError."""
        self._path = path
        self._seen = _signature(path) if path is not None else None
        self._due = 0.0
        self.standings = read_standings(path) if path is not None else Standings()

    def refusal(self, account: str | None) -> str | None:
        """Why an account is not served; None: it is."""
        return self.standings.refusal(account) if self._path is not None else None

    def look(self, now: float) -> bool:
        """Look at the file again when it is time. True: it has changed. now: seconds of a monotonic clock. Raises ConfigError."""
        if self._path is None or now < self._due:
            return False
        self._due = now + LOOK
        seen = _signature(self._path)
        if seen == self._seen:
            return False
        self._seen = seen
        self.standings = read_standings(self._path)
        return True


def _signature(path: Path) -> Signature | None:
    """What changes when a file does, or who may read it; None: it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ctime_ns, found.st_size, found.st_ino


def read_standings(path: Path) -> Standings:
    """Read the file. Raises ConfigError."""
    file = str(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(file, "", MISSING, f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(file, "", MISSING, f"is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("version") != VERSION:
        version = data.get("version", MISSING) if isinstance(data, dict) else MISSING
        raise ConfigError(file, "version", version, f"give {VERSION}: {_RIGHT}")
    accounts = data.get("accounts", {})
    if not isinstance(accounts, dict):
        raise ConfigError(file, "accounts", accounts, f"give an object of accounts: {_RIGHT}")
    return Standings(str(data.get("as_of", "")), {account: _standing(file, account, one) for account, one in accounts.items()})


def _standing(file: str, account: str, value: Any) -> Standing:
    key = f"accounts.{account}"
    if not isinstance(value, dict):
        raise ConfigError(file, key, value, f"give an object: {_RIGHT}")
    state, since = value.get("standing", MISSING), value.get("since", "")
    if state not in STATES:
        raise ConfigError(file, f"{key}.standing", state, f"give {', '.join(STATES[:-1])} or {STATES[-1]}")
    if since and not (isinstance(since, str) and _DAY.fullmatch(since)):
        raise ConfigError(file, f"{key}.since", since, 'give a day, as "2026-12-16"')
    invoices = value.get("invoices", [])
    if not isinstance(invoices, list):
        raise ConfigError(file, f"{key}.invoices", invoices, "give a list of invoice numbers")
    return Standing(state, since, str(value.get("owed", "")), tuple(map(str, invoices)))
