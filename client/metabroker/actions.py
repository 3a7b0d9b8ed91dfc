"""What the machine of a link through a metabroker (`remote_session.py`) wants done, and what it keeps of each request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..core.transport import Done, Incoming, Outcome, Publication


class Say(NamedTuple):
    """Publish at the community broker; `said` hears of it. session: for which one, "" for a connect request.

    done: who hears of it, too.
    """

    topic: str
    body: bytes
    qos: int
    session: str
    done: Done | None = None


class Listen(NamedTuple):
    """Subscribe at the community broker; `listening` hears of it."""

    filter: str
    qos: int


class Ignore(NamedTuple):
    """Unsubscribe there."""

    filter: str


class Acknowledge(NamedTuple):
    """Acknowledge to the community broker."""

    token: object


class Settle(NamedTuple):
    """A request of the user has ended."""

    done: Done
    outcome: Outcome


class Up(NamedTuple):
    """Tell the user."""

    resumed: bool


class Down(NamedTuple):
    """Tell the user."""

    text: str
    word: str


class Told(NamedTuple):
    """Tell the user; the link goes on."""

    text: str
    word: str


class Failed(NamedTuple):
    """Tell the user; the link is of no more use."""

    outcome: Outcome


class Leave(NamedTuple):
    """Close the connection to the community broker."""


Action = Say | Listen | Ignore | Acknowledge | Settle | Up | Down | Told | Failed | Leave | Incoming


class Token(NamedTuple):
    """What acknowledges a publication: at the community broker, and by name."""

    inner: object
    session: str
    id: int


@dataclass(slots=True)
class Request:
    """A request of the user. work: the publication, or the filter."""

    number: int
    verb: str
    work: Publication | str
    qos: int
    done: Done | None
    sent: float = 0.0
