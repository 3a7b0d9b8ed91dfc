"""A client's will: what is published for it when its connection ends without a DISCONNECT (MQTT 5: 3.1.2.5)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from ...mqtt.batch.run import Run
from ...mqtt.packets import Connect
from ...mqtt.properties import Property, encode_properties
from ..ledger import WILL

TRAVELLING = (
    Property.PAYLOAD_FORMAT_INDICATOR,
    Property.CONTENT_TYPE,
    Property.RESPONSE_TOPIC,
    Property.CORRELATION_DATA,
    Property.USER_PROPERTY,
)


@dataclass(slots=True)
class Will:
    """topic: checked UTF-8. properties: encoded, without expiry. delay and expiry: seconds."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: bytes
    expiry: int | None
    delay: int
    timer: asyncio.TimerHandle | None = None

    @property
    def weight(self) -> int:
        """About how many bytes of memory it stands for."""
        return WILL + len(self.topic) + len(self.payload) + len(self.properties)

    def run(self, now: float) -> Run:
        """The message, its lifetime counted from now (MQTT-3.1.2-8)."""
        return Run(self.topic, self.qos, self.retain, [self.payload], self.properties, self.expiry, now)

    def cancel(self) -> None:
        """A new connection came before the delay was over (MQTT-3.1.3-9)."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def will_of(connect: Connect) -> Will | None:
    """The will in a CONNECT."""
    if connect.will is None:
        return None
    will = connect.will
    carried: dict[int, Any] = {key: will.properties[key] for key in TRAVELLING if key in will.properties}
    return Will(
        will.topic.encode(),
        will.payload,
        will.qos,
        will.retain,
        encode_properties(carried),
        will.properties.get(Property.MESSAGE_EXPIRY_INTERVAL),
        will.properties.get(Property.WILL_DELAY_INTERVAL, 0),
    )
