"""Hashes of Mosquitto's password files, made anew with argon2id at the first login with the right password.

The users' file is not changed. The new hashes lie in the data folder (`AccessSettings.renewed`), in lines
`name:argon2id hash:fingerprint`. The fingerprint is of the old hash: once the users' file has another hash for that user, the line does not
count any more. A login that renews a hash appends a line. Lines that do not count are removed when the file is read.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from pathlib import Path

from ...base.process.files import replace_file
from ...base.quoting import quoted
from . import passwords

log = logging.getLogger("mqmesh.broker")


class RenewedPasswords:
    """Of one broker. users: name -> hash as the users' file has them. path: None: nothing is renewed. Raises OSError."""

    def __init__(self, users: dict[str, str], path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()  # comparisons run in threads
        self._renewed: dict[str, str] = {}  # old hash -> new one
        if path is not None and path.exists():
            self._read(users, path)

    def right(self, name: str, hash_: str, password: bytes) -> bool:
        """Whether a password belongs to a user's hash of the users' file; renews the hash if it is an old one."""
        good = passwords.right(self._renewed.get(hash_, hash_), password)
        if good and self._path is not None and hash_ not in self._renewed and not passwords.is_argon2(hash_):
            self._renew(self._path, name, hash_, password)
        return good

    def _renew(self, path: Path, name: str, hash_: str, password: bytes) -> None:
        try:
            new = passwords.hashed(password)
            with self._lock, os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8") as file:
                file.write(_line(name, new, hash_))
        except (OSError, ValueError) as error:  # ValueError: an empty password, which Mosquitto takes
            log.warning("event=password-not-renewed user=%s error=%s", quoted(name), error)
            return
        self._renewed[hash_] = new
        log.info("event=password-renewed user=%s", quoted(name))

    def _read(self, users: dict[str, str], path: Path) -> None:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        for line in lines:
            name, new, fingerprint = [*line.rstrip("\n").split(":"), "", ""][:3]
            old = users.get(name, "")
            if line.endswith("\n") and old and fingerprint == _fingerprint(old) and passwords.is_argon2(new):
                self._renewed[old] = new
        names = {old: name for name, old in users.items() if old in self._renewed}
        if len(names) < len(lines):
            kept = "".join(_line(names[old], new, old) for old, new in self._renewed.items())
            replace_file(path, kept)


def _line(name: str, new: str, old: str) -> str:
    return f"{name}:{new}:{_fingerprint(old)}\n"


def _fingerprint(old: str) -> str:
    return hashlib.sha256(old.encode()).hexdigest()
