"""The table `[interchange]` of a broker's file: an interchange runs in the broker's process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...base.address import is_loopback
from ...base.settings import Section
from .http import HttpAddress, http_address


@dataclass(slots=True)
class InterchangeSettings:
    """The table. See docs/interchange.md.

    file: the broker's file, for errors.
    services: the file of services; None: the directory of the broker has them.
    retention: seconds that an ended call is known. ended: ended calls that are known at most.
    http: where its HTTP face listens; None: it has none.
    """

    file: str
    services: Path | None = None
    retention: float = 3600.0
    ended: int = 100_000
    http: HttpAddress | None = None

    @classmethod
    def of(cls, section: Section, folder: Path | None) -> InterchangeSettings:
        """Check the table. The file that it names is not read yet. Raises ConfigError."""
        settings = cls(section.file)
        if section.has("services"):
            settings.services = section.path_of("services", folder, "give the path of a file with services")
        settings.retention = section.seconds("retention", 1, 31_622_400, settings.retention)
        settings.ended = section.whole("ended", 0, 10_000_000, settings.ended)
        if section.has("http"):
            settings.http = http_address(section, "http", ("http", "https"))
            if not settings.http.tls and not is_loopback(settings.http.host):
                raise section.error("http", "passwords would travel in the clear: give a loopback address, or https")
        section.done()
        return settings
