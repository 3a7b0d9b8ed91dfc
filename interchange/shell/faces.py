"""The faces of an interchange inside its broker: an HTTP listener. Clients of the broker in this process carry out its requests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...base.address import why_not_listening
from ...base.http.server import HttpListener
from ...broker.server import StartError
from ..gateway.desk import Desk, open_line
from ..gateway.http import TOGETHER, application
from ..gateway.line import Line, Login

if TYPE_CHECKING:
    from ...broker.config import BrokerConfig
    from ...broker.server import Broker
    from ...broker.settings.interchange import InterchangeSettings

log = logging.getLogger("mqmesh.interchange")


class Faces:
    """The HTTP faces of one interchange. now: milliseconds since 1970. Raises StartError."""

    def __init__(self, broker: Broker, settings: InterchangeSettings, now: Callable[[], int]) -> None:
        assert settings.http is not None
        self._broker, self._secure = broker, settings.http.tls
        self._desk = Desk(self._connect, now)
        certificate = _certificate(broker.config) if settings.http.tls else None
        try:
            app = application(self._desk)
            self._listener = HttpListener(app, settings.http.host, settings.http.port, TOGETHER, log, certificate)
        except OSError as error:
            self._desk.close()
            raise StartError(f"interchange.http: cannot listen: {why_not_listening(error)}") from error
        self.url = self._listener.url

    def start(self) -> None:
        """Answer from now on."""
        self._listener.start()
        log.info("event=interchange-listens url=%s", self.url)

    async def stop(self) -> None:
        """Answer no longer."""
        await self._listener.stop()
        self._desk.close()

    async def _connect(self, login: Login, address: str) -> Line:
        line = Line(login, pings=False)
        host, _, port = address.rpartition(":")
        self._broker.connect_for(line, (host, int(port)) if port.isdecimal() else None, _failed, self._secure, "http")
        return await open_line(line)


def _certificate(config: BrokerConfig) -> tuple[str, str]:
    tls = config.tls
    if tls is None or tls.certificate is None:
        raise StartError("interchange.http: https needs the broker's certificate: give [tls]")
    return str(tls.certificate), str(tls.key)


def _failed(error: Exception) -> None:
    log.error("event=internal-error work=interchange-face", exc_info=error)
