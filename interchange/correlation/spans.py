"""What became of a call as OpenTelemetry spans: one for the call, and below it one for each hop, from its delivery to its answer.

A span's identifier is that of its call or hop. So the spans of a service that takes the `traceparent` which came with a message stand below
the span of its hop. The trace is the one that came with the post, or the session. Source: semantic conventions for messaging.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...broker.journal.spans import CONSUMER, ERROR, PRODUCER, attributes

PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
GOOD = ("answered", "delivered", "completed", "acknowledged")
Row = dict[str, Any]


def spans_of(call: Mapping[str, Any]) -> list[Row]:
    """The spans of a call that has ended, as queries show it."""
    came = PARENT.fullmatch(call.get("trace", ""))
    trace = came[1] if came else call["session"]
    values = {
        "mqmesh.session": call["session"],
        "mqmesh.topic": call.get("topic"),
        **_messaging(call["sender"], call["kind"], call["call"]),
    }
    whole = _span(trace, call["call"], f"{call['kind']} of {call['sender']}", PRODUCER, call["created"], call["ended"], values, call)
    if came:
        whole["parentSpanId"] = came[2]
    made = [whole]
    for branch in call["recipients"]:
        for hop in branch["hops"]:
            told = _messaging(hop["service"], hop["kind"], call["call"]) | {"messaging.message.body.size": hop["size"]}
            name = f"{hop['kind']} to {hop['service']}"
            ended = hop.get("ended") or call["ended"]
            failed = {"status": hop["status"], "code": branch.get("code"), "reason": branch.get("reason")}
            made.append(_span(trace, hop["hop"], name, CONSUMER, hop["given"], ended, told, failed) | {"parentSpanId": call["call"]})
    return made


def resource_spans(spans: Iterable[Row], site: str, version: str) -> Row:
    """The body of one request to a collector."""
    resource = {"service.name": "mqmesh", "service.instance.id": site, "service.version": version}
    scopes = [{"scope": {"name": "mqmesh.interchange", "version": version}, "spans": list(spans)}]
    return {"resourceSpans": [{"resource": {"attributes": attributes(resource)}, "scopeSpans": scopes}]}


def _messaging(service: str, kind: str, call: str) -> Row:
    return {
        "messaging.system": "mqmesh",
        "messaging.operation.name": kind,
        "messaging.operation.type": "send",
        "messaging.destination.name": service,
        "messaging.message.conversation_id": call,
    }


def _span(trace: str, own: str, name: str, side: int, begin: int, end: int, values: Row, ended: Mapping[str, Any]) -> Row:
    made = {
        "traceId": trace,
        "spanId": own,
        "name": name,
        "kind": side,
        "startTimeUnixNano": str(begin * 1_000_000),
        "endTimeUnixNano": str(max(begin, end) * 1_000_000),
        "attributes": attributes(values | {"mqmesh.status": ended["status"]}),
    }
    if ended["status"] not in GOOD:
        made["status"] = {"code": ERROR, "message": ended.get("reason") or ended.get("code") or ended["status"]}
    return made
