"""The URL of a product that keeps a log: `nats://user:password@host:4222?name=mqmesh_queues`.

name: of the log, so that one server keeps several. Other parameters are those of the product.
"""

from __future__ import annotations

import errno
import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit, urlunsplit

NAME = "mqmesh_queues"


class Url(NamedTuple):
    """bare: without parameters. shown: without user name and password too. name: of the log. number: of the parameter that is one."""

    bare: str
    shown: str
    name: str
    number: int


def parsed(url: str, parameter: str = "", number: int = 0) -> Url:
    """What a URL says. parameter: one that is a whole number; `number` where it is missing. Raises OSError."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (it raises for one that cannot be)
    except ValueError as error:
        raise OSError(errno.EINVAL, f"{url.rpartition('@')[2]}: {error}") from None
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    name, count = given.pop("name", NAME), given.pop(parameter, str(number)) if parameter else "0"
    host = parts.netloc.rpartition("@")[2]
    shown = f"{parts.scheme}://{host}{parts.path}?name={name}"
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
        raise OSError(errno.EINVAL, f"{shown}: 1 to 63 lower-case letters, digits or '_' are a name")
    if given or not re.fullmatch(r"[0-9]{1,2}", count):
        right = f"name and {parameter}, a whole number," if parameter else "name"
        raise OSError(errno.EINVAL, f"{shown}: {right} may stand after the question mark")
    return Url(urlunsplit(parts._replace(query="", fragment="")), shown, name, int(count))


def taken_over(shown: str) -> OSError:
    """Another broker has opened the log since."""
    return OSError(errno.EBUSY, f"{shown} was opened by another broker: stop that one and start this one anew, or give it another name")
