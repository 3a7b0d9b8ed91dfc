"""Options that each listener of Mosquitto's may say, and that a broker of ours says once."""

from __future__ import annotations

from collections.abc import Iterable

from .mosquitto_conf import Conf, Listener, flag
from .remarks import Option, Remarks


def one_option(listeners: Iterable[Listener], name: str, remarks: Remarks, where: str) -> Option | None:
    """What listeners say under a name where the broker says it once; the others are lost."""
    given = [one.options[name] for one in listeners if name in one.options]
    for other in given[1:]:
        if other.value != given[0].value:
            remarks.lost(other, f"{where} is one for all listeners of a broker: that of line {given[0].line} is taken")
    return given[0] if given else None


def security_option(conf: Conf, listeners: list[Listener], name: str, remarks: Remarks, where: str) -> Option | None:
    if not conf.per_listener:
        return conf.last(name)
    return one_option(listeners, name, remarks, where)


def listener_flag(listener: Listener, name: str) -> bool:
    return name in listener.options and flag(listener.options[name])
