"""Spark's data source "mqmesh": topics and journals to read, in batch and as a stream, and a sink that publishes exactly once."""
