"""The compared systems by the name that the command line and a recipient's process know them by.

Each one's client library is imported only when it is asked for: not every machine has all of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from benchmarks.peers import PeerError
from benchmarks.recipients.system import System

SYSTEMS = {
    "mqmesh": ("ours", "Mqmesh"),
    "rabbitmq": ("rabbitmq", "RabbitMQ"),
    "jetstream": ("jetstream", "JetStream"),
    "streams": ("streams", "Streams"),
    "mosquitto": ("mosquitto", "Mosquitto"),
}


def system(name: str, tuned: bool) -> System:
    """The system with this name; tuned: set so that a hang is noticed soon. PeerError where its client library is missing."""
    module, kind = SYSTEMS[name]
    try:
        found = import_module(f"benchmarks.recipients.{module}")
    except ModuleNotFoundError as error:
        raise PeerError(f"{error.name} is not installed (pip install {error.name})") from None
    return cast(System, getattr(found, kind)(tuned))
