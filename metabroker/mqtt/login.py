"""As whom the metabroker connects to a broker, on either side."""

from __future__ import annotations

from dataclasses import dataclass

from ...mqtt.packets import Will

RECEIVE_MAXIMUM = 1000


@dataclass(frozen=True, slots=True)
class Login:
    """As whom. keep_alive, expiry: seconds; expiry: how long an MQTT 5 server keeps the session of a lost connection.

    known: the server may have a session of ours from before this process. durable: a server of 3.1.1 is to keep one, too.
    falls_back: a server that does not understand this version of MQTT is asked in 3.1.1.
    yields: after another client has taken our session we come back when that one is gone, if the server can tell (`base/clients.py`).
    receive_maximum: messages of QoS 1 and 2 that an MQTT 5 server may have sent without an acknowledgement.
    """

    client_id: str
    version: int = 5
    username: str | None = None
    password: bytes | None = None
    keep_alive: int = 30
    expiry: int = 3600
    max_packet: int = 16_777_216
    receive_maximum: int = RECEIVE_MAXIMUM
    known: bool = False
    durable: bool = False
    falls_back: bool = False
    yields: bool = False
    will: Will | None = None
