"""Sessions: one client's use of one remote, and what a durable one has beside that. Data alone; `core.py` and `durable.py` change it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from ...base.metabroker import Code
from ..policy import Rule
from .remote import Remote

PROBE = 30.0  # seconds without an acknowledgement until the oldest publication is sent again; doubled each time
LONGEST_PROBE = 960.0


@dataclass(slots=True)
class Durable:
    """What a durable session has more. expiry: seconds that it is kept without a request. away: its client has said that it leaves.

    kept: publications without an acknowledgement of the client, identifier -> bytes; `bytes` is their sum. acked, sent: the highest
    identifier that the client has acknowledged, that was sent; shown: the last one that was not left out as expired. outstanding, out:
    how many of `kept` are sent, and their bytes. dropped: publications that found no room; full: the client has been told. fetching:
    the token of a page that is read from the store, 0: none. probe: when the oldest one is sent again; pause: how long until then.
    sequence: of the last kept request; slots: message -> sequence of those whose identifiers are kept. noted: `seen` as it is stored.
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
    """One client's use of one remote. filters: what it holds or waits for. done: message identifier -> code, None while under way.

    unpublished: requests without an identifier that were refused; tells: when the client may be told of more of them (quiet.py).
    ends: when it does without a request; life: seconds from a request until then. durable: None if it is not.
    """

    id: str
    client: str
    remote: Remote
    rule: Rule
    ends: float
    life: float
    filters: set[str] = field(default_factory=set)
    done: OrderedDict[str | int, Code | None] = field(default_factory=OrderedDict)
    open: int = 0  # publish and subscribe requests without an answer
    number: int = 0  # of its last incoming publication
    unpublished: int = 0
    tells: float = 0.0
    durable: Durable | None = None


@dataclass(slots=True)
class Counters:
    """Since the metabroker began. published, incoming: messages to and from remotes. delivered: publications for sessions.

    refused: code -> answers with it. dropped: publications of durable sessions without room; expired: those that waited too long.
    repeated: requests to publish that had come before. not_published: requests that wanted no answer and were refused.
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
