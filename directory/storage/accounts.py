"""Accounts and tokens: who may publish.

The secret of an account is generated here (256 bits) or chosen by its holder. The database holds its argon2id hash. A token is issued for a
secret. It is valid for TOKEN_LIFE seconds in every process over the same database; only its SHA-256 is stored.
"""

from __future__ import annotations

import hashlib
import re
import secrets

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from ...base.logins import hash_of_nobody
from .errors import DirectoryError
from .login_turns import TooMany
from .rows import NODE, Records
from .store import Store
from .tables import Account

TOKEN_LIFE = 3600.0  # seconds
_LONGEST = 1024  # characters of a secret
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_hasher = PasswordHasher()
# Compared when there is no such account: it must take as long.
_nobody = hash_of_nobody(_hasher.memory_cost, _hasher.time_cost, _hasher.parallelism)


def add_account(store: Store, name: str, organisation: str, secret: str | None = None, *, interchange: bool = False) -> str:
    """Add an account or replace its secret. Returns the secret. Raises ValueError for an invalid name. interchange: see `Account`."""
    for what in (name, organisation):
        if not _NAME.fullmatch(what) or what == NODE:
            raise ValueError(f"{what!r}: a name has letters, digits and . _ @ -, begins with a letter or digit, and is not {NODE!r}")
    secret = secret or secrets.token_urlsafe(32)
    hashed = _hasher.hash(secret)
    with store.writing() as records:
        records.put_account(Account(name, organisation, interchange), hashed)
    return secret


def draw_token(store: Store, name: str, secret: str, source: str = "") -> str:
    """A token for a secret. source: the address that asks.

    Raises DirectoryError: E_unknownUser for a wrong name or secret, E_busy when it is not this login's turn soon.
    """
    with store.reading() as records:
        found = records.account(name[:255])
    account, hashed = found if found is not None else (None, _nobody)
    if not _matches(store, name, hashed, secret, source) or account is None:
        raise DirectoryError("E_unknownUser", "no account has this name and secret")
    token = secrets.token_urlsafe(32)
    with store.writing() as records:
        records.put_token(_digest(token), account.name, records.now + TOKEN_LIFE)
    return token


def discard_token(store: Store, token: str) -> None:
    """End a token; DirectoryError E_authTokenExpired when it is not valid any more, E_authTokenRequired when it never was."""
    digest = _digest(token)
    store.known_tokens.pop(digest, None)
    with store.writing() as records:
        if records.holder(digest) is None:
            raise _not_good(records, digest)
        records.end_token(digest)


def identify(store: Store, records: Records, token: str | None) -> Account | None:
    """The account of a token; None without a token. Raises DirectoryError E_authTokenExpired, E_authTokenRequired."""
    if not token:
        return None
    digest = _digest(token)
    account = records.holder(digest)
    if account is None:
        store.known_tokens.pop(digest, None)
        raise _not_good(records, digest)
    store.known_tokens.keep(digest, account.name)
    return account


def asker(store: Store, token: str | None, source: str) -> str:
    """Whose request this seems to be, before anything is looked up: an account, or an address. It gives no rights."""
    account = store.known_tokens.get(_digest(token)) if token else None
    return f"account {account}" if account is not None else f"address {source}"


def _not_good(records: Records, digest: str) -> DirectoryError:
    """The refusal of a token that nobody holds."""
    if records.was_token(digest):
        return DirectoryError("E_authTokenExpired", "this token is not valid any more")
    return DirectoryError("E_authTokenRequired", "this token is none of this directory; draw one")


def _matches(store: Store, name: str, hashed: str, secret: str, source: str) -> bool:
    if len(secret) > _LONGEST:
        return False

    def right() -> bool:
        try:
            return _hasher.verify(hashed, secret)
        except (VerificationError, InvalidHashError):
            return False

    try:
        return store.logins.compare(source, name, hashed, secret, right)
    except TooMany:
        raise DirectoryError("E_busy", "too many ask for tokens; try again", ours=True) from None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
