"""The metabroker's MQTT connections."""
