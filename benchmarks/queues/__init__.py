"""Queues: the engine alone (`python -m benchmarks.queues`), and beside other products (`python -m benchmarks.queues.peers`)."""
