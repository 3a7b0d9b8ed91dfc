"""What the state machine of a link through a metabroker (`remote_session.py`) wants done, and what it keeps of each request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..core.transport import Done, Incoming, Outcome, Publication


class Publish(NamedTuple):
    """Publish at the community broker. `RemoteSession.request_published` receives the outcome.

    session: the session that the request belongs to; "" for a connect request.
    done: receives the outcome too.
    """

    topic: str
    body: bytes
    qos: int
    session: str
    done: Done | None = None


class Subscribe(NamedTuple):
    """Subscribe at the community broker. `RemoteSession.subscribed` receives the outcome."""

    filter: str
    qos: int


class Unsubscribe(NamedTuple):
    """Unsubscribe at the community broker."""

    filter: str


class Acknowledge(NamedTuple):
    """Acknowledge a message to the community broker."""

    token: object


class Complete(NamedTuple):
    """Pass the outcome of a request to the user."""

    done: Done
    outcome: Outcome


class Connected(NamedTuple):
    """Tell the user that the link is up."""

    resumed: bool


class Disconnected(NamedTuple):
    """Tell the user that the link is down."""

    text: str
    word: str


class Notified(NamedTuple):
    """Tell the user something that the link survives."""

    text: str
    word: str


class Failed(NamedTuple):
    """Tell the user that the link has failed for good."""

    outcome: Outcome


class CloseLink(NamedTuple):
    """Close the connection to the community broker."""


Action = Publish | Subscribe | Unsubscribe | Acknowledge | Complete | Connected | Disconnected | Notified | Failed | CloseLink | Incoming


class Token(NamedTuple):
    """Acknowledges a publication.

    inner: the token of the community broker's link.
    session, id: identify the publication at the metabroker.
    """

    inner: object
    session: str
    id: int


@dataclass(slots=True)
class Request:
    """A request of the user.

    verb: publish, subscribe, unsubscribe or resume.
    work: the publication, or the filter.
    sent: when it was sent last, seconds of the monotonic clock.
    """

    number: int
    verb: str
    work: Publication | str
    qos: int
    done: Done | None
    sent: float = 0.0
