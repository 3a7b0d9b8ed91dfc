"""Equal directories, such as several processes over one database: asked in turn until one answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .client import TIMEOUT, Client, ClientError

T = TypeVar("T")


class Clients:
    """Asks for records and for changes, each in one thread at a time.

    account: gives name and secret to log in with; None: what is public is enough.
    """

    def __init__(self, urls: Sequence[str], timeout: float = TIMEOUT, account: Callable[[], tuple[str, str]] | None = None) -> None:
        self._account = account
        self._clients = [Client(url, timeout) for url in urls]
        self._feeds = [Client(url, timeout) for url in urls]
        self._logged_in: set[Client] = set()

    def find(self, sort: str = "broker", mesh: str | None = None, name: str | None = None) -> list[dict[str, Any]]:
        """Records. Raises ClientError: of the last directory when none answers, or the first refusal."""
        return self._ask(self._clients, lambda client: client.find(sort, mesh, name))

    def services(self) -> list[dict[str, Any]]:
        """All services of the interchange. Raises ClientError."""
        return self._ask(self._clients, lambda client: client.services())

    def service(self, name: str) -> dict[str, Any]:
        """See `Client.service`."""
        return self._ask(self._clients, lambda client: client.service(name))

    def changes(self, after: int | None = None, wait: int = 0) -> dict[str, Any]:
        """See `Client.changes`."""
        return self._ask(self._feeds, lambda client: client.changes(after, wait))

    def stop_waiting(self) -> None:
        """See `Client.stop_waiting`."""
        for client in list(self._feeds):
            client.stop_waiting()

    def _ask(self, clients: list[Client], ask: Callable[[Client], T]) -> T:
        missed = ClientError(0, "", "no directory is configured")
        for client in list(clients):
            try:
                if self._account is not None and client not in self._logged_in:
                    client.log_in(*self._account())
                    self._logged_in.add(client)
                answer = ask(client)
            except ClientError as error:
                if error.status != 0 and error.status < 500:
                    raise
                missed = error
                continue
            clients.remove(client)
            clients.insert(0, client)
            return answer
        raise missed
