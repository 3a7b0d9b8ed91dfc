"""Recipients with a directory, a broker that is a process, and clients: by the directory alone, and by what a program says of itself."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from mqmesh.client import ConnectionFactory
from support.directories import Directory
from support.paho_client import Paho
from support.services import wait_until

from .test_brokers import PATIENCE, Site, folder

__all__ = ["folder"]

TABLE = '[recipients]\nmessage_interval = "1s"\nfault_interval = "2s"'


@pytest.mark.slow
def test_f12_f18_recipients_of_a_directory(directory: Directory, folder: Path) -> None:
    """F12: static and dynamic. F18: through the API, with a lease: of the broker here."""
    alice = directory.client("alice")
    alice.put("mesh", "watched")
    alice.put("application", "orders", "watched", broker="porto", clients=["till-7"], alternatives=["backup"])
    porto = Site(folder, directory.url, "porto", "watched", TABLE).start()
    with ConnectionFactory(f"mqtt://127.0.0.1:{porto.port}", client_id="shop").create_context() as context:
        backup = context.recipient("backup", consents=["orders"], message_interval=5, fault_interval=9)
        shop = context.create_context()
        shop.create_producer().send(shop.create_topic("app/orders/new"), "to nobody, at first")
        message = backup.receive(PATIENCE)
        assert message is not None
        assert message.text == "to nobody, at first"

        def registered() -> dict[str, object]:
            return {one["name"]: one["fault_interval"] for one in alice.find("application", "watched") if one["broker"] == "porto"}

        wait_until(lambda: registered() == {"orders": None, "backup": 9}, PATIENCE, "both applications in the directory")
        with Paho(porto.port, 4, "till-7") as till:
            till.subscribe("app/orders/#", 1)
            shop.create_producer().send(shop.create_topic("app/orders/new"), "again")
            assert till.messages.get(timeout=PATIENCE).payload == b"again"
    porto.end(signal.SIGTERM)
    wait_until(lambda: registered() == {"orders": None}, PATIENCE, "the end of the broker's lease")
