"""The words of the interchange over MQTT, which brokers, interchanges and clients share (docs/interchange.md)."""

from __future__ import annotations

POST = "interchange/post"  # where services post
QUERY = "interchange/query"  # where they ask what became of messages
EXPLAIN = "interchange/explain"  # where they ask what would become of a message
ANSWER = "interchange/answer"  # where a poster hears what became of a post, if it names no Response Topic
INBOX = "interchange/inbox/"  # how the queue of a service's inbox is called: interchange/inbox/ORGANISATION/NAME
PUBLISHER = "\0interchange"  # who puts into inboxes: no client has such an identifier
ENVELOPE = "application/vnd.mqmesh.message+json"  # Content Type of a message that stands in one JSON object
CONNECTIONS = 64  # of an interchange to its broker


def clients_of(site: str) -> list[str]:
    """The client identifiers under which the interchange of a broker takes from inboxes, inside that broker. site: the broker's name."""
    return [f"mqmesh-interchange-{site}-{number}" for number in range(CONNECTIONS)]
