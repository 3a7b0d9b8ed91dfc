"""The log of segments: where queues keep messages and their states."""
