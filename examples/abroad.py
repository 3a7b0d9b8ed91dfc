"""Readings of a broker that this program cannot reach, by the name of a service, through the metabroker beside its own broker.

In three terminals, `weather` being any MQTT 5 broker, here one at port 1884:
    mqmesh broker --listen mqtt://127.0.0.1:1883
    mqmesh broker --listen mqtt://127.0.0.1:1884
    mqmesh metabroker --community mqtt://127.0.0.1:1883 --policy policy.toml --services services.toml
where policy.toml says who may do what, and services.toml where it is:
    [[allow]]
    clients = ["*"]
    remotes = ["weather"]
    publish = ["rain/#"]
    subscribe = ["rain/#"]

    [services]
    weather = ["mqtt://127.0.0.1:1884"]
"""

import sys

from mqmesh.client import JMSError, MetabrokerConnectionFactory

COMMUNITY = sys.argv[1] if len(sys.argv) > 1 else "mqtt://127.0.0.1:1883"

factory = MetabrokerConnectionFactory(COMMUNITY, "weather", client_id="office")
with factory.create_context() as context:
    readings = context.create_consumer(context.create_topic("rain/+"), "amount > 0")
    producer = context.create_producer()
    for river, amount in (("rhine", 7), ("elbe", 0), ("oder", 2)):
        producer.set_property("amount", amount).send(context.create_topic(f"rain/{river}"), f"{amount} mm")
    for _ in range(2):
        reading = readings.receive(timeout=10)
        print(f"{reading.destination}: {reading.text}")

try:
    MetabrokerConnectionFactory(COMMUNITY, "stocks").create_context()
except JMSError as error:
    print(f"stocks: {error.error_code}")
