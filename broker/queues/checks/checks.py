"""What one queue checks when it receives a message (row Q11): size, checksum, HMAC, JSON Schema, and who put it.

    mqmesh-checksum    "sha256:HEX" or "crc32:HEX" of the payload: it came as it was sent
    mqmesh-hmac        "sha256:HEX": HMAC of the payload: whoever sent it has the key
    Content Type       says which schema the payload has to follow

Correction is the publisher's: it is told what was wrong, and puts the message again. Both properties travel on, so that members can check
them too.

What it does not know: queues, what becomes of a message that fails.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from zlib import crc32

from ....base.queues import CHECKSUM, HMAC
from ....mqtt.reasons import Reason
from ..refused import Refused

if TYPE_CHECKING:
    from ....mqtt.publish import PublishProperties

REQUIRED, OPTIONAL = "required", "optional"
ANY_TYPE = "*"  # content type of the schema for messages of no other one

DIGESTS: dict[str, Callable[[bytes], str]] = {
    "sha256": lambda payload: hashlib.sha256(payload).hexdigest(),
    "crc32": lambda payload: f"{crc32(payload):08x}",
}


@dataclass(slots=True)
class Checks:
    """See the module. largest: bytes of a payload; 0: any. checksum: "" for none. key: of the HMAC; b"": none. publishers: patterns of user
    names, or of client identifiers where a client has no user name; none: anybody. schemas: by content type; each says what is wrong.
    """

    largest: int = 0
    checksum: str = ""
    key: bytes = field(default=b"", repr=False)
    publishers: tuple[str, ...] = ()
    schemas: dict[str, Callable[[bytes], str | None]] = field(default_factory=dict)

    def failures(
        self, payloads: list[bytes], properties: PublishProperties | None, publisher: str, user: str | None
    ) -> list[Refused | None]:
        """Why messages of one publisher are refused, each by itself; an empty list: none is."""
        if self.publishers and not any(fnmatchcase(user or publisher, pattern) for pattern in self.publishers):
            return [Refused(Reason.NOT_AUTHORIZED, f"{user or publisher} may not put messages into this queue")] * len(payloads)
        said = dict(properties.user_properties) if properties is not None else {}
        schema = self._schema(properties)
        found = [self._failure(bytes(payload), said, schema) for payload in payloads]
        return found if any(found) else []

    def _schema(self, properties: PublishProperties | None) -> Callable[[bytes], str | None] | None:
        content_type = (properties.content_type if properties is not None else None) or ""
        return self.schemas.get(content_type.partition(";")[0].strip().lower()) or self.schemas.get(ANY_TYPE)

    def _failure(self, payload: bytes, said: dict[str, str], schema: Callable[[bytes], str | None] | None) -> Refused | None:
        """What is wrong with one message."""
        if self.largest and len(payload) > self.largest:  # 0x95 is no reason of PUBACK; 0x97 is what exceeds a limit that was set
            return Refused(Reason.QUOTA_EXCEEDED, f"the payload has {len(payload):,} bytes, and this queue takes {self.largest:,} at most")
        text = self._checksum(payload, said) or self._hmac(payload, said) or (schema(payload) if schema is not None else None)
        return Refused(Reason.PAYLOAD_FORMAT_INVALID, text) if text is not None else None

    def _checksum(self, payload: bytes, said: dict[str, str]) -> str | None:
        if not self.checksum:
            return None
        kind, _, digits = said.get(CHECKSUM, "").partition(":")
        if not digits and CHECKSUM not in said:
            return f'{CHECKSUM} is missing: give "sha256:HEX" or "crc32:HEX"' if self.checksum == REQUIRED else None
        digest = DIGESTS.get(kind)
        if digest is None:
            return f'{CHECKSUM}: give "sha256:HEX" or "crc32:HEX"'
        found = digest(payload)
        return None if digits.lower() == found else f"{CHECKSUM}: the payload that came has {kind}:{found}"

    def _hmac(self, payload: bytes, said: dict[str, str]) -> str | None:
        if not self.key:
            return None
        if HMAC not in said:
            return f'{HMAC} is missing: give "sha256:HEX"'
        right = "sha256:" + hmac.new(self.key, payload, hashlib.sha256).hexdigest()
        same = hmac.compare_digest(said[HMAC].lower().encode("utf-8", "surrogatepass"), right.encode())
        return None if same else f"{HMAC} is not that of the payload with the key of this queue"
