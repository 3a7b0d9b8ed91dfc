"""mqmesh: a mesh of MQTT site brokers with redundant links, where each subscriber gets each message once.

To run a broker inside a program: `Broker`, `BrokerConfig`, `Hooks` and `Translation`; see docs/embedding.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .broker.config import BrokerConfig
    from .broker.hooks import Hooks, QueueMessage, Translation
    from .broker.server import Broker, StartError

__version__ = "0.1.0"
__all__ = ["Broker", "BrokerConfig", "Hooks", "QueueMessage", "StartError", "Translation", "__version__"]

_HOMES = {
    "Broker": "broker.server",
    "BrokerConfig": "broker.config",
    "Hooks": "broker.hooks",
    "QueueMessage": "broker.hooks",
    "StartError": "broker.server",
    "Translation": "broker.hooks",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import mqmesh` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
