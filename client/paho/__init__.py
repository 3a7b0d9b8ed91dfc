"""The transport over paho-mqtt."""
