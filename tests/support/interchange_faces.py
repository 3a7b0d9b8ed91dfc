"""A service behind each face of the interchange, for tests that are the same for all: MQTT 5, MQTT 3.1.1, HTTP, SOAP (a stock client)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import zeep
from mqmesh.base.interchange import ENVELOPE
from mqmesh.mqtt.properties import Property
from zeep.exceptions import Fault
from zeep.transports import Transport

from support.interchange_http import Web
from support.interchange_site import InterchangeSite, Service
from support.services import PATIENCE

FACES = ("mqtt 5", "mqtt 3.1.1", "http", "soap")
Part = tuple[str, str, bytes]  # name, content type, content
Parts = Sequence[Part]


class Refused(Exception):
    """The interchange has refused a post. code, what: see `Refusal`."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(f"{code}: {what}")
        self.code, self.what = code, what


@dataclass
class Got:
    """A message from an inbox. fields: of the header, as all faces name them."""

    fields: dict[str, Any]
    body: bytes
    content_type: str = ""
    attachments: list[Part] = field(default_factory=list)
    lease: str = ""

    @property
    def kind(self) -> str:
        return str(self.fields["kind"])


class Face(Protocol):
    """One service. `post` raises Refused."""

    async def post(
        self, kind: str, body: bytes = b"", content_type: str = "", attachments: list[Part] = ..., **fields: Any
    ) -> dict[str, Any]:
        """What the poster is told."""

    async def take(self) -> Got:
        """The next message of the inbox, acknowledged."""


async def face_of(name: str, site: InterchangeSite, service: str) -> Face:
    """A service that uses a face."""
    if name.startswith("mqtt"):
        return MqttFace(await site.service(service, version=5 if name == "mqtt 5" else 4))
    assert site.inside.faces is not None
    if name == "http":
        return WebFace(Web(site.inside.faces.url), service)
    return await asyncio.to_thread(SoapFace, site.inside.faces.url, service)


def _json(fields: dict[str, Any], body: bytes, content_type: str, attachments: Parts) -> dict[str, Any]:
    coded = base64.b64encode
    found = fields | {"base64": coded(body).decode()} | ({"content_type": content_type} if content_type else {})
    if attachments:
        found["attachments"] = [{"name": one, "content_type": kind, "base64": coded(data).decode()} for one, kind, data in attachments]
    return found


def _got(found: dict[str, Any]) -> Got:
    def content(one: dict[str, Any]) -> bytes:
        return base64.b64decode(one.pop("base64")) if "base64" in one else one.pop("body", "").encode()

    attachments = [(one["name"], one.get("content_type", ""), content(one)) for one in found.pop("attachments", [])]
    body, lease = content(found), found.pop("lease", "")
    return Got(found, body, found.pop("content_type", ""), attachments, lease)


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "code" in answer:
        raise Refused(answer["code"], answer["what"])
    return answer


def _pairs(name: str, value: Any) -> list[tuple[str, str]]:
    """A field as user properties."""
    listed = value if isinstance(value, list) else [value]
    return [
        (name.removesuffix("s") if isinstance(value, list) else name, one if isinstance(one, str) else json.dumps(one)) for one in listed
    ]


class MqttFace:
    """User properties where they are enough, else one JSON object."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def post(self, kind: str, body: bytes = b"", content_type: str = "", attachments: Parts = (), **fields: Any) -> dict[str, Any]:
        fields = {"kind": kind, "sender": self._service.name} | fields
        if self._service.client.version == 5 and not attachments:
            properties: dict[int, Any] = {Property.CONTENT_TYPE: content_type} if content_type else {}
            properties[Property.USER_PROPERTY] = [pair for name, value in fields.items() for pair in _pairs(name, value)]
            return _checked(await self._service.send(body, properties))
        message = _json(fields, body, content_type, attachments)
        properties = {Property.CONTENT_TYPE: ENVELOPE} if self._service.client.version == 5 else {}
        return _checked(await self._service.send(json.dumps(message).encode(), properties))

    async def take(self) -> Got:
        body, header = await self._service.take()
        properties = header.pop("properties", {Property.CONTENT_TYPE: ENVELOPE})
        if properties.get(Property.CONTENT_TYPE) == ENVELOPE:
            return _got(json.loads(body))
        if "recipient" in header:
            header["recipients"] = [{"service": header.pop("recipient")}]
            if "arguments" in header:
                header["recipients"][0]["arguments"] = json.loads(header.pop("arguments"))
        return Got(header, body, properties.get(Property.CONTENT_TYPE, ""))


class WebFace:
    def __init__(self, web: Web, service: str) -> None:
        self._web, self._name = web, service

    async def post(self, kind: str, body: bytes = b"", content_type: str = "", attachments: Parts = (), **fields: Any) -> dict[str, Any]:
        answer = await self._web.post(_json({"kind": kind, "sender": self._name} | fields, body, content_type, attachments))
        return _checked(answer.body)

    async def take(self) -> Got:
        (found,) = await self._web.poll(self._name, most=1)
        got = _got(found)
        assert await self._web.settle(acknowledge=[got.lease]) == []
        return got


class SoapFace:
    """zeep with the WSDL that the face serves."""

    def __init__(self, url: str, service: str) -> None:
        self._name = service
        self._client = zeep.Client(f"{url}/soap?wsdl", transport=Transport(timeout=PATIENCE, operation_timeout=PATIENCE))

    async def post(self, kind: str, body: bytes = b"", content_type: str = "", attachments: Parts = (), **fields: Any) -> dict[str, Any]:
        message: dict[str, Any] = {"kind": kind, "sender": self._name} | fields
        for many, one in (("recipients", "recipient"), ("services", "service")):
            if many in message:
                message[one] = [_declared(to) for to in message.pop(many)]
        if "access" in message:
            message["access"] = [
                {"part": part} | {right: {"service": names} for right, names in rights.items()}
                for part, rights in message["access"].items()
            ]
        message["body"] = {"data": body, "content_type": content_type}
        message["attachment"] = [{"name": name, "content_type": kind, "data": data} for name, kind, data in attachments]
        try:
            answer = await asyncio.to_thread(self._client.service.post, message=message)
        except Fault as fault:
            (refusal,) = fault.detail
            raise Refused(refusal[0].text, refusal[1].text) from None
        told = {name: answer[name] for name in ("session", "call", "waits_for") if answer[name] is not None}
        came = [{key: value for key, value in zeep.helpers.serialize_object(one).items() if value is not None} for one in answer["came"]]
        return told | ({"came": came} if came else {})

    async def take(self) -> Got:
        (found,) = await asyncio.to_thread(self._client.service.poll, service=self._name, most=1, wait=PATIENCE)
        told = {name: one for name, one in zeep.helpers.serialize_object(found, dict).items() if one not in (None, [])}
        fields = {name: one for name, one in told.items() if name not in ("body", "attachment", "lease", "recipient")}
        if "recipient" in told:
            fields["recipients"] = [
                {"service": one["service"]}
                | ({"arguments": {two["name"]: two["value"] for two in one["argument"]}} if one["argument"] else {})
                for one in told["recipient"]
            ]
        _, kind, body = _part(told.get("body", {}))
        assert await asyncio.to_thread(self._client.service.settle, acknowledge=[told["lease"]]) in (None, [])
        return Got(fields, body, kind, [_part(one) for one in told.get("attachment", [])])


def _declared(to: Any) -> dict[str, Any]:
    if isinstance(to, str):
        return {"service": to}
    return {"service": to["service"], "argument": [{"name": name, "value": value} for name, value in to.get("arguments", {}).items()]}


def _part(found: dict[str, Any]) -> Part:
    content = found.get("data")
    return found.get("name") or "", found.get("content_type") or "", content if content is not None else (found.get("text") or "").encode()
