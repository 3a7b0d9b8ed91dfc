"""The path of a PUBLISH through the broker: parse, route, acknowledge, deliver."""
