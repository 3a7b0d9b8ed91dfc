"""Where a broker is: what can be written, and one clear line for what cannot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.cli.address import Address, AddressError, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("example.org", Address("example.org", 1883)),
        ("127.0.0.1:1884", Address("127.0.0.1", 1884)),
        ("::1", Address("::1", 1883)),
        ("[::1]:1884", Address("::1", 1884)),
        ("[::1]", Address("::1", 1883)),
        ("mqtt://h", Address("h", 1883)),
        ("mqtt://h:99", Address("h", 99)),
        ("mqtts://h", Address("h", 8883, tls=True)),
        ("mqtt://u%40x:p%3Aw@h:1/a/b", Address("h", 1, username="u@x", password="p:w", topic="a/b")),
        ("mqtt://[::1]:7", Address("::1", 7)),
        ("unix:///run/x.sock", Address(path="/run/x.sock")),
        ("ws://h", Address("h", 80, websocket="/mqtt")),
        ("wss://u:p@h:9001/a/b", Address("h", 9001, tls=True, username="u", password="p", websocket="/a/b")),
    ],
)
def test_forms(text: str, expected: Address) -> None:
    assert parse(text) == expected


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
        parse(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_an_address_error(text: str) -> None:
    try:
        address = parse(text)
    except AddressError:
        return
    assert address.path or 0 < address.port < 65536


def test_written_back() -> None:
    assert [str(parse(text)) for text in ("ws://h:1", "wss://[::1]/a")] == ["ws://h:1/mqtt", "wss://[::1]:443/a"]
    assert [str(parse(text)) for text in ("h", "[::1]:7", "unix:///a")] == ["h:1883", "[::1]:7", "unix:///a"]
