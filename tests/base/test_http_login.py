"""Who asks over HTTP."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.http.login import credentials


def _basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_logins() -> None:
    assert credentials("") == (None, None)
    assert credentials("Bearer abc ") == (None, b"abc")
    assert credentials(_basic("ann:a:b")) == credentials(_basic("ann:a:b").replace("Basic", "bASIC")) == ("ann", b"a:b")


LONG = "x" * 65_536


@pytest.mark.parametrize(
    ("header", "text"),
    [
        *((one, "give Authorization") for one in ("Basic", "Basic !!!", "Basic /w==", "Digest x", "x", "Bearer \ud800")),
        (_basic("a\0b:pw"), "no U\\+0000"),
        (_basic(f"{LONG}:pw"), "a user has at most 65,535 bytes"),
        (_basic(f"ann:{LONG}"), "a password or token has at most"),
        (f"Bearer {LONG}", "a password or token has at most"),
    ],
    ids=range(10),
)
def test_what_is_none(header: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        credentials(header)


@given(st.text() | st.text().map("Basic ".__add__) | st.text().map(_basic))
def test_any_header_is_one_or_not(header: str) -> None:
    try:
        user, _ = credentials(header)
    except ValueError:
        return
    assert user is None or "\0" not in user
