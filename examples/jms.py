"""Orders and a clerk that works them off. Start a broker first: mqmesh broker --listen mqtt://127.0.0.1:1883"""

import sys

from mqmesh.client import AckMode, ConnectionFactory

URL = sys.argv[1] if len(sys.argv) > 1 else "mqtt://127.0.0.1:1883"
shop = ConnectionFactory(URL)
clerk = ConnectionFactory(URL, client_id="clerk")

# The clerk's durable subscription collects orders from now on, whether the clerk is there or not.
with clerk.create_context() as context:
    context.create_durable_consumer(context.create_topic("orders"), "desk", "amount > 0").close()

with shop.create_context() as context:
    orders = context.create_topic("orders")
    producer = context.create_producer().set_property("amount", 3).set_priority(7)
    producer.send(orders, {"article": "bolt M8", "price": 0.25})
    producer.set_property("amount", 0).send(orders, "nothing, really")  # not selected by the clerk

# What is received and what is sent count together, at commit.
with clerk.create_context(AckMode.SESSION_TRANSACTED) as context:
    consumer = context.create_durable_consumer(context.create_topic("orders"), "desk", "amount > 0")
    order = consumer.receive(timeout=10)
    context.create_producer().send(context.create_topic("deliveries"), f"{order.get_int_property('amount')} x {order['article']}")
    context.commit()
    print(f"delivered {order['article']}, order {order.message_id}, priority {order.priority}")
    consumer.close()
    context.unsubscribe("desk")
