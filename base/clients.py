"""The words of clients in CONNECT, which brokers and the client share."""

from __future__ import annotations

EXCLUSIVE = ("mqmesh-exclusive", "1")  # refuse me while another connection has my client identifier, instead of closing that one
