"""What a broker as a program does beside serving: it walks through a store that was too large for that at its start."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from mqmesh.broker import program
from mqmesh.broker.config import BrokerConfig
from mqmesh.store.locations import store_at
from support.stores import batch, delivery, run


@pytest.mark.parametrize("damaged", [False, True])
def test_a_large_store_is_checked_in_the_background(
    damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig(data=tmp_path)
    assert config.store_address is not None
    store = store_at(config.store_address)
    store.open()
    made = batch(*[run(number, payload=b"message %d." % number) for number in range(1, 200)])
    for number in range(1, 200):
        made.put_delivery(delivery("porto", number, number))
    store.commit(made)
    store.close()
    assert program.check_in_background(config) is None
    if damaged:
        file = tmp_path / "store.db"
        data = bytearray(file.read_bytes())
        page = data.index(b"message 100.") // 4096 * 4096
        data[page : page + 8] = b"\xff" * 8
        file.write_bytes(data)
    monkeypatch.setattr(program, "CHECKED_SIZE", 0)
    with caplog.at_level(logging.INFO, "mqmesh.broker"):
        thread = program.check_in_background(config)
        assert thread is not None
        thread.join()
    events = [record.message.split()[0] for record in caplog.records]
    assert events == ["event=store-damaged" if damaged else "event=store-checked"]
