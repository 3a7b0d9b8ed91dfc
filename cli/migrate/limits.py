"""The table `[limits]` from a mosquitto.conf."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from ...mesh.topology.settings import Limits
from .for_all_listeners import one_option, security_option
from .mosquitto_conf import Conf, Listener, MigrateError, flag, whole
from .remarks import Option, Remarks

LARGEST_PACKET = 268_435_460  # of MQTT
AROUND = 2**16 + 1024  # bytes of a packet around its payload: the topic, and properties of usual size
_SPAN = {"h": 3600, "d": 86_400, "w": 7 * 86_400, "m": 30 * 86_400, "y": 365 * 86_400}
_RANGES = {one.name: (one.metadata["low"], one.metadata["high"]) for one in fields(Limits) if "low" in one.metadata}


def limits_of(conf: Conf, listeners: list[Listener], remarks: Remarks) -> dict[str, Any]:
    """The table `[limits]`. listeners: those that are served. Raises MigrateError."""
    found: dict[str, Any] = {"max_packet_size": LARGEST_PACKET}
    for option in conf.options:
        if option.name in LIMITS:
            key, convert = LIMITS[option.name]
            value = convert(option, remarks)
            if value is not None:
                value = _within(key, value, option, remarks)
                found[key] = min(found[key], value) if key == "max_packet_size" else value
    for name, key in (("max_qos", "maximum_qos"), ("max_topic_alias", "topic_alias_maximum")):
        said = one_option(listeners, name, remarks, f"limits.{key}")
        if said is not None:
            found[key] = _within(key, whole(said), said, remarks)
            if name == "max_qos" and any(name not in one.options for one in listeners):
                remarks.lost(said, "limits.maximum_qos is one for all listeners of a broker")
    most = [one.options["max_connections"] for one in listeners if "max_connections" in one.options]
    bounded = [whole(one) for one in most if whole(one) >= 0]
    if bounded and len(bounded) == len(listeners):
        found["connections"] = sum(bounded)
        if len(bounded) > 1:
            remarks.note(most[0], "limits.connections is one for all listeners: the sum of theirs")
    elif bounded:
        remarks.lost(most[0], "limits.connections is one for all listeners, and others have no bound")
    empty = security_option(conf, listeners, "allow_zero_length_clientid", remarks, "limits.empty_client_ids")
    if empty is not None:
        found["empty_client_ids"] = flag(empty)
    return found


def _within(key: str, value: Any, option: Option, remarks: Remarks) -> Any:
    """The value, or the nearest one that a broker takes."""
    if key not in _RANGES:
        return value
    low, high = _RANGES[key]
    if not low <= value <= high:
        remarks.note(option, f"limits.{key} is {low} to {high}: the nearest is taken")
    return max(low, min(value, high))


def _number(option: Option, remarks: Remarks) -> int | None:
    return whole(option)


def _unless_zero(option: Option, remarks: Remarks) -> int | None:
    return whole(option) or None


def _in_flight(option: Option, remarks: Remarks) -> int | None:
    return whole(option) or 65535


def _queue(option: Option, remarks: Remarks) -> int | None:
    return whole(option) or 10**9


def _queue_bytes(option: Option, remarks: Remarks) -> int | None:
    return whole(option) or 2**40


def _memory(option: Option, remarks: Remarks) -> int | None:
    remarks.note(option, "broker_bytes bounds what is held for clients and neighbours, not the whole process")
    return whole(option) or None


def _payload(option: Option, remarks: Remarks) -> int | None:
    if not whole(option):
        return None
    remarks.note(option, "max_packet_size bounds the packet, not the payload, and ends the connection of who sends a larger one")
    return min(whole(option) + AROUND, LARGEST_PACKET)


def _flag_value(option: Option, remarks: Remarks) -> bool:
    return flag(option)


def _expiry(option: Option, remarks: Remarks) -> int | None:
    matched = re.fullmatch(r"(\d+)([hdwmy])", option.value)
    if matched is None:
        raise MigrateError(f"{option.place}: {option.name} {option.value}: a number and one of h, d, w, m, y is right")
    return min(int(matched[1]) * _SPAN[matched[2]], 2**32 - 2)


LIMITS: dict[str, tuple[str, Callable[[Option, Remarks], Any]]] = {
    "max_inflight_messages": ("in_flight", _in_flight),
    "max_keepalive": ("keep_alive_maximum", _number),
    "max_packet_size": ("max_packet_size", _unless_zero),
    "message_size_limit": ("max_packet_size", _payload),
    "max_queued_messages": ("session_queue_messages", _queue),
    "max_queued_bytes": ("session_queue_bytes", _queue_bytes),
    "memory_limit": ("broker_bytes", _memory),
    "persistent_client_expiration": ("session_expiry_maximum", _expiry),
    "retain_available": ("retain_available", _flag_value),
    "sys_interval": ("sys_interval", _number),
}
