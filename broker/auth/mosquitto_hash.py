"""The hashes in Mosquitto's password files, as `mosquitto_passwd` writes them.

    $6$SALT$HASH              one round of SHA-512 over the password and the salt (Mosquitto up to 1.6)
    $7$ROUNDS$SALT$HASH       PBKDF2 with HMAC-SHA-512 (RFC 8018), 101 rounds unless it is told otherwise (Mosquitto 2.0)

SALT and HASH are base64. Both are fast to guess beside argon2id.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import NamedTuple

LENGTH = 64  # bytes of a hash
MOST_ROUNDS = 10_000_000  # some seconds of a processor


class MosquittoHash(NamedTuple):
    """One hash, read. rounds: None: a single round of SHA-512 without HMAC."""

    rounds: int | None
    salt: bytes
    hash: bytes

    @classmethod
    def of(cls, text: str) -> MosquittoHash | None:
        """None for what is no such hash."""
        kind, *parts = text.removeprefix("$").split("$")
        if (kind, len(parts)) not in (("6", 2), ("7", 3)) or not text.startswith("$"):
            return None
        *rounds, salt, hash_ = parts
        try:
            found = cls(
                _rounds(rounds[0]) if rounds else None, base64.b64decode(salt, validate=True), base64.b64decode(hash_, validate=True)
            )
        except ValueError:
            return None
        return found if len(found.hash) == LENGTH else None

    def fits(self, password: bytes) -> bool:
        """Whether a password belongs to it."""
        if self.rounds is None:
            found = hashlib.sha512(password + self.salt).digest()
        else:
            found = hashlib.pbkdf2_hmac("sha512", password, self.salt, self.rounds)
        return hmac.compare_digest(found, self.hash)


def _rounds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 8 and 0 < int(text) <= MOST_ROUNDS):
        raise ValueError(text)
    return int(text)
