"""The words of clients in CONNECT, which brokers and the client share."""

from __future__ import annotations

EXCLUSIVE = ("mqmesh-exclusive", "1")  # refuse me while another connection has my client identifier, instead of closing that one
MAY_BE_EXCLUSIVE = ("mqmesh-exclusive", "0")  # I may ask for that later. A broker that knows what it means has EXCLUSIVE in its CONNACK
