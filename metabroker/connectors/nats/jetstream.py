"""JetStream: which streams cover which subjects, and the requests to its interface that we make."""

from __future__ import annotations

import hashlib
import json
from typing import Any

API = "$JS.API."
LIST = API + "STREAM.LIST"
ACK = b"+ACK"
ACK_WAIT = 60  # seconds until the server sends again what has no acknowledgement
WINDOW = 500  # messages of a consumer without an acknowledgement
MOST_STREAMS = 10_000
REMEMBERED = 10_000  # subjects whose stream is known
SECOND = 1_000_000_000  # in JetStream's unit


def covers(wide: str, narrow: str) -> bool:
    """Whether each subject that one pattern matches is matched by another one."""
    wanted, tokens = wide.split("."), narrow.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > index
        if index >= len(tokens) or tokens[index] == ">" or (token != "*" and token != tokens[index]):
            return False
    return len(tokens) == len(wanted)


class Streams:
    """The streams of the account and their subjects, as far as they are known."""

    def __init__(self) -> None:
        self._subjects: list[tuple[str, str, bool]] = []  # pattern, stream, whether it acknowledges to publishers
        self._coming: list[tuple[str, str, bool]] = []
        self._cache: dict[str, tuple[str, bool] | None] = {}

    def covering(self, pattern: str) -> str | None:
        """The stream that keeps all that comes under a pattern."""
        found = self._find(pattern)
        return found[0] if found is not None else None

    def acknowledges(self, subject: str) -> bool:
        """Whether a stream keeps what is published to a subject, and says so."""
        found = self._find(subject)
        return found is not None and found[1]

    def _find(self, pattern: str) -> tuple[str, bool] | None:
        if pattern not in self._cache:
            if len(self._cache) > REMEMBERED:
                self._cache.clear()
            self._cache[pattern] = next(((stream, acks) for wide, stream, acks in self._subjects if covers(wide, pattern)), None)
        return self._cache[pattern]

    def forget(self) -> None:
        """There are none that we know of."""
        self._subjects.clear()
        self._cache.clear()

    def begin(self) -> bytes:
        """Ask for the list anew: the body of the first request."""
        self._coming = []
        return b'{"offset":0}'

    def page(self, reply: Any) -> bytes | None:
        """One page of the answer; the body of the next request, or None: that was all."""
        if not isinstance(reply, dict) or "error" in reply:
            self.forget()
            return None
        streams = reply.get("streams") or []
        for stream in streams:
            config = stream.get("config", {})
            # a mirror takes no messages from publishers, and a sealed stream from nobody
            if not config.get("mirror") and not config.get("sealed"):
                self._coming += [(subject, config["name"], not config.get("no_ack")) for subject in config.get("subjects") or []]
        after = int(reply.get("offset", 0)) + len(streams)
        if streams and after < min(int(reply.get("total", 0)), MOST_STREAMS):
            return json.dumps({"offset": after}).encode()
        self._subjects, self._coming = self._coming, []
        self._cache.clear()
        return None


def consumer_name(client: str, subject: str) -> str:
    """Of our durable consumer for a subject: the same in each connection and each life."""
    return f"{client}-{hashlib.sha256(subject.encode()).hexdigest()[:16]}"


def create(stream: str, name: str, subject: str, deliver: str, expiry: int) -> tuple[str, bytes]:
    """The request for a durable consumer that pushes to `deliver`: subject and body. One that is there stays as it is."""
    config = {
        "durable_name": name,
        "deliver_subject": deliver,
        "deliver_policy": "new",
        "ack_policy": "explicit",
        "ack_wait": ACK_WAIT * SECOND,
        "max_ack_pending": WINDOW,
        "max_deliver": -1,
        "filter_subject": subject,
        "replay_policy": "instant",
        "inactive_threshold": expiry * SECOND,
    }
    body = json.dumps({"stream_name": stream, "config": config}).encode()
    return f"{API}CONSUMER.DURABLE.CREATE.{stream}.{name}", body


def delete(stream: str, name: str) -> str:
    """The subject of the request to delete a consumer."""
    return f"{API}CONSUMER.DELETE.{stream}.{name}"


def sequence(reply: bytes) -> tuple[int, int]:
    """From the reply subject of a delivered message: its number in the stream, and how often it was delivered; (0, 0): it has none."""
    tokens = reply.split(b".")
    # $JS.ACK.stream.consumer.delivered.stream-sequence..., newer servers with domain and account before the stream
    at = 4 if len(tokens) == 9 else 6
    try:
        return (int(tokens[at + 1]), int(tokens[at])) if reply.startswith(b"$JS.ACK.") else (0, 0)
    except (IndexError, ValueError):
        return 0, 0
