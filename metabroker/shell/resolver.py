"""Resolves the name of a service to addresses: from a file of services, from a directory, or from one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from ...base.address import REMOTE, AddressError, parse_address
from ...base.settings import ConfigError, read
from ...directory.client import Client, ClientError
from ...directory.lookups import Finder, Lookups
from ..libraries import missing_library

FRESH, AGAIN = 30.0, 2.0  # seconds for which an answer is good, and where it led nowhere


class NotPermitted(LookupError):
    """The permissions of a service do not name the account with which the directory was asked."""


class Resolver(Protocol):
    """Finds services. It may block."""

    def resolve(self, name: str, again: bool = False) -> list[str]:
        """The addresses of a service, the preferred first; empty when there is none. Raises LookupError when it cannot be asked,
        NotPermitted when the addresses are not for us.

        again: the addresses that were given before do not answer, there may be others by now.
        """


class Services:
    """A table of services: name -> addresses."""

    def __init__(self, table: dict[str, list[str]]) -> None:
        self.table = table

    @classmethod
    def load(cls, file: Path) -> Services:
        """Read a TOML file: ``[services]``, then ``name = ["mqtt://host:port"]``. Raises ConfigError."""
        whole = read(file)
        if list(whole.table) != ["services"]:
            right = 'write one table, [services], with lines such as weather = ["mqtts://broker.example.com"]'
            raise ConfigError(whole.file, "", None, right)
        section = whole.section("services")
        right = "give a list of addresses"
        services = {name: section.strings(name, right=right) for name in section.table}
        for name, addresses in services.items():
            if not addresses:
                raise section.error(name, right)
            for address in addresses:
                try:
                    text = missing_library(parse_address(address, REMOTE).protocol)
                except AddressError as error:
                    text = str(error)
                if text is not None:
                    raise ConfigError(section.file, section.key(name), address, text)
        return cls(services)

    def resolve(self, name: str, again: bool = False) -> list[str]:
        """See `Resolver`."""
        return list(self.table.get(name, ()))


class Directory:
    """Services as NAME or MESH/NAME of our directory, or of another UDDI v3 registry; answers outlive its absence (`directory/lookups.py`).

    In our directory a NAME belongs to an account, and only its services are taken for it: anybody with an account may give it to a service
    of a mesh of his own. A NAME that several meshes have is refused. url: of our directory, or of a registry's WSDL. account: name and
    secret, for what is not public. fresh: seconds after which an answer is asked for again, as are all that are in use in that rhythm; our
    directory tells of changes at once. Raises ValueError for a URL that cannot be, ImportError without zeep for a registry.
    """

    def __init__(self, url: str, account: tuple[str, str] | None = None, fresh: float = FRESH) -> None:
        self._ours = not urlsplit(url).path.strip("/") and not urlsplit(url).query
        self._lookups = Lookups(Client(url, account=account) if self._ours else _registry(url, account), fresh=fresh)
        self._lookups.__enter__()

    def end(self) -> None:
        """Ask no more by itself."""
        self._lookups.end()

    def resolve(self, name: str, again: bool = False) -> list[str]:
        """See `Resolver`."""
        mesh, _, service = name.rpartition("/")
        others = False
        for sort in ("service", "broker") if self._ours else ("service",):
            exact = self._found(sort, mesh, service, again)
            own = exact if mesh else [record for record in exact if record.get("owns_name", True)]
            if len(own) > 1:
                raise LookupError(f"{len(own)} meshes have a {sort} of this name: write MESH/NAME")
            if own and own[0].get("permitted") is False:
                raise NotPermitted("the permissions of the service do not name the account of this metabroker")
            if own:
                return [str(address) for address in own[0].get("addresses") or ()]
            others = others or bool(exact)
        if others:
            raise LookupError("the name belongs to another account than what has it: write MESH/NAME")
        return []

    def _found(self, sort: str, mesh: str, name: str, again: bool) -> list[dict[str, Any]]:
        try:
            found = self._lookups.find(sort, mesh or None, name, fresh=AGAIN if again else None).records
        except ClientError as error:
            if error.status == 404:
                return []
            raise LookupError(str(error)) from None
        return [record for record in found if record.get("name") == name and (not mesh or record.get("mesh") == mesh)]


def _registry(url: str, account: tuple[str, str] | None) -> Finder:
    from ...directory.uddi_client import Inquiry

    return Inquiry(url, account)


class Chain:
    """The first resolver that knows a name wins."""

    def __init__(self, *resolvers: Resolver) -> None:
        self._resolvers = resolvers

    def resolve(self, name: str, again: bool = False) -> list[str]:
        """See `Resolver`."""
        for resolver in self._resolvers:
            if found := resolver.resolve(name, again):
                return found
        return []
