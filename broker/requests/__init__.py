"""Requests that the broker itself answers over MQTT."""
