"""Queues that requests declare: for good, or for the time of a session."""
