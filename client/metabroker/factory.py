"""Connections through a metabroker, with the same API."""

from __future__ import annotations

from typing import Any

from ..api.factory import ConnectionFactory
from ..core.errors import JMSError
from ..core.transport import Transport
from ..paho.transport import Network
from .bodies import RemoteLogin, parse_remote
from .transport import MetabrokerTransport


class MetabrokerConnectionFactory(ConnectionFactory):
    """Connections to a remote broker, through the metabroker beside the community broker (docs/metabroker.md).

    community: URL of the community broker, an MQTT 5 broker, with ``user:password@`` if it asks for them.
    remote: address of the remote broker, with ``user:password@`` if that broker asks for them; or a service, ``NAME`` or ``MESH/NAME``.
    username, password: for the remote broker, if `remote` is a service. `create_connection` can give others.
    client_id: see `ConnectionFactory`. The metabroker's policy decides by it.
    probe: seconds between two questions whether the metabroker still knows us.
    durable_sends: the metabroker, started with a data folder, stores each message before it counts as sent. Without it, messages under way
        when the metabroker is killed are repeated, possibly after later ones.
    by_user: the community broker's access rules go by user names (docs/metabroker-security.md): ours is in `community`.
    settings: see `ConnectionFactory`. keep_alive, retry_first, retry_last and tls concern the community broker.
    """

    def __init__(
        self,
        community: str,
        remote: str,
        *,
        username: str | None = None,
        password: str | None = None,
        probe: float = 10.0,
        durable_sends: bool = False,
        by_user: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(community, **settings)
        login = parse_remote(remote)
        if username is not None:
            login = RemoteLogin(login.remote, username, password)
        elif password is not None:
            raise JMSError("password: needs a username", "password")
        if not isinstance(probe, int | float) or isinstance(probe, bool) or not 0.1 <= probe <= 86_400:
            raise JMSError(f"probe = {probe!r}: expected seconds from 0.1 to 86400", "probe")
        if by_user and self.address.user is None:
            raise JMSError("by_user: needs a user name in the address of the community broker", "by_user")
        self.remote, self._probe, self._durable_sends = login, float(probe), durable_sends
        self._user = self.address.user if by_user else None

    def make_transport(self, user: str | None, password: str | None) -> Transport:
        login = self.remote if user is None else RemoteLogin(self.remote.remote, user, password)
        return MetabrokerTransport(Network(self.address, *self._network), login, self._probe, self._durable_sends, self._user)
