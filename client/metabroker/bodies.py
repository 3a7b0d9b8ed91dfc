"""The client's side of the metabroker protocol (docs/metabroker-protocol.md): bodies of requests and answers.

Anyone who may publish at the community broker can imitate a metabroker, so answers are checked: a malformed body is no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgpack

from ...base.address import AddressError, split_login
from ...base.metabroker import PROPERTIES, Code, pack
from ...mqtt.reasons import Reason
from ..core.errors import JMSError
from ..core.transport import Outcome, Properties, Publication

NAMES = {  # key of the map `properties` -> attribute of `Properties`
    "format": "text",
    "expiry": "expiry",
    "content_type": "content_type",
    "response_topic": "response_topic",
    "correlation": "correlation",
}


@dataclass(frozen=True, slots=True)
class RemoteLogin:
    """The remote broker (an address or the name of a service), and user name and password there."""

    remote: str
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"RemoteLogin({self.remote!r}, {self.username!r})"


def parse_remote(text: str) -> RemoteLogin:
    """``scheme://user:password@host:port`` or a service, ``NAME`` or ``MESH/NAME``. Raises `JMSError`.

    The metabroker checks the scheme.
    """
    if "://" not in text:
        if not text.strip():
            raise JMSError("remote '': expected the address of a broker or the name of a service", "address")
        return RemoteLogin(text)
    try:
        address, username, password = split_login(text)
    except AddressError as error:
        raise JMSError(f"remote {text.rpartition('@')[2]!r}: {error}", "address") from None
    path = "/" + address.partition("://")[2].partition("/")[2]
    return RemoteLogin(address.removesuffix("/") if path == "/" else address, username, password)


def community_name(client_id: str) -> str:
    """The name of a link at the community broker and the metabroker: one level of a topic.

    ``meter-7`` for the sends of a connection with the client identifier meter-7, ``meter-7:...`` for its consumers.
    """
    if client_id.startswith("jms/"):  # of a durable subscription; its parts are already encoded
        return client_id.removeprefix("jms/").replace("/", ":")
    return quote(client_id, safe=":")


def is_session(session: str, client: str) -> bool:
    """Whether this can be a session's identifier in topics: the client's own name, and one level."""
    name = session.removeprefix(f"{client}/")
    return bool(name) and name != session and not set(name) & set("/+#\0")


def unpack(body: bytes) -> dict[str, Any] | None:
    """The map in a body; None if it is none."""
    try:
        value = msgpack.unpackb(body, max_ext_len=0, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError):
        return None
    return value if type(value) is dict else None


def publish_body(message: int | None, publication: Publication) -> bytes:
    """The request to publish; without `message` it wants no answer. Raises ValueError for text that is not Unicode."""
    given = publication.properties
    properties: dict[str, Any] = {
        key: value for key, name in NAMES.items() if (value := getattr(given, name)) is not None and key != "format"
    }
    if given.text is not None:
        properties["format"] = int(given.text)
    if given.user:
        properties["user"] = given.user
    return pack(
        message=message, topic=publication.topic, payload=publication.payload, qos=publication.qos or None, properties=properties or None
    )


def publication_of(body: dict[str, Any]) -> tuple[int, Publication, bool] | None:
    """(id, publication, whether it was retained) of an incoming publication; None if the body is no such thing. Without an id: 0."""
    number, topic, payload, qos, retain = (body.get(key, 0) for key in ("id", "topic", "payload", "qos", "retain"))
    if type(number) is not int or type(topic) is not str or type(payload) is not bytes or qos not in (0, 1, 2):
        return None
    return number, Publication(topic, payload, int(qos), _properties(body.get("properties"))), retain is True


def _properties(given: Any) -> Properties:
    if type(given) is not dict:
        return Properties()
    found: dict[str, Any] = {NAMES[key]: given[key] for key in NAMES if type(given.get(key)) is PROPERTIES[key]}
    if "text" in found:
        found["text"] = bool(found["text"])
    user = given.get("user")
    if type(user) is list:
        pairs = [pair for pair in user if type(pair) is list and len(pair) == 2 and type(pair[0]) is type(pair[1]) is str]
        found["user"] = tuple((pair[0], pair[1]) for pair in pairs)
    return Properties(**found)


def code_of(body: dict[str, Any]) -> int:
    """The code of an answer; a missing one counts as malformed."""
    code = body.get("code")
    return code if type(code) is int else int(Code.MALFORMED)


def outcome_of(body: dict[str, Any]) -> Outcome:
    """What an answer means. Where the remote broker itself refuses, its own reason, as if it had been asked directly."""
    code = code_of(body)
    if code == Code.OK:
        return Outcome()
    reason = body.get("reason")
    text = reason if type(reason) is str else ""
    codes = body.get("codes")
    if code == Code.REMOTE_REFUSED and type(codes) is list and len(codes) == 1 and type(codes[0]) is int and 0x80 <= codes[0] <= 0xFF:
        return Outcome(codes[0], text)
    word = Code(code).name.lower() if code in Code._value2member_map_ else f"metabroker_{code}"
    return Outcome(int(Reason.IMPLEMENTATION_SPECIFIC_ERROR), text or word.replace("_", " "), word)
