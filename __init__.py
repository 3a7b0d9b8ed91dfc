"""mqmesh: a mesh of MQTT site brokers with redundant links, where each subscriber gets each message once."""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]
