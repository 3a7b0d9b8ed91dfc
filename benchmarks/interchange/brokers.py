"""Brokers with an interchange for the benchmarks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.interchange import mqtt
from benchmarks.peers import free_port

BROKER = """name = "{name}"
number = {number}
listen = ["mqtt://127.0.0.1:{port}"]
data = "{name}"
[interchange]
services = "services.toml"
"""
MESH = """[mesh]
name = "bench"
key = "a secret of 16 bytes or more"
start_wait = 0
[[mesh.peer]]
address = "mqtt://127.0.0.1:{peer}"
"""


@contextmanager
def brokers(
    names: list[str],
    python: list[str],
    services: int = 0,
    records: str = "",
    settings: str = "",
    prepared: Callable[[Path], None] = lambda data: None,
) -> Iterator[tuple[list[int], list[psutil.Process]]]:
    """Brokers of one mesh, with the services of the measurements, the shop at the first and the others at the last one: ports, processes.

    python: the interpreter, or a profiler. services: so many more, which nobody uses. prepared: gets the data folder of each beforehand.
    records: further services. settings: more of the table of the interchange.
    """
    with TemporaryDirectory() as folder, ExitStack() as stack:
        made = [records, *(f'[services."other/service-{number}"]\nusers = ["other-{number}"]\n' for number in range(services))]
        made += [f'[services."{mqtt.SHOP}"]\nusers = ["*"]\nsite = "{names[0]}"\n']
        made += [f'[services."{name}"]\nusers = ["*"]\nsite = "{names[-1]}"\n' for name in (mqtt.BANK, mqtt.MAP)]
        (Path(folder) / "services.toml").write_text("".join(made))
        ports, processes = [free_port() for _ in names], []
        for number, (name, port) in enumerate(zip(names, ports, strict=True), 1):
            text = BROKER.format(name=name, number=number, port=port) + settings
            if len(names) > 1:
                text += MESH.format(peer=ports[number % len(names)])
            (config := Path(folder) / f"{name}.toml").write_text(text)
            (Path(folder) / name).mkdir()
            prepared(Path(folder) / name)
            words = [*python, "-m", "mqmesh.cli.main", "broker", "-c", str(config), "--stop-with-stdin"]
            broker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            stack.callback(lambda one: (one.communicate(), one.wait()), broker)
            assert broker.stdout is not None
            assert broker.stdout.readline().startswith("ready")
            processes.append(psutil.Process(broker.pid))
        yield ports, processes
