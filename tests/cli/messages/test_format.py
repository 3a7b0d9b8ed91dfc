"""How `mqmesh sub` writes messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.cli.messages.format import FormatError, Message, as_json, writer

MESSAGE = Message(
    "plant/3",
    b'{"a": 1}',
    1,
    True,
    7,
    datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC),
    {"content_type": "application/json", "correlation": b"\xff\x00", "user": [["k", "v"], ["k", "w"]], "subscription_identifiers": [3, 4]},
)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("%t %p", b'plant/3 {"a": 1}'),
        ("%q%r%l%m", b"1187"),
        ("%%%x", b"%" + b'{"a": 1}'.hex().encode()),
        ("%I|%U|%@Y", b"2026-01-02T03:04:05+0000|1767323045.678900|2026"),
        ("%C %D %P %S %E", b"application/json \xff\x00 k:v k:w 3 4 "),
        (r"a\tb\n\\", b"a\tb\n\\"),
    ],
)
def test_letters(form: str, expected: bytes) -> None:
    assert writer(False, False, form, newline=False)(MESSAGE) == expected


def test_json_keeps_payload_as_text_or_nested_or_base64() -> None:
    assert as_json(MESSAGE)["payload"] == '{"a": 1}'
    assert as_json(MESSAGE, nested=True)["payload"] == {"a": 1}
    binary = Message("t", b"\xff", 0, False, 0, MESSAGE.received)
    assert as_json(binary)["payload_base64"] == "/w=="
    line = writer(False, True, None, newline=True)(MESSAGE)
    assert json.loads(line)["properties"]["user"] == [["k", "v"], ["k", "w"]]
    assert line.count(b"\n") == 1


def test_plain_and_verbose() -> None:
    assert writer(False, False, None, newline=True)(MESSAGE) == b'{"a": 1}\n'
    assert writer(True, False, None, newline=False)(MESSAGE) == b'plant/3 {"a": 1}'


@pytest.mark.parametrize("form", ["%y", "%", r"\q", "a%"])
def test_unknown_letters_are_named(form: str) -> None:
    with pytest.raises(FormatError):
        writer(False, False, form, newline=False)


@given(form=st.text(max_size=30), payload=st.binary(max_size=50))
def test_any_format_gives_bytes_or_a_format_error(form: str, payload: bytes) -> None:
    try:
        write = writer(False, False, form, newline=True)
    except FormatError:
        return
    assert write(Message("t", payload, 0, False, 0, MESSAGE.received)).endswith(b"\n")
