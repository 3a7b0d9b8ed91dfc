"""Topics, filters and properties for the tests of connectors, with what is special to AMQP and NATS in them."""

from __future__ import annotations

from hypothesis import strategies as st
from mqmesh.mqtt.errors import MqttError
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.topics import check_filter, check_topic

LEVEL = st.text(st.sampled_from("ab.*>$/+#% \tü"), max_size=4)
TOPICS = st.lists(LEVEL, min_size=1, max_size=4).map("/".join)
FILTERS = st.lists(LEVEL | st.sampled_from(["+", "#"]), min_size=1, max_size=4).map("/".join)


def is_topic(text: str) -> bool:
    try:
        check_topic(text.encode())
    except MqttError:
        return False
    return True


def is_filter(text: str) -> bool:
    try:
        check_filter(text)
    except MqttError:
        return False
    return True


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        Property.PAYLOAD_FORMAT_INDICATOR: st.sampled_from([0, 1]),
        Property.MESSAGE_EXPIRY_INTERVAL: st.integers(0, 4_000_000),
        Property.CONTENT_TYPE: TEXT,
        Property.RESPONSE_TOPIC: st.sampled_from(["r", "r/s", "/r//"]),
        Property.CORRELATION_DATA: st.binary(max_size=300),
        Property.USER_PROPERTY: st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4),
    },
)
