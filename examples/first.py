"""In at one site, out at another. Start the mesh first: mqmesh up topologies/ring-of-five.toml"""

import queue
import sys

from paho.mqtt.client import CallbackAPIVersion, Client, MQTTv5

PORTO, TURIN = map(int, sys.argv[1:3] or (18301, 18303))


def connect(port: int) -> Client:
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
    client.connect("127.0.0.1", port)
    client.loop_start()
    return client


arrived: queue.Queue = queue.Queue()
turin = connect(TURIN)
turin.on_message = lambda client, userdata, message: arrived.put(message)
turin.subscribe("plant/+/temperature", qos=1)
porto = connect(PORTO)

message = None
while message is None:  # once, or again while turin's interest is on its way to porto: some milliseconds
    porto.publish("plant/3/temperature", "21.5", qos=1).wait_for_publish()
    try:
        message = arrived.get(timeout=0.5)
    except queue.Empty:
        print("not yet")
print(f"turin got {message.topic} = {message.payload.decode()}")
