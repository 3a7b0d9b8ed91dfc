"""Access rules for the metabroker's topics at brokers that are not ours, as text for their files (docs/metabroker-security.md).

The rules are the same everywhere. Each client has its own place below `metabroker/request/` and `metabroker/response/`, which is named
after it; only the metabroker reads the one and writes the other. Nobody may publish to `metabroker/request/connect`, as such a broker does
not say who sent a message.

Brokers that decide when a client subscribes refuse all that no rule allows, because no list of forbidden filters would be complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from ..base.metabroker import PEER, REQUEST, RESPONSE, STATUS

MORE = "what else your clients use: no filter that covers metabroker/"


class RulesError(ValueError):
    """The rules cannot be made; one line."""


def mosquitto(metabroker: str, users: Sequence[str], by_client_id: bool) -> str:
    """An `acl_file`."""
    mark = "%c" if by_client_id else "%u"
    return f"""# each client of the metabroker
pattern write {REQUEST}{mark}/#
pattern read {RESPONSE}{mark}/#
pattern read {STATUS}#
# {MORE}

# the metabroker
user {metabroker}
topic read {REQUEST}#
topic write {RESPONSE}#
topic write {STATUS}#
topic readwrite {PEER}#
"""


def emqx(metabroker: str, users: Sequence[str], by_client_id: bool) -> str:
    """An `acl.conf`."""
    mark = "${clientid}" if by_client_id else "${username}"
    return f"""%% the metabroker
{{allow, {{user, {json.dumps(metabroker)}}}, subscribe, ["{REQUEST}#", "{PEER}#"]}}.
{{allow, {{user, {json.dumps(metabroker)}}}, publish, ["{RESPONSE}#", "{STATUS}#", "{PEER}#"]}}.
%% each client of the metabroker
{{allow, all, publish, ["{REQUEST}{mark}/#"]}}.
{{allow, all, subscribe, ["{RESPONSE}{mark}/#", "{STATUS}#"]}}.
%% {MORE}

{{deny, all}}.
"""


def nanomq(metabroker: str, users: Sequence[str], by_client_id: bool) -> str:
    """A `nanomq_acl.conf`."""
    mark = "${clientid}" if by_client_id else "${username}"
    own = {"permit": "allow", "username": metabroker}
    rules = [
        own | {"action": "subscribe", "topics": [f"{REQUEST}#", f"{PEER}#"]},
        own | {"action": "publish", "topics": [f"{RESPONSE}#", f"{STATUS}#", f"{PEER}#"]},
        {"permit": "allow", "action": "publish", "topics": [f"{REQUEST}{mark}/#"]},
        {"permit": "allow", "action": "subscribe", "topics": [f"{RESPONSE}{mark}/#", f"{STATUS}#"]},
    ]
    lines = "".join(f"  {json.dumps(rule)},\n" for rule in rules)
    return f'rules = [\n{lines}  # {MORE}\n  {{"permit": "deny"}}\n]\n'


def hivemq(metabroker: str, users: Sequence[str], by_client_id: bool) -> str:
    """The roles in the `credentials.xml` of the extension File RBAC."""
    mark = "${{clientid}}" if by_client_id else "${{username}}"
    server = [(f"{REQUEST}#", "SUBSCRIBE"), (f"{RESPONSE}#", "PUBLISH"), (f"{STATUS}#", "PUBLISH")]
    server += [(f"{PEER}#", activity) for activity in ("PUBLISH", "SUBSCRIBE")]
    client = [(f"{REQUEST}{mark}/#", "PUBLISH"), (f"{RESPONSE}{mark}/#", "SUBSCRIBE"), (f"{STATUS}#", "SUBSCRIBE")]
    return (
        f"<!-- in <roles>: the user {metabroker} has the role metabroker, each client metabroker-client -->\n"
        + _role("metabroker", server)
        + f"<!-- {MORE} -->\n"
        + _role("metabroker-client", client)
    )


def _role(name: str, permissions: list[tuple[str, str]]) -> str:
    inner = "".join(
        f"    <permission>\n      <topic>{topic}</topic>\n      <activity>{activity}</activity>\n    </permission>\n"
        for topic, activity in permissions
    )
    return f"<role>\n  <id>{name}</id>\n  <permissions>\n{inner}  </permissions>\n</role>\n"


def amqtt(metabroker: str, users: Sequence[str], by_client_id: bool) -> str:
    """The plugin in a broker's file; its rules know user names and no patterns."""
    if by_client_id:
        raise RulesError("amqtt has no rules for client identifiers: leave --by-client-id out")
    if not users:
        raise RulesError("amqtt has no patterns: name each client with --user")
    publish = {metabroker: [f"{RESPONSE}#", f"{STATUS}#", f"{PEER}#"]} | {user: [f"{REQUEST}{user}/#"] for user in users}
    subscribe = {metabroker: [f"{REQUEST}#", f"{PEER}#"]} | {user: [f"{RESPONSE}{user}/#", f"{STATUS}#"] for user in users}
    lines = [f"# in plugins; to each list add {MORE}", "amqtt.plugins.topic_checking.TopicAccessControlListPlugin:"]
    for name, lists in (("publish_acl", publish), ("acl", subscribe)):
        lines += [f"  {name}:", *(f"    {json.dumps(user)}: {json.dumps(filters)}" for user, filters in lists.items())]
    return "\n".join(lines) + "\n"


BROKERS: dict[str, Callable[[str, Sequence[str], bool], str]] = {
    "mosquitto": mosquitto,
    "emqx": emqx,
    "nanomq": nanomq,
    "hivemq": hivemq,
    "amqtt": amqtt,
}
