"""Services by name from any UDDI v3 registry: find_service and get_serviceDetail through zeep, with the WSDL that the registry serves.

What it finds has the shape of REST's records, so `lookups.Lookups` keeps and refreshes it. In our own directory a service is a
businessService whose category `uddi:mqmesh:record` says so; one that says `broker` is found where no service has the name, other records
are not. A service of another registry has no such category. All calls block and take turns; each request is bounded in time and bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import requests
import urllib3
import zeep
from lxml import etree

from ..base.http.url import web_address
from .client import ClientError

RECORD = "uddi:mqmesh:record"  # as documents.RECORD, which needs the directory's own libraries
TIMEOUT = 5.0  # seconds without a byte
LONGEST = 15.0  # seconds for one answer
LARGEST = 16 * 1024 * 1024  # bytes of one answer
MOST = 100  # services looked at
_OPERATIONS = ("find_business", "find_service", "get_bindingDetail", "get_serviceDetail")
_BUSY, _UNKNOWN = "E_busy", "E_invalidKeyPassed"
_NOT_GOOD = ("E_authTokenExpired", "E_authTokenRequired")


class Inquiry:
    """Asks one registry. url: of its WSDL; without a path that of our directory. ValueError for a URL that cannot be.

    account: name and secret, to find what only its organisation may see.
    """

    def __init__(self, url: str, account: tuple[str, str] | None = None) -> None:
        parts = web_address(url)
        if parts is None:
            raise ValueError(f"{url!r}: write http://host:port or https://host:port, or the address of a UDDI registry's WSDL")
        self._wsdl = url if parts.path.strip("/") or parts.query else f"{url.rstrip('/')}/uddi?wsdl"
        self._account = account
        self._token: str | None = None
        self._lock = threading.Lock()
        self._client: Any = None
        self._inquiry: Any = None

    def find(self, sort: str = "service", mesh: str | None = None, name: str | None = None) -> list[dict[str, Any]]:
        """The services of a name; mesh: the name of the business that they are in. No wildcards.

        Raises ClientError: status 0 or 503 when the registry does not answer, 400 when it refuses.
        """
        if sort != "service" or not name:
            raise ValueError("services are found by their name")
        with self._lock:
            try:
                return self._find(mesh, name)
            except zeep.exceptions.Fault as fault:
                code = _code_of(fault)
                if code in _NOT_GOOD and self._token is not None:
                    self._token = None
                    return self._guarded(lambda: self._find(mesh, name))
                raise _refusal(fault) from fault
            except _TROUBLE as error:
                raise ClientError(0, "", f"{self._wsdl} does not answer: {_words(error)}") from error

    def _guarded(self, ask: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        try:
            return ask()
        except zeep.exceptions.Fault as fault:
            raise _refusal(fault) from fault

    def _find(self, mesh: str | None, name: str) -> list[dict[str, Any]]:
        self._connect()
        keys = [key for where in self._businesses(mesh) for key in self._services(where, name)]
        if not keys:
            return []
        detail = self._ask("get_serviceDetail", serviceKey=keys[:MOST])
        found = [self._record(one, mesh) for one in detail.businessService or () if name in _names(one)]
        by_sort = {sort: [one for one in found if one["sort"] == sort] for sort in ("service", "broker")}
        return by_sort["service"] or by_sort["broker"]

    def _businesses(self, mesh: str | None) -> Iterator[str | None]:
        """The keys of the businesses to look in; None: in all."""
        if mesh is None:
            yield None
            return
        answer = self._ask("find_business", name=[{"_value_1": mesh}])
        for info in answer.businessInfos.businessInfo if answer.businessInfos is not None else ():
            yield info.businessKey

    def _services(self, business: str | None, name: str) -> list[str]:
        where = {} if business is None else {"businessKey": business}
        answer = self._ask("find_service", name=[{"_value_1": name}], **where)
        return [info.serviceKey for info in answer.serviceInfos.serviceInfo] if answer.serviceInfos is not None else []

    def _record(self, service: Any, mesh: str | None) -> dict[str, Any]:
        references = service.categoryBag.keyedReference if service.categoryBag is not None else ()
        sorts = [one.keyValue for one in references or () if one.tModelKey.lower() == RECORD]
        templates = service.bindingTemplates.bindingTemplate if service.bindingTemplates is not None else ()
        return {
            "sort": sorts[0] if sorts else "service",
            "name": next(iter(_names(service)), ""),
            "mesh": mesh if mesh is not None else service.businessKey,
            "addresses": [address for template in templates or () for address in self._addresses(template)],
        }

    def _addresses(self, template: Any, follow: bool = True) -> list[str]:
        """Of one bindingTemplate; one that points to another is followed, once."""
        point = template.accessPoint
        if point is None or not point._value_1:
            return []
        if point.useType == "bindingTemplate":
            detail = self._ask("get_bindingDetail", bindingKey=[point._value_1]) if follow else None
            return [one for other in (detail.bindingTemplate or () if detail else ()) for one in self._addresses(other, False)]
        return [" ".join(point._value_1.split())] if point.useType != "wsdlDeployment" else []

    def _ask(self, operation: str, **arguments: Any) -> Any:
        if self._token is not None:
            arguments["authInfo"] = self._token
        return self._inquiry[operation](**arguments)

    def _connect(self) -> None:
        """Read the WSDL, once, and draw a token."""
        if self._client is None:
            settings = zeep.Settings(forbid_dtd=True, forbid_entities=True, xml_huge_tree=False)
            transport = zeep.Transport(session=_Session(), timeout=TIMEOUT, operation_timeout=TIMEOUT)
            client = zeep.Client(self._wsdl, transport=transport, settings=settings)
            self._inquiry = _port(client, *_OPERATIONS)
            self._client = client
        if self._account is not None and self._token is None:
            user, secret = self._account
            answer = _port(self._client, "get_authToken")["get_authToken"](userID=user, cred=secret)
            self._token = answer if isinstance(answer, str) else answer.authInfo


class _Session(requests.Session):
    """Answers that are bounded in bytes and time."""

    def __init__(self) -> None:
        super().__init__()
        self.max_redirects = 3

    def send(self, request: Any, **options: Any) -> Any:
        until = time.monotonic() + LONGEST
        response = super().send(request, **(options | {"stream": True}))
        if not response._content_consumed:
            body = bytearray()
            while chunk := response.raw.read1(65536, decode_content=True):  # as it comes, so that the time is looked at
                body += chunk
                if len(body) > LARGEST or time.monotonic() > until:
                    response.close()
                    raise requests.Timeout(f"more than {LARGEST} bytes or {LONGEST:.0f} s")
            response._content = bytes(body)
        return response


_TROUBLE = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    zeep.exceptions.Error,
    etree.LxmlError,
    OSError,
    KeyError,
    AttributeError,
    TypeError,
    ValueError,
)


def _port(client: Any, *operations: str) -> Any:
    """The port of a WSDL that has these operations."""
    for service in client.wsdl.services.values():
        for port in service.ports.values():
            if all(operation in port.binding._operations for operation in operations):
                return client.bind(service.name, port.name)
    raise ValueError(f"its WSDL has no port with {', '.join(operations)}")


def _names(service: Any) -> list[str]:
    return [" ".join((name._value_1 or "").split()) for name in service.name or ()]


def _code_of(fault: Any) -> str:
    """The errCode of UDDI's dispositionReport."""
    info = fault.detail.find(".//{urn:uddi-org:api_v3}errInfo") if fault.detail is not None else None
    return str(info.get("errCode")) if info is not None else ""


def _refusal(fault: Any) -> ClientError:
    code = _code_of(fault)
    status = 503 if code == _BUSY else 404 if code == _UNKNOWN else 400
    return ClientError(status, code, f"the registry refuses: {code or fault.message}")


def _words(error: Exception) -> str:
    """One line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
