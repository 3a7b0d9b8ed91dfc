"""Orders, three clerks that share them, and an order that none of them can read: work_queue.py URL"""

import sys

from mqmesh.client import AckMode, ConnectionFactory

URL = sys.argv[1] if len(sys.argv) > 1 else "mqtt://127.0.0.1:1883"
factory = ConnectionFactory(URL, queue_prefetch=1)  # no order waits at a clerk while another clerk is free

with factory.create_context() as shop:
    orders = shop.create_queue("orders")
    for text in ("100 bolts", "200 nuts", "???", "50 screws"):
        shop.create_producer().send(orders, text)
    shop.create_producer().set_priority(9).send(orders, "1 crane, today")
    with shop.create_browser(orders) as browser:
        print(f"{len(list(browser))} orders wait")

    dead_letters = shop.create_consumer(shop.create_queue("orders-dead"))
    clerks = [factory.create_context(AckMode.SESSION_TRANSACTED) for _ in range(3)]
    desks = [clerk.create_consumer(orders) for clerk in clerks]
    delivered, dead = 0, None
    while delivered < 4 or dead is None:
        for clerk, desk in zip(clerks, desks, strict=True):
            order = desk.receive(timeout=0.1)
            if order is None:
                continue
            if order.text == "???":
                clerk.rollback()  # it goes back into the queue; after too many deliveries it is dead
                continue
            clerk.create_producer().send(clerk.create_topic("deliveries"), order.text)
            clerk.commit()  # the delivery is sent, and the order is out of the queue
            delivered += 1
            print(f"delivered {order.text}")
        dead = dead or dead_letters.receive_no_wait()
    print(f"{dead.text!r} is dead: {dead.properties['mqmesh-dead-reason']}")
    for clerk in clerks:
        clerk.close()
