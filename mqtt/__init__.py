"""MQTT 3.1.1 and 5.0 without input or output: packets, codec, topic rules, QoS session machine."""
