"""The table `[directory]` of a broker's file: which directory the broker registers at, and how."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from ...base.address import parse_address
from ...base.settings import MISSING, ConfigError, Section

SECRET_VARIABLE, ACCOUNT_VARIABLE = "MQMESH_DIRECTORY_SECRET", "MQMESH_DIRECTORY_ACCOUNT"
BY_NAME = "directory:"  # begins the address of a neighbour whose addresses the directory knows
VISIBILITIES = ("public", "organisation")
WILDCARDS = ("", "0.0.0.0", "::", "[::]")


@dataclass(slots=True)
class OfferedService:
    """A service that this broker offers. addresses: how it is reached; empty: the broker's own."""

    name: str
    addresses: list[str] = field(default_factory=list)
    permissions: list[str] = field(default_factory=list)
    description: str = ""


@dataclass(slots=True)
class DirectorySettings:
    """The table `[directory]` of a broker's file. See docs/configuration.md.

    urls: of equal directories, asked in this order. mesh: under which it is registered. lease: seconds. addresses: to register; empty: its
    listeners. register: whether it is registered, which takes account and secret. neighbours: whether it links to every broker that the
    directory knows in the mesh.
    """

    urls: list[str]
    mesh: str
    account: str = ""
    secret_file: Path | None = None
    lease: float = 60.0
    visibility: str = "public"
    description: str = ""
    addresses: list[str] = field(default_factory=list)
    register: bool = True
    neighbours: bool = False
    services: list[OfferedService] = field(default_factory=list)

    @classmethod
    def of(cls, section: Section, mesh: str | None, listen: list[str], folder: Path | None) -> DirectorySettings:
        """Check the table. mesh: of the table `[mesh]`. Raises ConfigError."""
        settings = cls(_urls(section), section.name("mesh", MISSING if mesh is None else mesh))
        if mesh is not None and settings.mesh != mesh:
            raise section.error("mesh", f'the broker is a member of "{mesh}": leave this out')
        settings.register = section.flag("register", True)
        settings.account = _text(section, "account", os.environ.get(ACCOUNT_VARIABLE, ""))
        if section.has("secret_file"):
            settings.secret_file = section.path_of("secret_file", folder, "give the path of a file")
        settings.lease = section.seconds("lease", 1, 86400, settings.lease)
        settings.visibility = section.choice("visibility", VISIBILITIES, settings.visibility)
        settings.description = _text(section, "description", "")
        settings.neighbours = section.choice("neighbours", ("configured", "all"), "configured") == "all"
        settings.addresses = section.strings("addresses", [], 'give a list such as ["mqtt://porto.example.com:1883"]')
        settings.services = _services(section)
        section.done()
        if settings.neighbours and mesh is None:
            raise section.error("neighbours", "a broker alone has no neighbours: give a [mesh]")
        if settings.register:
            _check_registered(section, settings, listen)
        return settings

    def secret(self) -> str:
        """Of the account. Raises OSError, KeyError, ValueError (one line) when there is none."""
        if self.secret_file is None:
            return os.environ[SECRET_VARIABLE]
        lines = self.secret_file.read_text(encoding="utf-8-sig").splitlines()
        if not lines or not lines[0].strip():
            raise ValueError("write the secret into the first line of the file")
        return lines[0].strip()


def _urls(section: Section) -> list[str]:
    right = "give http://HOST:PORT or https://HOST:PORT, or a list of equal directories"
    given = section.table.get("url")
    urls = section.strings("url", right=right) if isinstance(given, list) else [section.string("url", right=right)]
    if not urls:
        raise section.error("url", right)
    for url in urls:
        if not url.startswith(("http://", "https://")) or not url.isprintable() or "@" in url:
            raise ConfigError(section.file, section.key("url"), url, right)
    return urls


def _text(section: Section, key: str, default: str) -> str:
    return section.string(key) if section.has(key) else default


def _services(section: Section) -> list[OfferedService]:
    services: list[OfferedService] = []
    for one in section.sections("service"):
        name = one.string("name", right="give the name under which the service is looked up")
        addresses, permissions = one.strings("addresses", []), one.strings("permissions", [])
        service = OfferedService(name, addresses, permissions, _text(one, "description", ""))
        one.done()
        if any(other.name == service.name for other in services):
            raise one.error("name", "this service stands twice: leave one out")
        services.append(service)
    return services


def _check_registered(section: Section, settings: DirectorySettings, listen: list[str]) -> None:
    """Whether there is what a registration takes."""
    if not settings.account:
        text = f"give the name of an account of the directory, here or in {ACCOUNT_VARIABLE}; or register = false"
        raise ConfigError(section.file, section.key("account"), MISSING, text)
    try:
        settings.secret()
    except KeyError:
        text = f"give a file with the account's secret, or set {SECRET_VARIABLE}; or register = false"
        raise ConfigError(section.file, section.key("secret_file"), MISSING, text) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(section.file, section.key("secret_file"), settings.secret_file, f"cannot be used: {why}") from None
    for address in settings.addresses:
        section.checked_address("addresses", address)
        if not reachable(address):
            raise ConfigError(section.file, section.key("addresses"), address, "others cannot use this: give a host and its port")
    if not settings.addresses and not any(reachable(address, zero=True) for address in listen):
        text = 'no listener has an address that others can use: give what they can, as ["mqtt://porto.example.com:1883"]'
        raise ConfigError(section.file, section.key("addresses"), MISSING, text)


def reachable(address: str, zero: bool = False) -> bool:
    """Whether an address means something to others. zero: port 0 counts, because it becomes a real one."""
    parsed = parse_address(address)
    return parsed.scheme != "unix" and parsed.host not in WILDCARDS and (zero or parsed.port != 0)
