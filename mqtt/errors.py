"""Two families of errors: the *peer* misbehaved (`PeerError`), or *we* misused the API (`UsageError`).

A `PeerError` carries everything that the connection's owner needs: the reason code for DISCONNECT or CONNACK, one line of
text that names what was wrong, and the clause that was broken. Clause identifiers are those of MQTT 5.0; where only
MQTT 3.1.1 has the rule, the identifier is preceded by ``3.1.1 ``. Rules that the standard states without an identifier are
given by section, such as ``"3.8.3.1"``.
"""

from __future__ import annotations

from .reasons import Reason


class MqttError(Exception):
    """Base of all errors of this package."""


class UsageError(MqttError):
    """The caller asked for something that MQTT cannot express. A bug on our side, never the peer's fault."""


class PeerError(MqttError):
    """The peer broke a rule; its connection ends with `reason` [MQTT-4.13.1-1].

    reason: the reason code to answer with. text: one line, for logs and Reason String. clause: identifier or section.
    """

    def __init__(self, reason: Reason, text: str, clause: str = "") -> None:
        super().__init__(reason, text, clause)
        self.reason = reason
        self.text = text
        self.clause = clause

    def __str__(self) -> str:
        return f"{self.text} [{self.clause}]" if self.clause else self.text


class MalformedPacket(PeerError):
    """The bytes are no MQTT packet: reason 0x81 unless another one is given."""

    def __init__(self, text: str, clause: str = "", reason: Reason = Reason.MALFORMED_PACKET) -> None:
        super().__init__(reason, text, clause)

    def __reduce__(self) -> tuple[type[MalformedPacket], tuple[str, str, Reason]]:
        return type(self), (self.text, self.clause, self.reason)


def protocol_error(text: str, clause: str = "") -> PeerError:
    """A packet that parses but says what it must not: reason 0x82."""
    return PeerError(Reason.PROTOCOL_ERROR, text, clause)
