"""The tables `[access]`, `[access.tokens]` and `[[access.rule]]` of a broker's file.

[access]
anonymous = false            # clients without a name of their own; true unless users, certificates or tokens are given; or a list of
                             # listeners that admit them, by name
users = "users"              # written by `mqmesh passwd`, relative to the file
operators = ["ops"]          # users who may see and end the sessions of others
on_overlap = "filter"        # a subscription of which the rules allow a part gets that part; "refuse", the default, refuses it
client_ids = ["%u", "%u-*"]  # client identifiers that a user may use: %u the name, * any characters
sessions_per_user = 100000   # of one user, connected or not; 0: no bound
accounts = { alice = "acme", "meter-*" = "grid" }  # whom the use of a user is charged to; else the account has the user's name
standing = "standing.json"   # who has paid, by `mqmesh billing standing`: messages of overdue accounts are refused
certificates = true          # the common name of a verified client certificate is the user

[access.tokens]
key = "tokens.pem"           # a public key, or a shared secret of at least 32 bytes
issuer = "https://id.example.com"
audience = "mqtt"
user = "sub"                 # the claim that names the user
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.settings import ConfigError, is_file
from .accounts import AccountStanding
from .identifiers import USER, Identifiers
from .rules import NOBODY, Rules, rules_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...base.settings import Section


SESSIONS = 100_000  # of one user: a tenth of what `limits.stored_sessions` has room for


@dataclass(slots=True)
class TokenSettings:
    """Which tokens are good. key: the file. user: the claim that names the user."""

    key: Path
    issuer: str | None = None
    audience: str | None = None
    user: str = "sub"


@dataclass(slots=True)
class AccessSettings:
    """Who may come, and what they may do. anonymous: also those who show nothing, at some listener. anonymous_at: the names of these
    listeners; None: all. users: the file of passwords. renewed: the broker's own
    file of Mosquitto's hashes made anew; None: they are not. operators: users who may see and end the sessions of others. on_overlap: of a
    subscription that rules allow in part: "refuse", or "filter" at delivery. identifiers: which client identifiers whom. sessions: of one
    user; 0: no bound. accounts: pattern of users -> account. standing: who has paid."""

    anonymous: bool = True
    users: Path | None = None
    renewed: Path | None = None
    certificates: bool = False
    tokens: TokenSettings | None = None
    rules: Rules = field(default_factory=Rules)
    operators: frozenset[str] = frozenset()
    on_overlap: str = "refuse"
    identifiers: Identifiers = field(default_factory=Identifiers)
    sessions: int = SESSIONS
    accounts: dict[str, str] = field(default_factory=dict)
    standing: AccountStanding = field(default_factory=AccountStanding)
    anonymous_at: frozenset[str] | None = None

    @property
    def asks(self) -> bool:
        """Whether clients have a way to say who they are."""
        return self.users is not None or self.certificates or self.tokens is not None

    def admits_anonymous(self, listener: str) -> bool:
        """Whether clients that show nothing may come in by a listener. listener: its name, "" if it has none."""
        return self.anonymous and (self.anonymous_at is None or listener in self.anonymous_at)

    def check_listeners(self, section: Section, names: Collection[str]) -> None:
        """Raises ConfigError if these settings speak of listeners that there are not. section: `[access]`. names: of the listeners."""
        rules = [(f"rule[{rule.number}].listeners", rule.listeners or ()) for rule in self.rules.rules]
        for key, said in (("anonymous", self.anonymous_at or ()), *rules):
            for name in sorted({*said} - {"", *names}):
                right = f'no listener has the name {name!r}: give it to one, as listen = [{{ address = "...", name = "{name}" }}]'
                raise section.error(key, right)

    @classmethod
    def of(cls, section: Section, folder: Path | None) -> AccessSettings:
        """Read the table. folder: what relative files are relative to. Raises ConfigError."""
        settings = cls()
        if section.has("users"):
            settings.users = _file(section, "users", folder, "give the path of a file that mqmesh passwd writes")
        settings.certificates = section.flag("certificates", False)
        if section.has("tokens"):
            settings.tokens = _tokens(section.section("tokens"), folder)
        if isinstance(section.table.get("anonymous"), list):
            settings.anonymous_at = frozenset(section.strings("anonymous", [], "give true, false, or names of listeners"))
            settings.anonymous = bool(settings.anonymous_at)
        else:
            settings.anonymous = section.flag("anonymous", not settings.asks)
        if not settings.asks and (settings.anonymous_at is not None or not settings.anonymous):
            raise section.error("anonymous", "nobody could come in: give users, certificates or tokens too")
        settings.rules = rules_of(section.sections("rule"))
        named = next((rule for rule in settings.rules.rules if rule.users not in (None, (NOBODY,))), None)
        if named is not None and not settings.asks:
            raise section.error("rule", f"rule {named.number} is for users, and no name is proven: give users, certificates or tokens")
        settings.operators = frozenset(section.strings("operators", [], 'give a list of users, as ["ops"]'))
        if settings.operators and not settings.asks:
            raise section.error("operators", "no name is proven: give users, certificates or tokens too")
        settings.on_overlap = section.choice("on_overlap", ("refuse", "filter"), "refuse")
        settings.identifiers = _identifiers(section, settings.asks)
        settings.sessions = section.whole("sessions_per_user", 0, 10**9, SESSIONS)
        settings.accounts = _accounts(section, settings.asks)
        settings.standing = _standing(section, folder, settings)
        section.done()
        return settings


def _accounts(section: Section, asks: bool) -> dict[str, str]:
    right = 'give a table of accounts by user, as { alice = "acme", "meter-*" = "grid" }'
    if not section.has("accounts"):
        return {}
    found = section.table["accounts"]
    if not isinstance(found, dict) or not all(isinstance(account, str) and account for account in found.values()):
        raise section.error("accounts", right)
    if found and not asks:
        raise section.error("accounts", "no name is proven: give users, certificates or tokens too")
    return dict(found)


def _standing(section: Section, folder: Path | None, settings: AccessSettings) -> AccountStanding:
    if not section.has("standing"):
        return AccountStanding(None, settings.accounts)
    if not settings.asks:
        raise section.error("standing", "no name is proven: give users, certificates or tokens too")
    path = _file(section, "standing", folder, "give the path of a file that mqmesh billing standing writes")
    try:
        return AccountStanding(path, settings.accounts)
    except ConfigError as error:
        raise section.error("standing", str(error)) from None


def _identifiers(section: Section, asks: bool) -> Identifiers:
    right = 'give a list of patterns, as ["%u", "%u-*"]: %u is the user, * any characters'
    patterns = section.strings("client_ids", [], right)
    for pattern in patterns:
        if not pattern or "%" in pattern.replace(USER, "") or "\0" in pattern:
            raise section.error("client_ids", f"{pattern!r}: {right}")
        if USER in pattern and not asks:
            raise section.error("client_ids", f"{pattern!r}: no name is proven: give users, certificates or tokens too")
    return Identifiers(tuple(patterns))


def _file(section: Section, key: str, folder: Path | None, right: str) -> Path:
    path = section.path_of(key, folder, right)
    if not is_file(path):
        raise section.error(key, f"there is no such file: {right}")
    return path


def _tokens(section: Section, folder: Path | None) -> TokenSettings:
    settings = TokenSettings(_file(section, "key", folder, "give the path of a public key in PEM, or of a shared secret"))
    for key in ("issuer", "audience", "user"):
        if section.has(key):
            setattr(settings, key, section.string(key))
    section.done()
    return settings
