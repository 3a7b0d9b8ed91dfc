"""A shop asks a bank for credit. The broker has an interchange with the services shop/orders and bank/credit: docs/interchange.md"""

import sys

from mqmesh.client import ConnectionFactory, Delivered, Service, ServiceError

broker = ConnectionFactory(sys.argv[1] if len(sys.argv) > 1 else "mqtt://127.0.0.1:1883")


def credit(request: Delivered) -> dict[str, int]:
    amount = request.json()["amount"]
    if amount > 1000:
        raise ServiceError(f"{amount} is too much", "too-much")
    return {"granted": amount}


with Service("bank/credit", broker) as bank, Service("shop/orders", broker) as shop:
    bank.serve(credit)
    for amount in (100, 5000):
        try:
            response = shop.request("bank/credit", {"amount": amount}, timeout=30)
            print(f"{response.sender} has granted {response.json()['granted']}")
        except ServiceError as error:
            print(error)
