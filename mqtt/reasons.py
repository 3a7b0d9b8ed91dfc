"""Reason codes: what a packet says about success or failure, for MQTT 5.0 (2.4) and for the CONNACK of 3.1.1 (3.2.2.3).

`Reason` is used everywhere inside, also for 3.1.1 connections; `V3_FROM_V5` turns it into what a 3.1.1 CONNACK can say.
The tables at the end name the codes that each packet may carry; the codec rejects others in both directions.
"""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """MQTT 5.0 table 2-6. Codes below 0x80 are success, the rest failure."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class ConnectReturn(IntEnum):
    """MQTT 3.1.1 table 3.1: the return codes of CONNACK."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


V3_FROM_V5: dict[int, ConnectReturn] = {
    Reason.SUCCESS: ConnectReturn.ACCEPTED,
    Reason.UNSUPPORTED_PROTOCOL_VERSION: ConnectReturn.UNACCEPTABLE_PROTOCOL_VERSION,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: ConnectReturn.IDENTIFIER_REJECTED,
    Reason.BAD_USER_NAME_OR_PASSWORD: ConnectReturn.BAD_USER_NAME_OR_PASSWORD,
    Reason.NOT_AUTHORIZED: ConnectReturn.NOT_AUTHORIZED,
    Reason.BANNED: ConnectReturn.NOT_AUTHORIZED,
    Reason.BAD_AUTHENTICATION_METHOD: ConnectReturn.NOT_AUTHORIZED,
    Reason.SERVER_UNAVAILABLE: ConnectReturn.SERVER_UNAVAILABLE,
    Reason.SERVER_BUSY: ConnectReturn.SERVER_UNAVAILABLE,
    Reason.QUOTA_EXCEEDED: ConnectReturn.SERVER_UNAVAILABLE,
    Reason.USE_ANOTHER_SERVER: ConnectReturn.SERVER_UNAVAILABLE,
    Reason.SERVER_MOVED: ConnectReturn.SERVER_UNAVAILABLE,
    Reason.CONNECTION_RATE_EXCEEDED: ConnectReturn.SERVER_UNAVAILABLE,
    Reason.UNSPECIFIED_ERROR: ConnectReturn.SERVER_UNAVAILABLE,
    Reason.IMPLEMENTATION_SPECIFIC_ERROR: ConnectReturn.SERVER_UNAVAILABLE,
}
"""What a 3.1.1 CONNACK says for a reason. A reason that is missing here has no return code: close without CONNACK."""


def _codes(*codes: int) -> dict[int, Reason]:
    return {code: Reason(code) for code in codes}


# Byte -> Reason for each packet that carries reason codes: membership is validity, the value spares a conversion.
CONNACK_REASONS = _codes(0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F)
PUBACK_REASONS = _codes(0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
PUBREC_REASONS = PUBACK_REASONS
PUBREL_REASONS = _codes(0, 0x92)
PUBCOMP_REASONS = PUBREL_REASONS
SUBACK_REASONS = _codes(0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)
UNSUBACK_REASONS = _codes(0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)
DISCONNECT_REASONS = _codes(0, 4, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3))
AUTH_REASONS = _codes(0, 0x18, 0x19)
SUBACK_V4_REASONS = _codes(0, 1, 2, 0x80)
