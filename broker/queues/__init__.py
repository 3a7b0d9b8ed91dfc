"""Intelligent queues: named queues that keep messages with a timed state for each subscriber."""
