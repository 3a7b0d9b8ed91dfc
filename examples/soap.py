"""A request over SOAP, with zeep: docs/interchange-http.md"""

import sys

import zeep

site = zeep.Client(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8090/soap?wsdl").service
body = {"content_type": "application/json", "text": '{"amount": 100}'}
told = site.post(message={"kind": "request", "sender": "shop/orders", "recipient": [{"service": "bank/credit"}], "body": body})
print(told.call)
(request,) = site.poll(service="bank/credit", wait=30, most=1, selector=f"call = '{told.call}'")
site.post(message={"kind": "response", "sender": "bank/credit", "hop": request.hop, "body": {"text": "credit granted"}})
site.settle(acknowledge=[request.lease])
(response,) = site.poll(service="shop/orders", wait=30, most=1, selector=f"call = '{told.call}'")
print(response.body.text)
site.settle(acknowledge=[response.lease])
