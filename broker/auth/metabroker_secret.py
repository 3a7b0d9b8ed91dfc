"""The password by which a broker knows its metabroker: from the configuration, or from a file that both programs of one user share.

The shared file is what makes a metabroker and a broker of the same user on one machine find each other without a configuration, as
an X server and its clients do: whoever may read it is that user. `mqmesh metabroker` makes it, the broker only reads it.
"""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..settings.embedded import EmbeddedSettings

if TYPE_CHECKING:
    from ...base.settings import Section

SHORTEST = 16  # bytes of a password
LONGEST = 4096
FILE = "metabroker.key"


class SecretError(Exception):
    """There is no password; one line says why and what would help."""


@dataclass(slots=True)
class MetabrokerSettings:
    """The metabroker's rule: the table `[metabroker]` of a broker's file.

    client: its client identifier. password: what its CONNECT has to show. file: where that stands, in the first line; read each time
    that it is needed. Without both: `shared_file`. inside: the one that runs in the broker's process, None: it is a program of its own.
    """

    client: str = "metabroker"
    password: bytes | None = field(default=None, repr=False)
    file: Path | None = None
    inside: EmbeddedSettings | None = None

    @classmethod
    def of(cls, section: Section, folder: Path | None) -> MetabrokerSettings | None:
        """Read the table; None: there is no rule. folder: what a relative file is relative to. Raises ConfigError."""
        settings = cls()
        protect = section.flag("protect", True)
        if section.has("client"):
            settings.client = section.name("client")
        if section.has("password"):
            value = section.table["password"]
            if not isinstance(value, str) or not SHORTEST <= len(value.encode()) <= LONGEST:
                raise section.secret_error("password", f"give a secret of at least {SHORTEST} bytes, the same as the metabroker has")
            settings.password = value.encode()
        if section.has("password_file"):
            settings.file = section.path_of("password_file", folder, "give the path of a file with the password in its first line")
            if settings.password is not None:
                raise section.error("password_file", "there is a password already: leave one out")
            try:
                read_secret(settings.file)
            except SecretError as error:
                raise section.error("password_file", str(error)) from None
        settings.inside = EmbeddedSettings.of(section, folder)
        section.done()
        if settings.inside is not None:
            settings._check_inside(section, protect)
        return settings if protect else None

    def _check_inside(self, section: Section, protect: bool) -> None:
        """What does not go with a metabroker inside. Raises ConfigError."""
        needless = "the metabroker inside this broker (metabroker.policy) needs none: leave it out"
        if not protect:
            raise section.error("protect", "the metabroker inside this broker (metabroker.policy) needs the rule: leave this out")
        if self.password is not None:
            raise section.secret_error("password", needless)
        if self.file is not None:
            raise section.error("password_file", needless)

    def secret(self) -> bytes:
        """The password. Raises SecretError."""
        if self.password is not None:
            return self.password
        return read_secret(self.file) if self.file is not None else read_shared()


def shared_file() -> Path:
    """Where the programs of this user find it: in XDG_CONFIG_HOME, or ~/.config. Raises SecretError."""
    try:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    except RuntimeError:
        raise SecretError("this user has no home folder: give metabroker.password_file") from None
    return folder / "mqmesh" / FILE


def read_secret(path: Path) -> bytes:
    """The first line of a file. Raises SecretError."""
    try:
        with open(path, "rb") as file:
            line = file.readline(LONGEST + 1).rstrip(b"\r\n")
    except OSError as error:
        raise SecretError(f"{path}: {error.strerror or error}") from None
    if not SHORTEST <= len(line) <= LONGEST:
        raise SecretError(f"{path}: its first line is no password of {SHORTEST} to {LONGEST} bytes")
    return line


def read_shared() -> bytes:
    """What stands in `shared_file`, which nobody else may read. Raises SecretError."""
    path = shared_file()
    try:
        found = path.stat()
    except OSError as error:
        raise SecretError(f"{path}: {error.strerror or error}") from None
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise SecretError(f"{path}: it has to belong to this user, and nobody else may read it (chmod 600)")
    return read_secret(path)


def make_shared() -> bytes:
    """What stands in `shared_file`, which is made if it is not there. Raises SecretError."""
    path = shared_file()
    if not path.exists():
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = path.with_name(f".{FILE}.{os.getpid()}.{secrets.token_hex(4)}")
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32) + "\n")
            try:
                os.link(fresh, path)  # whole, and never over that of another who is as fast
            except FileExistsError:
                pass
            finally:
                fresh.unlink()
        except OSError as error:
            raise SecretError(f"{path}: {error.strerror or error}") from None
    return read_shared()
