"""What becomes of messages when their recipient hangs, in mqmesh and in other brokers: `python -m benchmarks.recipients`."""
