"""Which sites have my message? Start the mesh first: mqmesh up topologies/ring-of-five.toml"""

import json
import queue
import sys

from paho.mqtt.client import CallbackAPIVersion, Client, MQTTv5
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

PORTO, TURIN = map(int, sys.argv[1:3] or (18301, 18303))


def connect(port: int, name: str, properties: Properties | None = None) -> Client:
    client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTv5)
    client.acknowledged = queue.Queue()
    client.arrived = queue.Queue()
    client.on_publish = lambda client, userdata, mid, reason, properties: client.acknowledged.put(properties)
    client.on_message = lambda client, userdata, message: client.arrived.put(message)
    client.connect("127.0.0.1", port, properties=properties)
    client.loop_start()
    return client


turin = connect(TURIN, "orders-at-turin")
turin.subscribe("orders/#", qos=1)

wish = Properties(PacketTypes.CONNECT)
wish.UserProperty = ("mqmesh-ack", "receipts")
porto = connect(PORTO, "orders-at-porto", wish)
porto.subscribe("receipts/orders-at-porto", qos=1)

receipt: dict[str, str] = {}
while receipt.get("mqmesh-received") != "turin":  # once, or again while turin's interest is on its way to porto: some milliseconds
    porto.publish("orders/7", "two pumps", qos=1)
    receipt = dict(getattr(porto.acknowledged.get(timeout=10), "UserProperty", []))
print(f"turin has {receipt['mqmesh-id']}")

question = Properties(PacketTypes.PUBLISH)
question.ResponseTopic = "receipts/orders-at-porto"
question.CorrelationData = b"1"
porto.publish("$mqmesh/receipts", receipt["mqmesh-id"], properties=question)
answer = json.loads(porto.arrived.get(timeout=10).payload)
print(f"{answer['topic']} is {answer['state']}: {', '.join(broker['name'] for broker in answer['received'])}")
