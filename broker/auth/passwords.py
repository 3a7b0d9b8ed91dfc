"""A file of users and their passwords: lines `name:hash`, argon2id (RFC 9106), written by `mqmesh passwd`.

A name has no colon and no control characters. `#` begins a comment line. The hashes of Mosquitto's password files are taken too.
"""

from __future__ import annotations

from pathlib import Path

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from ...base.logins import hash_of_nobody
from ...base.process.files import replace_file
from .mosquitto_hash import MosquittoHash

LONGEST_NAME = 255
LONGEST_PASSWORD = 4096  # bytes
# 19 MiB and two passes: what the OWASP cheat sheet asks for at least, and some 20 ms; a broker checks many passwords when all come back.
_hasher = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)


class PasswordError(ValueError):
    """The file or a name in it is wrong; one line."""


def check_name(name: str) -> None:
    """Raises PasswordError for a name that a line cannot hold."""
    if not name or len(name) > LONGEST_NAME or ":" in name or name.startswith("#") or name != name.strip() or not name.isprintable():
        shown = repr(name) if len(name) <= LONGEST_NAME else f"{name[:40]!r}... ({len(name)} characters)"
        raise PasswordError(
            f"{shown}: a user's name has 1 to {LONGEST_NAME} printable characters, no colon, no # at its beginning, no space at its ends"
        )


def hashed(password: bytes) -> str:
    """What is kept of a password. PasswordError: an empty or too long one."""
    if not 0 < len(password) <= LONGEST_PASSWORD:
        raise PasswordError(f"a password has 1 to {LONGEST_PASSWORD} bytes")
    return _hasher.hash(password)


# Compared when there is no such user: it must take as long.
NOBODY = hash_of_nobody(_hasher.memory_cost, _hasher.time_cost, _hasher.parallelism)


def is_argon2(hash_: str) -> bool:
    """Whether a hash is one of argon2id."""
    try:
        return hash_.startswith("$argon2id$") and isinstance(_hasher.check_needs_rehash(hash_), bool)
    except InvalidHashError:
        return False


def right(hash_: str, password: bytes) -> bool:
    """Whether a password belongs to a hash; if not it takes some 20 ms, whatever the hash is."""
    old = MosquittoHash.of(hash_)
    if old is not None and old.fits(password[: LONGEST_PASSWORD + 1]):
        return True
    if old is not None:
        hash_, password = NOBODY, b""  # a wrong password takes as long as an unknown name
    try:
        return _hasher.verify(hash_, password[: LONGEST_PASSWORD + 1])
    except (VerificationError, InvalidHashError):
        return False


def load(path: Path) -> dict[str, str]:
    """name -> hash. Raises PasswordError with file and line, and OSError."""
    found: dict[str, str] = {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise PasswordError(f"{path} is no UTF-8 text") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, hash_ = line.partition(":")
        try:
            if not colon:
                raise PasswordError("a line is name:hash")
            check_name(name)
            if not is_argon2(hash_) and MosquittoHash.of(hash_) is None:
                raise PasswordError(f"user {name!r}: the hash is none of argon2id, which mqmesh passwd writes, and none of Mosquitto's")
            if name in found:
                raise PasswordError(f"user {name!r} stands twice")
        except PasswordError as error:
            raise PasswordError(f"{path} line {number}: {error}") from None
        found[name] = hash_
    return found


def change(path: Path, name: str, password: bytes | None) -> bool:
    """Give a user a password, or with None take the user out; whether the user was there. Other lines stay as they are.

    The file is replaced whole, readable for its owner alone if it is new. Raises PasswordError and OSError.
    """
    check_name(name)
    lines = path.read_text(encoding="utf-8-sig").splitlines() if path.exists() else []
    if path.exists():
        load(path)
    kept = [line for line in lines if line.startswith("#") or line.partition(":")[0] != name]
    known = len(kept) < len(lines)
    if password is not None:
        kept.append(f"{name}:{hashed(password)}")
    replace_file(path, "".join(f"{line}\n" for line in kept), None)
    return known
