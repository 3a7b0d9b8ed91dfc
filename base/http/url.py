"""Addresses of servers that speak HTTP, as people give them."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def web_address(url: str) -> SplitResult | None:
    """The parts of a URL of http or https that names a host, and a port that can be; None: it is none."""
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if right and url.isprintable() and " " not in url else None
