"""Messages, their bodies, properties, destinations and selectors."""
