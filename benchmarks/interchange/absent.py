"""Whether the time of a refusal tells what a stranger is not to know: `python -m benchmarks.interchange.absent`.

Each line asks for what is there and another's, and for what is not there, in turns, and has the median of each in microseconds. What is
there is large: a session of 1,000 calls, a call with 64 recipients and a service on each way, a service with 50 patterns of callers.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from mqmesh.interchange.calls import unpack
from mqmesh.interchange.correlation import tables
from mqmesh.interchange.correlation.questions import Question
from mqmesh.interchange.exchange import Exchange, Save
from mqmesh.interchange.identifiers import BEGINNING, Identifiers, first_count
from mqmesh.interchange.message import Message, read_header
from mqmesh.interchange.refusals import Refusal
from mqmesh.interchange.registry.records import Registry, Service
from mqmesh.interchange.rule_routes import RuleRoutes

NOW = BEGINNING + 86_400_000 * 300
SHOP, STRANGER, CLOSED = "shop/orders", "other/one", "bank/closed"
BANKS = [f"bank/number-{number}" for number in range(64)]
CALLS = 1000


class World:
    """One home with the exchanges of a shop with its banks, and the tables of its queries."""

    def __init__(self, folder: Path) -> None:
        closed = Service(CLOSED, callers=tuple(f"nobody-{number}/*" for number in range(50)))
        registry = Registry([closed, *(Service(name, users=("*",)) for name in (SHOP, STRANGER, "map/ids", *BANKS))])
        ids = Identifiers(1, 0, lambda: "f" * 16)
        self.exchange = Exchange(ids, RuleRoutes(lambda: registry), first_count(NOW - 1))
        self.large = self.exchange.post(self.message(SHOP, recipients=BANKS, services=["map/ids"]), NOW - 1)
        for number in range(CALLS):
            self.exchange.post(self.message(SHOP, recipients=BANKS[:1], session=self.large.session), NOW + number)
        self.connection: sqlite3.Connection = tables.connect(folder / "correlation.db")
        tables.prepare(self.connection)
        kept = {one.call: one.value for one in self.exchange.take() if isinstance(one, Save) and one.value is not None}
        tables.write(self.connection, map(unpack, kept.values()))
        self.one = self.exchange.post(self.message("map/ids", recipients=[STRANGER]), NOW + CALLS)  # the stranger has calls of its own too
        self.exchange.take()

    @staticmethod
    def message(sender: str, kind: str = "request", **fields: Any) -> Message:
        return Message(read_header({"kind": kind, "sender": sender, **fields}))

    def refused(self, kind: str = "request", **fields: Any) -> Callable[[], None]:
        message = self.message(STRANGER, kind, **fields)

        def post() -> None:
            with suppress(Refusal):
                self.exchange.post(message, NOW + CALLS)
                raise AssertionError("it is not refused")

        return post

    def found(self, **fields: Any) -> Callable[[], None]:
        question = Question(**fields)

        def ask() -> None:
            if question.session:
                assert not tables.takes_part(self.connection, ["other"], question.session)
            else:
                assert not tables.find(self.connection, ["other"], question)

        return ask

    def pairs(self) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
        """What is there and another's, and what is not there."""
        call, session = self.large.call, self.large.session
        none, nobody = "0001ffffffffffff", f"0001{'f' * 28}"
        to: dict[str, Any] = {"recipients": BANKS[:1]}
        return {
            "join a session": (self.refused(session=session, **to), self.refused(session=nobody, **to)),
            "join the session of a call": (self.refused(call=call, **to), self.refused(call=none, **to)),
            "respond to a call": (self.refused("response", call=call), self.refused("response", call=none)),
            "cancel a call": (self.refused("cancel", call=call), self.refused("cancel", call=none)),
            "call a service": (self.refused(recipients=[CLOSED]), self.refused(recipients=["bank/closee"])),
            "query a session": (self.found(session=session), self.found(session=nobody)),
            "query a call": (self.found(call=call), self.found(call=none)),
            "query what a service takes part in": (self.found(service=SHOP), self.found(service="shop/nobody")),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="time of refusals")
    parser.add_argument("--times", type=int, default=20_000)
    times: int = parser.parse_args().times
    with tempfile.TemporaryDirectory() as folder:
        for name, both in World(Path(folder)).pairs().items():
            spent: tuple[list[float], list[float]] = ([], [])
            for _ in range(times):
                for one, found in zip(both, spent, strict=True):
                    before = time.perf_counter()
                    one()
                    found.append(time.perf_counter() - before)
            there, absent = (1e6 * median(found) for found in spent)
            print(f"{name:36} another's {there:7.2f} us  not there {absent:7.2f} us")


if __name__ == "__main__":
    main()
