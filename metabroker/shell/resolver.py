"""Resolves the name of a service to addresses: from a file of services, from a directory, or from one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from ...base.address import REMOTE, AddressError, parse_address
from ...base.settings import ConfigError, read
from ...directory.client import Client, ClientError
from ...directory.lookups import Lookups
from ..libraries import missing_library

FRESH, AGAIN = 30.0, 2.0  # seconds for which an answer is good, and where it led nowhere


class Resolver(Protocol):
    """Finds services. It may block."""

    def resolve(self, name: str, again: bool = False) -> list[str]:
        """The addresses of a service, the preferred first; empty when there is none. Raises LookupError when it cannot be asked.

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

    A NAME that several meshes have is refused: anybody with an account may give it to a service of a mesh of his own. url: of our
    directory, or of a registry's WSDL. account: name and secret, for what is not public. fresh: seconds after which an answer is asked for
    again, as are all that are in use in that rhythm; our directory tells of changes at once. Raises ValueError for a URL that cannot be,
    ImportError without zeep.
    """

    def __init__(self, url: str, account: tuple[str, str] | None = None, fresh: float = FRESH) -> None:
        from ...directory.uddi_client import Inquiry

        ours = not urlsplit(url).path.strip("/") and not urlsplit(url).query  # else a registry's WSDL
        told = (Client(url, account=account),) if ours else ()
        self._lookups = Lookups(Inquiry(url, account), fresh=fresh, watched=told)
        self._lookups.__enter__()

    def end(self) -> None:
        """Ask no more by itself."""
        self._lookups.end()

    def resolve(self, name: str, again: bool = False) -> list[str]:
        """See `Resolver`."""
        mesh, _, service = name.rpartition("/")
        try:
            found = self._lookups.find("service", mesh or None, service, fresh=AGAIN if again else None).records
        except ClientError as error:
            if error.status == 404:
                return []
            raise LookupError(str(error)) from None
        exact = [record for record in found if record.get("name") == service and (not mesh or record.get("mesh") == mesh)]
        if len(exact) > 1:
            raise LookupError(f"{len(exact)} meshes have a service of this name: write MESH/NAME")
        return [str(address) for record in exact for address in record.get("addresses") or ()]


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
