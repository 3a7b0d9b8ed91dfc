"""A message in a file: its header's fields, `body` or `base64`, `content_type` and attachments, as JSON or TOML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...interchange.message import Message


def read_table(file: Path) -> dict[str, Any]:
    """The table of a file. `body` may be an object or a list, which is a body of JSON. Raises ConfigError."""
    from ...base.settings import MISSING, ConfigError, read

    if file.suffix == ".toml":
        table: Any = dict(read(file).table)
    else:
        try:
            table = json.loads(file.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise ConfigError(str(file), "", MISSING, f"cannot be read: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(str(file), "", MISSING, f"is no JSON: {error}") from None
    if not isinstance(table, dict):
        raise ConfigError(str(file), "", MISSING, 'is no JSON object: give {"kind": ..., "body": ...}')
    found: dict[str, Any] = table
    if isinstance(table.get("body"), dict | list):
        found = {"content_type": "application/json", **table, "body": json.dumps(table["body"], default=str)}
    return found


def read_message(file: Path) -> Message:
    """The message of a file. Raises Refusal, ConfigError."""
    from ...interchange.faces import envelope
    from ...interchange.message import Message, read_header

    fields, body, attachments = envelope.read(json.dumps(read_table(file), default=str).encode())
    return Message(read_header(fields), body, attachments)
