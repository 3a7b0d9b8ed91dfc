"""Traces: the whole way of messages as timelines, from live brokers, journals and the pipeline's tables. Without Spark and Java."""
