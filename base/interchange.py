"""The words of the interchange over MQTT, which brokers, interchanges and clients share (docs/interchange.md)."""

from __future__ import annotations

POST = "interchange/post"  # where services post
QUERY = "interchange/query"  # where they ask what became of messages
ANSWER = "interchange/answer"  # where a poster hears what became of a post, if it names no Response Topic
INBOX = "interchange/inbox/"  # how the queue of a service's inbox is called: interchange/inbox/ORGANISATION/NAME
CLIENT = (
    "mqmesh-interchange-"  # and the broker's name: the client identifier under which an interchange takes from inboxes, inside its broker
)
ENVELOPE = "application/vnd.mqmesh.message+json"  # Content Type of a message that stands in one JSON object
