"""The conformance suite: what MQTT 3.1.1 and 5.0 demand of a server, statement by statement. See docs/conformance.md."""
