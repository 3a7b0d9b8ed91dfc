"""A client of the REST interface, used by `mqmesh directory register`, `find` and `import`.

It needs only the standard library. Each call is one request; nothing is cached.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import NO_CONTENT, HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

from ..base.http.url import web_address

TIMEOUT = 10.0  # seconds
_LONGEST = 64 * 1024 * 1024  # bytes of an answer


class ClientError(Exception):
    """The directory refused (status and code), or did not answer (status 0)."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


class ApplicationRegistrar:
    """Registers applications of one mesh through a client: a `mqmesh.client` factory takes it as its directory."""

    def __init__(self, client: Client, mesh: str) -> None:
        self._client, self._mesh = client, mesh
        self._held: set[str] = set()  # names whose records end with their lease: those that were registered by hand stay

    def register(self, name: str, seconds: float, fields: dict[str, object]) -> None:
        """Register for `seconds`, or renew. Raises ConnectionError without an answer, ValueError for a refusal."""
        with _told():
            static = self._client.hold(name, self._mesh, seconds, **fields)["static"]
        (self._held.discard if static else self._held.add)(name)

    def leave(self, name: str) -> None:
        """End the registration. Raises as `register` does."""
        if name in self._held:
            with _told():
                self._client.delete("application", name, self._mesh)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if error.status == 0 or error.status >= 500:
            raise ConnectionError(str(error)) from error
        raise ValueError(f"{error.code}: {error}") from error


class Client:
    """Talks to the directory at `url`, such as http://127.0.0.1:8090. account: name and secret, to log in with the first call."""

    def __init__(self, url: str, timeout: float = TIMEOUT, account: tuple[str, str] | None = None) -> None:
        if web_address(url) is None:
            raise ValueError(f"{url!r}: write http://host:port or https://host:port")
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._token: str | None = None
        self._account = account
        self._feed: HTTPConnection | None = None  # on which changes are waited for

    def log_in(self, account: str, secret: str) -> None:
        """Get a token for the following calls. When it expires, they get another one."""
        self._token = None
        self._token = self._call("POST", "/v1/tokens", {"account": account, "secret": secret})["token"]
        self._account = (account, secret)

    def log_out(self) -> None:
        """End the token."""
        if self._token is not None:
            self._account = None
            self._call("DELETE", "/v1/tokens/current")
            self._token = None

    def put(self, sort: str, name: str, mesh: str = "", **fields: object) -> dict[str, Any]:
        """Register a record, or write it anew; return it."""
        return self._call("PUT", _path(sort, name, mesh), {key: value for key, value in fields.items() if value is not None})

    def get(self, sort: str, name: str, mesh: str = "") -> dict[str, Any]:
        """One record; ClientError with status 404 when there is none."""
        return self._call("GET", _path(sort, name, mesh))

    def delete(self, sort: str, name: str, mesh: str = "") -> None:
        """Delete a record; a mesh with everything in it."""
        self._call("DELETE", _path(sort, name, mesh))

    def find(self, sort: str = "broker", mesh: str | None = None, name: str | None = None) -> list[dict[str, Any]]:
        """All records of a sort that match, page by page. name: `*` stands for any characters."""
        found: list[dict[str, Any]] = []
        place: dict[str, object] = {}
        while True:
            asked = {"sort": sort, "mesh": mesh, "name": name, **place}
            query = urlencode({key: value for key, value in asked.items() if value is not None})
            page = self._call("GET", f"/v1/records?{query}")
            found += page["records"]
            if page.get("next") is not None and page["records"]:
                place = {"after": page["next"]}
            elif len(found) < page.get("total", 0) and page["records"]:
                place = {"offset": len(found)}  # a directory of an earlier release
            else:
                return found

    def service(self, name: str) -> dict[str, Any]:
        """A service of the interchange, organisation/name; ClientError with status 404 when there is none."""
        return self._call("GET", _of_organisation(name))

    def services(self, organisation: str | None = None, name: str | None = None) -> list[dict[str, Any]]:
        """All services of the interchange that match, page by page. name: without the organisation; `*` stands for any characters."""
        found: list[dict[str, Any]] = []
        asked = {"organisation": organisation, "name": name}
        while True:
            page = self._call("GET", f"/v1/services?{urlencode({key: value for key, value in asked.items() if value is not None})}")
            found += page["services"]
            if "next" not in page:
                return found
            asked["after"] = page["next"]

    def put_service(self, name: str, profile: dict[str, Any], revision: int | None = None) -> dict[str, Any]:
        """Register a service of the interchange, or write it anew; return it. revision: the one to be written over, 0: none."""
        return self._call("PUT", _of_organisation(name) + ("" if revision is None else f"?revision={revision}"), profile)

    def delete_service(self, name: str) -> None:
        """Delete a service of the interchange."""
        self._call("DELETE", _of_organisation(name))

    def service_history(self, name: str) -> list[dict[str, Any]]:
        """Every revision of a service of our organisation."""
        return list(self._call("GET", _of_organisation(name) + "/history")["history"])

    def give_up(self, name: str) -> None:
        """Give up a name of ours: it belongs to the account that next registers a service or a broker of the name."""
        self._call("DELETE", f"/v1/names/{quote(name, safe='')}")

    def put_all(self, records: list[dict[str, Any]]) -> None:
        """Register many records, each with its sort, mesh and name, in order: all of them or none. At most 1000."""
        self._call("POST", "/v1/records", {"records": records})

    def hold(self, name: str, mesh: str, seconds: float, **fields: object) -> dict[str, Any]:
        """Register an application for a time, or renew it. Returns its record, with `static` and `expires_in` (docs/directory.md)."""
        return self.put("application", name, mesh, lease=seconds, **fields)

    def applications(self, mesh: str) -> ApplicationRegistrar:
        """What registers applications of a mesh, for the factories of `mqmesh.client`."""
        return ApplicationRegistrar(self, mesh)

    def claim(self, mesh: str, holder: str, name: str, seconds: float, **fields: object) -> dict[str, Any]:
        """Begin or renew the lease of a broker; its holder is a UUID. Returns what it got, above all its number (docs/directory.md)."""
        given = {key: value for key, value in fields.items() if value is not None}
        return self._call("PUT", _lease(mesh, holder), {"name": name, "seconds": seconds, **given})

    def leave(self, mesh: str, holder: str) -> None:
        """End a lease at once."""
        self._call("DELETE", _lease(mesh, holder))

    def leases(self, mesh: str) -> list[dict[str, Any]]:
        """The numbers of our mesh that are leased or reserved."""
        return list(self._call("GET", f"/v1/meshes/{quote(mesh, safe='')}/leases")["leases"])

    def forget(self, mesh: str, number: int) -> None:
        """Free a number that is reserved for a broker that does not come back."""
        self._call("DELETE", f"/v1/meshes/{quote(mesh, safe='')}/numbers/{number}")

    def changes(self, after: int | None = None, wait: int = 0) -> dict[str, Any]:
        """What has changed after a number: `last`, `changes` (sort, mesh, name), and whether some are `lost` and anything may have changed.

        after: the `last` of the answer before; None asks for the number only. wait: seconds to wait for a change. `stop_waiting` ends it.
        """
        asked = {"after": after, "wait": wait}
        query = urlencode({key: value for key, value in asked.items() if value is not None})
        return self._call("GET", f"/v1/changes?{query}", waits=wait)

    def stop_waiting(self) -> None:
        """End a call of `changes` that waits in another thread, with ClientError."""
        feed, self._feed = self._feed, None
        if feed is not None and feed.sock is not None:
            with suppress(OSError):
                feed.sock.shutdown(socket.SHUT_RDWR)

    def _call(self, method: str, path: str, body: object = None, waits: int | None = None) -> dict[str, Any]:
        if self._token is None and self._account is not None and path != "/v1/tokens":
            self.log_in(*self._account)
        try:
            return self._request(method, path, body) if waits is None else self._wait(path, waits)
        except ClientError as error:
            if error.code not in ("E_authTokenExpired", "E_authTokenRequired") or self._account is None:
                raise
        self.log_in(*self._account)
        return self._request(method, path, body) if waits is None else self._wait(path, waits)

    def _wait(self, path: str, seconds: int) -> dict[str, Any]:
        """A request that is answered late, on a connection that another thread can end."""
        parts = urlsplit(self._url)
        made = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        feed = self._feed = made(parts.netloc, timeout=self._timeout + seconds)
        try:
            feed.request("GET", parts.path + path, headers={"Authorization": f"Bearer {self._token}"} if self._token else {})
            answer = feed.getresponse()
            text = answer.read(_LONGEST)
            if answer.status >= 300:
                raise _refusal(answer.status, text)
            return dict(json.loads(text))
        except (OSError, HTTPException, ValueError) as error:
            raise ClientError(0, "", f"{self._url} does not answer: {error}") from error
        finally:
            feed.close()
            self._feed = None

    def _request(self, method: str, path: str, body: object) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self._token}"} if self._token else {})}
        data = json.dumps(body).encode() if body is not None else None
        try:
            try:
                with urlopen(Request(self._url + path, data, headers, method=method), timeout=self._timeout) as answer:
                    text = answer.read(_LONGEST)
                    if answer.length:  # `read` with a length says nothing of a connection that ended early
                        raise IncompleteRead(text, answer.length)
                return {} if answer.status == NO_CONTENT else dict(json.loads(text))
            except HTTPError as error:
                with error:
                    refusal = _refusal(error.code, error.read(_LONGEST))
                raise refusal from error
        except (OSError, HTTPException, ValueError) as error:
            why = getattr(error, "reason", error)
            if isinstance(why, ConnectionRefusedError):
                why = "connection refused; does a directory listen there (mqmesh directory serve)?"
            elif isinstance(why, socket.gaierror):
                why = f"the host name is not known ({why.strerror})"
            raise ClientError(0, "", f"{self._url} does not answer: {why}") from error


def _path(sort: str, name: str, mesh: str) -> str:
    return f"/v1/meshes/{quote(name, safe='')}" if sort == "mesh" else f"/v1/meshes/{quote(mesh, safe='')}/{sort}s/{quote(name, safe='')}"


def _of_organisation(service: str) -> str:
    organisation, _, name = service.partition("/")
    return f"/v1/organisations/{quote(organisation, safe='')}/services/{quote(name, safe='')}"


def _lease(mesh: str, holder: str) -> str:
    return f"/v1/meshes/{quote(mesh, safe='')}/leases/{quote(holder, safe='')}"


def _refusal(status: int, text: bytes) -> ClientError:
    try:
        told = json.loads(text)
        return ClientError(status, str(told["error"]), str(told["message"]))
    except (ValueError, KeyError, TypeError):
        return ClientError(status, "", f"the answer has status {status}")
