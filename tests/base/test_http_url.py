"""Addresses of servers that speak HTTP."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.http.url import web_address


@pytest.mark.parametrize("url", ["http://a", "https://a:8443/x?y#z", "http://[::1]:80/", "http://u:p@a/"])
def test_addresses(url: str) -> None:
    assert web_address(url) is not None


@pytest.mark.parametrize(
    "url", ["", "a", "//a", "ftp://a", "http://", "http://:80", "http://[::1", "http://a:0", "http://a:65536", "http://a:b", "http://a/ b"]
)
def test_what_is_none(url: str) -> None:
    assert web_address(url) is None


@given(st.text(max_size=30).map("http://".__add__) | st.text())
def test_any_text_is_one_or_not(url: str) -> None:
    found = web_address(url)
    assert found is None or found.hostname
