"""How fast a directory with many services answers: `python -m benchmarks.directory`.

One directory process serves a database with `--services` services of `--accounts` accounts, each in a mesh of its account. Clients ask
without a pause, each over one connection:

- exact: one service by its name, over REST;
- prefix: the 10 services whose names begin with a text, over REST;
- category: the 10 services of one category, over UDDI (find_service with a categoryBag), as bytes of SOAP.

`--beside` adds an account that saves 1,000 services in a loop, and brokers that renew leases of 15 s; the figure is then also how late the
latest renewal was answered.
"""

from __future__ import annotations

import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import typer
from mqmesh.directory import records as all_records
from mqmesh.directory.client import Client, ClientError
from mqmesh.directory.storage.accounts import add_account
from mqmesh.directory.storage.store import Store
from mqmesh.directory.uddi.saving import prepare
from rich.console import Console
from rich.table import Table

from benchmarks.directory import filling

LEASE = 15.0  # seconds
GROUP = 10  # services of one category, and of one prefix
app = typer.Typer(add_completion=False)

Ask = Callable[[http.client.HTTPConnection, random.Random], None]


def exact(connection: http.client.HTTPConnection, choice: random.Random) -> None:
    """One service by its name."""
    name = filling.name(choice.randrange(filling.total))
    assert len(_get(connection, name)) == 1


def prefix(connection: http.client.HTTPConnection, choice: random.Random) -> None:
    """Those whose names differ in the last digit."""
    found = _get(connection, filling.name(choice.randrange(filling.total))[:-1] + "*")
    assert len(found) == GROUP


def category(connection: http.client.HTTPConnection, choice: random.Random) -> None:
    """Those of one category, over UDDI."""
    value = choice.randrange(filling.total // GROUP)
    body = (
        '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body><find_service xmlns="urn:uddi-org:api_v3"><categoryBag>'
        f'<keyedReference tModelKey="{filling.CATEGORY}" keyName="for" keyValue="group-{value}"/>'
        "</categoryBag></find_service></s:Body></s:Envelope>"
    )
    connection.request("POST", "/uddi", body, {"Content-Type": "text/xml"})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text
    assert text.count(b"<serviceInfo ") == GROUP, text


def _get(connection: http.client.HTTPConnection, name: str) -> list[Any]:
    connection.request("GET", f"/v1/records?sort=service&name={quote(name)}")
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text
    return list(json.loads(text)["records"])


def measured(url: str, ask: Ask, clients: int, seconds: float) -> list[float]:
    """The times of all answers, in seconds."""
    until = time.perf_counter() + seconds
    times: list[float] = []

    def run(seed: int) -> None:
        choice = random.Random(seed)
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        while (begin := time.perf_counter()) < until:
            ask(connection, choice)
            times.append(time.perf_counter() - begin)
        connection.close()

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


class Beside:
    """Bulk saves and leases at the same time."""

    def __init__(self, url: str, secrets: dict[str, str], brokers: int) -> None:
        self._url, self._secrets, self._brokers = url, secrets, brokers
        self.saves, self.refused, self.late, self.busy, self.missing = 0, 0, 0.0, 0, 0
        self._end = threading.Event()
        self._threads = [threading.Thread(target=one) for one in (self._save, self._renew, self._look)]

    def __enter__(self) -> Beside:
        client = self._client("brokers")
        self._holders = [str(uuid.uuid4()) for _ in range(self._brokers)]
        for at, holder in enumerate(self._holders):
            self._claim(client, at, holder)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _client(self, account: str) -> Client:
        client = Client(self._url, 60)
        client.log_in(account, self._secrets[account])
        return client

    def _claim(self, client: Client, at: int, holder: str) -> None:
        services = [{"name": f"offered-{at}", "addresses": ["mqtt://h:1883"]}]
        client.claim("leased", holder, f"broker-{at}", LEASE, addresses=["mqtt://h:1883"], services=services)

    def _save(self) -> None:
        client = self._client("bulk")
        client.put("mesh", "bulk")
        while not self._end.is_set():
            fields = {"addresses": [f"mqtt://h:{1 + self.saves % 60000}"]}
            try:
                client.put_all([{"sort": "service", "mesh": "bulk", "name": f"bulk-{at}", **fields} for at in range(1000)])
                self.saves += 1
            except ClientError as error:
                if error.status != 503:
                    raise
                self.refused += 1
                self._end.wait(0.1)

    def _renew(self) -> None:
        client = self._client("brokers")
        while not self._end.is_set():
            for at, holder in enumerate(self._holders):
                begin = time.perf_counter()
                while not self._renewed(client, at, holder):
                    self._end.wait(1.0)  # as brokers do
                self.late = max(self.late, time.perf_counter() - begin)
                self._end.wait(LEASE / 3 / self._brokers)

    def _renewed(self, client: Client, at: int, holder: str) -> bool:
        try:
            self._claim(client, at, holder)
        except ClientError as error:
            if error.status != 503:
                raise
            self.busy += 1
            return self._end.is_set()
        return True

    def _look(self) -> None:
        client = Client(self._url, 60)
        while not self._end.wait(0.5):
            self.missing = max(self.missing, self._brokers - len(client.find("broker", "leased")))


@contextmanager
def served(database: str, folder: Path, console: Console) -> Iterator[tuple[str, dict[str, str]]]:
    """A directory process over a filled database; where it is, and the secrets of two accounts."""
    store = Store(database)
    prepare(store)
    secrets = {name: add_account(store, name, name) for name in ("bulk", "brokers")}
    begin = time.perf_counter()
    with store.reading() as records:
        filled = bool(all_records.find_page(records, "mesh", None, None, 1)[0])
    if not filled:
        filling.fill(store)
    console.print(f"{filling.total} services in {time.perf_counter() - begin:.0f} s")
    store.close()
    arguments = ["directory", "serve", "--listen", "127.0.0.1:0", "--database", database]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "mqmesh.cli.main", *arguments], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1], secrets
        finally:
            process.terminate()
            process.wait()


@app.command()
def main(
    services: Annotated[int, typer.Option(min=100, help="How many services.")] = 100_000,
    clients: Annotated[int, typer.Option(min=1, help="How many clients.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each measurement.")] = 10.0,
    database: Annotated[str, typer.Option(help="Its URL, filled before or empty; a fresh SQLite file without one.")] = "",
    beside: Annotated[bool, typer.Option("--beside", help="With bulk saves and leases at the same time.")] = False,
) -> None:
    """Measure lookups. One line a kind: answers a second, the median and the 95th percentile."""
    console = Console(width=140)
    filling.total = services
    with (
        tempfile.TemporaryDirectory() as folder,
        served(database or f"sqlite:///{folder}/directory.db", Path(folder), console) as (url, secrets),
    ):
        table = Table("lookup", "answers/s", "median ms", "p95 ms", box=None)
        for ask in (exact, prefix, category):
            times = measured(url, ask, clients, seconds)
            p95 = statistics.quantiles(times, n=20)[-1]
            table.add_row(ask.__name__, f"{len(times) / seconds:.0f}", f"{statistics.median(times) * 1e3:.1f}", f"{p95 * 1e3:.1f}")
        console.print(table)
        if beside:
            with Beside(url, secrets, 30) as load:
                times = measured(url, exact, clients, 3 * seconds)
            p95 = statistics.quantiles(times, n=20)[-1]
            console.print(
                f"beside {load.saves} saves of 1,000 services ({load.refused} refused): exact p95 {p95 * 1e3:.1f} ms; "
                f"latest renewal {load.late:.2f} s ({load.busy} refused once); brokers missing at most {load.missing}"
            )


if __name__ == "__main__":
    app()
