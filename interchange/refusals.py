"""What the interchange refuses, by code. A refusal says what is wrong and what would be right (us-9037726, l. 124)."""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """Why a post is refused, or why a request ends in an error message. Faces write the value."""

    NOT_WELL_FORMED = "not-well-formed"
    NOT_THE_SENDER = "not-the-sender"  # the header names another service than the one who posts
    DUPLICATE = "duplicate"  # this sender has posted this handle already
    NOT_A_RECIPIENT = "not-a-recipient"  # answers what was not delivered to it
    NO_REQUEST = "no-request"  # a response to nothing that is known
    NO_RESPONSE_WANTED = "no-response-wanted"  # a response to a notification
    ALREADY_ANSWERED = "already-answered"
    ALREADY_ENDED = "already-ended"  # cancelled, failed or answered
    EXPIRED = "expired"
    UNKNOWN_SESSION = "unknown-session"  # also for a session in which the sender takes no part
    UNKNOWN_CALL = "unknown-call"  # also for a call in which the sender takes no part
    UNKNOWN_SERVICE = "unknown-service"  # also for a service that the sender may not see
    INVALID_ROUTE = "invalid-route"
    ROUTE_TOO_LONG = "route-too-long"
    SERVICE_CYCLE = "service-cycle"  # a service includes itself, directly or through others
    NOT_PERMITTED = "not-permitted"
    SUSPENDED = "suspended"
    NOT_SECURE_ENOUGH = "not-secure-enough"  # the security policy of a service asks for more
    REJECTED = "rejected"  # by a rule of a service
    OVER_LIMIT = "over-limit"  # the monthly limit of a service
    TOO_LARGE = "too-large"
    SERVICE_ERROR = "service-error"  # a service answered with an error of its own
    CANCELLED = "cancelled"
    HOME_LOST = "home-lost"  # the home came back in another life and knows nothing of this
    UNAVAILABLE = "unavailable"  # cannot be decided now; the same post may be right later


class Refusal(Exception):
    """A message that is not taken, or a route that cannot be.

    what: what is wrong, with the name and value that are.
    right: what would be right; empty where nothing would.
    """

    def __init__(self, code: Code, what: str, right: str = "") -> None:
        super().__init__(f"{code}: {what}" + (f"; {right}" if right else ""))
        self.code = code
        self.what = what
        self.right = right

    def fields(self) -> dict[str, str]:
        """As every face says it."""
        return {"code": self.code.value, "what": self.what, "right": self.right}
