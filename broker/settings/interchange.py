"""The table `[interchange]` of a broker's file: an interchange runs in the broker's process."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from ...base.address import is_loopback
from ...base.settings import Section
from .http import HttpAddress, http_address

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
RIGHT = 'give a list of networks, such as ["10.1.0.0/16"]'


@dataclass(slots=True)
class InterchangeSettings:
    """The table. See docs/interchange.md.

    file: the broker's file, for errors.
    services: the file of services; None: the directory of the broker has them.
    retention: seconds that an ended call is known. kept: seconds that queries find it. ended: ended calls that are known at most.
    open, open_bytes: calls of one service that may be open, and their bytes. waiting_bytes: of messages that wait for one inbox.
    http: where its HTTP face listens; None: it has none.
    push_networks: where pushes may go beside public addresses. push_ca: authorities of receivers beside the system's.
    push_certificate, push_key: what a receiver is shown that asks who pushes.
    """

    file: str
    services: Path | None = None
    retention: float = 3600.0
    kept: float = 31 * 86400.0
    ended: int = 100_000
    open: int = 100_000
    open_bytes: int = 256 << 20
    waiting_bytes: int = 256 << 20
    http: HttpAddress | None = None
    push_networks: tuple[Network, ...] = ()
    push_ca: Path | None = None
    push_certificate: Path | None = None
    push_key: Path | None = None

    @classmethod
    def of(cls, section: Section, folder: Path | None) -> InterchangeSettings:
        """Check the table. The file that it names is not read yet. Raises ConfigError."""
        settings = cls(section.file)
        if section.has("services"):
            settings.services = section.path_of("services", folder, "give the path of a file with services")
        settings.retention = section.seconds("retention", 1, 31_622_400, settings.retention)
        settings.kept = section.seconds("kept", 60, 10 * 31_622_400, settings.kept)
        settings.ended = section.whole("ended", 0, 10_000_000, settings.ended)
        settings.open = section.whole("open", 1, 10_000_000, settings.open)
        settings.open_bytes = section.size("open_bytes", 1, 1 << 40, settings.open_bytes)
        settings.waiting_bytes = section.size("waiting_bytes", 1, 1 << 40, settings.waiting_bytes)
        if section.has("http"):
            settings.http = http_address(section, "http", ("http", "https"))
            if not settings.http.tls and not is_loopback(settings.http.host):
                raise section.error("http", "passwords would travel in the clear: give a loopback address, or https")
        settings.push_networks = tuple(_network(section, one) for one in section.strings("push_networks", [], RIGHT))
        if section.has("push_ca"):
            settings.push_ca = section.path_of("push_ca", folder, "give a PEM file of authorities")
        if section.has("push_certificate") != section.has("push_key"):
            raise section.error("push_key", "give push_certificate and push_key, or neither")
        if section.has("push_key"):
            settings.push_certificate = section.path_of("push_certificate", folder, "give a PEM file of a certificate and its chain")
            settings.push_key = section.path_of("push_key", folder, "give a PEM file of its private key")
        section.done()
        return settings


def _network(section: Section, text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise section.error("push_networks", RIGHT) from None
