"""What a broker is told about WebSocket: the table `[websocket]` of its file or of a topology.

    [websocket]
    origins = ["https://app.example.com"]   # of web pages that may connect; "*": of all

Which listeners there are, and at which paths, is said by their addresses: `ws://HOST:PORT/PATH`, with TLS `wss://`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...base.settings import ConfigError, Section
from ...mqtt.websocket.opening import normal_origin


@dataclass(slots=True)
class WebSocketSettings:
    """origins: of web pages that may connect, beside those of the broker's own address, as `normal_origin` writes them."""

    origins: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, section: Section) -> WebSocketSettings:
        """The settings in a table. Raises ConfigError."""
        origins = []
        for text in section.strings("origins", [], 'give a list of origins such as ["https://app.example.com"]'):
            try:
                origins.append(normal_origin(text.lower()))
            except ValueError as error:
                raise ConfigError(section.file, section.key("origins"), text, str(error)) from None
        section.done()
        return cls(origins)
