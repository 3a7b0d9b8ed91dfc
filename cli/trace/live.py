"""Asks running brokers for the events that they have of messages (`$mqmesh/trace`)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ...pipeline.errors import PipelineError

if TYPE_CHECKING:
    from ...broker.journal.search import Query
    from ...pipeline.trace.sources import Gathered

TOPIC = "$mqmesh/trace"


def ask(addresses: list[str], query: Query, user: str | None, password: str | None, into: Gathered) -> None:
    """Ask each broker, all at the same time. A message that one of them names is then asked for at the others.

    A broker that cannot be reached is noted. Raises PipelineError when none can.
    """
    answers = _all(addresses, query.values(), user, password)
    good = [one for one in answers if "events" in one]
    for address, one in zip(addresses, answers, strict=True):
        if "error" in one:
            into.notes.append(f"{address}: {one['error']}")
    if not good:
        raise PipelineError("no broker answers: " + "; ".join(into.notes))
    for one in good:
        _take(one, into)
    if query.message is None and len(addresses) > 1:
        found = {f"{row['origin']}.{row['origin_epoch']}.{row['stream']}.{row['sequence']}" for one in good for row in one["events"]}
        for message in sorted(found):
            for one in _all(addresses, {"message": message}, user, password):
                if "events" in one:
                    _take(one, into)


def _take(answer: dict[str, Any], into: Gathered) -> None:
    into.add_live(answer["events"], {int(number): name for number, name in answer.get("names", {}).items()})


def _all(addresses: list[str], request: dict[str, Any], user: str | None, password: str | None) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(addresses)) as pool:
        return list(pool.map(lambda address: _one(address, request, user, password), addresses))


def _one(address: str, request: dict[str, Any], user: str | None, password: str | None) -> dict[str, Any]:
    from ..connection import Connection
    from ..connection_options import ConnectionOptions, OptionError
    from ..mesh.requester import Requester

    try:
        requester = Requester(Connection(ConnectionOptions(host=address, username=user, password=password)), TOPIC)
        with requester.connection:
            return requester.request(request)
    except (ConnectionError, OptionError, ValueError) as error:
        return {"error": str(error)}
