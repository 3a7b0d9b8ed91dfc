"""Queries among many calls.

    python -m benchmarks.interchange.query --calls 625000               of one home, in this process
    python -m benchmarks.interchange.query --calls 625000 --homes 8     a client asks a broker for a session; 10 million hops in all

Each call is a request with its response, two hops; five make a session. What is written goes the way of the broker: calls as bytes, 500 in
one transaction. Of several homes each is a broker of a ring with a copy of the tables, so that each has five calls of every session; then
one of them is stopped, and is to be named as out of reach.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mqmesh.base.interchange import QUERY
from mqmesh.interchange.calls import Branch, Call, Hop, State, Step, pack, unpack
from mqmesh.interchange.correlation import tables
from mqmesh.interchange.correlation.questions import Question
from mqmesh.interchange.message import Declaration, Header, Kind
from mqmesh.mqtt.properties import Property

from benchmarks.interchange import mqtt
from benchmarks.interchange.brokers import brokers

AT_ONCE = 500
OF_SESSION = 5
SHOPS = 500
RUNS = 1000
RUNS_OF_HOMES = 200


def call_of(number: int) -> Call:
    """A request of one of the shops that the bank has answered."""
    at, shop, session = 1000 + number, f"shop{number // OF_SESSION % SHOPS}/orders", number // OF_SESSION
    hops = [
        Hop(f"{2 * number:016x}", "bank/credit", at, at + 1, 0, "request", 5),
        Hop(f"{2 * number + 1:016x}", shop, at + 1, at + 1, 0, "response", 5),
    ]
    branch = Branch((Step(Declaration("bank/credit")),), state=State.ANSWERED, hops=hops)
    header = Header(Kind.REQUEST, shop, (Declaration("bank/credit"),))
    return Call(f"{number:016x}", f"{session:032x}", header, at, at + 9, [branch], at + 1)


def fill(connection: sqlite3.Connection, calls: int) -> float:
    """Write calls: the processor time of it in seconds."""
    spent = 0.0
    for begin in range(0, calls, AT_ONCE):
        values = [pack(call_of(number)) for number in range(begin, begin + AT_ONCE)]
        before = time.process_time()
        tables.write(connection, [unpack(value, check=False) for value in values])
        spent += time.process_time() - before
    return spent


def ask(connection: sqlite3.Connection, question: Question, vouched: bool = False) -> float:
    """Seconds of one query of the bank."""
    before = time.perf_counter()
    assert not question.session or tables.takes_part(connection, ["bank"], question.session)
    assert tables.find(connection, ["bank"], question, vouched)
    return time.perf_counter() - before


async def session_from(port: int, calls: int, missing: dict[str, str], found: int) -> None:
    """Print how long a query takes over MQTT, once the broker has said that these sites are missing. found: calls of each session."""
    party = await mqtt.party(port, "answers/query")
    answered: asyncio.Queue[bytes] = asyncio.Queue()
    party.taken = lambda publish: answered.put_nowait(publish.payload)
    times: list[float] = []
    while len(times) < RUNS_OF_HOMES:
        before = time.perf_counter()
        asked = json.dumps({"session": f"{random.randrange(calls // OF_SESSION):032x}"}).encode()
        party.post(QUERY, asked, {Property.RESPONSE_TOPIC: "answers/query"})
        answer = json.loads(await answered.get())
        if answer["missing"] == missing and len(answer["calls"]) == found:
            times.append(time.perf_counter() - before)
        else:
            assert not times, answer["missing"]
    party.close()
    times.sort()
    median, late = (1e3 * times[RUNS_OF_HOMES * part // 100] for part in (50, 99))
    print(f"  missing {', '.join(missing) or 'nobody'}: median {median:.2f} ms, p99 {late:.2f} ms")


def copied(tables: Path, data: Path) -> None:
    shutil.copy(tables, data)


def of_homes(tables: Path, calls: int, homes: int) -> None:
    """Ask the first of so many brokers for sessions, with all there and with the last one stopped."""
    names = [f"home{number}" for number in range(homes)]
    with brokers(names, [sys.executable], prepared=partial(copied, tables)) as (ports, processes):
        print(f"a session, {homes} homes, {2 * calls * homes:,} hops")
        asyncio.run(session_from(ports[0], calls, {}, OF_SESSION * homes))
        processes[-1].terminate()
        asyncio.run(session_from(ports[0], calls, {names[-1]: "out of reach"}, OF_SESSION * (homes - 1)))


def main() -> None:
    """Print what is measured."""
    parser = argparse.ArgumentParser(description="queries among many calls of one home")
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--homes", type=int, default=0)
    options = parser.parse_args()
    calls: int = options.calls
    with tempfile.TemporaryDirectory() as folder:
        connection = tables.connect(Path(folder) / "correlation.db")
        tables.prepare(connection)
        print(f"{calls:,} calls, {2 * calls:,} hops: {1e6 * fill(connection, calls) / calls:.0f} us of processor time a call")
        if options.homes:
            connection.close()
            of_homes(Path(folder) / "correlation.db", calls, options.homes)
            return
        questions: dict[str, Callable[[], tuple[Question, bool]]] = {
            "a session": lambda: (Question(session=f"{random.randrange(calls // OF_SESSION):032x}"), True),
            "a call": lambda: (Question(call=f"{random.randrange(calls):016x}"), False),
            "the latest 100": lambda: (Question(), False),
            "a period": lambda: (Question(until=1000 + random.randrange(1, calls)), False),
        }
        for name, made in questions.items():
            times = sorted(ask(connection, *made()) for _ in range(RUNS))
            print(f"{name}: median {1e3 * times[RUNS // 2]:.2f} ms, p99 {1e3 * times[RUNS * 99 // 100]:.2f} ms")
        connection.close()


if __name__ == "__main__":
    main()
