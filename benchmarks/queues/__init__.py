"""Queues: the engine alone (`python -m benchmarks.queues`), beside other products (`.peers`), and one with millions of messages (`.large`)."""
