"""Which remotes an entry of a policy names: scheme, host, port and path each by itself, against what requests can say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.address import REMOTE, SCHEMES, AddressError, parse_address
from mqmesh.base.settings import ConfigError
from mqmesh.metabroker.policy import Policy, parse


def policy(*remotes: str, clients: str = "*") -> Policy:
    return parse({"allow": [{"clients": [clients], "remotes": list(remotes)}]})


def allowed(entry: str, asked: str) -> bool:
    """Whether an entry lets a request through, as the core reads the request."""
    try:
        name = str(parse_address(asked, REMOTE)) if "://" in asked else asked
    except AddressError:
        return False
    return policy(entry).rule("meter-1", name) is not None


@pytest.mark.parametrize(
    ("entry", "asked", "expected"),
    [
        ("ws://*.example.com:25271/mqtt", "ws://a.example.com:25271/mqtt", True),
        ("ws://*.example.com:25271/mqtt", "ws://127.0.0.1:25271/.example.com:25271/mqtt", False),  # the host's part stands in the path
        ("ws://*:25271/mqtt", "ws://evil.example:1/x:25271/mqtt", False),
        ("ws://*/mqtt", "", None),
        ("mqtt://*.example.com:1883", "mqtt://127.0.0.1\0.example.com:1883", False),  # resolvers stop at the zero byte
        ("mqtt://127.0.0.1:*", "mqtt://127.0.0.1:7", True),
        ("mqtt://127.0.0.1:*", "mqtts://127.0.0.1:7", False),
        ("mqtt://[::1]:1883", "mqtt://[::1]:1883", True),  # not one of the characters : and 1
        ("mqtt://[::1]:1883", "mqtt://1:1883", False),
        ("mqtt://[::1]:1883", "mqtt://[0:0:0:0:0:0:0:1]", True),
        ("mqtt://[2001:db8:*]:1883", "mqtt://[2001:DB8::7]", True),
        ("mqtt://[2001:db8:*]:1883", "mqtt://[2001:db9::7]", False),
        ("mqtt://*1:1883", "mqtt://[::1]:1883", False),  # without brackets no IPv6 address is meant
        ("mqtt://*:1883", "mqtt://[::1]:1883", True),  # any host
        ("mqtt://host-?:1883", "mqtt://host-1:1883", True),
        ("mqtt://host-?:1883", "mqtt://host-:1883", False),
        ("ws://far:*", "ws://far:1", True),
        ("ws://far:*", "ws://far:1/other", False),
        ("ws://far:*/*", "ws://far:1/any/path", True),
        ("amqp*://plant:*", "amqps://plant", True),
        ("amqp://plant:5672", "amqp://plant/site", False),
        ("amqp://plant:5672/s*", "amqp://plant/site", True),
        ("mqtts://*", "mqtts://a:1", True),  # every address of a scheme
        ("mqtts://*", "mqtt://a:1", False),
        ("wss://*", "wss://a:1/b", True),
        ("*", "ws://a:1/b", True),
        ("*", "weather", True),
        ("weather", "weather", True),
        ("w[ea]ather", "weather", False),
        ("w[ea]ather", "w[ea]ather", True),
        ("rain*", "rain-2", True),
        ("rain*", "rain-mesh/evil", False),  # anybody may register a service in a mesh of their own
        ("far/*", "far/rain", True),
        ("*weather", "ws://evil:1/weather", False),
    ],
)
def test_each_part_is_matched_by_itself(entry: str, asked: str, expected: bool | None) -> None:
    if expected is None:
        with pytest.raises(ConfigError):
            policy(entry)
    else:
        assert allowed(entry, asked) is expected


@pytest.mark.parametrize(
    ("entry", "right"),
    [
        ("mqtts://broker.example.com", "mqtts://broker.example.com:8883"),
        ("MQTT://broker.example.com:1883", "mqtt://broker.example.com:1883"),
        ("mqtt://Broker.Example.com:1883", "mqtt://broker.example.com:1883"),
        ("mqtt://*.Example.com:*", "mqtt://*.example.com:*"),
        ("mqtt://far:1883/path", "mqtt://"),
        ("mqtt://far:0", "1 to 65535"),
        ("mqtt://far:70000", "65535"),
        ("mqtt://far:188*", "port"),
        ("mqt://far:1883", "scheme"),
        ("unix:///run/x", "scheme"),
        ("amqp://far:5672/a%2fb", "amqp://far:5672/a%2Fb"),
        ("mqtt://us er@far:1883", "user name"),
        ("mqtt://user@far:1883", "user name"),
        ("mqtt://:1883", "mqtt://"),
        ("mqtt://[::1:1883", "brackets"),
        ("mqtt://[0:0::1]:1883", "mqtt://[::1]:1883"),
        ("mqtt://far\0:1883", "mqtt://"),
        ("ws://far:80/a b", "path"),
        ("mqtt://far:08883", 'write "mqtt://far:8883"'),
    ],
)
def test_an_entry_that_can_never_match_is_refused_when_the_file_is_read(entry: str, right: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy("weather", entry)
    assert caught.value.key == "allow[1].remotes"
    assert caught.value.value == entry
    assert right in caught.value.text, caught.value.text


def test_client_patterns_know_no_character_classes() -> None:
    assert policy("*", clients="meter-[12]").rule("meter-1", "weather") is None
    assert policy("*", clients="meter-[12]").rule("meter-[12]", "weather") is not None


hosts = st.sampled_from(["127.0.0.1", "evil", "a.example.com", "[::1]", "a.example.com.evil"])
tails = st.text("ab/.:*?0123@[]%-", max_size=12)
entries = st.builds(
    "{}://{}:{}{}".format,
    st.sampled_from(sorted(SCHEMES)),
    st.sampled_from(["*.example.com", "b*", "[::1]"]),
    st.sampled_from(["*", "25271"]),
    st.sampled_from(["", "/*", "/mqtt"]),
)
asks = st.builds("{}://{}{}{}".format, st.sampled_from(sorted(SCHEMES)), hosts, st.sampled_from(["", ":25271", ":1"]), tails)


@given(entries, asks)
def test_what_is_let_through_has_the_host_and_port_of_the_entry(entry: str, asked: str) -> None:
    """Whatever stands in the path of a request, it does not count as its host or port."""
    try:
        policy(entry)
        address = parse_address(asked, REMOTE)
    except (ConfigError, AddressError):
        return
    if not allowed(entry, asked):
        return
    scheme, _, rest = entry.partition("://")
    host, _, port = rest.partition("/")[0].rpartition(":")
    assert address.scheme == scheme
    assert port in ("*", str(address.port))
    if host == "*.example.com":
        assert address.host.endswith(".example.com")
    elif host == "[::1]":
        assert address.host == "::1"
    else:
        assert address.host.startswith("b")


def test_a_policy_takes_any_name_that_a_store_of_an_earlier_release_holds() -> None:
    """Names are not asked for again at a restart: what is no address any more is not allowed."""
    old: list[Any] = ["mqtt://far\0:1883", "x://", "", "\0"]
    assert [policy("mqtt://*").rule("c", name) for name in old] == [None] * 4
