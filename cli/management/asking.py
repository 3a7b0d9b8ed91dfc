"""Management requests over MQTT, as commands make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..connection_options import reported_errors
from ..output import FAILED, WRONG_USE, fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..connection_options import ConnectionOptions

TOPIC = "$mqmesh/manage"
PAGE = 100


def request(command: str, asked: Sequence[dict[str, Any]], options: ConnectionOptions) -> list[dict[str, Any]]:
    """The answer to each request. command: its name for errors, which end it with one line."""
    from ..connection import Connection
    from ..mesh.requester import Requester

    try:
        with reported_errors(command):
            requester = Requester(Connection(options), TOPIC)
            with requester.connection:
                return [checked(command, requester.request(one)) for one in asked]
    except ValueError as error:  # an answer that is not JSON
        raise fail(f"{command}: {error}") from None


def rows(command: str, asked: dict[str, Any], limit: int, options: ConnectionOptions) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Up to so many rows of a list, page by page, and the last answer."""
    from ..connection import Connection
    from ..mesh.requester import Requester

    found: list[dict[str, Any]] = []
    cursor: str | None = None
    try:
        with reported_errors(command):
            requester = Requester(Connection(options), TOPIC)
            with requester.connection:
                while True:
                    more = {"limit": min(PAGE, limit - len(found)), "cursor": cursor}
                    answer = checked(command, requester.request({**asked, **more}))
                    found += answer["rows"]
                    cursor = answer["cursor"]
                    if cursor is None or len(found) >= limit:
                        return found, answer
    except ValueError as error:
        raise fail(f"{command}: {error}") from None


def checked(command: str, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer that is no error; one ends the command."""
    if "error" in answer:
        raise fail(f"{command}: {answer['error']}", FAILED)
    return answer


def sites_of(at: str | None) -> dict[str, Any]:
    """The option `--at` as the key of a request: one site, several with commas, or all."""
    if at is None:
        return {}
    names = [name for name in at.split(",") if name]
    return {"at": names[0] if len(names) == 1 else names}


def pairs(command: str, given: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE` arguments."""
    found = {}
    for one in given:
        key, separator, value = one.partition("=")
        if not separator or not key:
            raise fail(f"{command}: {one}: give COLUMN=CONDITION, as client='sensor-*' or bytes='>1000'", WRONG_USE)
        found[key] = value
    return found
