"""Exchanges over the interchange, beside plain request/response of MQTT 5 with the same durability: `python -m benchmarks.interchange`."""
