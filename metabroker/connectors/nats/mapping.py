"""From MQTT's terms to NATS's and back: topics and subjects, filters, properties and headers.

The rules for topics are those of nats-server's own MQTT listener (2.10 and later), so that its MQTT clients and ours meet: `/` is written
`.`, an empty level `/`, a `.` within a level `//`. That is lossless. What NATS cannot have is refused (`Unmappable`): spaces and control
characters, a level that is `*` or `>`, and first levels that begin with `$`, where the server's own interfaces are.
"""

from __future__ import annotations

import base64
import binascii
import re

from ....mqtt.errors import MqttError
from ....mqtt.packets import Publish
from ....mqtt.properties import Properties, Property, encode_properties
from ....mqtt.topics import check_topic, too_deep

LONGEST_SUBJECT = 2048  # bytes; a whole line has at most 4096 unless the server is configured otherwise
CONTENT_TYPE, FORMAT, EXPIRY = "Content-Type", "Mqtt-Payload-Format", "Mqtt-Message-Expiry"
CORRELATION, RESPONSE = "Mqtt-Correlation-Data", "Mqtt-Response-Topic"
MESSAGE_ID = "Nats-Msg-Id"  # JetStream removes repeats by it
OURS = "mqmesh-"  # how identifiers begin that we gave
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # what HTTP calls a token; nats-py sends no other
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f]")
_UNFIT = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|^[ \t]|[ \t]$")


class Unmappable(ValueError):
    """There is no NATS for this; one line for the client."""


def subject_of(topic: str) -> str:
    """Where a message with this topic is published. Raises Unmappable."""
    subject = ".".join(_token(level, "topic") for level in topic.split("/"))
    return _checked(subject, "topic")


def subjects_of(filter_: str) -> list[str]:
    """What is subscribed to for this filter: `a/#` is `a` and all below it. Raises Unmappable."""
    levels = filter_.split("/")
    tokens = [{"+": "*", "#": ">"}.get(level) or _token(level, "filter") for level in levels]
    subject = _checked(".".join(tokens), "filter")
    return [subject.removesuffix(".>"), subject] if levels[-1] == "#" and len(levels) > 1 else [subject]


def _token(level: str, what: str) -> str:
    if level in ("*", ">"):
        raise Unmappable(f"a NATS remote has no {what} with a level {level!r}: it stands for any level there")
    return level.replace(".", "//") or "/"


def _checked(subject: str, what: str) -> str:
    if _FORBIDDEN.search(subject):
        raise Unmappable(f"a NATS remote has no {what} with spaces or control characters in it")
    if subject.startswith("$"):
        raise Unmappable(f"a NATS remote has interfaces of its own where a {what} begins with $")
    if len(subject.encode()) > LONGEST_SUBJECT:
        raise Unmappable(f"a NATS remote has no {what} of more than {LONGEST_SUBJECT} bytes")
    return subject


def topic_of(subject: bytes) -> str | None:
    """The topic that a subject stands for; None: no topic does."""
    try:
        levels = [_level(token) for token in subject.decode().split(".")]
        if None in levels:
            return None
        topic = "/".join(level or "" for level in levels)
        check_topic(topic.encode())
    except (UnicodeDecodeError, MqttError):
        return None
    return None if too_deep(topic) else topic


def _level(token: str) -> str | None:
    if token == "/":
        return ""
    level = token.replace("//", ".")
    return None if not level or "/" in level or level in ("*", ">") else level


def hidden(subject: bytes) -> bool:
    """Whether a filter that begins with a wildcard does not mean it: answers to requests, and the server's own."""
    return subject.startswith((b"$", b"_INBOX."))


def check(publish: Publish, largest: int) -> str | None:
    """Why a message cannot be carried; None: it can. largest: bytes of headers and payload; 0: any."""
    try:
        subject_of(publish.topic)
        headers = to_nats(publish)
        if (response := publish.properties.get(Property.RESPONSE_TOPIC)) is not None:
            subject_of(response)
    except Unmappable as error:
        return str(error)
    size = sum(len(name) + len(value.encode()) + 4 for name, value in headers) + 256 + len(publish.payload)
    return "the message is too large for the remote" if largest and size > largest else None


def to_nats(publish: Publish) -> list[tuple[str, str]]:
    """The headers of a message, without its response topic. Raises Unmappable."""
    given = publish.properties
    pairs: list[tuple[str, str]] = []
    if (content_type := given.get(Property.CONTENT_TYPE)) is not None:
        pairs.append((CONTENT_TYPE, _value(content_type, "content_type")))
    if (form := given.get(Property.PAYLOAD_FORMAT_INDICATOR)) is not None:
        pairs.append((FORMAT, str(form)))
    if (expiry := given.get(Property.MESSAGE_EXPIRY_INTERVAL)) is not None:
        pairs.append((EXPIRY, str(expiry)))
    if (correlation := given.get(Property.CORRELATION_DATA)) is not None:
        pairs.append((CORRELATION, base64.b64encode(correlation).decode()))
    for name, value in given.get(Property.USER_PROPERTY, []):
        if name.lower().startswith(("nats-", "mqtt-")) or name.lower() == CONTENT_TYPE.lower():
            raise Unmappable(f"a NATS remote takes no user property {name[:80]!r}: it has a meaning of its own there")
        if not _NAME.fullmatch(name):
            raise Unmappable(f"a NATS remote takes no user property {name[:80]!r}: names are of letters, digits and !#$%&'*+-.^_`|~")
        pairs.append((name, _value(value, name[:80])))
    return pairs


def _value(text: str, what: str) -> str:
    if _UNFIT.search(text) or text != text.strip():
        raise Unmappable(f"a NATS remote takes no line breaks, control characters or spaces around a text: {what}")
    return text


def from_nats(topic: str, payload: bytes, status: str, pairs: list[tuple[str, str]], reply: bytes) -> Publish:
    """A message that has come, at QoS 0. What has no place in MQTT is left out."""
    found: Properties = {}
    user: list[tuple[str, str]] = []
    if status:  # the server's own word: nobody listens to a request, and such
        user.append(("Nats-Status", status))
    for name, value in pairs:
        if "\0" in name or "\0" in value or len(value.encode()) > 65_535 or len(name) > 65_535:
            continue
        if not _known(name, value, found) and not (name == MESSAGE_ID and value.startswith(OURS)):
            user.append((name, value))
    if Property.RESPONSE_TOPIC not in found and reply and (topic_ := topic_of(reply)) is not None:
        found[Property.RESPONSE_TOPIC] = topic_
    if user:
        found[Property.USER_PROPERTY] = user
    try:
        encode_properties(found)
    except (MqttError, ValueError):
        found = {}
    return Publish(topic, payload, 0, properties=found)


def _known(name: str, value: str, found: Properties) -> bool:
    """Whether a header is one of ours, or as good; then it is in `found`."""
    if name.lower() == CONTENT_TYPE.lower() and Property.CONTENT_TYPE not in found:
        found[Property.CONTENT_TYPE] = value
    elif name == FORMAT and value in ("0", "1"):
        found[Property.PAYLOAD_FORMAT_INDICATOR] = int(value)
    elif name == EXPIRY and value.isascii() and value.isdigit() and len(value) < 11 and int(value) < 1 << 32:
        found[Property.MESSAGE_EXPIRY_INTERVAL] = int(value)
    elif name == CORRELATION:
        try:
            found[Property.CORRELATION_DATA] = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return False
    elif name == RESPONSE:
        try:
            check_topic(value.encode())
        except MqttError:
            return False
        found[Property.RESPONSE_TOPIC] = value
    else:
        return False
    return True
