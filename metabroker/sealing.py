"""Passwords of remotes as they are stored: encrypted with a key that is not in the store (ChaCha20-Poly1305, RFC 8439).

The key is made from a secret: the first line of a file.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

SHORTEST, LONGEST = 16, 4096  # bytes of a secret
_NONCE = 12  # bytes
_PURPOSE = b"mqmesh-passwords"


class SealError(ValueError):
    """There is no key, or it is another one; one line."""


class Sealer:
    """Encrypts and decrypts. secret: bytes that nobody can guess."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = ChaCha20Poly1305(hashlib.blake2b(secret, digest_size=32, person=_PURPOSE).digest())

    def seal(self, password: bytes, owner: str) -> bytes:
        """A password, encrypted. owner: what it belongs to; it cannot be opened for another one."""
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, password, owner.encode())

    def open(self, sealed: bytes, owner: str) -> bytes:
        """What `seal` was given. Raises SealError."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], owner.encode())
        except (InvalidTag, ValueError):
            raise SealError("its passwords are encrypted with another key") from None


def read(file: Path) -> Sealer:
    """With the key of a file. Raises SealError."""
    try:
        with file.open("rb") as opened:
            line = opened.readline(LONGEST + 1).rstrip(b"\r\n")
    except OSError as error:
        raise SealError(f"{file}: {error.strerror or error}") from None
    if not SHORTEST <= len(line) <= LONGEST:
        raise SealError(f"{file}: its first line is no key of {SHORTEST} to {LONGEST} bytes; make one with: openssl rand -hex 32")
    return Sealer(line)


def made(file: Path) -> Sealer:
    """With the key of a file that only its owner may read, made if need be. Raises SealError."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return read(file)
    except OSError as error:
        raise SealError(f"{file}: {error.strerror or error}") from None
    with open(descriptor, "w") as opened:
        opened.write(secrets.token_hex(32) + "\n")
        opened.flush()
        os.fsync(descriptor)
    return read(file)
