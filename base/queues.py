"""The words of queues over MQTT, which brokers and the client share (docs/queues.md).

Topics, and user properties of PUBLISH, SUBSCRIBE and CONNACK.
"""

from __future__ import annotations

PREFIX = "$queue/"  # how the topic of a queue begins
TEMPORARY = "temporary/"  # behind that: a queue that ends with the session of the client that made it: temporary/HOME/TOKEN
ALERTS = "/alerts"  # behind that: a member that asks for messages is told that there are some
TOPIC = "$mqmesh/queues"  # requests: how are the queues, what is in one
ANSWER = "$mqmesh/queues/answer"

HAS_QUEUES = ("mqmesh-queues", "1")  # CONNACK of a broker that has queues

HAS_DELAYS = ("mqmesh-delays", "1")  # CONNACK of a broker that holds messages to topics with HANDLE and DELAY until they are due

# what a client says that subscribes
SELECTOR = "mqmesh-selector"  # which messages it wants, in the language of Jakarta Messaging
KEY = "mqmesh-key"  # of a temporary queue: who has it is as good as who made the queue
REORDERS = "mqmesh-reorders"  # "1": of what it has it works the highest priority first, so it may have as much as of any other queue

# what publishers say of a message
HANDLE = "mqmesh-handle"  # their name for it: a repeat is not put again
DELAY = "mqmesh-delay"  # until it may be taken: "5s"
PRIORITY = "mqmesh-priority"  # 0 to 9
CHECKSUM = "mqmesh-checksum"  # of its payload: "sha256:HEX", "crc32:HEX"
HMAC = "mqmesh-hmac"  # of its payload, with the key of the queue: "sha256:HEX"
PARENTS = "mqmesh-parents"  # the messages that it comes of, which become DONE with it: "orders:17,orders:18"

# what the broker says of a message
LINEAGE = "mqmesh-lineage"  # the same, to its members
DELIVERIES = "mqmesh-deliveries"  # of one that is given again: how often it was given before
POSITION = "mqmesh-position"  # in a queue whose members say by requests what becomes of a message
FROM_QUEUE = "mqmesh-from-queue"  # of a copy, or of what took the place of a message: the queue of that one,
FROM_POSITION = "mqmesh-from-position"  # and its position there
