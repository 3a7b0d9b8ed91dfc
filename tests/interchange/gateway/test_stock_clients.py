"""Programs of others, as they are: suds with the WSDL, a client made of our OpenAPI document, the SDK of OpenTelemetry, MQTT.js."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from support.interchange_http import Web
from support.interchange_site import InterchangeSite
from support.services import PATIENCE, missing, require

HTTP = 'http = "http://127.0.0.1:0"'
REQUEST = {"kind": "request", "sender": "shop/orders", "recipients": ["bank/credit"]}
SUDS = """
import base64, json, sys
from suds.client import Client

client = Client(sys.argv[1], cache=None)
site = client.service
new = client.factory.create
message = new("ns0:Message")
message.kind, message.sender = "request", "shop/orders"
message.recipient = [new("ns0:Declaration")]
message.recipient[0].service = "bank/credit"
message.body = new("ns0:Part")
message.body.text = "order 17"
message.attachment = [new("ns0:Part")]
message.attachment[0].name = "invoice"
message.attachment[0].data = base64.b64encode(b"%PDF").decode()
told = site.post(message)
(request,) = site.poll("bank/credit", 1, 30)
attached = request.attachment[0]
assert (request.body.text, attached.name, attached.text) == ("order 17", "invoice", "%PDF"), request
response = new("ns0:Message")
response.kind, response.sender, response.hop = "response", "bank/credit", request.hop
response.body = new("ns0:Part")
response.body.text = "granted"
site.post(response)
site.settle([request.lease])
(answer,) = site.poll("shop/orders", 1, 30)
assert (answer.body.text, answer.call) == ("granted", told.call), answer
site.settle([answer.lease])
try:
    site.post(response)
except Exception as fault:
    assert "already-answered" in str(fault), fault
while not (found := json.loads(site.query(call=told.call))["calls"]) or found[0]["status"] != "answered":
    pass
assert found[0]["sender"] == "shop/orders", found
print("done")
"""


def url_of(site: InterchangeSite) -> str:
    assert site.inside.faces is not None
    return site.inside.faces.url


@pytest.mark.process
async def test_suds(tmp_path: Path) -> None:
    """Request, response, poll, query; an attachment inline."""
    pytest.importorskip("suds")
    async with InterchangeSite(tmp_path, interchange=HTTP) as site:
        words = sys.executable, "-c", SUDS, f"{url_of(site)}/soap?wsdl"
        done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


async def test_a_query_over_http(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, interchange=HTTP) as site:
        web = Web(url_of(site))
        told = (await web.post(REQUEST)).body
        found = await web.ask("POST", "/v1/query", json.dumps({"call": told["call"]}).encode())
        while not found.body["calls"]:
            found = await web.ask("POST", "/v1/query", json.dumps({"call": told["call"]}).encode())
        (call,) = found.body["calls"]
        assert (call["session"], call["sender"], call["status"]) == (told["session"], "shop/orders", "open")
        wrong = await web.ask("POST", "/v1/query", b'{"colour": "red"}')
        assert (wrong.status, wrong.body["code"]) == (400, "not-well-formed")


async def test_the_sdk_of_opentelemetry_takes_our_traceparent(tmp_path: Path) -> None:
    """A service's span is of the session's trace, below our hop; what it posts then goes on with its own."""
    pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    propagator, tracer = TraceContextTextMapPropagator(), TracerProvider().get_tracer("bank")
    async with InterchangeSite(tmp_path, interchange=HTTP) as site:
        web = Web(url_of(site))
        await web.post(REQUEST)
        (request,) = await web.poll("bank/credit")
        with tracer.start_as_current_span("credit", context=propagator.extract({"traceparent": request["traceparent"]})) as span:
            assert f"{span.get_span_context().trace_id:032x}" == request["session"]
            assert isinstance(span, ReadableSpan)
            assert span.parent is not None
            assert f"{span.parent.span_id:016x}" == request["hop"]
            carrier: dict[str, str] = {}
            propagator.inject(carrier)
        asked = REQUEST | {"sender": "bank/credit", "recipients": ["map/ids"]}
        await web.post(asked, traceparent=carrier["traceparent"])
        (second,) = await web.poll("map/ids")
        found = trace.get_current_span(propagator.extract({"traceparent": second["traceparent"]})).get_span_context()
        assert f"{found.trace_id:032x}" == request["session"]


@pytest.mark.service
async def test_mqtt_js(tmp_path: Path) -> None:
    """Request, response and query over plain MQTT 5."""
    clients = Path(__file__).parent / "clients"
    node = require("node")
    if not (clients / "node_modules" / "mqtt").is_dir():
        missing("MQTT.js is not installed: make services (npm, tests/interchange/gateway/clients/package.json)")
    async with InterchangeSite(tmp_path) as site:
        words = node, str(clients / "request_and_response.mjs"), site.broker.addresses[0]
        done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stdout) == (0, "response granted true true answered\n"), done.stderr


@pytest.mark.service
async def test_openapi_python_client(tmp_path: Path) -> None:
    """Request, response, poll, query, explain with the client that it makes of our document."""
    generator = Path(__file__).parent / "clients" / "generator"
    maker = generator / ".venv" / "bin" / "openapi-python-client"
    if not maker.is_file():
        missing("openapi-python-client is not installed: make services")
    async with InterchangeSite(tmp_path, interchange=HTTP) as site:
        made = tmp_path / "made"
        words = str(maker), "generate", "--url", f"{url_of(site)}/openapi.json", "--meta", "none"
        words += "--output-path", str(made / "mqmesh_interchange_client")
        made.mkdir()
        done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        words = str(generator / ".venv" / "bin" / "python"), str(generator / "exchange.py"), url_of(site)
        run = partial(subprocess.run, env=os.environ | {"PYTHONPATH": str(made)})
        done = await asyncio.to_thread(run, words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
