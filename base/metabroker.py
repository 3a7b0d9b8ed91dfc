"""The vocabulary of the metabroker protocol (docs/metabroker-protocol.md): topics, codes and keys of bodies.

Clients, community brokers and metabrokers share it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgpack

REQUEST = "metabroker/request/"
RESPONSE = "metabroker/response/"
STATUS = "metabroker/status/"
PEER = "metabroker/peer/"
CONNECT = REQUEST + "connect"  # for brokers that say who sent a request; anywhere else `connect_topic`
IDENTITY = "mqmesh-client"  # user property of a connect request: who sent it. Only the community broker writes it
SITE = "mqmesh-site"  # another one: at which broker its sender is
PUBLICATION = "/publish"  # ends the topic of a request to publish and of an incoming publication
ANSWERS = {  # verb of a request -> verb of its answer
    "publish": "puback",
    "subscribe": "suback",
    "unsubscribe": "unsuback",
    "disconnect": "discack",
    "resume": "resack",
    "ack": "status",  # only when something is wrong
}
PROPERTIES: dict[str, type] = {  # keys of the map `properties` of a publication
    "format": int,
    "expiry": int,
    "content_type": str,
    "response_topic": str,
    "correlation": bytes,
    "user": list,
}


class Code(IntEnum):
    """The key `code` of an answer. 0 is success, everything else failure. The numbers never change."""

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
    MESSAGES_DROPPED = 13  # a durable session holds as much as it may: new messages are dropped until the client acknowledges some
    RESUMED = 14  # the metabroker has been restarted, the session goes on: requests without an answer are to be repeated


def client_name(client: str) -> str:
    """The name by which access rules know a client: what stands before the slash in that of one of its programs."""
    return client.partition("/")[0]


def connect_topic(client: str) -> str:
    """Where a client, or NAME/PROGRAM, one of its programs, asks for a session. Access rules let only this client publish there."""
    return f"{REQUEST}{client}/connect"


def gone_topic(client: str) -> str:
    """Where it is said that a client has vanished: for its will, or the broker says it."""
    return f"{REQUEST}{client}/disconnect"


def response_topic(session: str, verb: str) -> str:
    """Where a session, or a client that connects, gets answers and publications."""
    return f"{RESPONSE}{session}/{verb}"


def pack(**items: Any) -> bytes:
    """A body. A key whose value is None is left out. Raises ValueError for text that is not Unicode."""
    return bytes(msgpack.packb({key: value for key, value in items.items() if value is not None}))
