"""Factories of connections and contexts, where a program starts (6.1.1, 7.1 of the simplified API)."""

from __future__ import annotations

import ssl
from typing import Any

from ...base.address import CLIENT, AddressError, parse_address
from ..core.directory import Directory
from ..core.errors import JMSError
from ..core.settings import AckMode, Settings
from ..core.transport import Transport
from ..paho.transport import Network, PahoTransport
from .connection import Connection, check_client_id
from .context import Context


class ConnectionFactory:
    """Connections to one MQTT 5 broker.

    url: ``mqtt://host:port`` or ``mqtts://host:port``, over WebSocket ``ws://host:port/path`` or ``wss://host:port/path``, with
        ``user:password@`` if the broker asks for them.
    client_id: JMS client identifier, to which durable subscriptions belong. It is also the MQTT client identifier of the connection's own
        link, so only one connection at a time can have it.
    tls: for ``mqtts://`` and ``wss://``; the system's authorities by default.
    keep_alive, retry_first, retry_last: seconds, see `Network`.
    directory: where recipients are registered; None: nowhere.
    settings: see `Settings`.
    """

    def __init__(
        self,
        url: str = "mqtt://127.0.0.1:1883",
        *,
        client_id: str | None = None,
        tls: ssl.SSLContext | None = None,
        keep_alive: int = 30,
        retry_first: float = 0.1,
        retry_last: float = 5.0,
        directory: Directory | None = None,
        **settings: Any,
    ) -> None:
        try:
            self.address = parse_address(url, CLIENT)
        except AddressError as error:
            raise JMSError(f"address {url!r}: {error}", "address") from error
        self.client_id, self.directory = client_id if client_id is None else check_client_id(client_id), directory
        try:
            self.settings = Settings(**settings)
        except TypeError as error:
            raise JMSError(f"{error}; the settings are {', '.join(Settings.__dataclass_fields__)}", "settings") from error
        if self.address.tls and tls is None:
            tls = ssl.create_default_context()
        self._network = (tls if self.address.tls else None, keep_alive, retry_first, retry_last)

    def make_transport(self, user: str | None, password: str | None) -> Transport:
        """The network of one connection. Override this method to use another network."""
        address = self.address
        if user is not None:
            address = address._replace(user=user, password=password)
        return PahoTransport(Network(address, *self._network))

    def create_connection(self, user: str | None = None, password: str | None = None) -> Connection:
        """Connect. Raises `JMSSecurityError`, `InvalidClientIDError`, or `JMSError` without a broker. Start the connection to receive."""
        transport = self.make_transport(user, password)
        try:
            return Connection(transport, self.settings, self.client_id, self.directory)
        except BaseException:
            transport.close()
            raise

    def create_context(self, acknowledge_mode: AckMode = AckMode.AUTO, user: str | None = None, password: str | None = None) -> Context:
        """A connection and a session in one."""
        return Context(self.create_connection(user, password), acknowledge_mode)


class TopicConnectionFactory(ConnectionFactory):
    """The names of JMS 1.1."""

    def create_topic_connection(self, user: str | None = None, password: str | None = None) -> Connection:
        return self.create_connection(user, password)
