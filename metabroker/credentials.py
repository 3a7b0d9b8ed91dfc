"""A credentials file of NATS: what an account's administrator gives to a user, or only the seed of a key."""

from __future__ import annotations

import re
from pathlib import Path

from ..base.extras import install

LONGEST = 65_536  # characters
_SECTION = r"-----BEGIN {}-----\s*?\r?\n(\S+)\r?\n"
_JWT, _SEED = re.compile(_SECTION.format("NATS USER JWT")), re.compile(_SECTION.format("USER NKEY SEED"))


def read(file: Path) -> str:
    """Its text, which holds a JWT and a seed, or only a seed. Raises ValueError, one line, also for files that cannot be read.

    nats-py looks for them when it connects, and would look for ever in a file without them.
    """
    try:
        with file.open(encoding="ascii") as opened:
            text = opened.read(LONGEST).strip() + "\n"
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    seed = _SEED.search(text)
    word = seed[1] if seed is not None and _JWT.search(text) is not None else text.strip()
    if not _is_seed(word):
        raise ValueError("give a NATS credentials file with a user's JWT and seed, or a file with nothing but the seed, SU...")
    return text


def is_seed(text: str) -> bool:
    """Whether it is only a seed."""
    return not text.startswith("-")


def _is_seed(word: str) -> bool:
    try:
        import nkeys
    except ImportError:
        raise ValueError(f"needs a library that is not installed: {install('nats')}") from None
    try:
        nkeys.from_seed(bytearray(word.encode()))
    except (nkeys.NkeysError, ValueError, IndexError):
        return False
    return word.startswith("SU")
