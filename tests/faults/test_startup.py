"""Chains and rings whose brokers start in any order and dial in any direction: clients that come at once reach everybody soon."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from mqmesh.cli.demo.ring import free_ports
from support.command import start
from support.scenes import Load

pytestmark = pytest.mark.slow
ROUNDS = int(os.environ.get("MQMESH_STARTS", "4"))
SEED = int(os.environ.get("MQMESH_SEED", "1"))
PATIENCE = 90.0  # seconds from the last `ready` line until everybody has heard from everybody


@pytest.mark.parametrize("number", range(ROUNDS))
def test_any_order(number: int, tmp_path: Path) -> None:
    rng = random.Random(SEED + number)
    size = rng.randint(3, 9)
    order = rng.sample(range(size), size)
    links = [*itertools.pairwise(order), *([(order[-1], order[0])] if rng.random() < 0.4 else [])]
    links = [link if rng.random() < 0.5 else link[::-1] for link in links]
    if rng.random() < 0.3:
        links += [link[::-1] for link in links]
    starts = rng.sample(range(size), size)
    what = f"seed {SEED + number}: {size} brokers, links {links}, started {starts}"
    ports = free_ports(size)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(_Broker(tmp_path, one, ports, [other for who, other in links if who == one], rng.choice((0, 0.05, 0.2))))
            for one in starts
        ]
        load = stack.enter_context(Load())
        for one, process in zip(starts, processes, strict=True):
            process.ready()
            load.subscribe(str(one), ("127.0.0.1", ports[one]), qos=1)
            load.publish(str(one), ("127.0.0.1", ports[one]), qos=number % 2, rate=20)
            load.start()
        load.meter()
        begin = time.monotonic()
        assert load.flows(PATIENCE), f"{what}: {load.silent()} heard nothing, see {tmp_path}"
        print(f"{what}: everybody has heard from everybody after {time.monotonic() - begin:.2f} s")


class _Broker:
    """One `mqmesh broker`, started after a pause that is part of the order."""

    def __init__(self, folder: Path, number: int, ports: list[int], peers: list[int], pause: float) -> None:
        time.sleep(pause)
        words = [word for peer in peers for word in ("--peer", f"mqtt://127.0.0.1:{ports[peer]}")]
        options = ("--listen", f"mqtt://127.0.0.1:{ports[number]}", "--name", f"b{number}", "--number", number + 1, "--mesh", "starts")
        environment = {**os.environ, "MQMESH_KEY": "a key of sixteen bytes"}
        self.log = folder / f"{number}.log"
        self.process: subprocess.Popen[str] = start("broker", *options, *words, stderr=self.log, env=environment)

    def ready(self) -> None:
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        assert line.startswith("ready "), self.log.read_text()

    def __enter__(self) -> _Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate()
        assert "Traceback" not in self.log.read_text(), self.log.read_text()
