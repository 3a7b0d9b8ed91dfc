"""The keys of a table `[queues.NAME]` that say what the queue checks on receipt.

[queues.orders]
largest = "64 KiB"          # of a payload
checksum = "required"       # mqmesh-checksum has to be there; "optional": it is checked if it is there
hmac_key = "orders.key"     # a file whose first line is the key of mqmesh-hmac
publishers = ["shop-*"]     # who may put messages: patterns of user names

[queues.orders.schema]
"application/json" = "order.schema.json"   # by content type; "*": of all others, and of messages without one

Paths are relative to the folder of the broker's file.

What it does not know: messages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ....base.settings import Section
from ...auth.metabroker_secret import SecretError, read_secret
from .checks import OPTIONAL, REQUIRED, Checks
from .schema import schema_of

LARGEST = 2**28


def checks_of(one: Section, folder: Path | None) -> Checks | None:
    """What a queue checks; None: nothing. folder: what paths are relative to. Raises ConfigError."""
    checks = Checks(
        one.size("largest", 1, LARGEST, LARGEST) if one.has("largest") else 0,
        one.choice("checksum", (REQUIRED, OPTIONAL)) if one.has("checksum") else "",
        _key(one, folder),
        tuple(one.strings("publishers", [])),
        _schemas(one.section("schema"), folder),
    )
    if one.has("publishers") and not checks.publishers:
        raise one.error("publishers", 'give patterns of names, such as ["shop-*"], or leave it out')
    return checks if checks != Checks() else None


def _key(one: Section, folder: Path | None) -> bytes:
    if not one.has("hmac_key"):
        return b""
    path = one.path_of("hmac_key", folder, "give the path of a file with the key in its first line")
    try:
        return read_secret(path)
    except SecretError as error:
        raise one.error("hmac_key", str(error)) from None


def _schemas(one: Section, folder: Path | None) -> dict[str, Callable[[bytes], str | None]]:
    found = {}
    for content_type in one.table:
        path = one.path_of(content_type, folder, "give the path of a JSON Schema")
        try:
            found[content_type.lower()] = schema_of(path)
        except ValueError as error:
            raise one.error(content_type, str(error)) from None
    return found
