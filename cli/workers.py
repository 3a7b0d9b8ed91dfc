"""The process that starts the workers of a broker, starts those again that die, and ends them.

It holds the broker's ports: it binds them, and does not listen. So no other program can take them, and a worker that starts again finds
its port. Workers end with it, because their standard input is a pipe from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.address import parse_address, why_not_listening
from ..base.backoff import Backoff
from ..base.process.service_manager import READY, STOPPING, tell
from ..broker.settings.workers import FOLDER, Worker, left_behind
from ..broker.workers.totals import file_of
from ..store.base import StoreError
from ..store.folder import make_folder
from .output import WRONG_USE

if TYPE_CHECKING:
    from ..broker.config import BrokerConfig

log = logging.getLogger("mqmesh.workers")

PAUSES = (0.05, 2.0)  # seconds before a worker that died is started again: first, longest
HEALTHY = 2.0  # seconds of life after which the pauses begin anew
PATIENCE = 10.0  # seconds that workers have to stop in order
KEY_BYTES = 32


class WorkersError(Exception):
    """The workers cannot be started; one line says why."""


def run_workers(config: BrokerConfig, serving: int) -> int:
    """Run the workers of a broker until a signal ends them: the exit status. serving: how many take clients. Raises WorkersError."""
    try:
        if config.data is not None:  # before a worker makes it as the parent of its own folder
            make_folder(config.data, str(config.data))
        with contextlib.ExitStack() as held:
            listen = [held.enter_context(_held(address)) for address in config.listen]
            folder = Path(held.enter_context(_folder()))
            worker = Worker(
                config.name,
                0,
                serving,
                max(serving, left_behind(config.data)),
                folder,
                os.urandom(KEY_BYTES).hex(),
                tuple(listen),
                time.time(),
            )
            worker.write()
            return asyncio.run(Supervisor(config, worker).run())
    except (OSError, StoreError) as error:
        raise WorkersError(str(error)) from None


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A folder for what the workers of this life share."""
    folder = tempfile.mkdtemp(prefix="mqmesh-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _held(text: str) -> Iterator[str]:
    """Hold the port of a listener: its address, with the port. Raises WorkersError when another program has it."""
    address = parse_address(text)
    if address.scheme == "unix":
        yield text
        return
    if not hasattr(socket, "SO_REUSEPORT"):
        raise WorkersError("this system cannot share a port between processes (SO_REUSEPORT): leave out workers")
    try:
        where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        _bound(where, socket.SO_REUSEADDR).close()  # a broker that shares its port would let this one share it
        holder = _bound(where, socket.SO_REUSEPORT)
    except OSError as error:
        raise WorkersError(f"cannot listen on {text}: {why_not_listening(error)}") from None
    with holder:
        yield str(address._replace(port=holder.getsockname()[1]))


def _bound(where: Any, option: int) -> socket.socket:
    """A socket that is bound as asyncio binds that of a listener. where: of getaddrinfo. Raises OSError."""
    found = socket.socket(where[0], where[1])
    try:
        found.setsockopt(socket.SOL_SOCKET, option, 1)
        if where[0] == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        found.bind(where[4])
    except OSError:
        found.close()
        raise
    return found


class Supervisor:
    """The workers of one broker."""

    def __init__(self, config: BrokerConfig, worker: Worker) -> None:
        self._config = config
        self._worker = worker
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ready = {index: asyncio.Event() for index in range(worker.total)}
        self._http = ""
        self._stopping = asyncio.Event()
        self._failed = False

    async def run(self) -> int:
        """Run them until a signal comes: the exit status."""
        loop = asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._tell_all, signal.SIGHUP)
        async with asyncio.TaskGroup() as tasks:
            kept = [tasks.create_task(self._keep(index), name=f"worker {index}") for index in self._ready]
            said = tasks.create_task(self._say_ready(), name="ready")
            await self._stopping.wait()
            tell(STOPPING)
            said.cancel()
            self._tell_all(signal.SIGTERM)
            _, late = await asyncio.wait(kept, timeout=PATIENCE)
            if late:
                self._tell_all(signal.SIGKILL)
        log.info("event=stopped name=%s workers=%d", self._config.name, self._worker.serving)
        return WRONG_USE if self._failed else 0

    async def _say_ready(self) -> None:
        for event in self._ready.values():
            await event.wait()
        config, worker = self._config, self._worker
        listen = " ".join(worker.listen)
        print(f"ready {listen} name={config.name} number={config.number}{self._http} workers={worker.serving}", flush=True)
        tell(READY, f"STATUS={worker.serving} workers listen at {listen}")
        log.info("event=workers-started name=%s workers=%d listeners=%s", config.name, worker.serving, ",".join(worker.listen))
        if worker.total > worker.serving:
            names = ",".join(FOLDER.format(index) for index in range(worker.serving, worker.total))
            why = "they take no clients, and hold the sessions of earlier workers until their clients come"
            log.warning("event=workers-left-behind folders=%s text=%s", names, why)

    def _tell_all(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    # One worker

    async def _keep(self, index: int) -> None:
        """Run one worker, again and again, until the broker ends."""
        backoff = Backoff(*PAUSES)
        while not self._stopping.is_set():
            begun = time.monotonic()
            status = await self._live(index)
            file_of(self._worker.folder, index).unlink(missing_ok=True)
            if self._stopping.is_set():
                return
            if not self._ready[index].is_set():  # it has said why
                self._failed = True
                self._stopping.set()
                return
            if time.monotonic() - begun > HEALTHY:
                backoff.reset()
            pause = backoff.next()
            ended = f"by signal {-status}" if status < 0 else f"with status {status}"
            log.error("event=worker-ended worker=%d text=it ended %s, and is started again in %g s", index, ended, pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _live(self, index: int) -> int:
        """One life of a worker: its exit status."""
        command = [sys.executable, "-m", "mqmesh.cli.main", *sys.argv[1:]]
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        process = await asyncio.create_subprocess_exec(
            *(*command, "--stop-with-stdin", "--worker", str(self._worker.folder / str(index))),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            process_group=0,
        )
        self._processes[index] = process
        if self._stopping.is_set():
            process.terminate()
        assert process.stdout is not None
        async for line in process.stdout:
            words = line.decode(errors="replace").split()
            if words[:1] == ["ready"]:
                log.info("event=worker-ready worker=%d process=%d", index, process.pid)
                self._http = next((f" {word}" for word in words if word.startswith("http=")), self._http)
                self._ready[index].set()
        status = await process.wait()
        del self._processes[index]
        return status
