"""Hypothesis strategies for every packet of both versions, used by the codec's property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from mqmesh.mqtt import packets as p
from mqmesh.mqtt import reasons as r
from mqmesh.mqtt.properties import PROPERTIES, PacketKind, Property, PropertyType

# Anything that UTF-8 can hold but U+0000; with the characters that topics are about.
characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from("/$+#a")
texts = st.text(characters, max_size=12)
topic_levels = st.text(st.characters(exclude_characters="\0+#/", exclude_categories=["Cs"]), max_size=4) | st.sampled_from(
    ["", "a", "b", "$SYS"]
)
topics = st.lists(topic_levels, min_size=1, max_size=5).map("/".join).filter(bool)
binaries = st.binary(max_size=20)
packet_ids = st.integers(1, 65535)
qos = st.integers(0, 2)


@st.composite
def filters(draw: st.DrawFn, shared: bool = False) -> str:
    """Well-formed topic filters; with `shared` also those of shared subscriptions."""
    levels = draw(st.lists(topic_levels | st.just("+"), min_size=1, max_size=5))
    if draw(st.booleans()):
        levels.append("#")
    filter_ = "/".join(levels) or "/"
    if shared and draw(st.booleans()):
        group = draw(st.text(st.characters(exclude_characters="\0+#/", exclude_categories=["Cs"]), min_size=1, max_size=4))
        return f"$share/{group}/{filter_}"
    return filter_ if shared or not filter_.startswith("$share/") else "a"


_SCALARS: dict[PropertyType, st.SearchStrategy[Any]] = {
    PropertyType.BOOLEAN: st.integers(0, 1),
    PropertyType.TWO_BYTES: st.integers(1, 0xFFFF),
    PropertyType.FOUR_BYTES: st.integers(1, 0xFFFF_FFFF),
    PropertyType.VARINT: st.integers(1, 268_435_455) | st.sampled_from([127, 128, 16_383, 16_384, 2_097_151, 2_097_152]),
    PropertyType.BINARY: binaries,
    PropertyType.STRING: texts,
    PropertyType.PAIR: st.tuples(texts, texts),
}


def _value(identifier: int, kind: PacketKind) -> st.SearchStrategy[Any]:
    rule = PROPERTIES[identifier]
    if identifier == Property.RESPONSE_TOPIC:
        return topics
    if rule.repeatable:
        most = 1 if identifier == Property.SUBSCRIPTION_IDENTIFIER and kind == PacketKind.SUBSCRIBE else 3
        return st.lists(_SCALARS[rule.type], min_size=1, max_size=most)
    return _SCALARS[rule.type]


def properties(kind: PacketKind) -> st.SearchStrategy[dict[int, Any]]:
    """Any properties that may stand in the packet."""
    choices = {identifier: _value(identifier, kind) for identifier, rule in PROPERTIES.items() if kind in rule.packets}
    return st.fixed_dictionaries({}, optional=choices)


def _properties(version: int, kind: PacketKind) -> st.SearchStrategy[dict[int, Any]]:
    return properties(kind) if version == 5 else st.just({})


def _reasons(allowed: dict[int, r.Reason]) -> st.SearchStrategy[r.Reason]:
    return st.sampled_from(list(allowed.values()))


def _with_method(found: dict[int, Any]) -> dict[int, Any]:
    if Property.AUTHENTICATION_DATA in found:
        found.setdefault(Property.AUTHENTICATION_METHOD, "SCRAM")
    return found


def connects(version: int) -> st.SearchStrategy[p.Connect]:
    """CONNECT; version 4 includes MQIsdp."""
    wills = st.builds(p.Will, topics, binaries, qos, st.booleans(), _properties(version, PacketKind.WILL))
    return st.builds(
        p.Connect,
        texts,
        st.just(version),
        st.booleans(),
        st.integers(0, 65535),
        st.none() | texts,
        st.none() | binaries,
        st.none() | wills,
        _properties(version, PacketKind.CONNECT).map(_with_method),
        st.booleans() if version == 4 else st.just(False),
    ).filter(lambda packet: packet.version == 5 or packet.password is None or packet.user_name is not None)


def connacks(version: int) -> st.SearchStrategy[p.Connack]:
    """CONNACK."""
    codes = _reasons(r.CONNACK_REASONS) if version == 5 else st.sampled_from(list(r.ConnectReturn))
    accepted = st.builds(p.Connack, st.booleans(), st.just(0), _properties(version, PacketKind.CONNACK))
    return accepted | st.builds(p.Connack, st.just(False), codes, _properties(version, PacketKind.CONNACK))


@st.composite
def publishes(draw: st.DrawFn, version: int) -> p.Publish:
    """PUBLISH."""
    level = draw(qos)
    found = draw(_properties(version, PacketKind.PUBLISH))
    topic = "" if Property.TOPIC_ALIAS in found and draw(st.booleans()) else draw(topics)
    packet_id = draw(packet_ids) if level else 0
    return p.Publish(topic, draw(binaries), level, draw(st.booleans()), bool(level) and draw(st.booleans()), packet_id, found)


def acknowledgements(version: int) -> st.SearchStrategy[p.Acknowledgement]:
    """PUBACK, PUBREC, PUBREL, PUBCOMP."""
    kinds = (
        (p.Puback, PacketKind.PUBACK, r.PUBACK_REASONS),
        (p.Pubrec, PacketKind.PUBREC, r.PUBREC_REASONS),
        (p.Pubrel, PacketKind.PUBREL, r.PUBREL_REASONS),
        (p.Pubcomp, PacketKind.PUBCOMP, r.PUBCOMP_REASONS),
    )
    if version != 5:
        return st.one_of([st.builds(make, packet_ids) for make, _, _ in kinds])
    return st.one_of([st.builds(make, packet_ids, _reasons(allowed), properties(kind)) for make, kind, allowed in kinds])


@st.composite
def subscriptions(draw: st.DrawFn, version: int) -> p.Subscription:
    """A filter with options."""
    filter_ = draw(filters(shared=version == 5))
    if version != 5:
        return p.Subscription(filter_, draw(qos))
    no_local = draw(st.booleans()) and not filter_.startswith("$share/")
    return p.Subscription(filter_, draw(qos), no_local, draw(st.booleans()), draw(st.integers(0, 2)))


def others(version: int) -> st.SearchStrategy[Any]:
    """SUBSCRIBE to AUTH."""
    suback = r.SUBACK_REASONS if version == 5 else r.SUBACK_V4_REASONS
    unsuback = st.lists(_reasons(r.UNSUBACK_REASONS), min_size=1, max_size=5) if version == 5 else st.just([])
    listed = st.lists(subscriptions(version), min_size=1, max_size=4)
    choices: list[st.SearchStrategy[Any]] = [
        st.builds(p.Subscribe, packet_ids, listed, _properties(version, PacketKind.SUBSCRIBE)),
        st.builds(p.Suback, packet_ids, st.lists(_reasons(suback), min_size=1, max_size=5), _properties(version, PacketKind.SUBACK)),
        st.builds(
            p.Unsubscribe,
            packet_ids,
            st.lists(filters(shared=version == 5), min_size=1, max_size=4),
            _properties(version, PacketKind.UNSUBSCRIBE),
        ),
        st.builds(p.Unsuback, packet_ids, unsuback, _properties(version, PacketKind.UNSUBACK)),
        st.just(p.Pingreq()),
        st.just(p.Pingresp()),
        st.just(p.Disconnect()),
    ]
    if version == 5:
        choices.append(st.builds(p.Disconnect, _reasons(r.DISCONNECT_REASONS), properties(PacketKind.DISCONNECT)))
        with_method = properties(PacketKind.AUTH).map(lambda found: {Property.AUTHENTICATION_METHOD: "m"} | found)
        choices += [st.just(p.Auth()), st.builds(p.Auth, _reasons(r.AUTH_REASONS), with_method)]
    return st.one_of(choices)


def packets(version: int) -> st.SearchStrategy[Any]:
    """Any packet of the version."""
    return st.one_of(connects(version), connacks(version), publishes(version), acknowledgements(version), others(version))


def versioned() -> st.SearchStrategy[tuple[Any, int]]:
    """(packet, version)."""
    return st.sampled_from([4, 5]).flatmap(lambda version: st.tuples(packets(version), st.just(version)))
