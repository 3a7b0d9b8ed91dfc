"""JetStream: which streams cover which subjects, and the consumers that we make."""

from __future__ import annotations

import hashlib

from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, ReplayPolicy

API = "$JS.API."
PATIENCE = 5.0  # seconds for an answer
NOT_TAKEN = b"-NAK"  # as an acknowledgement: send it again
ACK_WAIT = 60  # seconds until the server sends again what has no acknowledgement
WINDOW = 500  # messages of a consumer without an acknowledgement
MOST_STREAMS = 10_000
REMEMBERED = 10_000  # subjects whose stream is known


def covers(wide: str, narrow: str) -> bool:
    """Whether each subject that one pattern matches is matched by another one."""
    wanted, tokens = wide.split("."), narrow.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > index
        if index >= len(tokens) or tokens[index] == ">" or (token != "*" and token != tokens[index]):
            return False
    return len(tokens) == len(wanted)


def common(one: str, other: str) -> str | None:
    """The pattern of those subjects that both patterns match; None: there are none."""
    left, right = one.split("."), other.split(".")
    found: list[str] = []
    for index in range(max(len(left), len(right))):
        if left[index : index + 1] == [">"] and index < len(right):
            return ".".join(found + right[index:])
        if right[index : index + 1] == [">"] and index < len(left):
            return ".".join(found + left[index:])
        if index >= min(len(left), len(right)) or (left[index] != right[index] and "*" not in (left[index], right[index])):
            return None
        found.append(right[index] if left[index] == "*" else left[index])
    return ".".join(found)


class Streams:
    """The streams of the account and their subjects, as far as they are known."""

    def __init__(self) -> None:
        self._subjects: list[tuple[str, str, bool]] = []  # pattern, stream, whether it acknowledges to publishers
        self._acks: dict[str, bool] = {}

    async def load(self, stream: JetStreamContext) -> None:
        """Read the list. Raises what the library does when it cannot be had; then none is known."""
        found: list[tuple[str, str, bool]] = []
        offset = 0
        try:
            while offset < MOST_STREAMS and (page := await stream.streams_info(offset)):
                offset += len(page)
                for config in (one.config for one in page):
                    # a mirror takes no messages from publishers, and a sealed stream from nobody
                    if not config.mirror and not config.sealed:
                        found += [(str(subject), str(config.name), not config.no_ack) for subject in config.subjects or ()]
        finally:
            self._subjects = found
            self._acks.clear()

    def keeping(self, pattern: str) -> list[tuple[str, str]]:
        """Which streams keep what of a pattern: streams and patterns that do not overlap, as streams of an account do not."""
        parts = [(stream, common(wide, pattern)) for wide, stream, _ in self._subjects]
        return [(stream, part) for stream, part in parts if part is not None]

    def acknowledges(self, subject: str) -> bool:
        """Whether a stream keeps what is published to a subject, and says so."""
        known = self._acks.get(subject)
        if known is None:
            if len(self._acks) > REMEMBERED:
                self._acks.clear()
            known = self._acks[subject] = next((acks for wide, _, acks in self._subjects if covers(wide, subject)), False)
        return known


def consumer_name(client: str, subject: str) -> str:
    """Of our durable consumer for a subject: the same in each connection and each life."""
    return f"{client}-{hashlib.sha256(subject.encode()).hexdigest()[:16]}"


def consumer(name: str, subject: str, deliver: str, expiry: int) -> ConsumerConfig:
    """A durable consumer that pushes to `deliver`. An existing one stays unchanged."""
    return ConsumerConfig(
        durable_name=name,
        deliver_subject=deliver,
        deliver_policy=DeliverPolicy.NEW,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT,
        max_ack_pending=WINDOW,
        max_deliver=-1,
        filter_subject=subject,
        replay_policy=ReplayPolicy.INSTANT,
        inactive_threshold=expiry,
    )


def sequence(reply: str) -> tuple[int, int]:
    """From the reply subject of a delivered message: its number in the stream, and how often it was delivered; (0, 0): it has none that
    could be answered."""
    tokens = reply.split(".")
    # $JS.ACK.stream.consumer.delivered.stream-sequence..., newer servers with domain and account before the stream
    at = 4 if len(tokens) == 9 else 6
    try:
        reply.encode()
        return (int(tokens[at + 1]), int(tokens[at])) if reply.startswith("$JS.ACK.") else (0, 0)
    except (IndexError, ValueError):
        return 0, 0
