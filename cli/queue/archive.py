"""`mqmesh queue archive`: what is in an archive of queues, without a broker (docs/queues.md, "The archive")."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import datetime
from pathlib import Path
from typing import Any

from ...broker.queues.archive.files import files, missing, read
from ...broker.queues.rows import time_of
from ...mqtt.errors import UsageError
from ..output import FAILED, WRONG_USE, fail
from ..recipients.view import lines, name_of
from .options import MOST, QueueOptions, since_of

USE = "give archive ls FOLDER, or archive read FOLDER NAME"


def show(words: list[str], chosen: QueueOptions) -> None:
    """Print the files of an archive (ls FOLDER), or messages of a queue in it (read FOLDER NAME)."""
    if words[:1] not in (["ls"], ["read"]) or len(words) != {"ls": 2, "read": 3}[words[0]]:
        raise fail(f"queue: {USE}", WRONG_USE)
    text = missing()
    if text is not None:
        raise fail(f"queue: {text}", FAILED)
    folder = Path(words[1])
    if not folder.is_dir():
        raise fail(f"queue: {folder}: there is no such folder", FAILED)
    try:
        if words[0] == "ls":
            _files(folder, chosen.as_json)
        else:
            _messages(folder, words[2], chosen)
    except (OSError, ValueError) as error:  # of a file that is none of an archive too
        raise fail(f"queue: {folder}: {error}", FAILED) from None


def _files(folder: Path, as_json: bool) -> None:
    found = files(folder)
    if as_json:
        print(json.dumps({"files": [{**one._asdict(), "path": str(one.path)} for one in found]}))
        return
    rows = [("QUEUE", "MESSAGES", "FIRST", "LAST", "PUT FROM", "TO", "BYTES", "FILE")]
    for one in found:
        counts = f"{one.messages:,}", str(one.first), str(one.last)
        rows.append((name_of(one.queue), *counts, one.since, one.until, f"{one.size:,}", str(one.path.relative_to(folder))))
    print("\n".join(lines(rows, right={1, 2, 3, 6})) if found else "no files")


def _messages(folder: Path, queue: str, chosen: QueueOptions) -> None:
    since = chosen.since
    try:
        at = datetime.fromtimestamp(time_of(since_of(since)) / 1000).astimezone() if since is not None else None
    except UsageError as error:
        raise fail(f"queue: --since: {error}", WRONG_USE) from None
    found = read(folder, queue, chosen.begin or 0, at, chosen.most or MOST)
    if chosen.as_json:
        print(json.dumps({"messages": found}, default=_plain))
        return
    rows = [("SITE", "POSITION", "PUT", "PUBLISHER", "STATE", "PAYLOAD")]
    for one in found:
        payload = (one["payload"] or b"").decode("utf-8", "backslashreplace")
        shown = "".join(letter if letter.isprintable() else "?" for letter in payload[:60])
        put = one["put"].isoformat(timespec="milliseconds")
        rows.append((one["site"], str(one["position"]), put, name_of(one["publisher"]), one["state"] or "-", shown))
    print("\n".join(lines(rows, right={1})) if found else "no messages")


def _plain(value: Any) -> str:
    """Times as text, bytes in base64."""
    return value.isoformat() if isinstance(value, datetime) else b64encode(value).decode()
