"""Where a broker is: what can be written, and one clear line for what cannot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.address import CLIENT, COMMAND_LINE, LISTENER, REMOTE, Address, AddressError, interchangeable, parse_address, split_login


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("example.org", Address("mqtt", "example.org", 1883)),
        ("127.0.0.1:1884", Address("mqtt", "127.0.0.1", 1884)),
        ("::1", Address("mqtt", "::1", 1883)),
        ("[::1]:1884", Address("mqtt", "::1", 1884)),
        ("[::1]", Address("mqtt", "::1", 1883)),
        ("mqtt://h", Address("mqtt", "h", 1883)),
        ("mqtt://h:99", Address("mqtt", "h", 99)),
        ("mqtts://h", Address("mqtts", "h", 8883)),
        ("mqtt://u%40x:p%3Aw@h:1/a/b", Address("mqtt", "h", 1, "/a/b", "u@x", "p:w")),
        ("mqtt://[::1]:7", Address("mqtt", "::1", 7)),
        ("unix:///run/x.sock", Address("unix", path="/run/x.sock")),
        ("ws://h", Address("ws", "h", 80, "/mqtt")),
        ("wss://u:p@h:9001/a/b", Address("wss", "h", 9001, "/a/b", "u", "p")),
    ],
)
def test_forms(text: str, expected: Address) -> None:
    assert parse_address(text, COMMAND_LINE) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mqtt://",
        "mqtt://h:0",
        "mqtt://h:x",
        "mqtt://h:70000",
        "http://h",
        "h:0",
        "h:99999",
        "h:x",
        "unix://x",
        ":1",
        "ws://h/a?b",
        "ws://",
    ],
)
def test_mistakes_get_one_line_with_an_example(text: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_address(text, COMMAND_LINE)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_an_address_error(text: str) -> None:
    try:
        address = parse_address(text, COMMAND_LINE)
    except AddressError:
        return
    assert address.path or 0 < address.port < 65536


def test_written_back() -> None:
    assert [str(parse_address(text, COMMAND_LINE)) for text in ("ws://h:1", "wss://[::1]/a")] == ["ws://h:1/mqtt", "wss://[::1]:443/a"]
    endpoints = [parse_address(text, COMMAND_LINE).endpoint for text in ("h", "[::1]:7", "mqtts://h/topic", "unix:///a", "ws://h:1")]
    assert endpoints == ["h:1883", "[::1]:7", "h:8883", "unix:///a", "ws://h:1/mqtt"]


def test_user_and_password_are_not_shown() -> None:
    address = parse_address("mqtts://user:secret@h", COMMAND_LINE)
    assert (address.user, address.password) == ("user", "secret")
    assert "secret" not in f"{address} {address!r} {address.endpoint}"


def test_a_topic_may_have_any_character() -> None:
    assert parse_address("mqtt://h/a/%23b?/#", COMMAND_LINE).topic == "a/#b?/#"
    assert parse_address("ws://h/a", COMMAND_LINE).topic is None


def test_a_listener_has_a_scheme_in_lower_case_and_a_client_any() -> None:
    assert parse_address("MQTTS://H", CLIENT) == Address("mqtts", "h", 8883)
    with pytest.raises(AddressError):
        parse_address("MQTTS://h", LISTENER)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x://u%40:p:q@[::1]:7/a", ("x://[::1]:7/a", "u@", "p:q")),
        ("amqp://h", ("amqp://h", None, None)),
        ("nats://@h", ("nats://h", "", None)),
    ],
)
def test_split_login(text: str, found: tuple[str, str | None, str | None]) -> None:
    assert split_login(text) == found


def test_interchangeable() -> None:
    first, *others = (parse_address(one, REMOTE) for one in ("nats://a", "nats://b", "tls://c", "mqtt://d"))
    assert interchangeable(first, others) == others[:1]
    first, *others = (parse_address(one, REMOTE) for one in ("mqtt://a", "wss://b", "mqtts://c", "amqp://d"))
    assert interchangeable(first, others) == others[:2]


def test_listeners() -> None:
    assert parse_address("mqtt://example.org") == Address("mqtt", "example.org", 1883)
    assert parse_address("mqtt://10.0.0.1:0") == Address("mqtt", "10.0.0.1", 0)
    assert parse_address("mqtt://[fe80::1%eth0]:99") == Address("mqtt", "fe80::1%eth0", 99)
    assert parse_address("mqtts://example.org") == Address("mqtts", "example.org", 8883)
    assert str(parse_address("mqtts://[::1]:1")) == "mqtts://[::1]:1"
    assert parse_address("unix:///run/a b") == Address("unix", path="/run/a b")
    assert parse_address("ws://h") == parse_address("ws://h/") == Address("ws", "h", 80, "/mqtt")
    assert parse_address("wss://[::1]/a/b") == Address("wss", "::1", 443, "/a/b")
    assert str(parse_address("ws://h:9001")) == "ws://h:9001/mqtt"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        "http://h",
        "mqtt://",
        "mqtt://:1",
        "mqtt://h:x",
        "mqtt://h:65536",
        "mqtt://::1:5",
        "unix://run",
        "mqtt://u@h",
        "mqtt://h/p",
        "ws://h/a b",
        "ws://h/#",
    ],
)
def test_wrong_listeners(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|above"):
        parse_address(text)


@given(st.sampled_from(["h", "a.b-c", "127.0.0.1", "::1"]), st.integers(0, 65535))
def test_an_address_reads_back_as_it_prints(host: str, port: int) -> None:
    address = Address("mqtt", host, port)
    assert parse_address(str(address)) == address


@given(st.text())
def test_any_text_is_a_listener_or_a_value_error(text: str) -> None:
    for one in (text, "mqtt://" + text, "unix://" + text):
        try:
            parse_address(one)
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("amqp://h", "amqp://h:5672"),
        ("amqp://h/", "amqp://h:5672"),
        ("amqp://h/%2F", "amqp://h:5672"),
        ("amqps://h:1/a%2Fb", "amqps://h:1/a%2Fb"),
        ("nats://[::1]", "nats://[::1]:4222"),
        ("tls://h/", "tls://h:4222"),
    ],
)
def test_remotes(text: str, right: str) -> None:
    address = parse_address(text, REMOTE)
    assert str(address) == right
    assert parse_address(right, REMOTE) == address


def test_remotes_over_websocket() -> None:
    assert parse_address("ws://h", REMOTE) == Address("ws", "h", 80, "/mqtt")
    assert str(parse_address("WSS://h/a/b", REMOTE)) == "wss://h:443/a/b"
    assert str(parse_address("mqtts://h", REMOTE)) == "mqtts://h:8883"
    for text in ("ws://", "ws://h/a?b", "ws://u@h", "ws://h:0"):
        with pytest.raises(AddressError, match=r"write|from 1 to"):
            parse_address(text, REMOTE)
