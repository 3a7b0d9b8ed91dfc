"""Sessions: one client's use of one remote, and the further state of durable ones. Only data; `core.py` and `persistence.py` change it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from ..policy import Rule
from .remote import Remote

PROBE = 30.0  # seconds without an acknowledgement until the oldest publication is sent again; doubled each time
LONGEST_PROBE = 960.0


@dataclass(slots=True)
class Durable:
    """What a durable session has in addition.

    expiry: seconds that it is kept without a request.
    away: its client has said that it leaves.
    kept: publications that the client has not acknowledged, identifier -> bytes.
    bytes: their sum.
    acked: the highest identifier that the client has acknowledged.
    sent: the highest identifier that was sent.
    shown: the last publication that was not left out as expired.
    outstanding: how many of `kept` are sent.
    out: their bytes.
    dropped: publications that found no room.
    full: the client has been told that there is no room.
    fetching: token of the page that is being read from the store; 0: none.
    probe: when the oldest publication is sent again.
    pause: seconds until then.
    sequence: of the last stored request.
    slots: message -> sequence of requests whose identifiers are stored.
    noted: `seen` as it is stored.
    """

    expiry: int
    away: bool = False
    kept: dict[int, int] = field(default_factory=dict)
    bytes: int = 0
    acked: int = 0
    sent: int = 0
    shown: int = 0
    outstanding: int = 0
    out: int = 0
    dropped: int = 0
    full: bool = False
    fetching: int = 0
    probe: float = 0.0
    pause: float = PROBE
    sequence: int = 0
    slots: dict[str | int, int] = field(default_factory=dict)
    noted: float = 0.0


@dataclass(slots=True)
class Session:
    """One client's use of one remote.

    filters: filters that it holds or waits for.
    done: message identifier -> `content_of` the request that had it and was published; its complement while there is no answer.
    open: publish and subscribe requests without an answer.
    number: of its last incoming publication.
    unpublished: refused requests that want no answer.
    tells: when the client may be told of more of them (`unanswered.py`).
    ends: when it ends unless a request comes.
    life: seconds from a request until then.
    durable: None if it is not durable.
    """

    id: str
    client: str
    remote: Remote
    rule: Rule
    ends: float
    life: float
    filters: set[str] = field(default_factory=set)
    done: OrderedDict[str | int, int] = field(default_factory=OrderedDict)
    open: int = 0  # publish and subscribe requests without an answer
    number: int = 0  # of its last incoming publication
    unpublished: int = 0
    tells: float = 0.0
    durable: Durable | None = None


@dataclass(slots=True)
class Counters:
    """Counts since the metabroker began.

    published, incoming: messages to and from remotes.
    delivered: publications for sessions.
    dropped: publications of durable sessions that found no room.
    expired: publications that waited too long.
    repeated: requests to publish that had come before.
    not_published: refused requests that want no answer.
    refused: code -> answers with it.
    """

    requests: int = 0
    published: int = 0
    incoming: int = 0
    delivered: int = 0
    dropped: int = 0
    expired: int = 0
    repeated: int = 0
    not_published: int = 0
    refused: dict[int, int] = field(default_factory=dict)
