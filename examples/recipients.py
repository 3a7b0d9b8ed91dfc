"""An application that hangs: its orders go to another one, and back to the shop when that one hangs too: recipients.py URL"""

import sys

from mqmesh.client import AckMode, ConnectionFactory, failed_over, returned

URL = sys.argv[1] if len(sys.argv) > 1 else "mqtt://127.0.0.1:1883"
factory = ConnectionFactory(URL)
INTERVALS = {"message_interval": 0.3, "fault_interval": 60}  # seconds; the defaults are 10 s and 5 min

with (
    factory.create_context(AckMode.INDIVIDUAL) as clerk,
    factory.create_context(AckMode.INDIVIDUAL) as other,
    factory.create_context() as shop,
):
    orders = clerk.recipient("orders", ["orders-backup"], **INTERVALS)  # takes messages, and never acknowledges one
    backup = other.recipient("orders-backup", consents=["orders"], **INTERVALS)
    answers = shop.create_consumer(shop.create_topic("shop/answers"))
    producer = shop.create_producer().set_reply_to(shop.create_topic("shop/answers"))

    producer.send(shop.create_topic("app/orders/new"), "100 bolts")
    order = backup.receive(timeout=30)
    print(f"{backup.name} has {order.text!r}; {', '.join(failed_over(order))} did not take it")
    order.acknowledge()

    producer.send(shop.create_topic("app/orders/new"), "200 nuts")
    backup.receive(timeout=30)  # now this one hangs too
    back = answers.receive(timeout=30)
    why = returned(back)
    print(f"{back.text!r} came back: {why.reason}, tried {', '.join(why.tried)}")
