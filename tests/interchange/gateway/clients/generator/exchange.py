"""Request, response, poll, query with the client that openapi-python-client has made of our document: python exchange.py URL

It does not know mqmesh: all is of the package `mqmesh_interchange_client`, which is found beside the document (`PYTHONPATH`).
"""

import sys

from mqmesh_interchange_client import Client
from mqmesh_interchange_client.api.default import explain, poll, post, query, settle
from mqmesh_interchange_client.models import Leases, Message, MessageKind, Query, Refusal

with Client(sys.argv[1]) as client:
    asked = Message(MessageKind.REQUEST, sender="shop/orders", recipients=["bank/credit"], body="order 17")
    would = explain.sync(client=client, body=asked)
    assert would.routes[0]["deliveries"] == [{"service": "bank/credit"}], would
    told = post.sync(client=client, body=asked, idempotency_key="h-1")
    (request,) = poll.sync("bank", "credit", client=client, wait=30).messages
    assert (request.body, request.call) == ("order 17", told.call), request
    answer = Message(MessageKind.RESPONSE, sender="bank/credit", hop=request.hop, body="granted")
    assert post.sync(client=client, body=answer).call == told.call
    assert settle.sync(client=client, body=Leases(acknowledge=[request.lease])).unknown == []
    (response,) = poll.sync("shop", "orders", client=client, wait=30).messages
    assert (response.body, response.handle) == ("granted", "h-1"), response
    refused = post.sync(client=client, body=answer)
    assert isinstance(refused, Refusal), refused
    assert refused.code == "already-answered", refused
    while not (found := query.sync(client=client, body=Query(call=told.call)).calls) or found[0]["status"] != "answered":
        pass
    print("done")
