"""The interchange inside a broker: what clients post comes in, the broker's queues and store carry what it decides."""
