"""What a response says about success or failure: the key `code`. The numbers are part of the protocol and never change."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """0 is success, everything else failure (docs/metabroker-protocol.md)."""

    OK = 0
    MALFORMED = 1  # the body is no map, or a key is missing or wrong
    UNKNOWN_SESSION = 2  # there is no such session, or it has ended
    NO_SUCH_SERVICE = 3  # the service name cannot be resolved
    REFUSED_BY_POLICY = 4  # this client, remote, topic or filter is not allowed here
    REMOTE_UNREACHABLE = 5  # no connection to the remote broker
    REMOTE_REFUSED_CREDENTIALS = 6  # the remote broker does not accept user name and password
    REMOTE_REFUSED = 7  # the remote broker refuses, for another reason
    TOO_MANY_SESSIONS = 8
    TOO_MANY_REQUESTS = 9  # a bound of the session is reached: wait for answers, then send again
    TOO_LARGE = 10  # the body has more bytes than the policy allows
    NOT_SUPPORTED = 11  # known to the protocol, not served by this metabroker
    SESSION_ENDED = 12  # the metabroker has ended the session
    MESSAGES_DROPPED = 13  # a durable session holds as much as it may: what comes is dropped until the client acknowledges some
    RESUMED = 14  # the metabroker has been restarted, the session goes on: requests without an answer are to be repeated
